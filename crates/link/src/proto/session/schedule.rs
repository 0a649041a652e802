//! Which path carries the next frame.
//!
//! # Model
//! Paths pull: the host asks for bytes for a path whose socket has room.
//! ```text
//!   control, small streams   on the path with the least completion time of those with room
//!   small messages beside bulk, and tails: what a stream has sent last when it ends, or when nothing more comes
//!                            for half a round trip: on a second path, too, also on one that rests
//!   bulk streams             on any path that does not rest and has room below its bound, unless the best one would carry all that is left
//!                            sooner than this one a single frame (ECF, CoNEXT'17)
//!   unconfirmed streams      on the path of their Open
//!   late pieces              once more, on the best path
//! ```

use super::{Confirmation, Ending, Frame, Path, PathId, Request, Session, StreamId, Time};
use crate::proto::compression::{Compression, PATHS_BYTES_MAX};
use crate::proto::frame::{
    COMPRESSED_HEAD_BYTES, DATA_BYTES_MAX, DATA_HEAD_BYTES, VERSION_COMPRESSED, compressed_head,
    data_head,
};
use crate::proto::outgoing::TWICE_BYTES_MAX;

/// The assumed length of a frame for which a path is chosen.
const SMALL_BYTES: u64 = 1500;
/// Bytes of a small stream before the next one's turn.
const TURN_BYTES: usize = DATA_BYTES_MAX;
/// Frames of bulk streams beside small ones: part of what may be in the path, and what fills a segment
/// with the heads of the frame and of TLS.
const FRAMES_A_BOUND: u64 = 8;
const FRAME_MIN: usize = 1448 - DATA_HEAD_BYTES - 22;

/// Where the bytes of a fill go.
struct Filling<'a> {
    path: PathId,
    out: &'a mut Vec<u8>,
    /// The longest length of `out`, except for the end of a frame.
    most: usize,
    now: Time,
}

impl Filling<'_> {
    fn is_full(&self) -> bool {
        self.out.len() >= self.most
    }
}

impl Session {
    /// Appends what `path` is to send now to `out`, about `room` bytes, to be encrypted as one: small
    /// messages come without bulk, for whose last byte they would have to wait. Nothing appended: there
    /// is nothing for this path.
    pub fn fill(&mut self, path: PathId, out: &mut Vec<u8>, room: usize, now: Time) {
        let Some(entry) = self.paths.get_mut(&path) else { return };
        entry.asked = false;
        entry.full = false;
        let before = out.len();
        out.append(&mut entry.own);
        if entry.is_up() {
            let mut filling = Filling { path, most: before + room, out, now };
            self.fill_control(&mut filling);
            self.fill_small(&mut filling);
            self.fill_twice(&mut filling);
            let has_small = filling.out.len() > before;
            if !(self.rests(path) || has_small && self.beside) {
                self.fill_bulk(&mut filling, before);
                self.fill_late(&mut filling);
            }
        }
        let given = out.len() - before;
        if let Some(entry) = self.paths.get_mut(&path) {
            entry.gave(given, now);
        }
        self.moved(given, now);
    }

    /// The socket of a path takes nothing now; [`Session::fill`] says that it does again.
    pub fn full(&mut self, path: PathId) {
        if let Some(path) = self.paths.get_mut(&path) {
            path.full = true;
        }
        // What waited for this path may go by another one.
        if !self.control.is_empty() || !self.small.is_empty() {
            self.wake_all();
        }
    }

    /// The best path with room.
    fn best(&self) -> Option<PathId> {
        self.best_of(|path| !self.rests(path.id))
    }

    /// The best one beside it. One that rests carries no bulk that would hold up a copy.
    fn second(&self, first: PathId) -> Option<PathId> {
        self.best_of(|path| path.id != first)
    }

    fn best_of(&self, may: impl Fn(&Path) -> bool) -> Option<PathId> {
        let usable = self.paths.values().filter(|path| path.is_up() && !path.full && may(path));
        usable.min_by_key(|path| (path.completion_us(SMALL_BYTES), path.id)).map(|path| path.id)
    }

    fn wake(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(&id)
            && !path.full
            && !path.asked
        {
            path.asked = true;
            self.requests.push_back(Request::Write(id));
        }
    }

