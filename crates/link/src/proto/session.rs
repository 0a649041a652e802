//! One end of a session: its streams, its paths, and its requests to the host.
//!
//! # Model
//! The host owns sockets and TLS. It reports events of paths ([`Session::dialled`],
//! [`Session::received`], [`Session::sampled`], [`Session::lost`]) and of local sockets
//! ([`Session::put`], [`Session::wrote`], [`Session::ended`]); it carries out the requests of
//! [`Session::poll`], and sends the bytes of [`Session::fill`].
//! ```text
//!   near   open() ─ Open ─► far: Connect(stream) ─► put(), wrote() ... at both ends
//!          Unconfirmed ── first Ack ──► Confirmed         Open until both directions are done ─► Close(None)
//!                                                         Reset from either end ─► Close(Some(reason))
//! ```
//! Until the far end has confirmed a stream, its frames go by one path, copies of late ones too, so that
//! none overtakes its Open.
//! Confirmations and requests may be lost with a path: when any of its paths dies, each end sends
//! all of them again for all streams. All frames may come twice.
//!
//! * [`schedule`](self) (`session/schedule.rs`) which path carries which frame
//! * `session/arrivals.rs` what frames do
//! * `session/upkeep.rs` dials, pings, deaths, the end
//! * `session/choice.rs` which paths there are, by [`hawser_multipath::paths`]
//!
//! # Invariants
//! * as in [`super`]; and: a stream that has ended is never begun again by a late frame
//! * an end keeps the number and the reason of a stream that it has reset, until the peer says that
//!   it has forgotten the stream

mod arrivals;
mod choice;
mod schedule;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hawser_multipath::paths::action::{Event, PairId, Role as Chooses};
use hawser_multipath::paths::chooser::Chooser;
use hawser_time::Time;

use super::compression::{Codec, Compression, Shrinking};
use super::frame::{Frame, Reason, TARGET_BYTES_MAX, VERSION_MAX, VERSION_MIN};
use super::incoming::{INITIAL_CREDIT, Incoming};
use super::outgoing::{Ending, Outgoing, SEND_OWN_BYTES};
use super::past::{Past, PastPath};
use super::path::{Path, PathEnd, Stage};
use super::recent::Recent;
use super::report::{PathReport, StreamReport, Totals};
use super::run::{IDLE, Run};
use super::{PathId, StreamId, Token};
use crate::proto::sample::Sample;

/// Streams of a session.
pub const STREAMS_MAX: usize = 10_000;
/// Streams that were reset and whose end the peer has not confirmed; with more, the session ends.
pub const RESETS_MAX: usize = 2 * STREAMS_MAX;
/// Paths of a session.
pub const PATHS_MAX: usize = 64;
/// The total by which the windows of a session's streams may grow.
pub const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// Bytes that all streams of a session keep for sending, above what each may keep alone
/// ([`super::outgoing::SEND_OWN_BYTES`]): as many as an honest peer's windows grow by.
pub const SEND_SHARED_BYTES_MAX: u64 = GROWTH_BYTES_MAX;
/// Once all of it is used, none is given out until this much is free.
const SEND_SHARED_AGAIN: u64 = SEND_SHARED_BYTES_MAX / 8;
/// A stream that the far end has not confirmed for so long, or for as long as `grace`, is ended.
pub const UNCONFIRMED_MAX: Duration = Duration::from_secs(30);
/// The last bytes of a local socket that has broken are delivered within this time, or given up; its peer
/// has as long again to hand them to its program's host.
pub const LAST_BYTES_MAX: Duration = Duration::from_secs(30);
/// A small acknowledgement waits so long for others.
pub const ACK_DELAY: Duration = Duration::from_millis(20);

