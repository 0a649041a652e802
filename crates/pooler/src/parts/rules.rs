//! Rules of the operator: which statements of whom are refused, bounded or logged.
//!
//! # Model
//! ```text
//!   a set of rules comes ─► every client: may one concern it, by who it is?  no ──► nothing more
//!                                                │ yes: it has no plain lane, and stays outside
//!                                                ▼
//!   its Query, Parse or Bind: which rules match its text?  ─► refused, or passed on with a place
//!                                                             under a bound, and a moment at which
//!                                                             it is cut off
//!   ReadyForQuery, and nothing outstanding ─► places are given back
//! ```
//! Rules match one by one, and each that matches acts. The first that refuses ends that.
//!
//! # Where a refusal comes from
//! A client without a server connection gets it here: a flood of refused statements takes none. With
//! one, the server gets a Bind in place of the message that it refuses, and whose error is replaced: so
//! the block fails, and the rest of the pipeline is ignored, as after any error.
//!
//! # Invariants
//! * a statement that begins or ends transactions is never matched: the way out of a block stays open
//! * each place taken is given back once, whatever becomes of its client ([`Running`])
//! * where no rule concerns a client, its messages cost one test of a bit
//!
//! # Limits
//! * of a text that streams, the part that has come first is matched
//! * what a session in session mode binds was matched at its Parse only

pub mod kind;
mod steps;

use core::cell::OnceCell;
use core::net::IpAddr;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::lending::priority::Priority;
use crate::parts::rules::kind::{Kind, has, only_controls_transactions};
use crate::queries::digest::{Digest, digest};
use crate::relay::client_info::PeerAddress;
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};

/// The most rules that there may be: each is looked at for each statement of a client that one of
/// them concerns.
pub const RULES_MAX: usize = 100;

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// One of them.
    pub address: IpAddr,
    /// How many bits are the same.
    pub bits: u8,
}

impl Network {
    fn has(self, address: IpAddr) -> bool {
        let same = |one: u128, other: u128, length: u32| {
            let rest = length.saturating_sub(u32::from(self.bits));
            rest >= length || (one ^ other) >> rest == 0
        };
        match (self.address, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                same(one.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => same(one.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

/// Whether a text has what is looked for.
pub type IsIn = dyn Fn(&[u8]) -> bool + Send + Sync;

/// A regular expression. (What reads it is no part of this crate.)
pub struct Pattern {
    /// As it was written.
    pub written: Box<str>,
    /// Whether a text has it.
    pub is_in: Box<IsIn>,
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.written.fmt(f)
    }
}

/// Who a client is, as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    /// Its user.
    pub user: &'a str,
    /// Its database.
    pub database: &'a str,
    /// Its application_name as it is now.
    pub application_name: &'a [u8],
    /// Where it comes from.
    pub peer: &'a PeerAddress,
}

/// What a rule matches: all of these that are there.
#[derive(Debug, Default)]
pub struct When {
    /// The user.
    pub user: Option<Box<str>>,
    /// The database.
    pub database: Option<Box<str>>,
    /// The application_name.
    pub application_name: Option<Box<str>>,
    /// The client's address.
    pub network: Option<Network>,
    /// What the statement does.
    pub kind: Option<Kind>,
    /// Its text without what differs between its executions.
    pub digest: Option<Digest>,
    /// What its text has.
    pub text: Option<Pattern>,
}

impl When {
    /// Whether it matches every statement of every client.
    pub fn is_all(&self) -> bool {
        let Self { user, database, application_name, network, kind, digest, text } = self;
        user.is_none()
            && database.is_none()
            && application_name.is_none()
            && network.is_none()
            && kind.is_none()
            && digest.is_none()
            && text.is_none()
    }

    /// Whether it may match a statement of this client's.
    fn concerns(&self, who: &Who<'_>) -> bool {
        self.user.as_deref().is_none_or(|user| user == who.user)
            && self.database.as_deref().is_none_or(|database| database == who.database)
            && self
                .application_name
                .as_deref()
                .is_none_or(|name| name.as_bytes() == who.application_name)
            && self.network.is_none_or(|network| who.peer.ip().is_some_and(|of| network.has(of)))
    }

    /// Whether it tells statements of a client apart.
    fn names_statements(&self) -> bool {
        self.kind.is_some() || self.digest.is_some() || self.text.is_some()
    }

    /// Whether it matches this text.
    fn takes(&self, text: &Text<'_>) -> bool {
        self.text.as_ref().is_none_or(|pattern| (pattern.is_in)(text.written))
            && self.kind.is_none_or(|kind| has(text.written, kind))
            && self.digest.is_none_or(|digest| digest == text.digest())
    }
}

/// The text of a statement.
struct Text<'a> {
    written: &'a [u8],
    /// Once a rule has asked for it.
    digest: OnceCell<Digest>,
}

impl<'a> Text<'a> {
    fn new(written: &'a [u8]) -> Self {
        Self { written, digest: OnceCell::new() }
    }

    fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| digest(self.written).0)
    }
}