    pub(super) fn wake_all(&mut self) {
        let ids: Vec<PathId> = self.paths.keys().copied().collect();
        for id in ids {
            self.wake(id);
        }
    }

    /// Asks the paths that may take more of a bulk stream to write.
    pub(super) fn wake_for_bulk(&mut self, now: Time) {
        let beside = self.beside;
        let has_room = |path: &&Path| path.is_up() && path.queued() < path.bound(beside, now);
        let ids: Vec<PathId> = self.paths.values().filter(has_room).map(|path| path.id).collect();
        for id in ids {
            self.wake(id);
        }
    }

    /// Asks the path of a stream's next frame to write.
    pub(super) fn wake_best(&mut self, id: StreamId) {
        match self.streams.get(&id).map(|stream| stream.confirmation) {
            Some(Confirmation::Sent(home)) => self.wake(home),
            _ => {
                if let Some(best) = self.best() {
                    self.wake(best);
                }
            }
        }
    }

    /// Queues a stream whose bytes can be sent.
    pub(super) fn enqueue(&mut self, id: StreamId, now: Time) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.out.has_sendable() {
            return;
        }
        // What is in a queue has had a path asked to write, or waits for one that has room.
        if std::mem::replace(&mut stream.queued, true) {
            return;
        }
        let is_bulk = stream.out.is_bulk() && stream.confirmation == Confirmation::Confirmed;
        let queue = if is_bulk { &mut self.bulk } else { &mut self.small };
        queue.push_back(id);
        if is_bulk { self.wake_for_bulk(now) } else { self.wake_best(id) }
    }

    fn fill_control(&mut self, filling: &mut Filling<'_>) {
        if self.control.is_empty() && self.gone.is_empty() && self.resets_due.is_empty() {
            return;
        }
        let is_best = self.best() == Some(filling.path);
        let owes = !self.gone.is_empty() || !self.resets_due.is_empty();
        if owes && !is_best {
            self.wake_the_best();
        }
        while is_best && !filling.is_full() {
            if let Some(stream) = self.gone.pop_first() {
                Frame::Gone { stream }.write(filling.out);
                if let Some(path) = self.paths.get_mut(&filling.path) {
                    path.said_last(stream);
                }
            } else if let Some(stream) = self.resets_due.pop_first() {
                if let Some((reason, said)) = self.resets.get_mut(&stream) {
                    *said = true;
                    Frame::Reset { stream, reason: *reason }.write(filling.out);
                }
            } else {
                break;
            }
        }
        let mut at = StreamId(0);
        while !filling.is_full() {
            let Some(id) = self.control.range(at..).next().copied() else { break };
            at = StreamId(id.0 + 1);
            let Some(stream) = self.streams.get(&id) else {
                self.control.remove(&id);
                continue;
            };
            match stream.confirmation {
                Confirmation::Sent(home) if home != filling.path => self.wake(home),
                Confirmation::Sent(_) => self.write_control(id, filling),
                _ if is_best => self.write_control(id, filling),
                _ => self.wake_the_best(),
            }
        }
    }

    fn wake_the_best(&mut self) {
        if let Some(best) = self.best() {
            self.wake(best);
        }
    }

    /// Writes the Open, Ack and Finish that are due for a stream. Finish waits for the stream's
    /// bytes, for the sake of the order on one path; offsets make it right on several.
    fn write_control(&mut self, id: StreamId, filling: &mut Filling<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if matches!(stream.confirmation, Confirmation::Due { .. }) {
            let limit = stream.incoming.limit();
            Frame::Open { stream: id, limit, target: &stream.target }.write(filling.out);
            stream.confirmation = Confirmation::Sent(filling.path);
        }
        if stream.ack_due {
            stream.ack_due = false;
            stream.acked_on = Some(filling.path);
            let (delivered, received, limit) = stream.incoming.acknowledge();
            let finished = stream.incoming.finished;
            Frame::Ack { stream: id, delivered, received, limit, finished }.write(filling.out);
        }
        if stream.out.ending == Ending::Due && stream.out.is_all_sent() {
            stream.out.ending = Ending::Said;
            let offset = stream.out.length();
            Frame::Finish { stream: id, offset }.write(filling.out);
            if stream.confirmation == Confirmation::Confirmed {
                self.send_tail_twice(id);
            }
        }
        // A Finish that is due still follows the last bytes.
        self.control.remove(&id);
        self.enqueue(id, filling.now);
        self.settle(id);
    }

    fn fill_small(&mut self, filling: &mut Filling<'_>) {
        let mut skipped = 0;
        while !filling.is_full() && skipped < self.small.len() {
            let Some(id) = self.small.pop_front() else { break };
            let best = self.best();
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            let home = match stream.confirmation {
                Confirmation::Due { .. } => None, // its Open comes first
                Confirmation::Sent(home) => Some(home),
                Confirmation::Confirmed => best,
            };
            if home == Some(filling.path) {
                let message = stream.out.sendable();
                let confirmed = stream.confirmation == Confirmation::Confirmed;
                self.write_data(id, TURN_BYTES, false, filling);
                if confirmed && message <= TWICE_BYTES_MAX && self.is_bulky() {
                    self.send_tail_twice(id);
                }
            } else {
                self.small.push_back(id);
                skipped += 1;
                if let Some(home) = home {
                    self.wake(home);
                }
            }
        }
    }

    /// Asks the best other path to send the part of a stream's tail that went by one path only.
    /// True if there is such a part, and such a path.
    pub(super) fn send_tail_twice(&mut self, id: StreamId) -> bool {
        let sent = self.streams.get(&id).and_then(|stream| stream.out.tail_sent());
        let second = sent.and_then(|(first, _)| self.second(first));
        if let Some(second) = second {
            self.twice.insert(id);
            self.wake(second);
        }
        second.is_some()
    }

    fn fill_twice(&mut self, filling: &mut Filling<'_>) {
        if self.twice.is_empty() {
            return;
        }
        let ids: Vec<StreamId> = self.twice.iter().copied().collect();
        for id in ids {
            self.write_tail(id, filling);
            // What is left of it went by this path.
            if !self.send_tail_twice(id) {
                self.twice.remove(&id);
            }
        }
    }

    /// Writes once more what a stream has sent last, as far as that went by other paths, and its end.
    fn write_tail(&mut self, id: StreamId, filling: &mut Filling<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let mut any = false;
        while let Some((offset, parts)) = stream.out.take_tail(filling.path) {
            self.counts.again_bytes += (parts[0].len() + parts[1].len()) as u64;
            write_frames(filling.out, id, offset, parts);
            any = true;
        }
        let is_last = any && stream.out.tail_sent().is_none();
        if is_last && stream.out.ending == Ending::Said {
            Frame::Finish { stream: id, offset: stream.out.length() }.write(filling.out);
        }
    }

    /// Whether a path rests, while another one does not.
    fn rests(&self, id: PathId) -> bool {
        let carries = |path: &Path| path.is_up() && !path.rests;
        self.paths.get(&id).is_some_and(|path| path.rests) && self.paths.values().any(carries)
    }

    fn fill_bulk(&mut self, filling: &mut Filling<'_>, before: usize) {
        let mut skipped = 0;
        while !filling.is_full() && skipped < self.bulk.len() {
            let given = filling.out.len() - before;
            let Some(path) = self.paths.get(&filling.path) else { return };
            let bound = path.bound(self.beside, filling.now);
            if path.queued() + given as u64 >= bound {
                return; // once it is sampled, it is asked again
            }
            let frame = match self.beside {
                true => usize::try_from(bound / FRAMES_A_BOUND).unwrap_or(DATA_BYTES_MAX),
                false => DATA_BYTES_MAX,
            };
            let frame = frame.clamp(FRAME_MIN, DATA_BYTES_MAX);
            let Some(id) = self.bulk.pop_front() else { break };
            let Some(stream) = self.streams.get(&id) else { continue };
            if self.is_worth(filling.path, stream.shrinking.on_paths(stream.out.sendable())) {
                self.write_data(id, frame, true, filling);
            } else {
                self.bulk.push_back(id);
                skipped += 1;
            }
        }
    }

    /// Whether a path should carry bytes of a stream that has `left` to send.
    fn is_worth(&self, path: PathId, left: u64) -> bool {
        let Some(this) = self.paths.get(&path) else { return false };
        let up = self.paths.values().filter(|path| path.is_up() && !self.rests(path.id));
        let Some(best) = up.min_by_key(|path| path.completion_us(SMALL_BYTES)) else {
            return false;
        };
        let frame = left.min(DATA_BYTES_MAX as u64);
        best.id == path || best.completion_us(left) >= this.completion_us(frame)
    }

    /// Whether bulk streams may be compressed on this path: the peer understands it, and paths are slower than
    /// compressing is.
    fn compresses(&self, path: PathId, now: Time) -> bool {
        let knows = |path: &Path| path.version >= VERSION_COMPRESSED;
        let up = self.paths.values().filter(|path| path.is_up() && !path.rests);
        self.config.compression == Compression::Auto
            && self.paths.get(&path).is_some_and(knows)
            && up.map(|path| path.carries(now)).sum::<u64>() <= PATHS_BYTES_MAX
    }

    /// Writes a frame of a stream that was taken from its queue, and puts it back where it belongs.
    fn write_data(&mut self, id: StreamId, most: usize, was_bulk: bool, filling: &mut Filling<'_>) {
        let compresses = was_bulk && self.compresses(filling.path, filling.now);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.queued = false;
        let again = stream.out.sends_again();
        let compressed = match compresses {
            true => stream.shrinking.next_frame(&mut self.codec, &stream.out, most, filling.now),
            false => None,
        };
        let most = compressed.map_or(most, |(whole, _)| whole);
        if let Some((offset, parts)) = stream.out.take(most, filling.path, filling.now) {
            let length = parts[0].len() + parts[1].len();
            if let Some((whole, bytes)) = compressed {
                filling.out.reserve(COMPRESSED_HEAD_BYTES + bytes.len());
                compressed_head(filling.out, id, offset, (whole, bytes.len()));
                filling.out.extend_from_slice(bytes);
                self.counts.compressed_from_bytes += whole as u64;
                self.counts.compressed_to_bytes += bytes.len() as u64;
            } else {
                write_frames(filling.out, id, offset, parts);
            }
            self.flying.insert(id);
            if again {
                self.counts.again_bytes += length as u64;
            }
        }
        if stream.out.ending == Ending::Due && stream.out.is_all_sent() {
            self.write_control(id, filling);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.out.has_sendable() && !stream.queued {
            stream.queued = true;
            let bulk = stream.out.is_bulk() && stream.confirmation == Confirmation::Confirmed;
            if bulk {
                self.bulk.push_back(id);
                if !was_bulk {
                    self.wake_for_bulk(filling.now); // else those that have room know
                }
            } else {
                self.small.push_back(id);
            }
        }
    }

    fn fill_late(&mut self, filling: &mut Filling<'_>) {
        if self.late.is_empty() || self.best() != Some(filling.path) {
            return;
        }
        while !filling.is_full() {
            let Some(id) = self.late.pop_first() else { return };
            self.write_late(id, filling);
        }
    }

    /// Writes once more what the receiver of a stream waits for.
    fn write_late(&mut self, id: StreamId, filling: &mut Filling<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some((offset, parts)) = stream.out.take_late(filling.path, filling.now) {
            self.counts.again_bytes += (parts[0].len() + parts[1].len()) as u64;
            write_frames(filling.out, id, offset, parts);
        }
    }
}

/// Appends bytes of a stream as they are. What went compressed once may be longer than a frame.
fn write_frames(out: &mut Vec<u8>, id: StreamId, mut offset: u64, parts: [&[u8]; 2]) {
    let mut left = parts[0].len() + parts[1].len();
    out.reserve(left + DATA_HEAD_BYTES * left.div_ceil(DATA_BYTES_MAX));
    let mut frame_left = 0;
    for mut part in parts {
        while !part.is_empty() {
            if frame_left == 0 {
                frame_left = left.min(DATA_BYTES_MAX);
                data_head(out, id, offset, frame_left);
            }
            let (now, rest) = part.split_at(part.len().min(frame_left));
            out.extend_from_slice(now);
            part = rest;
            (frame_left, left) = (frame_left - now.len(), left - now.len());
            offset += now.len() as u64;
        }
    }
}