/// A request to the host.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// Establish a path between these addresses, from a port that was not used before, and say
    /// [`Session::dialled`] or [`Session::lost`].
    Dial(PathId, PairId),
    /// There may be something to send: [`Session::fill`].
    Write(PathId),
    /// Close the path's connection.
    Drop(PathId),
    /// The far end: connect a stream to its target.
    Connect(StreamId, Box<str>),
    /// There is something for the local socket: [`Session::ready`].
    Deliver(StreamId),
    /// The local socket has all; give it its end, then say [`Session::finished`].
    Finish(StreamId),
    /// There is room again: [`Session::room`].
    Room(StreamId),
    /// The near end, where the far end has forgotten the session: nothing of this stream was sent, so open
    /// it in the next session.
    Reopen(StreamId, Unsent),
    /// The other local socket has broken, and this one was given all that came before. A reset would drop
    /// what its kernel still holds: say [`Session::drained`] once its program's host has all.
    Drain(StreamId),
    /// The stream has ended: close the local socket; with a reason, by a reset.
    Close(StreamId, Option<Reason>),
    /// The session has ended, with all its streams; if with loss, why.
    Ended(Option<Reason>),
    /// For the log.
    Notice(Notice),
}

/// A stream that the far end does not know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsent {
    /// Where it goes.
    pub target: Box<str>,
    /// The bytes from the local socket.
    pub bytes: Vec<u8>,
    /// Whether that was all.
    pub ended: bool,
}

/// What an operator should know.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Notice {
    /// A path carries streams.
    PathUp(PathId),
    /// A path has ended; how many are left.
    PathLost(PathId, PathEnd, usize),
    /// The search for paths goes on with another state.
    Search(Event),
}

/// Why no stream can be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// There are [`STREAMS_MAX`].
    Full,
    /// The target's name is empty or longer than [`TARGET_BYTES_MAX`].
    Target,
    /// The session has ended.
    Ended,
}

/// There are [`PATHS_MAX`] paths, or the session has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathsFull;

/// The number of paths of the near end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paths {
    /// So many, on the pairs of addresses in turn.
    Fixed(usize),
    /// One for each pair of addresses; for bulk streams as many more as raise the total rate.
    Auto,
}

/// How an end is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The session's.
    pub token: Token,
    /// How long streams wait for a path if there is none.
    pub grace: Duration,
    /// Paths that the near end dials.
    pub paths: Paths,
    /// Pairs of addresses between which it can dial them, 1 to [`PATHS_MAX`].
    pub pairs: u32,
    /// Whether this end compresses what it sends.
    pub compression: Compression,
}

/// Whether the far end knows a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Confirmation {
    /// Open must be sent. `again`: it was sent before, on a path that has died, so the far end may
    /// know the stream.
    Due { again: bool },
    /// Open was sent on this path, and all else of the stream goes there too.
    Sent(PathId),
    /// It has answered.
    Confirmed,
}

#[derive(Debug)]
struct Stream {
    target: Box<str>,
    opened: Time,
    confirmation: Confirmation,
    out: Outgoing,
    incoming: Incoming,
    /// An acknowledgement is to be sent.
    ack_due: bool,
    /// ... and at the latest then.
    ack_late: Option<Time>,
    /// The path of the last acknowledgement: the peer's end of the stream depends on its arrival.
    acked_on: Option<PathId>,
    /// Its recent rates: bytes that the other local socket has taken, and those that this one has.
    sends: Recent,
    receives: Recent,
    /// What the local socket was given without a pause.
    came: Run,
    shrinking: Shrinking,
    /// It is in the queue of what can be sent.
    queued: bool,
    /// The local socket has broken: the stream is reset for this reason when its earlier bytes are
    /// delivered, or at this time.
    broke: Option<(Reason, Time)>,
}

impl Stream {
    /// Whether small messages have gone over it of late. Where one direction is bulk the other one has its
    /// acknowledgements, for which nothing waits.
    fn is_small(&self, now: Time) -> bool {
        let runs = [self.out.run(), &self.came];
        let is_new = now.since(self.opened) <= IDLE;
        !runs.iter().any(|run| run.is_bulk())
            && (is_new || !runs.iter().all(|run| run.is_idle(now)))
    }
}

/// The numbers of past streams, at the end that does not assign them.
#[derive(Debug, Default)]
struct Seen {
    upto: u64,
    beyond: BTreeSet<u64>,
}

impl Seen {
    fn has(&self, stream: StreamId) -> bool {
        stream.0 <= self.upto || self.beyond.contains(&stream.0)
    }

    fn add(&mut self, stream: StreamId) {
        if stream.0 > self.upto {
            self.beyond.insert(stream.0);
            while self.beyond.remove(&(self.upto + 1)) {
                self.upto += 1;
            }
        }
    }
}

