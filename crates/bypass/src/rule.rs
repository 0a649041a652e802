//! When bytes of a local connection may go past TCP, from socket to socket.
//!
//! # Model
//! ```text
//!   send ── decide ──► Redirect ──► the reader's queue of messages ──┐  read first
//!              │                                                     ├──► recv
//!              └─────► Pass ──► TCP ──► the reader's receive queue ──┘  read when the other is empty
//! ```
//! The kernel reads messages before the receive queue, whichever came first. So a message may be
//! redirected only when all that went through TCP has been read:
//! `write_seq == snd_una == reader.rcv_nxt == reader.copied_seq`. Redirected bytes count in none of
//! these numbers, so the condition is the same whether or not anything was passed, and no state is
//! kept. The other way round needs no care: what is passed is read after the messages.
//!
//! The kernel puts no bound on the queue of messages. Here it is
//! `queued_bytes + size <= min(QUEUED_BYTES_MAX, buffer_bytes / 2)`, and [`QUEUED_MESSAGES_MAX`]
//! messages since it was last empty: each takes some 1 KiB of the kernel's memory that is counted
//! nowhere.
//!
//! # Invariants
//! * what is read is what was sent, in its order
//! * the queue of messages never exceeds its bounds
//! * whatever is not certain is passed
//!
//! # Why only readers that never wait
//! A recv(2) that blocks, in a socket whose bytes came by TCP, sleeps on TCP alone (MSG_WAITALL above
//! all): a message would not wake it. And one that takes messages gives fewer bytes than MSG_WAITALL
//! asks for. A descriptor with O_NONBLOCK knows neither. Its readers wait by poll or epoll, which see
//! both queues.
//!
//! A user may say of a program that it waits and does without MSG_WAITALL (`run --blocking`). Its
//! recv(2) sleeps on both queues if it begins while both are empty, and one that began with bytes of TCP
//! has ended once the program sends.
//!
//! # Why no readers of edges
//! A recv(2) that takes messages ends with the last of them, also where more bytes wait in the receive
//! queue. To an edge-triggered reader (EPOLLET), a short read means that nothing is left
//! (epoll(7)), and it would wait for ever. Level-triggered readers, and those that read until
//! EAGAIN, as Hawser itself does, take the rest. A reader that waits by poll or select has no
//! epoll, but neither has an edge-triggered one that has only just got its descriptor: until a
//! reader without one has read something, by TCP, it may become either.
//!
//! # Limits
//! The kernel's program is [`crate::kernel`]; its tests compare it with this.

/// Redirected bytes that may wait for a reader.
pub const QUEUED_BYTES_MAX: u64 = 256 << 10;
/// Redirected messages since the queue was empty: 128 KiB of the kernel's memory for their heads.
pub const QUEUED_MESSAGES_MAX: u64 = 128;

/// The socket that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// TCP_ESTABLISHED: neither end has sent a FIN.
    pub established: bool,
    /// A protocol above TCP has it (kTLS, MPTCP).
    pub layered: bool,
    /// The sequence number of the next byte that is given to TCP.
    pub write_seq: u32,
    /// The first that is not acknowledged.
    pub snd_una: u32,
}

/// The socket at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// It has the cookie with which it was listed: its memory is not another socket's by now.
    pub same: bool,
    /// As of [`Sender`].
    pub established: bool,
    /// Neither direction was shut down.
    pub open: bool,
    /// As of [`Sender`].
    pub layered: bool,
    /// A message wakes it: its descriptor has O_NONBLOCK (one that was not accepted yet has none), or its
    /// program may wait and it has sent something since it last read from TCP.
    pub is_woken: bool,
    /// It comes back for the rest after a short read: an epoll that does not tell of edges watches it, or
    /// none does though it has read before, or it is known to read until there is nothing.
    pub comes_back: bool,
    /// The sequence number of the next byte that TCP expects.
    pub rcv_nxt: u32,
    /// The first that was not read.
    pub copied_seq: u32,
    /// What waits in both of its queues (`sk_rmem_alloc`).
    pub queued_bytes: u64,
    /// Messages since both were last empty.
    pub queued_messages: u64,
    /// `sk_rcvbuf`.
    pub buffer_bytes: u64,
}

/// How the machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The switch of `hawser bypass off`.
    pub enabled: bool,
    /// The kernel is short of memory for TCP (`tcp_mem`).
    pub short_of_memory: bool,
}

/// Why a message goes through TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The queue of messages has no room for it, or the kernel has no memory.
    Full,
    /// Not all that went through TCP has been read.
    Unread,
    /// The rest: switched off, no such peer here, half closed, kTLS, a reader that waits in recv(2) or
    /// for edges.
    Other,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the reader's queue.
    Redirect,
    /// It goes through TCP.
    Pass(Reason),
}

/// Decides about a message of `size` bytes.
pub fn decide(machine: Machine, size: u64, sender: Sender, reader: Option<Reader>) -> Verdict {
    let Some(reader) = reader else { return Verdict::Pass(Reason::Other) };
    if !machine.enabled || !is_sure(sender, reader) {
        return Verdict::Pass(Reason::Other);
    }
    let sent = sender.write_seq;
    if sender.snd_una != sent || reader.rcv_nxt != sent || reader.copied_seq != sent {
        return Verdict::Pass(Reason::Unread);
    }
    let bytes_max = QUEUED_BYTES_MAX.min(reader.buffer_bytes / 2);
    let messages = messages_with(reader);
    let fits = reader.queued_bytes + size <= bytes_max && messages <= QUEUED_MESSAGES_MAX;
    if machine.short_of_memory || !fits {
        return Verdict::Pass(Reason::Full);
    }
    Verdict::Redirect
}

/// How many messages there are since the queue was empty, with the one that is decided about.
pub fn messages_with(reader: Reader) -> u64 {
    if reader.queued_bytes == 0 { 1 } else { reader.queued_messages + 1 }
}

fn is_sure(sender: Sender, reader: Reader) -> bool {
    let between = sender.established && reader.established && reader.open;
    let reads_all = reader.is_woken && reader.comes_back;
    reader.same && between && !sender.layered && !reader.layered && reads_all
}

#[cfg(test)]
mod tests;
