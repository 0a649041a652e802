//! The changes of a transaction to the channels that a client listens on.
//!
//! # Model
//! The client's own backend listens on nothing when the transaction begins. LISTEN goes to it
//! unchanged. After an UNLISTEN, Hawser sends a LISTEN on a channel that stands for it (its
//! *mark*), in the same transaction and savepoint. When the transaction has ended, the server
//! itself reports the outcome: it then listens on the channels of LISTENs that took effect with no
//! UNLISTEN after them, and on the marks of UNLISTENs that took effect. The server thus accounts
//! for rollbacks, savepoints, errors and exception blocks.
//!
//! # Why not frames of our own
//! The savepoint that a ROLLBACK TO names is in texts that are not read otherwise, and savepoints
//! would have to be counted from the start of the transaction, before any client listens.

use std::collections::BTreeSet;

use crate::parts::listen::channel::Channel;

/// The prefix of Hawser's own channels.
const MARK: &[u8] = b"hawser_unlisten_";

/// Names of fewer bytes than this are not truncated (`NAMEDATALEN`, less the longest character).
const CUT_BYTES_MIN: usize = 60;

/// What an UNLISTEN removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// One channel.
    One(Box<[u8]>),
    /// All.
    All,
}

impl Taken {
    /// Whether it removes a channel.
    pub(crate) fn takes(&self, channel: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::One(name) => is_named(channel, name),
        }
    }

    /// Removes it from the channels that are listened on.
    pub(crate) fn take_from(&self, channels: &mut BTreeSet<Channel>) {
        match self {
            Self::All => channels.clear(),
            Self::One(name) => {
                channels.remove(&**name);
                if name.len() >= CUT_BYTES_MIN {
                    channels.retain(|channel| !is_cut_from(channel.as_bytes(), name));
                }
            }
        }
    }
}

/// The LISTENs and UNLISTENs of a transaction under way, by its texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    listened: BTreeSet<Box<[u8]>>,
    unlistened: Vec<Taken>,
}

impl Pending {
    /// Whether it has done nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.listened.is_empty() && self.unlistened.is_empty()
    }

    /// How many channels it has named.
    pub(crate) fn len(&self) -> usize {
        self.listened.len() + self.unlistened.len()
    }

    /// Whether it has stopped listening on any channel and left a mark.
    pub(crate) fn unlistens(&self) -> bool {
        !self.unlistened.is_empty()
    }

    /// A LISTEN is under way.
    pub(crate) fn listen(&mut self, name: &[u8]) {
        self.listened.insert(name.into());
    }

    /// An UNLISTEN is under way: the statement that must follow it.
    pub(crate) fn unlisten(&mut self, what: Taken) -> Vec<u8> {
        self.unlistened.push(what);
        let mark = mark(self.unlistened.len());
        [b"LISTEN ", &*mark].concat()
    }

    /// The UNLISTENs, whether or not they have taken effect.
    pub(crate) fn into_taken(self) -> Vec<Taken> {
        self.unlistened
    }

    /// Whether a channel that the server names is one that the texts have named: other channels of
    /// the backend are not this client's. The server truncates names between characters, the reader
    /// of texts between bytes.
    fn named(&self, channel: &[u8]) -> bool {
        let is_cut = |name: &[u8]| is_cut_from(channel, name);
        self.listened.contains(channel)
            || (channel.len() >= CUT_BYTES_MIN && self.listened.iter().any(|name| is_cut(name)))
    }

    /// The channels that the client listens on after the transaction. It listened on `before` until
    /// then, and its backend now listens on `server`.
    pub(crate) fn settle(
        &self,
        before: &BTreeSet<Channel>,
        server: &[Box<[u8]>],
    ) -> BTreeSet<Channel> {
        let mut after = before.clone();
        let marks: BTreeSet<&[u8]> =
            server.iter().map(|channel| &**channel).filter(|channel| is_mark(channel)).collect();
        for (at, taken) in self.unlistened.iter().enumerate() {
            if marks.contains(&*mark(at + 1)) {
                taken.take_from(&mut after);
            }
        }
        let new = server.iter().filter(|channel| !is_mark(channel) && self.named(channel));
        after.extend(new.map(|channel| Channel::new(channel)));
        after
    }
}

/// Whether the server truncates this name to this channel; the reader of texts truncates it
/// elsewhere.
pub(crate) fn is_named(channel: &[u8], name: &[u8]) -> bool {
    *channel == *name || is_cut_from(channel, name)
}