/// When paths between a pair of addresses are dialled again.
#[derive(Clone, Copy, Debug)]
struct PairDials {
    failures: u32,
    dial_at: Time,
}

#[derive(Debug)]
enum Role {
    /// Opens streams and dials paths.
    Near { next_stream: u64, established: bool, pairs: Vec<PairDials> },
    /// Accepts both.
    Far { seen: Seen },
}

/// One end of a session.
#[derive(Debug)]
pub struct Session {
    config: Config,
    role: Role,
    streams: BTreeMap<StreamId, Stream>,
    paths: BTreeMap<PathId, Path>,
    next_path: u64,
    /// Streams that were reset here, why, and whether the reset was sent to the peer.
    resets: BTreeMap<StreamId, (Reason, bool)>,
    resets_due: BTreeSet<StreamId>,
    /// Streams that the peer must know to be forgotten here.
    gone: BTreeSet<StreamId>,
    /// Streams with an Open, an Ack or a Finish to be sent.
    control: BTreeSet<StreamId>,
    acks_late: BTreeSet<(Time, StreamId)>,
    /// Near: streams that wait for their confirmation, and until when.
    unconfirmed: BTreeSet<(Time, StreamId)>,
    /// Streams whose local socket has broken, and how long its last bytes have.
    broken: BTreeSet<(Time, StreamId)>,
    /// Streams that have ended because the peer's local socket has broken, while the one here still
    /// holds bytes of them, and their deadline.
    draining: BTreeSet<(Time, StreamId)>,
    small: VecDeque<StreamId>,
    bulk: VecDeque<StreamId>,
    /// Streams with bytes on paths, of which late ones may have to be sent again.
    flying: BTreeSet<StreamId>,
    late: BTreeSet<StreamId>,
    /// Small messages that are to be sent on a second path.
    twice: BTreeSet<StreamId>,
    late_at: Time,
    grown: u64,
    /// Of [`SEND_SHARED_BYTES_MAX`], and whether all of it is used and streams may wait for it.
    sending: u64,
    sending_is_full: bool,
    /// Since when no path works.
    down: Option<Time>,
    ended: bool,
    chooser: Chooser,
    /// When it looks next, and bytes since it last did.
    look_at: Time,
    moved: u64,
    /// Whether much was carried before the last look, and whether small messages came or went of late.
    bulky: bool,
    beside: bool,
    /// TCP was asked about paths since the last tick.
    samples_came: bool,
    codec: Codec,
    past: Past,
    requests: VecDeque<Request>,
    counts: Totals,
}

/// Until when a stream waits for its confirmation: in an outage, as long as others wait for a path.
fn confirmed_until(config: &Config, opened: Time) -> Time {
    opened.after(UNCONFIRMED_MAX.max(config.grace))
}

/// The chooser of a session.
fn chooser_of(config: &Config, role: &Role) -> Chooser {
    let [a, b, c, d, e, f, g, h, ..] = config.token.0;
    let seed = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    match (role, config.paths) {
        (Role::Near { .. }, Paths::Auto) => Chooser::wide(Chooses::Dials, seed),
        _ => Chooser::new(Chooses::Accepts, seed),
    }
}

impl Session {
    /// The end that dials; it asks for its first dials at the first [`Session::tick`].
    #[must_use]
    pub fn near(config: Config, now: Time) -> Self {
        let paths = match config.paths {
            Paths::Fixed(paths) => Paths::Fixed(paths.clamp(1, PATHS_MAX)),
            Paths::Auto => Paths::Auto,
        };
        let pairs = config.pairs.clamp(1, PATHS_MAX as u32);
        let dials = vec![PairDials { failures: 0, dial_at: now }; pairs as usize];
        let role = Role::Near { next_stream: 1, established: false, pairs: dials };
        Self::new(Config { paths, pairs, ..config }, role, now)
    }

    /// The end that accepts.
    #[must_use]
    pub fn far(config: Config, now: Time) -> Self {
        Self::new(config, Role::Far { seen: Seen::default() }, now)
    }

