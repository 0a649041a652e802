//! Dials, greetings, pings, the death of paths, and the end.

use std::time::Duration;

use hawser_multipath::paths::action::Reason as Shared;

use super::{
    ACK_DELAY, Confirmation, Frame, Notice, PATHS_MAX, PairDials, PairId, Path, PathEnd, PathId,
    Paths, PathsFull, RESETS_MAX, Reason, Request, Role, Sample, Session, Stage, StreamId, Time,
    VERSION_MAX, VERSION_MIN,
};
use crate::proto::path::{Origin, PING_EACH, PING_EACH_IDLE};

/// A dial after a failed one, at first; then twice as long, up to the second.
const DIAL_AGAIN: Duration = Duration::from_millis(100);
const DIAL_AGAIN_MAX: Duration = Duration::from_secs(5);
/// How often TCP is asked about paths.
const SAMPLE_EACH_MIN: Duration = Duration::from_millis(2);
const SAMPLE_EACH_MAX: Duration = Duration::from_millis(20);
/// How often late pieces are looked for.
const LATE_EACH: Duration = Duration::from_millis(20);

impl PairDials {
    /// A path has ended; whether it had been up.
    fn lost(&mut self, was_up: bool, now: Time) {
        if was_up {
            self.dial_at = now.after(DIAL_AGAIN);
        } else if self.dial_at <= now {
            // Dials that fail together count as one.
            let wait = DIAL_AGAIN * (1 << self.failures.min(6));
            self.dial_at = now.after(wait.min(DIAL_AGAIN_MAX));
            self.failures += 1;
        }
    }
}

impl Session {
    /// A requested path is established, and the peer is authenticated.
    pub fn dialled(&mut self, id: PathId, now: Time) {
        if let Some(path) = self.paths.get_mut(&id) {
            path.stage = Stage::Ready;
            path.since = now;
            self.greet_others(now);
        }
    }

    /// Greets on paths that are ready: on one while the session is not established, then on all.
    pub(super) fn greet_others(&mut self, now: Time) {
        let Role::Near { established, .. } = self.role else { return };
        let token = self.config.token;
        let mut greeting = self.paths.values().any(|path| path.stage == Stage::Greeting);
        for path in self.paths.values_mut().filter(|path| path.stage == Stage::Ready) {
            if !established && std::mem::replace(&mut greeting, true) {
                break;
            }
            let versions = (VERSION_MIN, VERSION_MAX);
            Frame::Hello { versions, fresh: !established, token }.write(&mut path.own);
            path.stage = Stage::Greeting;
            path.since = now;
        }
        self.wake_all();
    }

    /// The far end: a path has said Hello with this session's token, and this version is common; between
    /// which addresses it is, by numbers of the host's own.
    ///
    /// # Errors
    /// There are [`PATHS_MAX`].
    pub fn join(&mut self, pair: PairId, version: u8, now: Time) -> Result<PathId, PathsFull> {
        if self.ended || self.paths.len() >= PATHS_MAX {
            return Err(PathsFull);
        }
        let mut path = self.new_path(pair, Origin::Accepted, Stage::Up, now);
        let id = path.id;
        path.version = version;
        Frame::Welcome { version }.write(&mut path.own);
        self.paths.insert(id, path);
        self.down = None;
        self.requests.push_back(Request::Notice(Notice::PathUp(id)));
        self.wake_all();
        Ok(id)
    }

    fn new_path(&mut self, pair: PairId, origin: Origin, stage: Stage, now: Time) -> Path {
        let id = PathId(self.next_path);
        self.next_path += 1;
        let is_further = self.paths.values().any(|path| path.pair == pair && !path.rests);
        Path::new(id, (pair, origin), stage, is_further, now)
    }

    /// Takes TCP's data about a path; [`Session::tick`] uses it.
    pub fn sampled(&mut self, id: PathId, sample: Sample, now: Time) {
        let Some(path) = self.paths.get_mut(&id) else { return };
        path.sampled(sample, self.beside, now);
        self.samples_came = true; // another path may be worth it now
    }

    /// How often the host should sample TCP for paths that [`Session::wants_sample`].
    #[must_use]
    pub fn samples_each(&self) -> Duration {
        if !self.beside || self.bulk.is_empty() {
            return SAMPLE_EACH_MAX;
        }
        // Bulk streams have a quarter of a round trip in queues: half of it may leave before more comes.
        let up = self.paths.values().filter(|path| path.is_up());
        let least = up.map(Path::rtt_least_us).min().unwrap_or(0);
        Duration::from_micros(least / 8).clamp(SAMPLE_EACH_MIN, SAMPLE_EACH_MAX)
    }

    /// Whether the host should sample TCP for a path: see [`Session::samples_each`].
    #[must_use]
    pub fn wants_sample(&self, id: PathId) -> bool {
        self.paths.get(&id).is_some_and(Path::is_waiting)
    }

    /// Whether a path waits for the peer's greeting.
    #[must_use]
    pub fn greets(&self, id: PathId) -> bool {
        self.paths.get(&id).is_some_and(|path| path.stage == Stage::Greeting)
    }