/// What a rule does with a statement.
#[derive(Debug, Default)]
pub struct Does {
    /// It fails with this message and code.
    pub refuses: Option<(Box<str>, SqlState)>,
    /// It fails while this many run.
    pub running_max: Option<u32>,
    /// It is cut off after this time.
    pub time_max: Option<Duration>,
    /// One of so many goes to the log; 0: none.
    pub log_one_of: u32,
    /// Each goes to the audit.
    pub audits: bool,
    /// Where its client stands among those that wait for a server connection.
    pub priority: Option<Priority>,
}

/// What rules have done. All loops count in the same place: only clients that a rule concerns do so.
#[derive(Debug, Default)]
pub struct Counts {
    matches: AtomicU64,
    refused: AtomicU64,
    cut_off: AtomicU64,
    running: AtomicU32,
}

impl Counts {
    /// How many statements have matched.
    pub fn matches(&self) -> u64 {
        self.matches.load(Ordering::Relaxed)
    }
    /// How many were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
    /// How many were cut off.
    pub fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }
    /// How many run now, or wait for a server connection.
    pub fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }
}

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name.
    pub name: Box<str>,
    /// What it matches.
    pub when: When,
    /// What it does.
    pub does: Does,
    /// It matches nothing from then on.
    pub expires: Option<Time>,
    /// What it has done.
    pub counts: Counts,
}

impl Rule {
    fn is_in_force(&self, now: Time) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    fn refusal(&self) -> Option<ClientError> {
        let (message, code) = self.does.refuses.as_ref()?;
        let name = &self.name;
        Some(
            ClientError::error(*code, message.to_string()).detail(format!(
                "Rule \"{name}\" of the connection pooler refuses this statement."
            )),
        )
    }

    /// The error for one more than may run.
    fn is_full(&self) -> ClientError {
        let (name, most) = (&self.name, self.does.running_max.unwrap_or_default());
        ClientError::error(
            SqlState::CONFIGURATION_LIMIT_EXCEEDED,
            format!("too many statements of this kind at once (rule \"{name}\")"),
        )
        .detail(format!("At most {most} of the statements that this rule matches run at once."))
        .hint("Run it again later.")
    }

    /// The error for one that has run for too long.
    fn is_over(&self) -> ClientError {
        let (name, most) = (&self.name, self.does.time_max.unwrap_or_default());
        ClientError::error(
            SqlState::QUERY_CANCELED,
            format!("canceling statement due to rule \"{name}\": it ran longer than {most:?}"),
        )
    }
}

/// A statement that a rule has matched, until its query or pipeline has ended.
#[derive(Debug)]
struct Running {
    rule: Arc<Rule>,
    has_place: bool,
}

impl Running {
    /// `None`: as many run as may.
    fn begin(rule: &Arc<Rule>) -> Option<Self> {
        let has_place = rule.does.running_max.is_some();
        if let Some(most) = rule.does.running_max {
            let one_more = |running| (running < most).then_some(running + 1);
            let running = &rule.counts.running;
            running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        }
        Some(Self { rule: rule.clone(), has_place })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.has_place {
            self.rule.counts.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The rules in force.
#[derive(Debug, Default)]
pub struct RuleSet {
    rules: Vec<Arc<Rule>>,
}

impl RuleSet {
    /// Of these rules, in their order.
    pub fn new(rules: Vec<Arc<Rule>>) -> Self {
        Self { rules }
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// Whether one of them may match a statement of this client's.
    pub(crate) fn concern(&self, who: &Who<'_>) -> bool {
        self.rules.iter().any(|rule| rule.when.concerns(who))
    }

    /// Whether one of them looks at what a client may change about itself.
    pub(crate) fn name_applications(&self) -> bool {
        self.rules.iter().any(|rule| rule.when.application_name.is_some())
    }

    /// The place of a client that waits to run one of these texts, by the first rule that says so. A
    /// transaction that is about to begin has it by what its client is.
    fn priority(&self, who: Who<'_>, texts: &[Text<'_>], now: Time) -> Priority {
        let controls = texts.iter().all(|text| only_controls_transactions(text.written));
        let mut rules = self.rules.iter().filter(|rule| rule.does.priority.is_some());
        let decides = rules.find(|rule| {
            rule.is_in_force(now)
                && rule.when.concerns(&who)
                && match controls {
                    true => !rule.when.names_statements(),
                    false => texts.iter().any(|text| rule.when.takes(text)),
                }
        });
        decides.and_then(|rule| rule.does.priority).unwrap_or_default()
    }

    /// The rules that match one of these texts of this client's.
    fn matching<'a>(
        &'a self,
        who: Who<'a>,
        texts: &'a [Text<'a>],
        now: Time,
    ) -> impl Iterator<Item = &'a Arc<Rule>> {
        let controls = texts.iter().all(|text| only_controls_transactions(text.written));
        self.rules.iter().filter(move |rule| {
            !controls
                && rule.is_in_force(now)
                && rule.when.concerns(&who)
                && texts.iter().any(|text| rule.when.takes(text))
        })
    }
}