    fn new(config: Config, role: Role, now: Time) -> Self {
        let chooser = chooser_of(&config, &role);
        Self {
            config,
            role,
            streams: BTreeMap::new(),
            paths: BTreeMap::new(),
            next_path: 1,
            resets: BTreeMap::new(),
            resets_due: BTreeSet::new(),
            gone: BTreeSet::new(),
            control: BTreeSet::new(),
            acks_late: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            broken: BTreeSet::new(),
            draining: BTreeSet::new(),
            small: VecDeque::new(),
            bulk: VecDeque::new(),
            flying: BTreeSet::new(),
            late: BTreeSet::new(),
            twice: BTreeSet::new(),
            late_at: now,
            grown: 0,
            sending: 0,
            sending_is_full: false,
            down: Some(now),
            ended: false,
            chooser,
            look_at: now,
            moved: 0,
            bulky: false,
            beside: false,
            samples_came: false,
            codec: Codec::default(),
            past: Past::default(),
            requests: VecDeque::new(),
            counts: Totals::default(),
        }
    }

    /// The next request.
    pub fn poll(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// The session's token.
    #[must_use]
    pub fn token(&self) -> Token {
        self.config.token
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// For how long no path has worked; `None` if one does. A session without streams counts from
    /// the first of these on.
    #[must_use]
    pub fn down_for(&self, now: Time) -> Option<Duration> {
        self.down.map(|since| now.since(since))
    }

    /// For how long streams wait for a path.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.config.grace
    }

    /// Whether a path works.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.down.is_none()
    }

