//! Every message of a client, cut at every byte, while something of Hawser's own is due.
//!
//! # Model
//! A [`Due`] sets the scene up to the moment in which a message of Hawser's goes to the server before, within or
//! after what the client sends next. The client's message comes in two parts, and what decides on
//! Hawser's (an answer, a cancel request, time) comes between them. The same message is played whole twice:
//! all that comes between before it, and after it.
//!
//! # Invariants, of every server connection
//! * at each moment it has got whole messages, and at most the start of one
//! * half a message has its other half as soon as the client has sent that, or the connection has ended
//! * the messages, and their order, are those of one of the two runs in which the message came whole; so
//!   are the answers that the client reads
//!
//! # That it tests what it says
//! Each [`Due`] names what is seen on the server connection when Hawser's message has been sent. It must be
//! seen in a run whose message is cut.

use hawser_pooler::ids::LoopId;
use hawser_pooler::lending::PoolSettings;
use hawser_pooler::relay::limits::WHOLE_MESSAGE_BYTES;
use hawser_pooler::relay::{PoolMode, ToLoop};
use hawser_pooler::wire::build;
use hawser_pooler::wire::frame::{Framed, header};

use super::driver::clients::{MESSAGES, messages, split};
use super::driver::server::Session;
use super::driver::world::{Pipe, Undone, World};

/// Rounds until nothing moves.
const ROUNDS_MAX: usize = 200;
/// Of a message that is longer, the bytes at both ends, and around the length from which on it is passed on
/// in parts, are all tried, and of the others every so-manieth.
const SHORT: usize = 40;
const STRIDE: usize = 1_999;

type Message = (u8, Vec<u8>);

/// Something that happens.
#[derive(Clone, Copy)]
enum Step {
    /// The client sends this entry of [`messages`].
    Sends(u8),
    /// It sends these messages of an entry, and a Flush.
    SendsWithoutSync(u8),
    /// Another client of the pool sends this entry.
    OtherSends(u8),
    OtherLeaves,
    /// The servers answer all that they have got.
    Answers,
    /// They answer one message.
    AnswersOne,
    /// A cancel request with the client's key comes, and reaches the server.
    Cancels,
    /// The connections to servers are to be replaced.
    Replaces,
    Notifies,
    Passes(u64),
}

use Step::{
    Answers, AnswersOne, Cancels, Notifies, OtherLeaves, OtherSends, Passes, Replaces, Sends,
    SendsWithoutSync,
};

/// What is due to the server beside the client's message.
struct Due {
    name: &'static str,
    before: &'static [Step],
    between: &'static [Step],
    /// A part of Hawser's own message.
    sent: &'static [u8],
}

// Entries of `messages`.
const SELECT: u8 = 0;
const BEGIN: u8 = 1;
const PARSE_S: u8 = 5;
const SET_ZONE_A: u8 = 24;
const SET_ZONE_B: u8 = 25;
const SET_NAME: u8 = 26;
const LISTEN: u8 = 32;
const SET_LOCAL: u8 = 37;
const PREPARE_Q: u8 = 44;
const FAILS_IN_A_PIPELINE: u8 = 53;
const BOUND: u8 = 4;
const PARSE_T: u8 = 47;

const SYNC: &[u8] = &build::SYNC;

