//! What the peer's frames do.

use hawser_multipath::paths::action::FlowId;

use super::{
    Confirmation, Ending, Frame, Notice, PathEnd, PathId, RESETS_MAX, Reason, Request, Role,
    STREAMS_MAX, Session, Stage, StreamId, Time, VERSION_MAX, VERSION_MIN,
};
use crate::proto::frame::{Refusal, VERSION_COMPRESSED};
use crate::proto::incoming::Put;
use crate::proto::outgoing::Lie;
use crate::proto::path::Origin;

/// Answers to pings that may wait on a path; further pings are not answered.
const OWN_BYTES_MAX: usize = 4096;

/// What a frame does to the path that it came by.
enum Verdict {
    Fine,
    /// The path ends.
    End(PathEnd),
}

impl Session {
    /// Bytes have come by a path.
    pub fn received(&mut self, id: PathId, bytes: &[u8], now: Time) {
        let Some(path) = self.paths.get_mut(&id) else { return };
        path.came(bytes.len(), now);
        self.moved(bytes.len(), now);
        let Some(path) = self.paths.get_mut(&id) else { return };
        let mut assembly = std::mem::take(&mut path.assembly);
        let mut verdict = Verdict::Fine;
        let fed = assembly.feed(bytes, |frame| {
            verdict = self.frame(id, &frame, now);
            matches!(verdict, Verdict::Fine) && !self.ended
        });
        if let Some(path) = self.paths.get_mut(&id) {
            path.assembly = assembly;
        }
        if let Verdict::End(end) = verdict {
            self.lost(id, end, now);
        } else if fed.is_err() {
            self.lost(id, PathEnd::Wrong("bytes that are no frame"), now);
        }
    }