    /// The near end: a local program wants to reach a target, `host:port`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&mut self, target: &str, now: Time) -> Result<StreamId, OpenError> {
        if !(1..=TARGET_BYTES_MAX).contains(&target.len()) {
            return Err(OpenError::Target);
        }
        if self.ended {
            return Err(OpenError::Ended);
        }
        if self.streams.len() >= STREAMS_MAX || self.resets.len() >= STREAMS_MAX {
            return Err(OpenError::Full);
        }
        let Role::Near { next_stream, .. } = &mut self.role else { return Err(OpenError::Ended) };
        let id = StreamId(*next_stream);
        *next_stream += 1;
        if let (true, Some(down)) = (self.streams.is_empty(), &mut self.down) {
            *down = now; // the first that waits
        }
        self.add(id, target, Confirmation::Due { again: false }, INITIAL_CREDIT, now);
        self.unconfirmed.insert((confirmed_until(&self.config, now), id));
        self.control.insert(id);
        self.wake_best(id);
        Ok(id)
    }

    fn add(&mut self, id: StreamId, target: &str, at: Confirmation, limit: u64, now: Time) {
        self.counts.streams_opened += 1;
        self.beside = true; // until it proves to be bulk, or idle
        self.streams.insert(
            id,
            Stream {
                target: target.into(),
                opened: now,
                confirmation: at,
                out: Outgoing::new(limit),
                incoming: Incoming::new(),
                ack_due: false,
                ack_late: None,
                acked_on: None,
                sends: Recent::new(now),
                receives: Recent::new(now),
                came: Run::default(),
                shrinking: Shrinking::new(),
                queued: false,
                broke: None,
            },
        );
    }

    /// How many bytes of the local socket may be read now.
    #[must_use]
    pub fn room(&self, stream: StreamId) -> usize {
        self.streams.get(&stream).map_or(0, |stream| stream.out.room(self.sending_left()))
    }

    fn sending_left(&self) -> u64 {
        if self.sending_is_full { 0 } else { SEND_SHARED_BYTES_MAX - self.sending }
    }

    /// A stream has kept `before` of what all share, and keeps `after` now.
    fn keeps(&mut self, before: u64, after: u64) {
        self.sending = self.sending + after - before;
        if self.sending == SEND_SHARED_BYTES_MAX {
            self.sending_is_full = true;
        }
        if self.sending_is_full && SEND_SHARED_BYTES_MAX - self.sending >= SEND_SHARED_AGAIN {
            self.sending_is_full = false;
            let may_wait = |stream: &Stream| stream.out.kept() as u64 >= SEND_OWN_BYTES;
            let waiting = self.streams.iter().filter(|(_, stream)| may_wait(stream));
            self.requests.extend(waiting.map(|(id, _)| Request::Room(*id)));
        }
    }

    /// The local socket has given these bytes, at most [`Session::room`].
    pub fn put(&mut self, id: StreamId, bytes: &[u8], now: Time) {
        let left = self.sending_left();
        let Some(stream) = self.streams.get_mut(&id) else { return };
        debug_assert!(bytes.len() <= stream.out.room(left));
        let before = stream.out.shared();
        stream.out.put(bytes, now);
        let after = stream.out.shared();
        self.keeps(before, after);
        self.counts.taken_bytes += bytes.len() as u64;
        self.enqueue(id, now);
    }

    /// The local socket has given its end.
    pub fn ended(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.out.ending == Ending::No {
            stream.out.ending = Ending::Due;
            self.control.insert(id);
            self.wake_best(id);
        }
    }

    /// The local socket could not be connected (at the far end, with the reason).
    pub fn failed(&mut self, id: StreamId, reason: Reason) {
        self.reset(id, reason);
    }

    /// The local socket has broken, and all that it gave before was put in: those bytes are
    /// delivered first, as in TCP.
    pub fn broke(&mut self, id: StreamId, reason: Reason, now: Time) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.out.kept() == 0 {
            self.reset(id, reason);
        } else if stream.broke.is_none() {
            let until = now.after(LAST_BYTES_MAX);
            stream.broke = Some((reason, until));
            self.broken.insert((until, id));
        }
    }

    /// The program's host has all that the local socket was given, or takes nothing any more.
    pub fn drained(&mut self, id: StreamId) {
        let of = self.draining.iter().find(|(_, other)| *other == id).copied();
        if let Some(entry) = of {
            self.draining.remove(&entry);
            self.requests.push_back(Request::Close(id, Some(Reason::Local)));
        }
    }

    /// What the local socket is to be given.
    #[must_use]
    pub fn ready(&self, stream: StreamId) -> [&[u8]; 2] {
        self.streams.get(&stream).map_or([&[], &[]], |stream| stream.incoming.ready())
    }

    /// The local socket has taken so many bytes of [`Session::ready`].
    pub fn wrote(&mut self, id: StreamId, count: usize, now: Time) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let spare = GROWTH_BYTES_MAX.saturating_sub(self.grown);
        self.grown += stream.incoming.wrote(count, spare, now);
        stream.receives.note(stream.incoming.delivered(), now);
        stream.came.add(count, false, now);
        self.counts.delivered_bytes += count as u64;
        if stream.incoming.is_whole() {
            self.requests.push_back(Request::Finish(id));
        }
        self.ack(id, now);
    }

    /// The local socket was given its end.
    pub fn finished(&mut self, id: StreamId, now: Time) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.incoming.finished = true;
        self.ack(id, now);
    }

    /// An acknowledgement is due: now, or with others.
    fn ack(&mut self, id: StreamId, now: Time) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.incoming.is_ack_urgent() {
            self.ack_now(id);
        } else if !stream.ack_due && stream.ack_late.is_none() {
            let late = now.after(ACK_DELAY);
            stream.ack_late = Some(late);
            self.acks_late.insert((late, id));
        }
    }

    fn ack_now(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some(late) = stream.ack_late.take() {
            self.acks_late.remove(&(late, id));
        }
        stream.ack_due = true;
        self.control.insert(id);
        self.wake_best(id);
    }

    /// Ends a stream here and at the peer.
    fn reset(&mut self, id: StreamId, reason: Reason) {
        if !self.streams.contains_key(&id) {
            return;
        }
        self.remove(id, Some(reason));
        self.resets.insert(id, (reason, false));
        self.resets_due.insert(id);
        self.wake_all();
    }

    /// Forgets a stream and closes its local socket.
    fn remove(&mut self, id: StreamId, reason: Option<Reason>) {
        if self.forget(id).is_some() {
            self.counts.streams_reset += u64::from(reason.is_some());
            self.requests.push_back(Request::Close(id, reason));
        }
    }

    /// The peer has reset a stream.
    fn reset_by_peer(&mut self, id: StreamId, reason: Reason, now: Time) {
        // Only a program's own end waits for delivery: ends by the link are reported at once.
        let waits = reason == Reason::Local && self.draining.len() < STREAMS_MAX;
        if !waits {
            self.remove(id, Some(reason));
        } else if self.forget(id).is_some() {
            self.counts.streams_reset += 1;
            self.draining.insert((now.after(LAST_BYTES_MAX), id));
            self.requests.push_back(Request::Drain(id));
        }
    }

    /// Forgets the streams without sent bytes, and requests them in another session.
    fn release_unsent(&mut self) {
        let unsent = |stream: &Stream| stream.confirmation == Confirmation::Due { again: false };
        let unsent = self.streams.iter().filter(|(_, stream)| unsent(stream));
        for id in unsent.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(stream) = self.forget(id) {
                let (bytes, ended) = (stream.out.all(), stream.out.ending != Ending::No);
                let unsent = Unsent { target: stream.target, bytes, ended };
                self.requests.push_back(Request::Reopen(id, unsent));
            }
        }
    }

    fn forget(&mut self, id: StreamId) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        self.grown -= stream.incoming.window() - INITIAL_CREDIT;
        self.control.remove(&id);
        self.flying.remove(&id);
        self.late.remove(&id);
        self.twice.remove(&id);
        if let Some(late) = stream.ack_late {
            self.acks_late.remove(&(late, id));
        }
        if let Some((_, until)) = stream.broke {
            self.broken.remove(&(until, id));
        }
        self.unconfirmed.remove(&(confirmed_until(&self.config, stream.opened), id));
        self.keeps(stream.out.shared(), 0);
        if self.streams.is_empty() {
            self.codec = Codec::default(); // an idle session keeps none
        }
        // Its place in a queue is removed when its turn comes.
        Some(stream)
    }

    /// Closes a stream of which both directions are done and both ends know it.
    fn settle(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id) else { return };
        let done = stream.out.ending == Ending::Done && stream.incoming.finished;
        if !done || stream.ack_due || stream.ack_late.is_some() {
            return;
        }
        // The last acknowledgement may still be lost, also when a frame of the peer ends the stream here.
        if let Some(path) = stream.acked_on.and_then(|path| self.paths.get_mut(&path)) {
            path.said_last(id);
        }
        self.remove(id, None);
    }

    /// What has happened.
    #[must_use]
    pub fn counts(&self) -> Totals {
        self.counts
    }

    /// Streams that are open.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Its paths.
    #[must_use]
    pub fn path_reports(&self, now: Time) -> Vec<PathReport> {
        let report = |path: &Path| PathReport {
            path: path.id.0,
            why: path.origin.to_string(),
            stage: format!("{:?}", path.stage).to_lowercase(),
            addresses: None,
            rests: path.rests,
            age_s: now.since(path.since).as_secs_f64(),
            sent_bytes: path.sent_bytes,
            received_bytes: path.received_bytes,
            rtt_us: path.sample.rtt_us,
            rtt_min_us: path.sample.rtt_min_us,
            congestion: String::new(),
            rate: path.rate(),
            carries: path.carries(now),
            segments_sent: path.sample.segments_sent,
            segments_again: path.sample.segments_again,
        };
        self.paths.values().map(report).collect()
    }

    /// The last paths that have ended, the oldest first.
    pub fn past_paths(&self) -> impl Iterator<Item = &PastPath> {
        self.past.iter()
    }

    /// Its streams, at most `most` of them: the busiest first.
    #[must_use]
    pub fn stream_reports(&self, most: usize, now: Time) -> Vec<StreamReport> {
        let busy = |stream: &Stream| {
            let sends = stream.sends.rate(stream.out.delivered(), now);
            sends.saturating_add(stream.receives.rate(stream.incoming.delivered(), now))
        };
        let mut all: Vec<_> = self.streams.iter().map(|(id, one)| (busy(one), *id, one)).collect();
        all.sort_by_key(|(busy, id, _)| (std::cmp::Reverse(*busy), *id));
        let report = |(_, id, stream): (u64, StreamId, &Stream)| StreamReport {
            stream: id.0,
            target: stream.target.to_string(),
            age_s: now.since(stream.opened).as_secs_f64(),
            sent_bytes: stream.out.delivered(),
            received_bytes: stream.incoming.delivered(),
            sent_rate: stream.sends.rate(stream.out.delivered(), now),
            received_rate: stream.receives.rate(stream.incoming.delivered(), now),
            waits_s: stream.out.waits_since().map(|since| now.since(since).as_secs_f64()),
            held_bytes: stream.out.kept() + stream.incoming.held(),
            bulk: stream.out.is_bulk(),
            compressed_percent: stream.shrinking.percent(),
        };
        all.into_iter().take(most).map(report).collect()
    }
}