/// What rules have to do with what a client runs, until nothing is outstanding.
#[derive(Debug, Default)]
pub(crate) struct Ruling {
    /// The client's next message has been judged.
    judged: bool,
    matched: Vec<Running>,
    /// The error for the current message, which has a server connection.
    refusal: Option<ClientError>,
    /// When it is cut off.
    ends: Option<Time>,
    /// By which rule it was cut off.
    cut_off: Option<Arc<Rule>>,
    /// Its client's place, while it waits for a server connection.
    priority: Priority,
    /// The text of the Parse before, which is in the audit.
    audited: Option<Vec<u8>>,
}

/// What becomes of a message.
#[derive(Debug, Default)]
struct Verdict {
    refusal: Option<ClientError>,
    /// The rules that log it.
    logs: Vec<Arc<Rule>>,
    /// The rule that puts it into the audit.
    audits: Option<Arc<Rule>>,
}

impl Ruling {
    /// These rules match the current message.
    fn match_all<'a>(&mut self, mut rules: impl Iterator<Item = &'a Arc<Rule>>) -> Verdict {
        let mut verdict = Verdict::default();
        let audits = |rule: &&Arc<Rule>| rule.does.audits;
        while let Some(rule) = rules.next() {
            if verdict.audits.is_none() {
                verdict.audits = Some(rule).filter(audits).cloned();
            }
            if self.matched.iter().any(|known| Arc::ptr_eq(&known.rule, rule)) {
                continue; // an earlier message of the pipeline was counted
            }
            let matches = rule.counts.matches.fetch_add(1, Ordering::Relaxed);
            if rule.does.log_one_of > 0 && matches.is_multiple_of(rule.does.log_one_of.into()) {
                verdict.logs.push(rule.clone());
            }
            let begun = match rule.refusal() {
                Some(refusal) => Err(refusal),
                None => Running::begin(rule).ok_or_else(|| rule.is_full()),
            };
            match begun {
                Ok(running) => self.matched.push(running),
                Err(refusal) => {
                    rule.counts.refused.fetch_add(1, Ordering::Relaxed);
                    verdict.refusal = Some(refusal);
                    // (Rules after it do nothing but see what was refused.)
                    verdict.audits = verdict.audits.or_else(|| rules.find(audits).cloned());
                    break;
                }
            }
        }
        verdict
    }

    /// Whether a text that is to go into the audit is not there as that of the Parse before its Bind.
    fn is_news_to_audit(&mut self, is_parse: bool, text: &[u8]) -> bool {
        let before = self.audited.take();
        if is_parse {
            self.audited = Some(text.to_vec());
        }
        is_parse || before.is_none_or(|before| before != text)
    }

    /// The current message goes to the server.
    fn begins(&mut self, now: Time) {
        let shortest = self.matched.iter().filter_map(|one| one.rule.does.time_max).min();
        self.ends = self.ends.or_else(|| Some(now.after(shortest?)));
    }

    /// It has run for too long. Returns whether a rule cuts it off.
    fn cut_off(&mut self) -> bool {
        if self.ends.take().is_none() {
            return false;
        }
        let bounded = self.matched.iter().filter(|one| one.rule.does.time_max.is_some());
        let rule = bounded.min_by_key(|one| one.rule.does.time_max).map(|one| one.rule.clone());
        if let Some(rule) = &rule {
            rule.counts.cut_off.fetch_add(1, Ordering::Relaxed);
        }
        self.cut_off = rule;
        self.cut_off.is_some()
    }
}

#[cfg(test)]
mod tests;