    /// A path has ended: others carry its bytes.
    pub fn lost(&mut self, id: PathId, end: PathEnd, now: Time) {
        let Some(path) = self.paths.remove(&id) else { return };
        self.requests.push_back(Request::Drop(id));
        if let Role::Near { pairs, .. } = &mut self.role
            && let Some(pair) = pairs.get_mut(path.pair.0 as usize)
        {
            pair.lost(path.is_up(), now);
        }
        let works = |other: &Path| other.pair == path.pair && other.is_up();
        if !path.is_up() && !self.paths.values().any(works) {
            self.chooser.refused(path.pair, now);
        }
        let left = self.paths.values().filter(|path| path.is_up()).count();
        self.requests.push_back(Request::Notice(Notice::PathLost(id, end, left)));
        self.past.add(&path, end, now);
        if path.is_up() {
            let shared = end == PathEnd::Chosen(Shared::Shares);
            self.counts.paths_lost += u64::from(!shared);
            if left == 0 {
                self.down = Some(now);
            }
        }
        // The far end sends on a path from its Welcome on, which may be lost with what followed it.
        if matches!(path.stage, Stage::Up | Stage::Greeting) {
            for stream in path.last_words {
                if self.gone.len() < RESETS_MAX / 2 {
                    self.gone.insert(stream);
                }
            }
            self.say_all_again(id, now);
        }
        self.greet_others(now);
    }

    /// A path has died, and with it perhaps messages of any stream.
    fn say_all_again(&mut self, id: PathId, now: Time) {
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream_id in ids {
            let Some(stream) = self.streams.get_mut(&stream_id) else { continue };
            stream.out.path_died(id);
            let stalls = stream.out.stalls_since();
            if stalls.is_some_and(|since| now.since(since) >= self.config.grace) {
                self.reset(stream_id, Reason::Stalled);
                continue;
            }
            if stream.confirmation == Confirmation::Sent(id) {
                stream.confirmation = Confirmation::Due { again: true };
            }
            self.enqueue(stream_id, now);
            self.ack_now(stream_id);
        }
        for (stream, (_, said)) in &mut self.resets {
            *said = false;
            self.resets_due.insert(*stream);
        }
        self.wake_all();
    }

    /// Ends the session: the process does.
    pub fn bye(&mut self) {
        for path in self.paths.values_mut().filter(|path| path.is_up()) {
            Frame::Bye.write(&mut path.own);
        }
        self.wake_all();
    }

    /// Ends the session, with all streams.
    pub(super) fn end(&mut self, reason: Option<Reason>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in streams {
            self.remove(id, Some(reason.unwrap_or(Reason::Grace)));
        }
        self.end_drained(None);
        while let Some((id, _)) = self.paths.pop_first() {
            self.requests.push_back(Request::Drop(id));
        }
        self.resets.clear();
        self.resets_due.clear();
        self.gone.clear();
        self.requests.push_back(Request::Ended(reason));
    }

