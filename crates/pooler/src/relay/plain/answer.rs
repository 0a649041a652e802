//! The answer to a plain pipeline, processed at once.
//!
//! # Model
//! ```text
//!   [ParseComplete] [BindComplete] [RowDescription] DataRow* CommandComplete │ ReadyForQuery
//!   └──────────────── processed here, if it is complete ────────────────────┘ └─ `ready_as_usual`
//! ```
//! [`Relay::run`] does the same with each of these messages, one by one.

use crate::parts::statements::description::hash_of_rows;
use crate::relay::from_server::Relay;
use crate::relay::request_queue::{Change, PlainOwed, Request};
use crate::relay::socket::Socket;
use crate::relay::statistics::Ended;
use crate::time::Time;
use crate::wire::backend as kind;
use crate::wire::frame::{self, Framed, HEADER_BYTES};

/// The answer that has come, without ReadyForQuery.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Answer {
    bytes: usize,
    /// The body of the RowDescription that was asked for.
    description: std::ops::Range<usize>,
    /// The tag of the CommandComplete.
    tag: std::ops::Range<usize>,
}

/// The end of the message of this kind at `at`, if it is there, complete, and not too long.
#[inline]
fn end_of(bytes: &[u8], at: usize, of_kind: u8, most: usize) -> Option<usize> {
    let Framed::Header(header) = frame::header(bytes.get(at..)?) else { return None };
    let end = at + header.total();
    (header.kind == of_kind && header.total() <= most && end <= bytes.len()).then_some(end)
}

impl PlainOwed {
    /// The answer at the start of these bytes, of messages not longer than `most`.
    #[inline]
    fn read(self, bytes: &[u8], most: usize) -> Option<Answer> {
        let mut at = 0;
        if self.parses {
            at = end_of(bytes, at, kind::PARSE_COMPLETE, most)?;
        }
        if self.binds {
            at = end_of(bytes, at, kind::BIND_COMPLETE, most)?;
        }
        let mut description = 0..0;
        if self.describes {
            let end = end_of(bytes, at, kind::ROW_DESCRIPTION, most)?;
            description = at + HEADER_BYTES..end;
            at = end;
        } else if !self.binds
            && let Some(end) = end_of(bytes, at, kind::ROW_DESCRIPTION, most)
        {
            at = end;
        }
        while let Some(end) = end_of(bytes, at, kind::DATA_ROW, most) {
            at = end;
        }
        let end = end_of(bytes, at, kind::COMMAND_COMPLETE, most)?;
        // DISCARD ALL and DEALLOCATE ALL change the books.
        let tag = at + HEADER_BYTES..end;
        let forgets = bytes[tag.clone()].starts_with(b"D");
        (!forgets).then_some(Answer { bytes: end, description, tag })
    }
}