const DUE: &[Due] = &[
    Due { name: "nothing", before: &[], between: &[Answers], sent: b"SELECT" },
    Due {
        name: "a Sync after an error",
        before: &[SendsWithoutSync(FAILS_IN_A_PIPELINE)],
        between: &[Answers],
        sent: SYNC,
    },
    Due {
        name: "a Sync after an error, with answers before it",
        before: &[SendsWithoutSync(BOUND), SendsWithoutSync(FAILS_IN_A_PIPELINE)],
        between: &[AnswersOne, AnswersOne, Answers],
        sent: SYNC,
    },
    Due {
        name: "settings that go before a transaction",
        before: &[Sends(SET_ZONE_A), Answers, OtherSends(SET_ZONE_B), Answers],
        between: &[Answers],
        sent: b"SET \"timezone\" TO 'A'",
    },
    Due {
        name: "settings that go within a pipeline",
        before: &[Sends(SET_NAME), Answers, OtherSends(SELECT), Answers],
        between: &[Answers],
        sent: b"set_config",
    },
    Due {
        name: "settings while another client has the server connection",
        before: &[Sends(SET_ZONE_A), Answers, OtherSends(BEGIN), Answers],
        between: &[OtherLeaves, Answers],
        sent: b"SET \"timezone\" TO 'A'",
    },
    Due {
        name: "a DEALLOCATE of another client's statement",
        before: &[OtherSends(PREPARE_Q), Answers, Sends(SELECT), Answers],
        between: &[Answers],
        sent: b"DEALLOCATE",
    },
    Due {
        name: "a PREPARE of the client's own statement",
        before: &[Sends(PREPARE_Q), Answers, OtherSends(PREPARE_Q), Answers],
        between: &[Answers],
        sent: b"PREPARE",
    },
    Due {
        name: "a Parse of a statement that a new server connection lacks",
        before: &[Sends(PARSE_S), Answers, Replaces, OtherSends(SELECT), Answers],
        between: &[Answers],
        sent: b"SELECT $1",
    },
    Due {
        name: "a cancel request",
        before: &[Sends(SELECT)],
        between: &[Cancels, Answers],
        sent: b"SELECT",
    },
    Due {
        name: "a cancel request in a pipeline",
        before: &[SendsWithoutSync(BOUND)],
        between: &[Cancels, Answers],
        sent: SYNC,
    },
    Due {
        name: "a cancel request and the error of a pipeline",
        before: &[SendsWithoutSync(FAILS_IN_A_PIPELINE)],
        between: &[Cancels, AnswersOne, Answers],
        sent: SYNC,
    },
    Due {
        name: "a question about statements",
        before: &[Sends(PREPARE_Q)],
        between: &[Answers],
        sent: b"pg_prepared_statements",
    },
    Due {
        name: "a channel that the hub listens on",
        before: &[Sends(LISTEN)],
        between: &[AnswersOne, Notifies, Answers],
        sent: b"LISTEN",
    },
    Due {
        name: "the end of a transaction with values of SET LOCAL",
        before: &[Sends(SET_LOCAL)],
        between: &[Answers],
        sent: b"SET LOCAL",
    },
    Due {
        name: "server connections that are to be replaced",
        before: &[Sends(PARSE_S), Answers, Sends(SELECT)],
        between: &[Replaces, Answers],
        sent: b"SELECT",
    },
    Due {
        name: "a statement whose Parse is not answered",
        before: &[SendsWithoutSync(PARSE_T)],
        between: &[AnswersOne, Passes(900), Answers],
        sent: b"SELECT $1",
    },
];

struct Server {
    session: Session,
    /// All that it has got.
    got: Vec<u8>,
    /// Up to where the session has been fed.
    fed: usize,
}

struct Scene {
    world: World,
    servers: Vec<Server>,
    /// What the client, and the other one, have read.
    read: [Vec<u8>; 2],
    /// What both have sent.
    client_bytes: Vec<u8>,
}

/// What has been seen in the end.
#[derive(PartialEq, Eq)]
struct Seen {
    /// What each server has got.
    streams: Vec<Vec<Message>>,
    /// What the client has read.
    read: Vec<Message>,
}

const CLIENT: usize = 0;
const OTHER: usize = 1;

impl Scene {
    fn new() -> Self {
        let mut settings = PoolSettings {
            query_wait_timeout: std::time::Duration::ZERO,
            ..PoolSettings::default()
        };
        settings.limits.size = 1;
        let mut scene = Self {
            world: World::new(1, settings),
            servers: Vec::new(),
            read: Default::default(),
            client_bytes: Vec::new(),
        };
        for _ in [CLIENT, OTHER] {
            scene.world.connect(LoopId(0), PoolMode::Transaction, &[]);
        }
        scene.carry(0);
        scene
    }

