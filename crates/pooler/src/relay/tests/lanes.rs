//! Both lanes, side by side: for the same bytes they write the same bytes (see [`crate::relay::plain`]).

use std::collections::BTreeSet;

use super::harness::*;
use crate::relay::limits;
use crate::wire::frame::{self, Framed, HEADER_BYTES};

/// A xorshift generator.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, of: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % of as u64) as usize
    }
}

/// A model of a server with statements, blocks and errors.
pub(super) struct Server {
    statements: BTreeSet<Vec<u8>>,
    status: char,
    skips: bool,
    /// INSERT fails.
    refuses_writes: bool,
}

impl Server {
    pub(super) fn new() -> Self {
        Self { statements: BTreeSet::new(), status: 'I', skips: false, refuses_writes: false }
    }

    pub(super) fn refusing_writes(self) -> Self {
        Self { refuses_writes: true, ..self }
    }

    fn refuses(&self, text: &[u8]) -> bool {
        text == b"SELEC" || (self.refuses_writes && text.starts_with(b"INSERT"))
    }

    fn runs(&mut self, text: &[u8]) -> bool {
        match text {
            b"ROLLBACK" | b"COMMIT" => self.status = 'I',
            _ if self.status == 'F' => return false,
            b"BEGIN" => self.status = 'T',
            _ if self.refuses(text) => return false,
            _ => {}
        }
        true
    }

    fn failed(&mut self) -> &'static str {
        if self.status == 'T' {
            self.status = 'F';
        }
        "E"
    }

    /// The answers to these messages.
    pub(super) fn answer(&mut self, mut sent: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        while let Framed::Header(header) = frame::header(sent) {
            let body = &sent[HEADER_BYTES..header.total()];
            sent = &sent[header.total()..];
            let name = |at: usize| frame::take_string(&body[at..]).expect("a name").0.to_vec();
            let said = match header.kind {
                b'S' => {
                    self.skips = false;
                    ""
                }
                _ if self.skips => continue,
                b'Q' => {
                    self.statements.remove(&b""[..]);
                    if self.runs(&name(0)) { "C" } else { self.failed() }
                }
                b'P' => {
                    let text = frame::take_string(&body[name(0).len() + 1..]).expect("a text").0;
                    let fails = self.refuses(text) || self.status == 'F';
                    self.skips = fails;
                    if fails {
                        if name(0).is_empty() {
                            self.statements.remove(&b""[..]);
                        }
                        self.failed()
                    } else {
                        self.statements.insert(name(0));
                        "1"
                    }
                }
                b'B' => {
                    let portal = name(0).len() + 1;
                    self.skips = !self.statements.contains(&name(portal)) || self.status == 'F';
                    if self.skips { self.failed() } else { "2" }
                }
                b'D' if body[0] == b'S' => {
                    self.skips = !self.statements.contains(&name(1));
                    if self.skips { self.failed() } else { "tn" }
                }
                b'D' => "n",
                b'E' => "DC",
                b'H' => "",
                b'C' => {
                    self.statements.remove(&name(1));
                    "3"
                }
                kind => panic!("a server gets {}", char::from(kind)),
            };
            out.extend(match said {
                "tn" => [message(b't', &[0, 0]), answers("n")].concat(),
                said => answers(said),
            });
            if matches!(header.kind, b'Q' | b'S') {
                out.extend(answers(&self.status.to_string()));
            }
        }
        assert!(sent.is_empty(), "half a message");
        out
    }
}

const TEXTS: [&str; 6] =
    ["SELECT 1", "INSERT INTO t VALUES (1)", "SELEC", "BEGIN", "COMMIT", "SELECT 1 /* a */"];

fn describe(of: &[u8]) -> Vec<u8> {
    message(b'D', &[of, b"\0"].concat())
}

/// Messages that a client sends at once.
pub(super) fn unit(rng: &mut Rng) -> Vec<u8> {
    let text = TEXTS[rng.below(TEXTS.len())];
    let name = ["s", "u"][rng.below(2)];
    let run = |described: bool| {
        let described = if described { describe(b"P") } else { Vec::new() };
        [described, execute(), sync()].concat()
    };
    match rng.below(9) {
        0 | 1 => query(text),
        2 | 3 => [parse("", text), bind(""), run(rng.below(2) == 0)].concat(),
        4 => [bind(""), run(false)].concat(),
        5 => [parse("", text), describe(b"S"), sync()].concat(),
        6 => [message(b'C', &[b"S", name.as_bytes(), b"\0"].concat()), parse(name, text), sync()]
            .concat(),
        7 => [bind(name), run(rng.below(2) == 0)].concat(),
        _ => [query(text), parse("", text), bind(""), run(false)].concat(),
    }
}

