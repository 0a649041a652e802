//! Limits of what one connection may use.

/// The size of one read from a connection, and of a loop's shared buffers.
pub const READ_BYTES: usize = 64 * 1024;
/// The size of one read from a client that has no backend.
pub const UNATTACHED_READ_BYTES: usize = 16 * 1024;
/// A message up to this size is passed on only when it is complete; a longer one streams.
pub const WHOLE_MESSAGE_BYTES: usize = 16 * 1024;
/// The same for a Query whose client has start values: something may have to be inserted in its
/// text, see `restore`.
pub const WHOLE_TEXT_BYTES: usize = READ_BYTES;
/// A longer one must come at this rate, in bytes a second, while others wait for its backend and
/// `client_read_timeout` is over.
pub const STREAM_BYTES_A_SECOND_MIN: u64 = 64 * 1024;
/// Microseconds within which a Terminate belongs to the query before it: it was sent with the
/// query, which is to be carried out. Later, and with the connection closed, it means that the
/// client has given up.
pub const GOODBYE_AFTER_QUERY_US: u64 = 10_000;
/// How long tidying may take after a client has left, if `cancel_wait_timeout` sets no bound.
pub const TIDY_MAX: std::time::Duration = std::time::Duration::from_secs(60);
/// An answer up to this size waits for the end of the turn.
pub const LATE_BYTES_MAX: usize = 4 * 1024;
/// Further events that may be handled before waiting answers are written.
pub const EVENTS_BEFORE_ANSWERS_MAX: usize = 32;
/// No bound of the configuration is below this: shorter messages are not measured.
pub const PACKET_BYTES_MIN: usize = 1024;
/// Reads that one event may cause. The next turn continues with a connection that has more.
pub const READS_AN_EVENT_MAX: u32 = 16;
/// Work on a client's messages that counts as a read, if they take the full lane: a message is 1, and so are
/// so many bytes of a text that is looked at.
pub const WORK_A_READ: usize = 128;
/// See [`WORK_A_READ`].
pub const TEXT_BYTES_OF_WORK: usize = 128;
/// How much of a longer message from a server is read: an error's severity and code.
pub const ERROR_START_BYTES: usize = 1024;
/// Unsent bytes for one connection from which on its peer is no longer read.
pub const OUTPUT_HIGH_BYTES: usize = 64 * 1024;
/// Answers that may be outstanding from one backend.
pub const EXPECTED_ANSWERS_MAX: usize = 8 * 1024;
/// Outstanding ReadyForQuery from which on a client's further pipelines wait.
pub const SYNCS_OUTSTANDING_MAX: u32 = 512;
/// Messages of a pipeline within which its client's settings may be sent.
pub const WITHIN_MESSAGES_MAX: usize = 64;
/// Settings that may be sent within a pipeline.
pub const WITHIN_SETTINGS_MAX: usize = 8;
/// Paths for which a pool has statements of its own that set them.
pub const WITHIN_PATHS_MAX: usize = 128;
/// Queries and pipelines that a client may send without letting its backend come to rest, while
/// others wait for one.
pub const UNBROKEN_QUERIES_MAX: u32 = 512;
/// Prepared statements that one client may name and share: work on all of one client's, at its end, at
/// DEALLOCATE ALL or where its settings change, takes some 2 ms. Further ones are not shared, and the
/// client keeps the server connection that has them.
pub const CLIENT_STATEMENTS_MAX: usize = 8 * 1024;
/// Bytes of a name by which PostgreSQL tells statements and portals apart (`NAMEDATALEN` - 1,
/// prepare.c and portalmem.c): the rest is not kept here either.
pub const NAME_BYTES_MAX: usize = 63;
/// Portals of a RESET, DISCARD or DEALLOCATE that one client may make in a transaction, and
/// statements of these that it may name on a server connection of its own.
pub const UNUSUAL_PORTALS_MAX: usize = 1024;
/// Bytes of notifications that may wait for one client that is in a transaction or does not read: a
/// client with more is disconnected.
pub const NOTIFICATIONS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Milliseconds below which a client's statement_timeout is set last and lifted first, and its
/// transaction_timeout does not move.
pub const TIMEOUT_MS_MIN: u64 = 1_000;
/// Attempts to lift a timeout that cuts them off, and to ask under it.
pub const LIFTS_MAX: u8 = 100;
/// Room for a usual question to a server: see `unverified`.
pub const QUESTION_BYTES: usize = 512;
/// A pipeline up to this size is kept until its first answer, so that it can be sent again
/// when a shared statement turns out to be stale.
pub const REPLAY_BYTES: usize = 8 * 1024;

/// Bytes of a streaming text that creates functions which are kept until its end, to read what
/// these do.
pub const MADE_BYTES_MAX: usize = 512 * 1024;
/// Places of a loop's table that are looked at for one page of SHOW: some 100 us with a system call for
/// each, once a turn for all who ask ([`crate::relay::message::Page`]).
pub const PAGE_PLACES: u32 = 128;
/// Clients on which one turn carries out orders that concern all, and those whose deadlines it looks at: 1
/// to 3 ms if each is disconnected.
pub const CLIENTS_A_TURN: u32 = 128;
/// Clients of which one tick looks whether they can go to a successor.
pub const LEAVERS_A_TICK: u32 = 2048;