    fn frame(&mut self, id: PathId, frame: &Frame<'_>, now: Time) -> Verdict {
        let Some(path) = self.paths.get_mut(&id) else { return Verdict::Fine };
        match (*frame, path.stage) {
            (Frame::Welcome { version }, Stage::Greeting) => {
                if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
                    return Verdict::End(PathEnd::Wrong("a version that was not offered"));
                }
                path.version = version;
                self.is_now_up(id, now);
                return Verdict::Fine;
            }
            (Frame::Refused { refusal, .. }, Stage::Greeting) => {
                return self.refused(refusal);
            }
            (Frame::Hello { .. } | Frame::Welcome { .. } | Frame::Refused { .. }, _) => {
                return Verdict::End(PathEnd::Wrong("a greeting that may not come now"));
            }
            (_, Stage::Up) => {}
            _ => return Verdict::End(PathEnd::Wrong("a frame before the greeting")),
        }
        match *frame {
            Frame::Ping { number } => {
                if path.own.len() < OWN_BYTES_MAX {
                    Frame::Pong { number }.write(&mut path.own);
                    self.wake_path(id);
                }
            }
            Frame::Pong { number } => path.pong(number),
            Frame::Bye => self.end(Some(Reason::Ending)),
            Frame::Open { stream, limit, target } => {
                return self.opened(stream, limit, target, now);
            }
            Frame::Data { stream, offset, bytes } => {
                return self.data(stream, offset, bytes, now);
            }
            Frame::Compressed { .. } if path.version < VERSION_COMPRESSED => {
                return Verdict::End(PathEnd::Wrong("a compressed frame, in a version without"));
            }
            Frame::Compressed { stream, offset, whole, bytes } => {
                return self.compressed(stream, offset, (whole, bytes), now);
            }
            Frame::Ack { stream, delivered, received, limit, finished } => {
                return self.acked(stream, (delivered, received, limit), finished, now);
            }
            Frame::Finish { stream, offset } => return self.finish(stream, offset),
            Frame::Reset { stream, reason } => {
                if matches!(self.role, Role::Near { .. }) && !self.was(stream) {
                    return Verdict::End(PathEnd::Wrong("a reset of a stream that never was"));
                }
                if let Role::Far { seen } = &mut self.role {
                    seen.add(stream); // its Open may come late, by another path
                }
                self.forget_reset(stream);
                self.reset_by_peer(stream, reason, now);
                self.say_gone(stream);
                return self.seen_is_bounded();
            }
            Frame::Gone { stream } => self.is_gone(stream),
            Frame::Rest { rests } => {
                if matches!(self.role, Role::Near { .. }) {
                    return Verdict::End(PathEnd::Wrong("a path that the far end has rest"));
                }
                path.rests = rests;
                self.wake_all();
            }
            Frame::Hello { .. } | Frame::Welcome { .. } | Frame::Refused { .. } => {}
        }
        Verdict::Fine
    }

    fn refused(&mut self, refusal: Refusal) -> Verdict {
        match refusal {
            Refusal::Session => {
                if matches!(self.role, Role::Near { established: true, .. }) {
                    self.release_unsent();
                }
                self.end(Some(Reason::Restarted));
                Verdict::Fine
            }
            Refusal::Version => {
                Verdict::End(PathEnd::Refused("it speaks other versions of the protocol"))
            }
            Refusal::Full => Verdict::End(PathEnd::Refused("it has as many as there may be")),
        }
    }

    /// Whether there is or was a stream of that number.
    fn was(&self, stream: StreamId) -> bool {
        match &self.role {
            Role::Near { next_stream, .. } => stream.0 < *next_stream,
            Role::Far { seen } => seen.has(stream),
        }
    }

    fn seen_is_bounded(&self) -> Verdict {
        match &self.role {
            Role::Far { seen } if seen.beyond.len() > RESETS_MAX => {
                Verdict::End(PathEnd::Wrong("numbers of streams with too many gaps"))
            }
            _ => Verdict::Fine,
        }
    }

    fn opened(&mut self, id: StreamId, limit: u64, target: &str, now: Time) -> Verdict {
        let Role::Far { seen } = &mut self.role else {
            return Verdict::End(PathEnd::Wrong("a stream that the far end opens"));
        };
        if id.0 == 0 || id.0 == u64::MAX {
            return Verdict::End(PathEnd::Wrong("a number that no stream has"));
        }
        if seen.has(id) {
            if self.streams.contains_key(&id) {
                self.ack_now(id); // what confirmed it may be lost
            } else if !self.resets.contains_key(&id) {
                self.say_gone(id);
            }
            return Verdict::Fine;
        }
        seen.add(id);
        if self.streams.len() >= STREAMS_MAX {
            if self.resets.len() >= RESETS_MAX {
                self.end(Some(Reason::Protocol));
                return Verdict::Fine;
            }
            self.resets.insert(id, (Reason::Full, false));
            self.resets_due.insert(id);
            self.wake_all();
            return self.seen_is_bounded();
        }
        self.add(id, target, Confirmation::Confirmed, limit, now);
        self.requests.push_back(Request::Connect(id, target.into()));
        self.ack_now(id);
        self.seen_is_bounded()
    }

    /// The answer to a frame for a stream that does not exist.
    fn absent(&mut self, id: StreamId) -> Verdict {
        if !self.was(id) {
            return Verdict::End(PathEnd::Wrong("a frame of a stream that never was"));
        }
        if !self.resets.contains_key(&id) {
            self.say_gone(id);
        }
        Verdict::Fine
    }

    fn data(&mut self, id: StreamId, offset: u64, bytes: &[u8], now: Time) -> Verdict {
        let Some(stream) = self.streams.get_mut(&id) else { return self.absent(id) };
        let put = stream.incoming.put(offset, bytes);
        self.was_put(id, put, now)
    }

    /// Takes compressed bytes of a stream: `whole` bytes of it by the peer's claim.
    fn compressed(
        &mut self,
        id: StreamId,
        offset: u64,
        (whole, bytes): (usize, &[u8]),
        now: Time,
    ) -> Verdict {
        let Some(stream) = self.streams.get_mut(&id) else { return self.absent(id) };
        let put = match stream.incoming.wants(offset, whole) {
            Ok(false) => Ok(Put::Kept),
            Err(lie) => Err(lie),
            Ok(true) => match self.codec.decompress(bytes, whole) {
                Ok(whole) => stream.incoming.put(offset, whole),
                Err(_) => {
                    self.reset(id, Reason::Compression);
                    return Verdict::Fine;
                }
            },
        };
        self.was_put(id, put, now)
    }

    fn was_put(&mut self, id: StreamId, put: Result<Put, Lie>, now: Time) -> Verdict {
        match put {
            // They are acknowledged as received even if the local socket takes nothing: so the
            // sender distinguishes a program that does not read from paths that do not carry.
            Ok(Put::Ready) => {
                self.requests.push_back(Request::Deliver(id));
                self.ack(id, now);
            }
            Ok(Put::Kept) => self.ack(id, now),
            Ok(Put::Dropped) => return Verdict::End(PathEnd::Gaps),
            Err(_) => self.reset(id, Reason::Protocol),
        }
        Verdict::Fine
    }

    fn finish(&mut self, id: StreamId, length: u64) -> Verdict {
        let Some(stream) = self.streams.get_mut(&id) else { return self.absent(id) };
        if stream.incoming.ends(length).is_err() {
            self.reset(id, Reason::Protocol);
        } else if stream.incoming.finished {
            self.ack_now(id); // the last acknowledgement may be lost
        } else if stream.incoming.is_whole() {
            self.requests.push_back(Request::Finish(id));
        }
        Verdict::Fine
    }

    fn acked(
        &mut self,
        id: StreamId,
        (delivered, received, limit): (u64, u64, u64),
        finished: bool,
        now: Time,
    ) -> Verdict {
        let was = self.was(id);
        let room = self.room(id);
        let Some(stream) = self.streams.get_mut(&id) else {
            return if was { Verdict::Fine } else { self.absent(id) };
        };
        let before = stream.out.shared();
        let ok = stream.out.acknowledged(delivered, received, limit, now).is_ok();
        stream.sends.note(stream.out.delivered(), now);
        let said = matches!(stream.out.ending, Ending::Said | Ending::Due | Ending::Done);
        // It can have its end only with all bytes before it.
        let whole = stream.out.delivered() == stream.out.length();
        let after = stream.out.shared();
        self.keeps(before, after);
        if !ok || (finished && !(said && whole)) {
            self.reset(id, Reason::Protocol);
            return Verdict::Fine;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Verdict::Fine };
        if stream.confirmation != Confirmation::Confirmed {
            stream.confirmation = Confirmation::Confirmed;
            let until = super::confirmed_until(&self.config, stream.opened);
            self.unconfirmed.remove(&(until, id));
            // It may be bulk by now, for which there is another queue.
            if stream.queued {
                stream.queued = false;
                self.small.retain(|other| *other != id);
            }
        }
        if finished {
            stream.out.done();
            self.control_is_done(id);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Verdict::Fine };
        if stream.out.waits_for().is_none() && !stream.out.has_pieces() {
            self.flying.remove(&id);
        }
        if let Some((reason, _)) = stream.broke
            && stream.out.kept() == 0
        {
            self.reset(id, reason);
            return Verdict::Fine;
        }
        if self.room(id) > room {
            self.requests.push_back(Request::Room(id));
        }
        self.enqueue(id, now);
        self.settle(id);
        Verdict::Fine
    }

    /// No Finish is due any more.
    fn control_is_done(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(|stream| !stream.ack_due) {
            self.control.remove(&id);
        }
        self.flying.remove(&id);
    }

    fn say_gone(&mut self, id: StreamId) {
        if self.gone.len() >= RESETS_MAX {
            return self.end(Some(Reason::Protocol)); // no later frame is read
        }
        self.gone.insert(id);
        self.wake_all();
    }

    fn forget_reset(&mut self, id: StreamId) {
        self.resets.remove(&id);
        self.resets_due.remove(&id);
    }

    /// The peer keeps nothing of a stream.
    fn is_gone(&mut self, id: StreamId) {
        self.forget_reset(id);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.incoming.finished && stream.out.ending != Ending::No {
            // It has ended normally there, so all of it has arrived; only the last message was
            // lost.
            self.remove(id, None);
        } else {
            self.remove(id, Some(Reason::Protocol));
        }
    }

    fn is_now_up(&mut self, id: PathId, now: Time) {
        if let Some(path) = self.paths.get_mut(&id) {
            path.stage = Stage::Up;
            if let Role::Near { established, pairs, .. } = &mut self.role {
                *established = true;
                if let Some(pair) = pairs.get_mut(path.pair.0 as usize) {
                    pair.failures = 0;
                }
            }
        }
        if self.paths.get(&id).is_some_and(|path| path.origin == Origin::Small) {
            self.rest(FlowId(id.0), true);
        }
        self.down = None;
        self.requests.push_back(Request::Notice(Notice::PathUp(id)));
        self.greet_others(now);
        self.wake_all();
    }

    fn wake_path(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(&id)
            && !path.asked
        {
            path.asked = true;
            self.requests.push_back(Request::Write(id));
        }
    }
}
