//! Random pipelines of several clients, through the pooler and to a server of their own: the
//! answers must be the same.
//!
//! The server is a small model of PostgreSQL's main loop (postgres.c): named and unnamed
//! statements, portals, transaction status, `ignore_till_sync`, copies that swallow Syncs.

use std::collections::{HashMap, VecDeque};

use super::harness::*;
use crate::wire::frame::{Framed, HEADER_BYTES, header, take_string};

/// A server session.
#[derive(Default)]
struct Session {
    input: Vec<u8>,
    out: Vec<u8>,
    named: HashMap<Vec<u8>, String>,
    unnamed: Option<String>,
    portal: Option<String>,
    /// `I`, `T` or `E`.
    status: u8,
    ignoring: bool,
    /// In a copy; begun by Execute?
    copying: Option<bool>,
}

impl Session {
    fn new() -> Self {
        Self { status: b'I', ..Self::default() }
    }

    fn say(&mut self, kind: u8, body: &[u8]) {
        self.out.extend(message(kind, body));
    }

    fn fail(&mut self, extended: bool) {
        self.say(b'E', b"SERROR\0VERROR\0C42601\0Mwrong\0\0");
        if self.status == b'T' {
            self.status = b'E';
        }
        if extended {
            self.ignoring = true;
        } else {
            self.ready();
        }
    }

    fn ready(&mut self) {
        if self.status == b'I' {
            self.portal = None;
        }
        self.say(b'Z', &[self.status]);
    }

    /// Whether it may run at all.
    fn allowed(&self, text: &str) -> bool {
        self.status != b'E' || matches!(text, "ROLLBACK" | "COMMIT" | "")
    }

    /// Executes a statement. `false`: it failed. A copy continues until its data has come.
    fn run(&mut self, text: &str, extended: bool) -> bool {
        if !self.allowed(text) {
            return false;
        }
        let mut words = text.split(' ');
        match (words.next(), words.next()) {
            (Some("SELECT"), Some("1/0")) | (Some("SELEC"), _) => return false,
            (Some("SELECT"), _) => self.say(b'D', text.as_bytes()),
            (Some("BEGIN"), _) => self.status = b'T',
            (Some("COMMIT" | "ROLLBACK"), _) => self.status = b'I',
            (Some("COPY"), _) => {
                self.copying = Some(extended);
                self.say(b'G', b"");
                return true;
            }
            (Some("DISCARD"), _) => {
                if self.status != b'I' {
                    return false;
                }
                self.named.clear();
                self.unnamed = None;
            }
            (Some("DEALLOCATE"), Some(name)) => {
                if self.named.remove(name.as_bytes()).is_none() {
                    return false;
                }
            }
            (Some(""), _) => {
                self.say(b'I', b"");
                return true;
            }
            other => panic!("{other:?}"),
        }
        self.say(b'C', &[text.split(' ').next().unwrap_or_default().as_bytes(), b"\0"].concat());
        true
    }

    fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.input.extend_from_slice(bytes);
        while let Framed::Header(head) = header(&self.input) {
            if self.input.len() < head.total() {
                break;
            }
            let message: Vec<u8> = self.input.drain(..head.total()).collect();
            self.take(head.kind, &message[HEADER_BYTES..]);
        }
        std::mem::take(&mut self.out)
    }

    fn take(&mut self, kind: u8, body: &[u8]) {
        if let Some(extended) = self.copying {
            match kind {
                b'd' if body == b"bad" => {}
                b'd' | b'S' | b'H' => return,
                b'c' => {
                    self.copying = None;
                    self.say(b'C', b"COPY\0");
                    if !extended {
                        self.ready();
                    }
                    return;
                }
                b'f' => {}
                other => panic!("message {other:?} in the middle of a copy"),
            }
            self.copying = None;
            self.fail(extended);
            return;
        }
        if self.ignoring && kind != b'S' {
            return;
        }
        let string = |bytes| {
            let (text, rest) = take_string(bytes).expect("a string");
            (text.to_vec(), rest)
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("plain text");
        let worked = match kind {
            b'Q' => {
                let text = text(&string(body).0);
                // A DEALLOCATE that Hawser answers itself does not reach the server: the portal
                // that it would drop stays, which does no harm.
                if !text.starts_with("DEALLOCATE") {
                    self.unnamed = None;
                    self.portal = None;
                }
                if !self.run(&text, false) {
                    self.fail(false);
                } else if self.copying.is_none() {
                    self.ready();
                }
                return;
            }
            b'S' => {
                self.ignoring = false;
                self.ready();
                return;
            }
            b'P' => {
                let (name, rest) = string(body);
                let text = text(&string(rest).0);
                if name.is_empty() {
                    self.unnamed = None;
                }
                let good = !text.starts_with("SELEC ")
                    && text != "hawser_refused"
                    && self.allowed(&text)
                    && !self.named.contains_key(&name);
                if good {
                    if name.is_empty() {
                        self.unnamed = Some(text);
                    } else {
                        self.named.insert(name, text);
                    }
                    self.say(b'1', b"");
                }
                good
            }
            b'B' => {
                let name = string(string(body).1).0;
                let found = if name.is_empty() {
                    self.unnamed.clone()
                } else {
                    self.named.get(&name).cloned()
                };
                self.portal = None;
                match found {
                    Some(text) if self.allowed(&text) => {
                        self.portal = Some(text);
                        self.say(b'2', b"");
                        true
                    }
                    _ => false,
                }
            }
            b'D' => {
                let name = string(&body[1..]).0;
                let found = match (body[0], name.is_empty()) {
                    (b'P', _) => self.portal.as_ref(),
                    (_, true) => self.unnamed.as_ref(),
                    (_, false) => self.named.get(&name),
                };
                let found = found.is_some_and(|text| self.allowed(text));
                if found {
                    if body[0] == b'S' {
                        self.say(b't', &[0, 0]);
                    }
                    self.say(b'n', b"");
                }
                found
            }
            b'E' => match self.portal.clone() {
                Some(text) => self.run(&text, true),
                None => false,
            },
            b'C' => {
                let name = string(&body[1..]).0;
                if name.is_empty() {
                    self.unnamed = None;
                } else {
                    self.named.remove(&name);
                }
                self.say(b'3', b"");
                true
            }
            b'H' | b'd' | b'c' | b'f' | b'X' => true,
            other => panic!("message {other:?}"),
        };
        if !worked {
            self.fail(true);
        }
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

const NAMES: [&str; 4] = ["", "a", "b", "c"];
const TEXTS: [&str; 10] = [
    "SELECT 1",
    "SELECT 2",
    "SELECT 3",
    "SELECT 4",
    "SELECT 1/0",
    "SELEC 1",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SELECT 5",
];

/// One action of a client. Texts of the unnamed statement tell clients apart.
fn deed(random: &mut Random, client: usize) -> Vec<u8> {
    let name = random.of(&NAMES);
    let text = random.of(&TEXTS);
    let own = format!("SELECT own{client}");
    // Hawser does not keep which unnamed statement a client has after an aborted pipeline that
    // would have replaced it (it gets an error instead of the old one): so none is used there.
    let fresh = if name.is_empty() { parse("", &own) } else { Vec::new() };
    let close = |name: &str| message(b'C', &[b"S", name.as_bytes(), b"\0"].concat());
    let copy_end = |random: &mut Random| {
        let mut data = Vec::new();
        for _ in 0..random.below(3) {
            data.extend(message(b'd', if random.below(5) == 0 { b"bad" } else { b"row" }));
        }
        data.extend(if random.below(4) == 0 { message(b'f', b"no\0") } else { message(b'c', b"") });
        data
    };
    match random.below(22) {
        20 => {
            let text = random.of(&["DEALLOCATE a", "DEALLOCATE b"]);
            [sync(), parse("", text), bind(""), execute(), sync()].concat()
        }
        0..=2 => query(text),
        3 => query(&own),
        4 => parse("", &own),
        5 => parse(name, text),
        6..=8 => [fresh, bind(name), execute()].concat(),
        9 => [fresh, bind(name), execute(), sync()].concat(),
        10 => close(name),
        11 => [fresh, message(b'D', &[b"S", name.as_bytes(), b"\0"].concat())].concat(),
        12 => message(b'D', b"P\0"),
        13 => message(b'H', b""),
        14 => [sync(), query(random.of(&["DISCARD ALL", "DEALLOCATE a", "DEALLOCATE b"]))].concat(),
        // A copy inside a pipeline that has failed is only ignored, so it may stand anywhere.
        15 => [query("COPY t FROM STDIN"), copy_end(random)].concat(),
        16 => {
            let start = [parse("", "COPY t FROM STDIN"), bind(""), execute()].concat();
            let early = if random.below(2) == 0 { sync() } else { Vec::new() };
            // No later Bind finds the COPY, for which it would have no data.
            let after = [sync(), parse("", &own), sync()].concat();
            [sync(), start, early, copy_end(random), after].concat()
        }
        _ => sync(),
    }
}

/// Messages as far as they must be equal: an error's text may name other things.
fn essence(mut bytes: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    while let Framed::Header(head) = header(bytes) {
        let body = String::from_utf8_lossy(&bytes[HEADER_BYTES..head.total()]);
        let kind = char::from(head.kind);
        all.push(if kind == 'E' { "E".to_owned() } else { format!("{kind} {body}") });
        bytes = &bytes[head.total()..];
    }
    assert!(bytes.is_empty());
    all
}

struct Crowd {
    world: World,
    sessions: Vec<Session>,
    random: Random,
}

impl Crowd {
    /// Servers answer everything that has come, in parts of random size.
    fn answer(&mut self) {
        loop {
            let mut quiet = true;
            for number in 0..self.world.servers.len() {
                if self.sessions.len() <= number {
                    self.sessions.push(Session::new());
                }
                let server = self.world.servers[number].clone();
                let mut answer: VecDeque<u8> =
                    self.sessions[number].feed(&server.received()).into();
                while !answer.is_empty() {
                    quiet = false;
                    let bit = 1 + self.random.below(answer.len().min(40));
                    let bit: Vec<u8> = answer.drain(..bit).collect();
                    self.world.send(&server, &bit);
                }
            }
            if quiet {
                return;
            }
        }
    }
}

fn clients_are_answered_as_directly(seed: u64) {
    let mut random = Random(seed);
    let size = 1 + random.below(2) as u32;
    let mut crowd = Crowd { world: World::new(size), sessions: Vec::new(), random: Random(seed) };
    if random.below(2) == 0 {
        crowd.world.change_settings(|settings| settings.max_prepared_statements = 2);
    }
    let clients: Vec<Peer> = (0..3).map(|_| crowd.world.client()).collect();
    let mut direct: Vec<Session> = clients.iter().map(|_| Session::new()).collect();
    let mut wanted: Vec<Vec<u8>> = vec![Vec::new(); clients.len()];
    for _ in 0..60 {
        let number = random.below(clients.len());
        let mut bytes = Vec::new();
        for _ in 0..1 + random.below(4) {
            bytes.extend(deed(&mut random, number));
        }
        if random.below(2) == 0 {
            bytes.extend([sync(), query("ROLLBACK")].concat());
        }
        wanted[number].extend(direct[number].feed(&bytes));
        while !bytes.is_empty() {
            let bit = (1 + random.below(200)).min(bytes.len());
            let bit: Vec<u8> = bytes.drain(..bit).collect();
            crowd.world.send(&clients[number], &bit);
            if random.below(3) == 0 {
                crowd.answer();
            }
        }
    }
    for (number, client) in clients.iter().enumerate() {
        let end = [sync(), query("ROLLBACK")].concat();
        wanted[number].extend(direct[number].feed(&end));
        crowd.world.send(client, &end);
        crowd.answer();
    }
    crowd.answer();
    for (number, client) in clients.iter().enumerate() {
        let (got, wanted) = (essence(&client.received()), essence(&wanted[number]));
        let same = got.iter().zip(&wanted).take_while(|(one, other)| one == other).count();
        assert!(
            got == wanted,
            "seed {seed}, client {number}, answer {same}: {:?} in place of {:?}",
            &got[same.saturating_sub(3)..got.len().min(same + 3)],
            &wanted[same.saturating_sub(3)..wanted.len().min(same + 3)],
        );
    }
    let pool = crowd.world.pool.lock();
    assert_eq!(pool.idle_count(), pool.total(), "seed {seed}: all backends come back");
    assert!(crowd.world.asked.closed.is_empty(), "seed {seed}: {:?}", crowd.world.asked.closed);
}

#[test]
fn random_pipelines_are_answered_as_by_a_server_of_ones_own() {
    for seed in 1..200u64 {
        clients_are_answered_as_directly(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}
