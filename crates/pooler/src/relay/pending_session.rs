//! What is known of a client only while its state is out of the ordinary.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::parts::functions::census::Reader;
use crate::parts::listen::clients::Listening;
use crate::parts::rules::Ruling;
use crate::parts::settings::pending_reset::PendingReset;
use crate::parts::sql_prepare::ClientSql;
use crate::parts::start_values::parameters::Parameter;
use crate::parts::statements::client_names::significant;
use crate::parts::statements::description::Seen;
use crate::parts::statements::journal::Journal;
use crate::parts::statements::own_named::NotedStatement;
use crate::relay::effects::{Effects, Unusual};
use crate::relay::halt::TooManyPortals;
use crate::relay::limits;
use crate::relay::vacancy::Vacancy;
use crate::session::scan::{Findings, Scanner};
use crate::session::settings::Settings;
use crate::wire::build;
use crate::wire::error::ClientError;

/// All of that. Each part is empty unless something of its kind is in flight.
#[derive(Default)]
pub(crate) struct PendingSession {
    /// The messages before its BackendKeyData; `None` once it has been greeted.
    pub(crate) greeting: Option<Vec<u8>>,
    /// The values that it was sent before it had a session: see [`crate::parts::identity::hand_over`].
    pub(crate) reported_early: Option<Vec<Parameter>>,
    /// RESET, DISCARD and the like whose pipeline has not ended.
    pub(crate) reset: Option<Box<PendingReset>>,
    pub(crate) unreported: Unreported,
    /// Statements that the server knows by the client's own names, and that take start values.
    pub(crate) noted: Option<Box<Journal<NotedStatement>>>,
    pub(crate) portals: Portals,
    /// Its statements of SQL's PREPARE.
    pub(crate) by_sql: Option<Box<ClientSql>>,
    /// What it listens on without a backend of its own.
    pub(crate) listening: Option<Box<Listening>>,
    /// How far a database has been emptied of connections for its statement.
    pub(crate) vacancy: Option<Vacancy>,
    /// A Query that streams.
    pub(crate) streaming: Option<Box<StreamingQuery>>,
    pub(crate) dropped: Dropped,
    /// A cancel request has come for its next message, which waits here: it is sent after that.
    pub(crate) cancel_follows: bool,
    pub(crate) farewell: Farewell,
    /// It is disconnected, and gets the reason apart from its last answer.
    pub(crate) last_words: Option<Box<ClientError>>,
    /// What rules have to do with what it runs.
    pub(crate) ruling: Option<Ruling>,
}

impl PendingSession {
    /// Whether none of it is in flight any more.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            greeting,
            reported_early,
            reset,
            unreported,
            noted,
            portals,
            by_sql,
            listening,
            vacancy,
            streaming,
            dropped,
            cancel_follows,
            farewell,
            last_words,
            ruling,
        } = self;
        greeting.is_none()
            && reported_early.is_none()
            && reset.is_none()
            && unreported.is_empty()
            && noted.as_ref().is_none_or(|noted| noted.is_empty())
            && portals.are_ordinary()
            && by_sql.is_none()
            && listening.is_none()
            && vacancy.is_none()
            && streaming.is_none()
            && !dropped.drops()
            && !cancel_follows
            && *farewell == Farewell::None
            && last_words.is_none()
            && ruling.is_none()
    }
}

/// ParameterStatus messages that a client is due at the end of its own pipeline, where no server
/// sends them.
#[derive(Default)]
pub(crate) struct Unreported {
    /// A pipeline that a Sync of Hawser's has ended changed reported settings: the values that the
    /// client knows, and the reports that it is due.
    changed: Option<(Settings, Vec<u8>)>,
    /// The server's reports after a ROLLBACK that was sent before the client's Query, or, of the
    /// session's user, after a DISCARD ALL in such a pipeline.
    reports: Vec<u8>,
}

impl Unreported {
    fn is_empty(&self) -> bool {
        self.changed.is_none() && self.reports.is_empty()
    }

    /// All of it, in order.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut due = self.take_reports();
        due.extend(self.changed.take().into_iter().flat_map(|(_, due)| due));
        due
    }

    pub(crate) fn report(&mut self, name: &[u8], value: &[u8]) {
        build::parameter_status(&mut self.reports, name, value);
    }

    pub(crate) fn take_reports(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.reports)
    }

    /// A pipeline that a Sync of Hawser's has ended changed settings that the client knows,
    /// `believed`.
    pub(crate) fn change(&mut self, believed: Settings, due: Vec<u8>) {
        self.changed = Some((believed, due));
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.changed.is_some()
    }

    /// The values that the client knows; the reports that it is due are computed again.
    pub(crate) fn take_believed(&mut self) -> Option<Settings> {
        self.changed.take().map(|(believed, _)| believed)
    }

    pub(crate) fn believed_mut(&mut self) -> Option<&mut Settings> {
        self.changed.as_mut().map(|(believed, _)| believed)
    }
}

/// Portals that are out of the ordinary, by their names.
#[derive(Default)]
pub(crate) struct Portals {
    /// Portals of statements whose execution changes the books: see [`crate::parts::settings::restore`].
    unusual: BTreeMap<Box<[u8]>, Box<Unusual>>,
    /// Portals of statements whose rows have not been described to the client.
    undescribed: BTreeMap<Box<[u8]>, Arc<Seen>>,
}