/// Names of ASCII that are too long are not read from texts (see [`crate::session::scan`]).
fn is_cut_from(channel: &[u8], name: &[u8]) -> bool {
    channel.len() >= CUT_BYTES_MIN && !name.is_ascii() && name.starts_with(channel)
}

fn mark(number: usize) -> Box<[u8]> {
    [MARK, number.to_string().as_bytes()].concat().into()
}

/// Whether a channel stands for an UNLISTEN.
pub(crate) fn is_mark(channel: &[u8]) -> bool {
    channel.starts_with(MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<Channel> {
        names.iter().map(|name| Channel::new(name.as_bytes())).collect()
    }

    fn server(names: &[&str]) -> Vec<Box<[u8]>> {
        names.iter().map(|name| name.as_bytes().into()).collect()
    }

    #[test]
    fn only_what_the_server_says_has_taken_effect() {
        let mut pending = Pending::default();
        pending.listen(b"a");
        pending.listen(b"b");
        assert_eq!(pending.settle(&set(&["x"]), &server(&["a"])), set(&["a", "x"]));
        assert_eq!(pending.settle(&set(&["x"]), &server(&[])), set(&["x"]));
    }

    #[test]
    fn an_unlisten_counts_by_its_mark() {
        let mut pending = Pending::default();
        assert_eq!(pending.unlisten(Taken::One(b"x"[..].into())), b"LISTEN hawser_unlisten_1");
        assert_eq!(pending.unlisten(Taken::All), b"LISTEN hawser_unlisten_2");
        let before = set(&["x", "y"]);
        assert_eq!(pending.settle(&before, &server(&[])), before);
        assert_eq!(pending.settle(&before, &server(&["hawser_unlisten_1"])), set(&["y"]));
        assert_eq!(pending.settle(&before, &server(&["hawser_unlisten_2"])), set(&[]));
    }

    /// A transaction may name as many channels as a client may have, and this runs on an event
    /// loop.
    #[test]
    fn ten_thousand_channels_do_not_take_their_square() {
        let mut pending = Pending::default();
        let name = |number: usize| format!("channel_{number}");
        let before: Vec<String> = (0..10_000).map(name).collect();
        let after: Vec<String> = (10_000..20_000).map(name).collect();
        after.iter().for_each(|name| pending.listen(name.as_bytes()));
        after.iter().for_each(|name| pending.listen(name.as_bytes()));
        let mut listed = after.clone();
        for (at, name) in before.iter().enumerate() {
            pending.unlisten(Taken::One(name.as_bytes().into()));
            listed.push(format!("hawser_unlisten_{}", at + 1));
        }
        assert_eq!(pending.len(), 20_000, "those named twice count once");
        let names = |all: &[String]| all.iter().map(|name| name.as_bytes().into()).collect();
        let listed: Vec<Box<[u8]>> = names(&listed);
        let before = before.iter().map(|name| Channel::new(name.as_bytes())).collect();
        let settled = pending.settle(&before, &listed);
        let expected: BTreeSet<&[u8]> = after.iter().map(String::as_bytes).collect();
        assert!(settled.iter().map(Channel::as_bytes).eq(expected));
    }

    #[test]
    fn an_unlisten_counts_for_a_name_however_it_is_cut_off() {
        let mut pending = Pending::default();
        let long = [&b"x".repeat(61)[..], "é".as_bytes()].concat();
        pending.unlisten(Taken::One((&*long).into()));
        let before = set(&[&"x".repeat(61), &"x".repeat(59)]);
        let after = pending.settle(&before, &server(&["hawser_unlisten_1"]));
        assert_eq!(after, set(&[&"x".repeat(59)]));
    }

    #[test]
    fn what_the_backend_listens_on_beside_it_is_not_the_clients() {
        let mut pending = Pending::default();
        pending.listen(b"a");
        assert_eq!(pending.settle(&set(&[]), &server(&["a", "of_another"])), set(&["a"]));
    }

    #[test]
    fn a_name_that_the_server_cuts_off_between_characters_is_known() {
        let mut pending = Pending::default();
        let long = [&b"x".repeat(61)[..], "é".as_bytes()].concat();
        pending.listen(&long);
        let cut = "x".repeat(61);
        assert_eq!(pending.settle(&set(&[]), &server(&[&cut])), set(&[&cut]));
    }
}