impl<S: Socket> Relay<'_, S> {
    /// What the server owes first, if that is the answer to a plain pipeline.
    #[inline]
    fn owed_for_plain(&self) -> Option<PlainOwed> {
        let backend = &*self.backend;
        if !self.has_plain_lane
            || self.client.is_none()
            || backend.is_in_mid_answer()
            || backend.known.side_effects.has_start_values()
        {
            return None;
        }
        backend.requests.owes_plain()
    }

    /// The client's Parse of its unnamed statement, the first entry, is answered.
    #[inline]
    pub(crate) fn complete_unnamed_parse(&mut self) {
        if let (Some(change), Some(client)) =
            (self.backend.requests.front_change(), &mut self.client)
        {
            client.confirm(Some(change), &mut self.backend.prepared.unnamed);
        }
        self.backend.requests.complete();
    }

    /// Completes what a pipeline with an entry for each of its messages owes, except its end.
    fn complete_one_by_one(&mut self, owed: PlainOwed, description: &[u8]) {
        if owed.parses {
            self.complete_unnamed_parse();
        }
        if owed.binds {
            self.backend.requests.complete();
        }
        if owed.describes {
            self.note_description(Request::DescribePortal, kind::ROW_DESCRIPTION, description);
            self.backend.requests.complete();
        }
        self.backend.requests.copy_ended();
        if owed.binds {
            let query = self.backend.requests.complete();
            self.query_ended(query, false);
        }
    }

    /// Processes the bytes after the answer to a plain pipeline, if they are exactly its end.
    /// Returns whether they are; if not, nothing has changed.
    #[inline]
    pub(crate) fn end_plain_answer(&mut self, at: usize, now: Time, ended: &mut Ended) -> bool {
        let [kind::READY_FOR_QUERY, 0, 0, 0, 5, status] = &self.bytes[at..] else { return false };
        self.ready_as_usual(&[*status], now, ended)
    }

    /// Processes the answer at the start of what was read, if it is a plain pipeline's and complete
    /// up to its ReadyForQuery. Returns its length; 0: there is none, and nothing has changed.
    #[inline]
    pub(crate) fn pass_plain_answer(&mut self) -> usize {
        let Some(owed) = self.owed_for_plain() else { return 0 };
        let Some(answer) = owed.read(self.bytes, self.message_bytes_max) else { return 0 };
        self.backend.prepared.replay.forget();
        self.backend.counting.take_tag(&self.bytes[answer.tag]);
        self.backend.counting.take_bytes(answer.bytes);
        let description = &self.bytes[answer.description];
        match self.backend.requests.complete_plain() {
            Ok(Some(Change::Describes(seen))) => {
                self.backend.prepared.note_rows(&seen, hash_of_rows(Some(description)));
            }
            Ok(_) => {}
            Err(()) => self.complete_one_by_one(owed, description),
        }
        answer.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build;

    const PREPARED: PlainOwed = PlainOwed { parses: false, binds: true, describes: true };
    const UNNAMED: PlainOwed = PlainOwed { parses: true, binds: true, describes: false };
    const QUERY: PlainOwed = PlainOwed { parses: false, binds: false, describes: false };

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        build::message(&mut out, kind, |out| out.extend_from_slice(body));
        out
    }

    /// The messages of these kinds, each with a body of four bytes.
    fn answer(kinds: &[u8]) -> Vec<u8> {
        kinds.iter().flat_map(|kind| message(*kind, b"SELE")).collect()
    }

    fn bytes(owed: PlainOwed, of: &[u8]) -> Option<usize> {
        owed.read(of, 100).map(|answer| answer.bytes)
    }

    #[test]
    fn a_whole_answer_is_read_and_no_other() {
        for (owed, kinds) in [
            (PREPARED, &b"2TDDC"[..]),
            (PREPARED, b"2TC"),
            (UNNAMED, b"12DC"),
            (QUERY, b"TDDDC"),
            (QUERY, b"C"),
        ] {
            let whole = answer(kinds);
            assert_eq!(bytes(owed, &whole), Some(whole.len()), "{kinds:?}");
            let ready = [&whole[..], &message(b'Z', b"I")].concat();
            assert_eq!(bytes(owed, &ready), Some(whole.len()), "what follows is not looked at");
            for end in 0..whole.len() {
                assert_eq!(bytes(owed, &whole[..end]), None, "{kinds:?} {end}");
            }
            assert_eq!(owed.read(&whole, 8), None, "too long");
        }
        for (owed, kinds) in [
            (PREPARED, &b"2DC"[..]),
            (PREPARED, b"2nC"),
            (PREPARED, b"TDC"),
            (PREPARED, b"2TDE"),
            (UNNAMED, b"2DC"),
            (UNNAMED, b"12TDC"),
            (UNNAMED, b"12Ds"),
            (QUERY, b"NTDC"),
            (QUERY, b"I"),
            (QUERY, b"G"),
        ] {
            assert_eq!(bytes(owed, &answer(kinds)), None, "{kinds:?}");
        }
        let forgets = [answer(b"12"), message(b'C', b"DISCARD ALL\0")].concat();
        assert_eq!(bytes(UNNAMED, &forgets), None);
    }

    #[test]
    fn the_description_is_the_one_that_was_asked_for() {
        let whole = [answer(b"2"), message(b'T', b"rows"), answer(b"DC")].concat();
        let read = PREPARED.read(&whole, 100).expect("one");
        assert_eq!(&whole[read.description], b"rows");
    }
}