impl Portals {
    fn are_ordinary(&self) -> bool {
        self.unusual.is_empty() && self.undescribed.is_empty()
    }

    /// They have ended with their transaction.
    pub(crate) fn clear(&mut self) {
        self.unusual.clear();
        self.undescribed.clear();
    }

    /// What is noted for a portal's execution.
    pub(crate) fn unusual(&self, portal: &[u8]) -> Option<&Unusual> {
        self.unusual.get(significant(portal)).map(|unusual| &**unusual)
    }

    /// A portal of this name has been made of an ordinary statement.
    pub(crate) fn made_ordinary(&mut self, portal: &[u8]) {
        self.unusual.remove(significant(portal));
    }

    /// A portal of this name has been made. `Err` if there is no room to note it.
    pub(crate) fn made_unusual(
        &mut self,
        portal: &[u8],
        unusual: &Unusual,
    ) -> Result<(), TooManyPortals> {
        if self.unusual.len() >= limits::UNUSUAL_PORTALS_MAX {
            return Err(TooManyPortals);
        }
        self.unusual.insert(significant(portal).into(), Box::new(unusual.clone()));
        Ok(())
    }

    /// The description of a portal of this name will be the first description of the rows of its
    /// statement that the client gets.
    pub(crate) fn note_undescribed(&mut self, portal: &[u8], seen: Arc<Seen>) {
        let portal = significant(portal);
        let known = &mut self.undescribed;
        if known.len() >= limits::UNUSUAL_PORTALS_MAX && !known.contains_key(portal) {
            seen.rows(u64::MAX); // the coming description is not known, and nothing is equal to it
            return;
        }
        known.insert(portal.into(), seen);
    }

    /// A description of this portal is noted nowhere.
    pub(crate) fn forget_undescribed(&mut self, portal: &[u8]) {
        self.undescribed.remove(significant(portal));
    }

    /// Where to note the description of a portal that the client gets.
    pub(crate) fn described_by(&self, portal: &[u8]) -> Option<Arc<Seen>> {
        self.undescribed.get(significant(portal)).cloned()
    }
}

/// A Query that has come in part: the findings in its text so far.
pub(crate) struct StreamingQuery {
    scanner: Scanner,
    /// The effects of functions that its words reach.
    reader: Option<Reader>,
    /// The text from where it begins to create functions, up to [`limits::MADE_BYTES_MAX`].
    makes: Vec<u8>,
}

/// The findings in a Query that has streamed.
pub(crate) struct Streamed {
    pub(crate) findings: Findings,
    /// The effects of functions that its words reach.
    pub(crate) reached: Option<Effects>,
    /// The part of the text that creates functions.
    pub(crate) makes: Vec<u8>,
}

impl StreamingQuery {
    pub(crate) fn new(scanner: Scanner, reader: Option<Reader>) -> Self {
        Self { scanner, reader, makes: Vec::new() }
    }

    pub(crate) fn feed(&mut self, part: &[u8]) {
        self.scanner.feed(part);
        if let Some(reader) = &mut self.reader {
            reader.feed(part);
        }
        if self.scanner.may_make_functions() {
            let room = limits::MADE_BYTES_MAX - self.makes.len();
            self.makes.extend_from_slice(&part[..part.len().min(room)]);
        }
    }

    pub(crate) fn finish(self) -> Streamed {
        Streamed {
            findings: self.scanner.finish(),
            reached: self.reader.and_then(Reader::finish),
            makes: self.makes,
        }
    }
}

/// Messages of a client that are discarded.
#[derive(Default)]
pub(crate) struct Dropped {
    /// Bytes still to come of a message.
    bytes: usize,
    /// Its pipeline has failed and its backend has been given back: everything up to its Sync,
    /// which is answered here.
    to_sync: bool,
}

impl Dropped {
    fn drops(&self) -> bool {
        self.bytes > 0 || self.to_sync
    }

    /// This many bytes of the current message are still to come.
    pub(crate) fn rest_of_message(&mut self, bytes: usize) {
        self.bytes = bytes;
    }

    pub(crate) fn is_in_message(&self) -> bool {
        self.bytes > 0
    }

    /// Of `come` bytes that have come, returns how many belong to that message.
    pub(crate) fn take_part(&mut self, come: usize) -> usize {
        let part = self.bytes.min(come);
        self.bytes -= part;
        part
    }

    pub(crate) fn until_sync(&mut self) {
        self.to_sync = true;
    }

    pub(crate) fn sync_has_come(&mut self) {
        self.to_sync = false;
    }

    pub(crate) fn is_until_sync(&self) -> bool {
        self.to_sync
    }
}

/// How a client leaves that is still owed answers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum Farewell {
    #[default]
    None,
    /// It has sent Terminate.
    Said {
        /// During a query that had been running for a while.
        gave_up: bool,
    },
    /// And it has closed its connection since.
    Gone { gave_up: bool },
}

impl Farewell {
    /// It has closed its connection.
    pub(crate) fn goes(&mut self) {
        if let Self::Said { gave_up } = *self {
            *self = Self::Gone { gave_up };
        }
    }
}