    /// Closes local sockets that still hold bytes: those whose time is over, or all.
    fn end_drained(&mut self, now: Option<Time>) {
        while let Some((until, id)) = self.draining.first().copied() {
            if now.is_some_and(|now| until > now) {
                break;
            }
            self.drained(id);
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time) {
        if self.ended {
            return;
        }
        while let Some((late, id)) = self.acks_late.first().copied() {
            if late > now {
                break;
            }
            self.ack_now(id);
        }
        while let Some((until, id)) = self.unconfirmed.first().copied() {
            if until > now {
                break;
            }
            self.unconfirmed.remove(&(until, id));
            self.reset(id, Reason::Unconfirmed);
        }
        while let Some((until, id)) = self.broken.first().copied() {
            if until > now {
                break;
            }
            self.broken.remove(&(until, id));
            self.reset(id, Reason::Local);
        }
        self.end_drained(Some(now));
        self.look_at_paths(now);
        self.choose(now);
        if std::mem::take(&mut self.samples_came) && !self.bulk.is_empty() {
            self.wake_for_bulk(now);
        }
        self.look_for_late(now);
        self.dial(now);
        if let Some(down) = self.down {
            let is_over = now.since(down) >= self.config.grace;
            match (self.streams.is_empty(), &self.role) {
                (true, Role::Near { established: false, .. }) => {}
                // The other end may still wait for the last word of a stream, or, at the far end, there
                // may be a stream of which it does not know yet.
                (true, _) if is_over => self.end(None),
                (false, _) if is_over => self.end(Some(Reason::Grace)),
                _ => {}
            }
        }
    }

    fn ping_each(&self) -> Duration {
        match self.streams.is_empty() {
            true => PING_EACH_IDLE,
            // The chooser doubts paths over which nothing has come for 1.5 s.
            false if self.is_bulky() => PING_EACH / 2,
            false => PING_EACH,
        }
    }

    fn look_at_paths(&mut self, now: Time) {
        let dead = self.paths.values().filter(|path| path.dies().is_some_and(|at| at <= now));
        for id in dead.map(|path| path.id).collect::<Vec<_>>() {
            self.lost(id, PathEnd::Silent, now);
        }
        let each = self.ping_each();
        let mut any = false;
        for path in self.paths.values_mut() {
            if path.pings_at(each).is_some_and(|at| at <= now) {
                let number = path.next_ping(now);
                Frame::Ping { number }.write(&mut path.own);
                any = true;
            }
        }
        if any {
            self.wake_all();
        }
    }

    /// The receiver of a stream waits for what a slower path holds: once more, on the best one.
    fn look_for_late(&mut self, now: Time) {
        if now < self.late_at || self.flying.is_empty() {
            return;
        }
        self.late_at = now.after(LATE_EACH);
        if self.paths.len() < 2 {
            return;
        }
        let up = self.paths.values().filter(|path| path.is_up() && !path.full && !path.rests);
        let Some(best) = up.min_by_key(|path| path.rto_us()) else { return };
        let (best_id, best_us) = (best.id, best.rto_us());
        let quiet = Duration::from_micros(best.rtt_us() / 2);
        let (mut any, mut tails) = (false, Vec::new());
        for id in &self.flying {
            let Some(stream) = self.streams.get(id) else { continue };
            // By another path, a frame could overtake the Open.
            if stream.confirmation != Confirmation::Confirmed {
                continue;
            }
            if stream.out.tail_sent().is_some_and(|(_, at)| now.since(at) >= quiet) {
                tails.push(*id);
            }
            let Some((path, at)) = stream.out.waits_for() else { continue };
            let Some(slow) = self.paths.get(&path) else { continue };
            let expected = slow.completion_us(0).max(slow.rto_us()) + best_us;
            let patience = Duration::from_micros(expected) + 2 * ACK_DELAY;
            if path != best_id && now.since(at) > patience {
                self.late.insert(*id);
                any = true;
            }
        }
        if any {
            self.wake_all();
        }
        for id in tails {
            self.send_tail_twice(id);
        }
    }

    fn dial(&mut self, now: Time) {
        let due = self.wanted();
        for (pair, _, missing) in due.into_iter().filter(|(_, dials, _)| dials.dial_at <= now) {
            (0..missing).for_each(|_| self.dial_one(pair, Origin::Wanted, now));
        }
    }

    /// Dials a path, if there may be one more.
    pub(super) fn dial_one(&mut self, pair: PairId, origin: Origin, now: Time) {
        if self.paths.len() >= PATHS_MAX {
            return;
        }
        let path = self.new_path(pair, origin, Stage::Dialling, now);
        let id = path.id;
        self.paths.insert(id, path);
        self.requests.push_back(Request::Dial(id, pair));
    }

    /// Pairs of addresses that have fewer paths than the minimum, when they are dialled, and how
    /// many are missing.
    fn wanted(&self) -> Vec<(PairId, PairDials, usize)> {
        let Role::Near { pairs, .. } = &self.role else { return Vec::new() };
        let wanted = |at: usize| match self.config.paths {
            Paths::Fixed(paths) => paths / pairs.len() + usize::from(at < paths % pairs.len()),
            Paths::Auto => 1,
        };
        let missing = |(at, dials): (usize, &PairDials)| {
            let pair = PairId(at as u32);
            let carries = |path: &&Path| path.pair == pair && path.origin != Origin::Small;
            let there = self.paths.values().filter(carries).count();
            (pair, *dials, wanted(at).saturating_sub(there))
        };
        pairs.iter().enumerate().map(missing).filter(|(_, _, missing)| *missing > 0).collect()
    }

    /// How long until [`Session::tick`] has something to do.
    #[must_use]
    pub fn until_tick(&self, now: Time) -> Option<Duration> {
        if self.ended {
            return None;
        }
        let each = self.ping_each();
        let paths = self.paths.values().flat_map(|path| [path.dies(), path.pings_at(each)]);
        let late = (!self.flying.is_empty() && self.paths.len() > 1).then_some(self.late_at);
        let dial = self.wanted().into_iter().map(|(_, dials, _)| dials.dial_at).min();
        let look = (self.paths.len() > 1 || !self.streams.is_empty()).then_some(self.look_at);
        let over = |down: Time| down.after(self.config.grace);
        let end = self.down.and_then(|down| match (self.streams.is_empty(), &self.role) {
            (true, Role::Near { established: false, .. }) => None,
            _ => Some(over(down)),
        });
        let ack = self.acks_late.first().map(|(late, _)| *late);
        let unconfirmed = self.unconfirmed.first().map(|(until, _)| *until);
        let broken = self.broken.first().map(|(until, _)| *until);
        let draining = self.draining.first().map(|(until, _)| *until);
        let others = [late, dial, look, end, ack, unconfirmed, broken, draining];
        paths.chain(others).flatten().min().map(|then| then.since(now))
    }

    /// Whether nothing of a stream is under way here: for tests.
    #[cfg(test)]
    pub(in crate::proto) fn is_quiet(&self) -> bool {
        self.streams.values().all(|stream| {
            stream.out.kept() == 0
                && stream.incoming.held() == 0
                && stream.out.ending != super::Ending::Due
        })
    }
}