#[test]
fn both_lanes_write_the_same() {
    let mut plain = 0;
    for seed in 1..=400u64 {
        let mut rng = Rng(seed << 32 | 0x7f4a_7c15);
        let mut worlds = [World::new(1), World::new(1).without_plain_lane()];
        let clients = worlds.each_mut().map(|world| [world.client(), world.client()]);
        let mut servers = [Server::new(), Server::new()];
        for step in 0..40 {
            let (who, mut sent) = (rng.below(2), unit(&mut rng));
            let split = if rng.below(4) == 0 { rng.below(sent.len()) } else { sent.len() };
            let rest = sent.split_off(split);
            for part in [sent, rest].iter().filter(|part| !part.is_empty()) {
                let [with, without] = [0, 1].map(|lane| {
                    let (world, clients) = (&mut worlds[lane], &clients[lane]);
                    world.send(&clients[who], part);
                    let mut wrote = Vec::new();
                    while let Some(server) = world.servers.first().cloned() {
                        let got = server.received();
                        if got.is_empty() {
                            break;
                        }
                        let answer = servers[lane].answer(&got);
                        wrote.push(got);
                        world.send(&server, &answer);
                    }
                    (wrote, clients.each_ref().map(Peer::received))
                });
                assert_eq!(with, without, "seed {seed}, step {step}");
            }
        }
        let gone = worlds.each_ref().map(World::plain_pipelines);
        plain += gone[0];
        assert_eq!(gone[1], 0);
    }
    assert!(plain > 3000, "only {plain} went by the plain lane");
}

/// What a server gets in either lane for each of these messages of one client, whose answers follow.
fn sent_by_both(steps: &[(Vec<u8>, &str)]) -> Vec<String> {
    let [with, without] =
        [World::new(1), World::new(1).without_plain_lane()].map(|mut world| -> Vec<String> {
            let client = world.client();
            let sent = steps.iter().map(|(message, answer)| {
                world.send(&client, message);
                let server = world.servers[0].clone();
                let sent = server.kinds();
                world.send(&server, &answers(answer));
                sent
            });
            sent.collect()
        });
    assert_eq!(with, without);
    with
}

#[test]
fn a_statement_whose_pipeline_has_ended_in_order_is_not_lost_with_a_later_one() {
    let insert = [parse("", "INSERT INTO t VALUES (1)"), bind(""), execute()].concat();
    let sent = sent_by_both(&[
        ([insert, parse("s", "SELECT 1"), sync()].concat(), "12C1I"),
        (query("SELEC"), "EI"),
        ([bind("s"), execute(), sync()].concat(), "2CI"),
    ]);
    assert_eq!(sent[2], "BES", "it is not prepared again");
}

#[test]
fn a_portal_that_may_change_settings_is_known_in_the_next_pipeline() {
    let select = |name| [parse(name, "SELECT 1"), bind(name), execute(), sync()].concat();
    for insert in ["", "n"] {
        let named = [parse("n", "INSERT INTO t VALUES (1)"), sync()].concat();
        let bound = [bind(insert), execute(), sync()].concat();
        let (pipeline, answer) = match insert {
            "" => ([parse("", "INSERT INTO t VALUES (1)"), bound].concat(), "12CT"),
            _ => (bound, "2CT"),
        };
        let sent = sent_by_both(&[
            (select("s"), "12CI"),
            (named, "1I"),
            (query("BEGIN"), "CT"),
            (pipeline, answer),
            ([execute(), parse("u", "SELECT 1"), sync()].concat(), "C31T"),
        ]);
        assert_eq!(sent[4], "ECPS", "{insert:?}: the server itself says what that means");
    }
}

/// After 512 queries in a row a portal of an open transaction was forgotten.
#[test]
fn a_portal_that_may_change_settings_is_known_after_many_queries() {
    let bound = message(b'B', b"p\0n\0\0\0\0\0\0\0");
    let executed = message(b'E', b"p\0\0\0\0\0");
    let select = [bind("s"), execute(), sync()].concat();
    let mut sends = vec![
        ([parse("s", "SELECT 1"), sync()].concat(), "1I"),
        ([parse("n", "INSERT INTO t VALUES (1)"), sync()].concat(), "1I"),
        (query("BEGIN"), "CT"),
        ([bound, sync()].concat(), "2T"),
    ];
    sends.extend(std::iter::repeat_n((select, "2CT"), limits::UNBROKEN_QUERIES_MAX as usize));
    sends.push(([executed, parse("u", "SELECT 1"), sync()].concat(), "C31T"));
    let sent = sent_by_both(&sends);
    assert_eq!(sent.last().map(String::as_str), Some("ECPS"));
}