    /// Brings what is on its way until nothing moves; of each server's messages `answers` are answered.
    fn carry(&mut self, mut answers: usize) {
        for _ in 0..ROUNDS_MAX {
            let Undone { messages, openings, cancels } = self.world.undone();
            let mut moved = messages + openings > 0;
            // (One on its way is not brought before the server answers something.)
            if answers > 0 && cancels > 0 {
                self.bring_cancels();
                moved = true;
            }
            let pipes: Vec<Pipe> =
                self.world.clients.iter().chain(&self.world.servers).cloned().collect();
            for pipe in &pipes {
                moved |= self.world.raise(pipe);
            }
            self.world.deliver(0);
            while self.world.open(0).is_some() {
                self.servers.push(Server { session: Session::new(&[]), got: Vec::new(), fed: 0 });
            }
            moved |= self.world.go_on();
            moved |= self.collect();
            moved |= self.answer(&mut answers);
            if !moved {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn collect(&mut self) -> bool {
        let mut moved = false;
        for (server, pipe) in self.servers.iter_mut().zip(&self.world.servers) {
            let new = pipe.received();
            moved |= !new.is_empty();
            server.got.extend_from_slice(&new);
            check_frames(&server.got);
        }
        for (read, pipe) in self.read.iter_mut().zip(&self.world.clients) {
            read.extend(pipe.received());
        }
        moved
    }

    fn answer(&mut self, most: &mut usize) -> bool {
        let mut moved = false;
        for (server, pipe) in self.servers.iter_mut().zip(&self.world.servers) {
            while *most > 0
                && let Some((kind, body)) = split(&server.got[server.fed..]).0.first()
            {
                server.session.feed(*kind, body);
                server.fed += 5 + body.len();
                *most -= 1;
                moved = true;
            }
            let said = server.session.take_flushed();
            if !said.is_empty() {
                pipe.send(&said);
                moved = true;
            }
            if server.session.is_ended() && !pipe.state().closed {
                pipe.close();
                moved = true;
            }
        }
        moved
    }

    fn client_sends(&mut self, who: usize, bytes: &[u8]) {
        self.client_bytes.extend_from_slice(bytes);
        self.world.clients[who].send(bytes);
        self.carry(0);
    }

    fn play(&mut self, step: Step) {
        match step {
            Sends(which) => self.client_sends(CLIENT, &messages(which, "own")),
            SendsWithoutSync(which) => {
                let mut bytes = Vec::new();
                for (kind, body) in split(&messages(which, "own")).0 {
                    if kind != b'S' {
                        build::message(&mut bytes, kind, |out| out.extend_from_slice(&body));
                    }
                }
                build::message(&mut bytes, b'H', |_| ());
                self.client_sends(CLIENT, &bytes);
            }
            OtherSends(which) => self.client_sends(OTHER, &messages(which, "other")),
            OtherLeaves => self.world.clients[OTHER].close(),
            Answers => self.carry(usize::MAX),
            AnswersOne => self.carry(1),
            Cancels => self.cancel(),
            Replaces => self.world.pool.begin_epoch(),
            Notifies => self.servers.iter_mut().for_each(|server| server.session.notify()),
            Passes(ms) => self.world.wait_ms(ms),
        }
        self.carry(0);
    }

    fn cancel(&mut self) {
        let (_, greeting) = split(&self.read[CLIENT])
            .0
            .into_iter()
            .find(|(kind, _)| *kind == b'K')
            .expect("the client has been greeted");
        let process =
            u32::from_be_bytes(*greeting.first_chunk().expect("BackendKeyData has an id"));
        let key = [CLIENT as u8; 4].into();
        self.world.post(LoopId(0), ToLoop::Cancel { process, key });
        self.carry(0);
        self.bring_cancels();
        self.carry(0);
    }

    fn bring_cancels(&mut self) {
        while let Some(number) = self.world.send_cancel(0) {
            let server = &mut self.servers[number];
            let waiting = split(&server.got[server.fed..]).0;
            server.session.cancel(waiting.iter().any(|(kind, _)| b"QE".contains(kind)));
        }
    }

    /// What the servers have got is whole, but where a connection has ended.
    fn check_whole(&self) {
        for (server, pipe) in self.servers.iter().zip(&self.world.servers) {
            let half = split(&server.got).1;
            assert!(
                half.is_empty() || pipe.is_dropped(),
                "half a message: {:?}",
                &half[..half.len().min(40)]
            );
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            streams: self.servers.iter().map(|server| split(&server.got).0).collect(),
            read: split(&self.read[CLIENT]).0,
        }
    }
}

impl Seen {
    /// A long message goes to the server as it comes: by the name that the client has given to a statement, and without a
    /// look at what it says, so that what is done before and after it may be another. It goes once or not at all, and
    /// the client reads the same.
    fn is_as_good_as(&self, whole: &Self, long: &[u8]) -> bool {
        let end = &long[long.len() - SHORT..];
        let sent = |seen: &Self| {
            seen.streams.iter().flatten().filter(|(_, body)| body.ends_with(end)).count()
        };
        self.read == whole.read && sent(self) == sent(whole)
    }
}

/// Whatever has come so far are messages of a client, and at most the start of one.
fn check_frames(mut bytes: &[u8]) {
    loop {
        match header(bytes) {
            Framed::Header(header) => {
                assert!(
                    b"QPBDECHFdcfSX".contains(&header.kind),
                    "{:?}",
                    &bytes[..bytes.len().min(40)]
                );
                let Some(rest) = bytes.get(header.total()..) else { return };
                bytes = rest;
            }
            Framed::Short => return,
            Framed::BadLength { .. } => panic!("{:?}", &bytes[..bytes.len().min(40)]),
        }
    }
}

/// Plays a message that is cut `at` this byte, in front of which and after which all of it comes at once.
fn play(due: &Due, bytes: &[u8], at: usize) -> Seen {
    let mut scene = Scene::new();
    due.before.iter().for_each(|step| scene.play(*step));
    if at > 0 {
        scene.client_sends(CLIENT, &bytes[..at]);
    }
    due.between.iter().for_each(|step| scene.play(*step));
    if at < bytes.len() {
        scene.client_sends(CLIENT, &bytes[at..]);
    }
    scene.check_whole();
    scene.play(Answers);
    // A pipeline ends, if it has not; then the client.
    if !scene.world.clients[CLIENT].is_dropped() {
        scene.client_sends(CLIENT, &build::SYNC);
        scene.play(Answers);
    }
    scene.world.clients[CLIENT].close();
    scene.play(Answers);
    scene.check_whole();
    scene.seen()
}

/// Where each message begins, and the end.
fn bounds(bytes: &[u8]) -> Vec<usize> {
    let mut bounds = vec![0];
    for (_, body) in split(bytes).0 {
        bounds.push(bounds.last().copied().unwrap_or(0) + 5 + body.len());
    }
    bounds
}

/// Bytes at which a message between these two is cut.
fn cuts(start: usize, end: usize) -> impl Iterator<Item = usize> {
    let near = move |at: usize, place: usize| at.abs_diff(place) <= SHORT / 2;
    (start + 1..end).filter(move |&at| {
        end - start <= WHOLE_MESSAGE_BYTES
            || near(at, start)
            || near(at, end)
            || at.abs_diff(start + WHOLE_MESSAGE_BYTES) <= 5
            || (at - start).is_multiple_of(STRIDE)
    })
}

fn show(seen: &Seen) -> String {
    let line = |messages: &[Message]| {
        let part = |(kind, body): &Message| {
            format!(
                "{}{:?} ",
                char::from(*kind),
                String::from_utf8_lossy(&body[..body.len().min(60)])
            )
        };
        messages.iter().map(part).collect::<String>()
    };
    let mut text: String =
        seen.streams.iter().map(|stream| format!("\n  server: {}", line(stream))).collect();
    text.push_str(&format!("\n  client: {}", line(&seen.read)));
    text
}

fn contains(stream: &[Message], part: &[u8]) -> bool {
    stream.iter().any(|(kind, body)| {
        let mut bytes = Vec::new();
        build::message(&mut bytes, *kind, |out| out.extend_from_slice(body));
        bytes.windows(part.len()).any(|window| window == part)
    })
}

/// What is wrong with this message, if anything is; and whether Hawser's own was sent.
fn try_all_cuts(due: &Due, which: u8, sent: &mut bool) -> Result<(), String> {
    let bytes = messages(which, "token");
    for pair in bounds(&bytes).windows(2) {
        let (start, end) = (pair[0], pair[1]);
        let (before, after) = (play(due, &bytes, start), play(due, &bytes, end));
        let in_parts = end - start > WHOLE_MESSAGE_BYTES;
        for at in cuts(start, end) {
            let seen = play(due, &bytes, at);
            *sent |= seen.streams.iter().any(|stream| contains(stream, due.sent));
            let is_like = |whole: &Seen| {
                if in_parts {
                    seen.is_as_good_as(whole, &bytes[start..end])
                } else {
                    seen == *whole
                }
            };
            if !is_like(&before) && !is_like(&after) {
                return Err(format!(
                    "{}, message {which}, its bytes {start} to {end}, cut at {at}:{}\nwhole, before the rest:{}\nwhole, after the rest:{}",
                    due.name,
                    show(&seen),
                    show(&before),
                    show(&after),
                ));
            }
        }
    }
    Ok(())
}

/// (In two halves, for two processors.)
fn try_all_messages(all: &[Due]) {
    let mut wrong = Vec::new();
    for due in all {
        let mut sent = false;
        wrong.extend((0..MESSAGES).filter_map(|which| try_all_cuts(due, which, &mut sent).err()));
        assert!(
            sent,
            "{}: it was never sent:{}",
            due.name,
            show(&play(due, &messages(BOUND, "token"), 0))
        );
    }
    assert!(
        wrong.is_empty(),
        "{} are wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(12)].join("\n\n")
    );
}

#[test]
fn a_message_cut_at_any_byte_is_the_message_whole_whatever_is_due() {
    try_all_messages(&DUE[..DUE.len() / 2]);
}

#[test]
fn a_message_cut_at_any_byte_is_the_message_whole_whatever_else_is_due() {
    try_all_messages(&DUE[DUE.len() / 2..]);
}
