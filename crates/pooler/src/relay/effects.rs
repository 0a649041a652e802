//! What a statement's text shows that it may do to the session, in the form that the engine needs.
//!
//! The scan of the text gives parts ([`crate::session::part`]); the policy says which of them pin
//! the client. Effects on the pooler's own books (shared statements, start values) are read from
//! the statements' verbs.
//!
//! # Invariants
//! A text that the scan cannot read with certainty pins the client to the end, and its backend is
//! closed then.

mod block;
pub(crate) mod executed;

use crate::parts::listen::named::Named;
use crate::parts::pins::question::ASKED;
use crate::parts::report::text::COVERED;
use crate::session::part::{Part, PartSet};
use crate::session::scan::{
    Findings, Name, OneOrAll, ScanOptions, SchemaChange, SetValue, Verb, is_plain, scan,
};
use crate::session::settings::{PlanReads, can_move, is_custom, is_for_superusers};

/// Parts that move, once the server has reported their values.
pub(crate) const IN_DOUBT: PartSet =
    PartSet::of(&[Part::Setting, Part::CustomSetting, Part::Role, Part::SessionAuthorization]);

/// The same, and statements of PREPARE.
const IN_DOUBT_OR_SQL: PartSet = IN_DOUBT.union(PartSet::of(&[Part::SqlStatement]));

/// What SET SESSION CHARACTERISTICS sets.
const CHARACTERISTICS: [&[u8]; 3] = [
    b"default_transaction_deferrable",
    b"default_transaction_isolation",
    b"default_transaction_read_only",
];

/// Something that a text may do, beside what it does to the parts of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Effect {
    /// It sets settings whose names are not known.
    SetsUnnamed,
    /// It has more than one statement: one may undo what an earlier one has done.
    HasSeveral,
    /// No command can undo it: the backend is closed when its client leaves.
    Spoils,
    /// Not even a server that reports its sessions shows it.
    SpoilsUnseen,
    /// It asks for currval or lastval.
    ReadsSequences,
    /// Functions and triggers that it reaches draw from a sequence. (Its own words are examined
    /// where it matters; this alone is no effect.)
    Draws,
    /// It changes how later texts are read; its answer shows how.
    Rereads,
    /// It gives settings the server's own start values by set_config() with NULL.
    ResetsByNull,
    /// It does so if a parameter is NULL.
    ResetsByParameter,
    /// It sets a search_path that is not known before the end of the transaction.
    SetsPathUnseen,
    /// It gives, removes or executes prepared statements of unknown names.
    MentionsAny,
    /// A function that it calls executes its strings.
    ExecutesStrings,
    /// So does one whose own strings are no statements: it executes what it is given, or finds in a table.
    ExecutesUnshown,
    /// Some of its statements are prepared under settings that others in the text may have set.
    SetsBeside,
    /// It shows what only that server connection knows of statements of PREPARE: how often and
    /// how each was planned.
    Watches,
    /// It has a NOTIFY, or calls `pg_notify()`.
    Notifies,
    /// Functions behave differently after it.
    ChangesCatalog,
}

/// A set of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EffectSet(u32);

impl EffectSet {
    /// Without these the text need not be examined further, unless it touches a part.
    const THAT_MATTER: Self = Self::of(&[
        Effect::Spoils,
        Effect::ReadsSequences,
        Effect::Rereads,
        Effect::SetsPathUnseen,
        Effect::ExecutesStrings,
        Effect::Notifies,
        Effect::ChangesCatalog,
    ]);

    /// The set of these.
    pub(crate) const fn of(effects: &[Effect]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < effects.len() {
            bits |= 1 << effects[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    pub(crate) fn and(self, more: &[Effect]) -> Self {
        self.union(Self::of(more))
    }

    pub(crate) const fn without(self, others: &[Effect]) -> Self {
        Self(self.0 & !Self::of(others).0)
    }

    pub(crate) const fn only(self, others: &[Effect]) -> Self {
        Self(self.0 & Self::of(others).0)
    }

    pub(crate) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<(Effect, bool)> for EffectSet {
    fn from_iter<I: IntoIterator<Item = (Effect, bool)>>(effects: I) -> Self {
        let is = |(effect, is): (Effect, bool)| is.then_some(effect);
        effects.into_iter().filter_map(is).fold(Self::default(), |set, effect| set.and(&[effect]))
    }
}

/// What a text may do to the session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Parts that pin the client.
    pub pins: PartSet,
    /// Parts that may be gone after it.
    pub ends: PartSet,
    /// What else it may do.
    pub does: EffectSet,
    /// Settings whose values only the server knows after it.
    pub names: Vec<Box<[u8]>>,
    /// Custom names that it may define, and that it sets at most until the end of the transaction.
    pub local_names: Vec<Box<[u8]>>,
    /// It may set something, for good or until the end of the transaction, that decides what plans
    /// give: from this level on. (Settings that matter only to functions that read everything are
    /// left out: most texts that set anything set these.)
    pub sets: Option<PlanReads>,
    /// Names that its PREPARE statements give.
    pub prepares: Vec<Box<[u8]>>,
    /// Names of prepared statements that it gives, removes or executes.
    pub mentions: Vec<Box<[u8]>>,
    /// Names that it executes.
    pub executes: Vec<Box<[u8]>>,
    /// Statements may mean something else after it.
    pub schema: SchemaChange,
    /// Settings that functions and blocks of code reset to start values: nothing can be put after
    /// the reset, so these become the server connection's start values.
    pub(crate) resets: Resetting,
    /// Any of the following: otherwise these need not be examined.
    pub unusual: Option<Box<Unusual>>,
}

/// What a text may do that changes the pooler's own books.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unusual {
    /// Settings that are reset to their start values.
    pub(crate) resetting: Resetting,
    /// Settings that are set after a RESET of them.
    pub(crate) set_again: Vec<Box<[u8]>>,
    /// Settings that are reset to their start values until the end of the transaction.
    pub(crate) local_defaults: Vec<Box<[u8]>>,
    /// DEALLOCATE ALL or DISCARD ALL: prepared statements are gone.
    pub(crate) forgets_statements: bool,
    /// DISCARD ALL: everything that pins is gone.
    pub(crate) discards_all: bool,
    /// The only statement is DEALLOCATE of this name.
    pub(crate) deallocates: Option<Box<[u8]>>,
    /// The only statement is DEALLOCATE ALL.
    pub(crate) deallocates_all: bool,
    /// UNLISTEN * by itself: ends the pin of LISTEN.
    pub(crate) unlistens_all: bool,
    /// LISTEN and UNLISTEN, if all of them are known.
    pub(crate) named_channels: Option<Named>,
    /// New sessions may start with other values after it.
    pub(crate) changes_start_values: bool,
    /// The only statement is one for which no other connection to this database may exist.
    pub(crate) vacates: Option<Box<[u8]>>,
}

/// What RESET ALL leaves alone (`GUC_NO_RESET_ALL`, guc_tables.c).
pub(crate) const KEPT_BY_RESET_ALL: [&[u8]; 2] = [b"role", b"session_authorization"];

/// What a RESET in flight takes back to the client's start values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Resetting {
    /// Nothing.
    #[default]
    No,
    /// These settings.
    Names(Vec<Box<[u8]>>),
    /// All that a RESET ALL takes back, and these.
    All { besides: Vec<Box<[u8]>> },
}

impl Resetting {
    /// A RESET ALL, and nothing else.
    #[cfg(test)]
    pub(crate) const ALL: Self = Self::All { besides: Vec::new() };

    /// Adds a setting, and what is reset with it: the role with the session's user
    /// (`set_config_option`, guc.c). Returns whether that changed anything.
    pub(crate) fn add(&mut self, name: &[u8]) -> bool {
        let mut more = self.add_one(name);
        if name.eq_ignore_ascii_case(b"session_authorization") {
            more |= self.add_one(b"role");
        }
        more
    }

    fn add_one(&mut self, name: &[u8]) -> bool {
        match self {
            Self::No => *self = Self::Names(vec![name.into()]),
            Self::Names(names) | Self::All { besides: names } => {
                if names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                    return false;
                }
                names.push(name.into());
            }
        }
        true
    }

    /// Adds a RESET ALL. Returns whether that changed anything.
    pub(crate) fn add_all(&mut self) -> bool {
        let besides = match self {
            Self::All { .. } => return false,
            Self::No => Vec::new(),
            Self::Names(names) => std::mem::take(names),
        };
        *self = Self::All { besides };
        true
    }

    /// Adds what another takes back. Returns whether that changed anything.
    pub(crate) fn absorb(&mut self, other: &Self) -> bool {
        let mut more = matches!(other, Self::All { .. }) && self.add_all();
        for name in other.names() {
            more |= self.add_one(name);
        }
        more
    }

    /// The settings that are taken back by name.
    pub(crate) fn names(&self) -> &[Box<[u8]>] {
        match self {
            Self::No => &[],
            Self::Names(names) | Self::All { besides: names } => names,
        }
    }

    /// Whether it takes this setting back.
    pub(crate) fn takes(&self, name: &[u8]) -> bool {
        let all = matches!(self, Self::All { .. }) && !KEPT_BY_RESET_ALL.contains(&name);
        all || self.names().iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

impl Effects {
    /// None at all.
    pub(crate) const NONE: Effects = Effects {
        pins: PartSet::EMPTY,
        ends: PartSet::EMPTY,
        does: EffectSet(0),
        names: Vec::new(),
        local_names: Vec::new(),
        sets: None,
        prepares: Vec::new(),
        mentions: Vec::new(),
        executes: Vec::new(),
        schema: SchemaChange::None,
        resets: Resetting::No,
        unusual: None,
    };

    /// Whether there are no effects.
    pub fn is_none(&self) -> bool {
        self.pins.is_empty()
            && self.ends.is_empty()
            && self.does.0 & EffectSet::THAT_MATTER.0 == 0
            && self.sets.is_none()
            && self.schema == SchemaChange::None
            && self.resets == Resetting::No
            && self.unusual.is_none()
    }

    /// Whether it may do this.
    #[inline]
    pub(crate) fn may(&self, effect: Effect) -> bool {
        self.does.0 & EffectSet::of(&[effect]).0 != 0
    }

    /// It may do these, too.
    pub(crate) fn add(&mut self, effects: &[Effect]) {
        self.does = self.does.and(effects);
    }

    /// It does none of these.
    pub(crate) fn remove(&mut self, effects: &[Effect]) {
        self.does = self.does.without(effects);
    }

    /// Whether it removes all prepared statements (DISCARD ALL, DEALLOCATE ALL).
    pub(crate) fn forgets_statements(&self) -> bool {
        self.unusual.as_ref().is_some_and(|unusual| unusual.forgets_statements)
    }

    /// Whether it may name prepared statements, or show them.
    #[inline]
    pub(crate) fn may_name_statements(&self) -> bool {
        self.may(Effect::MentionsAny)
            || self.may(Effect::ExecutesStrings)
            || !self.mentions.is_empty()
            || self.pins.contains(Part::SessionCatalog)
    }

    /// Whether it may leave state that only the end of the server connection removes.
    pub(crate) fn leaves_what_stays(&self) -> bool {
        self.may(Effect::Spoils) || self.pins.must_close_with()
    }

    /// Whether the server may listen after it.
    pub(crate) fn listens(&self) -> bool {
        let named = self.unusual.as_ref().and_then(|unusual| unusual.named_channels.as_ref());
        self.pins.contains(Part::Listen) || named.is_some_and(|named| !named.listens.is_empty())
    }

    /// The effects of a function called by its oid (FunctionCall): there is no text, and any client
    /// can call `set_config`, `pg_advisory_lock`, `setseed` or `currval` in this way.
    pub(crate) fn of_unknown_function() -> Self {
        let kept = PartSet::of(&[Part::AdvisoryLock, Part::Seed]);
        Self {
            pins: PartSet::ANY_SETTING.union(kept),
            ends: ASKED,
            does: EffectSet::of(&[
                Effect::SetsUnnamed,
                Effect::HasSeveral,
                Effect::Spoils,
                Effect::ReadsSequences,
                Effect::Draws,
                Effect::Rereads,
                Effect::SetsPathUnseen,
                Effect::MentionsAny,
                Effect::ExecutesStrings,
                Effect::ExecutesUnshown,
                Effect::SetsBeside,
                Effect::Watches,
                Effect::Notifies,
            ]),
            sets: Some(PlanReads::Own),
            schema: SchemaChange::All,
            ..Self::NONE
        }
    }

    /// The same for a text that calls a function which keeps state in variables of its language.
    #[must_use]
    pub(crate) fn and_keeps_variables(mut self) -> Self {
        self.pins.insert(Part::PlVariable);
        self.add(&[Effect::Spoils, Effect::SpoilsUnseen]);
        self
    }

    /// The effects of a function's source: what a call of it does. What it resets gets the server's
    /// own start values, and the server reports these.
    pub(crate) fn of_body(findings: &Findings, reported: impl Fn(&[u8]) -> bool) -> Self {
        let mut effects = Self::of(findings, &reported);
        if let Some(unusual) = effects.unusual.take() {
            match &unusual.resetting {
                Resetting::No => {}
                Resetting::All { .. } => {
                    effects.pins = effects.pins.union(PartSet::ANY_SETTING);
                    effects.add(&[Effect::SetsUnnamed]);
                }
                Resetting::Names(names) => {
                    for name in names {
                        let part = Part::of_setting(name, &reported);
                        effects.pins = effects.pins.union(
                            part.into_iter().filter(|part| IN_DOUBT.contains(*part)).collect(),
                        );
                        effects.name_setting(part, name);
                    }
                }
            }
            if unusual.named_channels.is_some() {
                effects.pins.insert(Part::Listen);
            }
            effects.resets = unusual.resetting;
        }
        if findings.executes_reset {
            effects.resets.add_all(); // only the server knows which ones
        }
        // A SECURITY DEFINER function may set what its caller may not: no backend could be given
        // that.
        let names = effects.names.len();
        effects.names.retain(|name| !is_for_superusers(name));
        if effects.names.len() < names {
            effects.add(&[Effect::SetsUnnamed, Effect::Spoils]);
        }
        // Only the server knows the names of statements of PREPARE, also of those that are removed:
        // a shared statement may be among them.
        if effects.ends.contains(Part::SqlStatement) {
            effects.pins.insert(Part::SqlStatement);
        }
        effects.prepares.clear();
        effects.mentions.clear();
        effects.executes.clear();
        // (Its parameters are not the client's.)
        let not = [Effect::MentionsAny, Effect::ResetsByNull, Effect::ResetsByParameter];
        effects.remove(&not);
        effects.remove(&[Effect::ChangesCatalog]);
        if findings.schema == SchemaChange::All {
            effects.add(&[Effect::ChangesCatalog]);
        }
        if effects.is_none() {
            return Self::default();
        }
        effects.add(&[Effect::HasSeveral]);
        effects
    }

    /// It counts as changing no object of the database.
    pub(crate) fn forget_changes(&mut self) {
        self.remove(&[Effect::ChangesCatalog]);
        self.schema = SchemaChange::None;
    }

    /// Adds the effects of another. Returns whether that changed anything.
    pub(crate) fn absorb(&mut self, other: &Self) -> bool {
        fn add(names: &mut Vec<Box<[u8]>>, more: &[Box<[u8]>]) -> bool {
            let before = names.len();
            for name in more {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
            names.len() > before
        }
        let sets = |this: &Self| (this.pins, this.ends, this.does, this.sets, this.schema);
        let before = sets(self);
        self.pins = self.pins.union(other.pins);
        self.ends = self.ends.union(other.ends);
        self.does = self.does.union(other.does);
        self.schema = self.schema.max(other.schema);
        if let Some(from) = other.sets {
            self.note_setting(from);
        }
        let mut changed = before != sets(self);
        changed |= add(&mut self.names, &other.names);
        changed |= add(&mut self.local_names, &other.local_names);
        changed |= add(&mut self.prepares, &other.prepares);
        changed |= add(&mut self.mentions, &other.mentions);
        changed |= add(&mut self.executes, &other.executes);
        changed | self.resets.absorb(&other.resets)
    }

    /// The effects that no report of a server shows: parts that only a close of the server
    /// connection ends, what must be cleared before it (the server's list of prepared statements),
    /// strings that a function executes, of which no report comes before, settings before the end
    /// of their transaction, and notifications.
    pub(crate) fn unreported(&self) -> Self {
        let closes = |part: &Part| PartSet::of(&[*part]).must_close();
        let pins = self.pins.intersection(PartSet::of(&[Part::SessionCatalog]));
        let does = self.does.only(&[Effect::ExecutesStrings, Effect::Notifies]);
        let mut unreported = Self { pins, does, sets: self.sets, ..Self::default() };
        for part in self.pins.minus(COVERED).iter().filter(closes) {
            unreported.pins.insert(part);
            unreported.add(&[Effect::Spoils, Effect::SpoilsUnseen]);
        }
        if self.may(Effect::SpoilsUnseen) {
            unreported.add(&[Effect::Spoils, Effect::SpoilsUnseen]);
        }
        unreported
    }

    /// The effects of executing a statement, from those of its PREPARE.
    pub(crate) fn of_executing(mut self) -> Self {
        self.pins.remove(Part::SqlStatement);
        self.prepares.clear();
        self.mentions.clear();
        self.executes.clear();
        self
    }

    /// The effects of a text that the server reads with these options.
    pub(crate) fn of_text(
        text: &[u8],
        options: ScanOptions,
        reported: impl Fn(&[u8]) -> bool,
    ) -> Self {
        if options == ScanOptions::default() && is_plain(text) {
            return Self::default();
        }
        let findings = scan(text, options);
        Self::of(&findings, &reported).and_of_block(text, &findings, reported)
    }

    /// The effects of a text that the server reads in the one way or in the other.
    pub(crate) fn either(self, other: Self) -> Self {
        if self == other {
            return self;
        }
        let mut unusual = self.unusual.or(other.unusual);
        let mut pins = self.pins.union(other.pins).union(PartSet::ANY_SETTING);
        let mut resets = self.resets;
        resets.absorb(&other.resets);
        if let Some(unusual) = &mut unusual
            && unusual.named_channels.take().is_some()
        {
            pins.insert(Part::Listen);
        }
        Self {
            pins,
            ends: self.ends.union(other.ends),
            does: self.does.union(other.does).and(&[
                Effect::SetsUnnamed,
                Effect::HasSeveral,
                Effect::Spoils,
                Effect::Rereads,
                Effect::SetsPathUnseen,
                Effect::MentionsAny,
                Effect::SetsBeside,
                Effect::Watches,
            ]),
            sets: Some(PlanReads::Own),
            schema: self.schema.max(other.schema),
            resets,
            unusual,
            ..Self::NONE
        }
    }

    /// From the scan of a text. `reported` says whether the server reports a setting, given in
    /// lower case.
    pub fn of(findings: &Findings, reported: impl Fn(&[u8]) -> bool) -> Self {
        let parts = findings.parts(&reported);
        let mut effects = Self {
            pins: parts.pinning().union(parts.intersection(IN_DOUBT_OR_SQL)),
            does: Self::found(findings, parts),
            schema: if findings.unsure { SchemaChange::All } else { findings.schema },
            ..Self::default()
        };
        if findings.unsure {
            effects.pins = effects.pins.union(PartSet::ANY_SETTING);
            effects.pins.insert(Part::SessionCatalog);
        }
        if parts.contains(Part::SequenceValue) {
            // No reason to keep the backend: see `bind`.
            effects.add(&[Effect::ReadsSequences]);
            effects.pins.remove(Part::SequenceValue);
        }
        effects.name_settings(findings, &reported);
        effects.note_settings(findings);
        effects.ends = findings.ends;
        if findings.unsure || findings.truncated {
            effects.ends = ASKED;
        }
        let mut unusual = Unusual::default();
        let mut named = Named::default();
        for statement in findings.statements() {
            effects.add_statement(&statement.verb);
            unusual.add(&statement.verb);
            named.add(&statement.verb);
        }
        let all_known = !findings.unsure && !findings.truncated;
        if all_known && !findings.flags.contains(Part::Listen) {
            unusual.named_channels = Some(named).filter(|named| !named.is_empty());
        } else if findings.unsure || parts.contains(Part::Listen) {
            effects.pins.insert(Part::Listen); // on unknown channels
        }
        if let Some(single) = findings.single() {
            match &single.verb {
                Verb::Deallocate(OneOrAll::One(name)) => {
                    unusual.deallocates = Some(name.as_bytes().into());
                }
                Verb::Deallocate(OneOrAll::All) => {
                    unusual.deallocates_all = !findings.unsure && !findings.truncated;
                }
                Verb::Unlisten(OneOrAll::All) => unusual.unlistens_all = true,
                Verb::Vacate(name) => unusual.vacates = Some(name.as_bytes().into()),
                _ => {}
            }
        }
        if unusual != Unusual::default() {
            effects.unusual = Some(Box::new(unusual));
        }
        effects
    }
}

fn is_seed(name: &Name) -> bool {
    name.as_bytes() == b"seed"
}

impl Effects {
    /// What the scan shows beside parts of the session.
    fn found(findings: &Findings, parts: PartSet) -> EffectSet {
        let unsure = findings.unsure;
        let prepares = findings.flags.contains(Part::SqlStatement);
        let sets =
            findings.flags.intersects(PartSet::ANY_SETTING) || !findings.configured.is_empty();
        // The text that is executed, or was prepared for a COMMIT PREPARED, may have created a
        // function.
        let changes = findings.changes_catalog || findings.schema == SchemaChange::All;
        // (A set_config() of the seed leaves no trace that a server could report.)
        let names_seed = findings.configured.iter().chain(&findings.local).any(is_seed);
        [
            (Effect::Spoils, unsure || parts.must_close()),
            (Effect::SpoilsUnseen, parts.minus(COVERED).must_close() || names_seed),
            (Effect::Rereads, unsure || findings.rereads),
            (Effect::ResetsByNull, !findings.nulls.is_empty()),
            (Effect::ResetsByParameter, findings.given),
            (Effect::SetsPathUnseen, findings.unseen_path),
            (Effect::ChangesCatalog, unsure || changes),
            (Effect::Notifies, findings.notifies),
            (Effect::MentionsAny, unsure || findings.truncated || prepares),
            (Effect::SetsBeside, sets),
            (Effect::Watches, unsure || prepares || parts.contains(Part::SessionCatalog)),
        ]
        .into_iter()
        .collect()
    }

    /// Adds the effects of one statement.
    fn add_statement(&mut self, verb: &Verb) {
        self.ends = self.ends.union(verb.ends());
        if let Verb::Prepare(name) | Verb::Execute(name) | Verb::Deallocate(OneOrAll::One(name)) =
            verb
        {
            self.mentions.push(name.as_bytes().into());
        }
        match verb {
            Verb::Prepare(name) => self.prepares.push(name.as_bytes().into()),
            Verb::Execute(name) => {
                self.executes.push(name.as_bytes().into());
                self.add(&[Effect::SetsBeside]);
            }
            Verb::Set { .. }
            | Verb::SetSessionCharacteristics { .. }
            | Verb::Reset(_)
            | Verb::ResetAll
            | Verb::Do
            | Verb::Call => self.add(&[Effect::SetsBeside]),
            _ => {}
        }
    }

    /// Notes the settings that the text sets and whose values no message shows.
    fn name_settings(&mut self, findings: &Findings, reported: &impl Fn(&[u8]) -> bool) {
        let mut unnamed = findings.flags.intersection(IN_DOUBT);
        if !findings.truncated {
            for name in &findings.configured {
                let part = Part::of_setting(name.as_bytes(), reported);
                // The scan knows only the settings that every server reports.
                unnamed = unnamed.minus(part.into_iter().chain([Part::Setting]).collect());
            }
            if !findings.defined.is_empty() {
                unnamed.remove(Part::CustomSetting);
            }
        }
        for name in &findings.configured {
            self.name_setting(Part::of_setting(name.as_bytes(), reported), name.as_bytes());
        }
        for name in &findings.defined {
            self.define(name.as_bytes());
        }
        for statement in findings.statements() {
            match &statement.verb {
                Verb::Set { name, local: true, .. } if is_custom(name.as_bytes()) => {
                    self.define(name.as_bytes());
                }
                Verb::Set { name, local: false, value }
                    if *value != SetValue::Default || is_custom(name.as_bytes()) =>
                {
                    let name = name.as_bytes();
                    self.name_setting(Part::of_setting(name, reported), name);
                }
                Verb::Reset(name) if is_custom(name.as_bytes()) => {
                    self.name_setting(Some(Part::CustomSetting), name.as_bytes());
                }
                Verb::SetSessionCharacteristics { local: false } => {
                    for name in CHARACTERISTICS {
                        self.name_setting(Part::of_setting(name, reported), name);
                    }
                }
                _ => {}
            }
        }
        if findings.unsure || !unnamed.is_empty() {
            self.add(&[Effect::SetsUnnamed]);
        }
        if unnamed.contains(Part::CustomSetting)
            || (self.may(Effect::SetsUnnamed) && self.pins.contains(Part::CustomSetting))
        {
            self.add(&[Effect::Spoils]);
        }
        if findings.single().is_none() {
            self.add(&[Effect::HasSeveral]);
        }
    }

    /// Notes from which level on plans depend on what the text sets.
    fn note_settings(&mut self, findings: &Findings) {
        if findings.unsure
            || findings.truncated
            || findings.sets_unnamed
            || self.may(Effect::SetsUnnamed)
        {
            self.note_setting(PlanReads::Own);
        }
        let named = [&findings.configured, &findings.defined, &findings.local];
        for name in named.into_iter().flatten() {
            self.note_setting(PlanReads::of_results(name.as_bytes()));
        }
        for statement in findings.statements() {
            match &statement.verb {
                Verb::Set { name, .. } | Verb::Reset(name) => {
                    self.note_setting(PlanReads::of_results(name.as_bytes()));
                }
                Verb::ResetAll | Verb::DiscardAll => {
                    self.note_setting(PlanReads::Own);
                }
                _ => {}
            }
        }
    }

    /// It sets what plans depend on from that level on. Returns whether that changed anything.
    fn note_setting(&mut self, from: PlanReads) -> bool {
        let news = from < self.sets.unwrap_or(PlanReads::All);
        if news {
            self.sets = Some(from);
        }
        news
    }

    fn define(&mut self, name: &[u8]) {
        if !self.local_names.iter().any(|known| **known == *name) {
            self.local_names.push(name.into());
        }
    }

    fn name_setting(&mut self, part: Option<Part>, name: &[u8]) {
        if !part.is_some_and(|part| IN_DOUBT.contains(part)) {
            return;
        }
        if !can_move(name) {
            self.add(&[Effect::SetsUnnamed]);
        } else if !self.names.iter().any(|known| **known == *name) {
            self.names.push(name.into());
            if name == b"session_authorization" {
                self.name_setting(Some(Part::Role), b"role");
            }
        }
    }
}

impl Unusual {
    /// Whether it contains an UNLISTEN.
    pub(crate) fn unlistens(&self) -> bool {
        self.named_channels.as_ref().is_some_and(|named| !named.unlistens.is_empty())
    }

    /// Whether settings are reset to start values.
    pub(crate) fn takes_start_values(&self) -> bool {
        self.resetting != Resetting::No || !self.local_defaults.is_empty()
    }

    fn add(&mut self, verb: &Verb) {
        match verb {
            Verb::Set { name, local: false, value: SetValue::Default } | Verb::Reset(name) => {
                self.resetting.add(name.as_bytes());
            }
            Verb::Set { name, local: true, value: SetValue::Default } => {
                self.local_defaults.push(name.as_bytes().into());
            }
            Verb::Set { name, local: false, .. } if self.resetting != Resetting::No => {
                self.set_again.push(name.as_bytes().into());
            }
            Verb::ResetAll => {
                self.resetting.add_all();
            }
            Verb::DiscardAll => {
                self.resetting.add_all();
                self.forgets_statements = true;
                self.discards_all = true;
            }
            Verb::Deallocate(OneOrAll::All) => self.forgets_statements = true,
            Verb::Shared | Verb::Vacate(_) => self.changes_start_values = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::scan::body::scan_body;
    use crate::session::scan::{ScanOptions, scan};

    fn effects(text: &str) -> Effects {
        let reported = |name: &[u8]| name == b"timezone" || name == b"application_name";
        Effects::of(&scan(text.as_bytes(), ScanOptions::default()), reported)
    }

    #[test]
    fn plain_statements_have_none() {
        for text in [
            "SELECT 1",
            "",
            "BEGIN; UPDATE t SET a = 1; COMMIT",
            "SELECT nextval('s')",
            "SET CONSTRAINTS ALL DEFERRED",
        ] {
            assert!(effects(text).is_none(), "{text}");
        }
    }

    #[test]
    fn what_plans_depend_on_shows_in_the_text_that_sets_it() {
        for (text, sets) in [
            ("SET LOCAL extra_float_digits = 0", Some(PlanReads::Own)),
            ("SELECT set_config('bytea_output', 'escape', true)", Some(PlanReads::Own)),
            ("SELECT set_config($1, $2, true)", Some(PlanReads::Own)),
            ("RESET ALL", Some(PlanReads::Own)),
            ("SET LOCAL ROLE r", Some(PlanReads::Custom)),
            ("SELECT set_config('my.user', $1, true)", Some(PlanReads::Custom)),
            ("SET LOCAL work_mem = '1GB'", None),
            ("SET LOCAL search_path TO a", None),
            ("SET LOCAL statement_timeout = 0; SET TimeZone TO 'UTC'", Some(PlanReads::Own)),
            ("SHOW TimeZone", None),
            ("COMMIT", None),
        ] {
            assert_eq!(effects(text).sets, sets, "{text}");
        }
    }

    #[test]
    fn what_reset_all_leaves_goes_back_where_it_is_reset_by_its_name() {
        for (text, besides) in [
            ("reset role; reset all", &["role"][..]),
            ("reset all; reset role", &["role"]),
            ("set role to default; reset all", &["role"]),
            ("reset all; set session authorization default", &["session_authorization", "role"]),
            ("reset all", &[]),
        ] {
            let resetting = effects(text).unusual.expect("unusual").resetting;
            let named: Vec<Box<[u8]>> = besides.iter().map(|name| name.as_bytes().into()).collect();
            assert_eq!(resetting, Resetting::All { besides: named }, "{text}");
            assert!(resetting.takes(b"work_mem"), "{text}");
            assert_eq!(resetting.takes(b"role"), besides.contains(&"role"), "{text}");
        }
        let both = effects("reset session authorization").unusual.expect("unusual").resetting;
        assert!(both.takes(b"role") && both.takes(b"session_authorization"));
    }

    #[test]
    fn a_setting_that_the_server_reports_moves_and_another_pins() {
        let zone = effects("SET TimeZone TO 'UTC'");
        assert!(zone.pins.is_empty() && zone.names.is_empty() && !zone.is_none());
        assert!(effects("SET application_name = 'x'").is_none());
        assert!(effects("SET statement_timeout = 1").pins.contains(Part::Setting));
        assert_eq!(*effects("SET Statement_Timeout = 1").names, [b"statement_timeout"[..].into()]);
        assert!(effects("SET LOCAL statement_timeout = 1").is_none());
        let custom = effects("SET LOCAL My.User = 1; SELECT set_config('my.x', 'a', true)");
        assert_eq!(custom.local_names.len(), 2);
        assert!(
            custom.names.is_empty()
                && !custom.may(Effect::SetsUnnamed)
                && !custom.may(Effect::Spoils)
        );
        let unknown = effects("SELECT set_config(lower('my.x'), 'a', false)");
        assert!(unknown.may(Effect::SetsUnnamed) && unknown.may(Effect::Spoils));
    }

    #[test]
    fn what_is_executed_or_committed_later_may_make_a_function() {
        for text in [
            "do $$ begin execute 'create function f() returns int as ...'; end $$",
            "do $$ begin execute q; end $$",
            "commit prepared 'p'",
            "select 1 as a into t",
        ] {
            assert!(effects(text).may(Effect::ChangesCatalog), "{text}");
        }
        assert!(!effects("do $$ begin perform 1; end $$").may(Effect::ChangesCatalog));
        for (source, makes) in [
            ("BEGIN EXECUTE 'CREATE FUNCTION f() ...'; END", true),
            ("BEGIN DROP FUNCTION f(); END", true),
            ("BEGIN CREATE TEMP TABLE t (a int); END", false),
            ("BEGIN PERFORM pg_advisory_lock(1); END", false),
        ] {
            let mut called = Effects::default();
            called.absorb(&Effects::of_body(&scan_body(source.as_bytes(), true), |_| false));
            assert_eq!(called.may(Effect::ChangesCatalog), makes, "{source}");
        }
    }

    #[test]
    fn what_no_command_can_undo_spoils_the_backend() {
        for text in [
            "LOAD 'x'",
            "SELECT setseed(0.5)",
            "SELECT set_limit(0.5)",
            "SELECT set_user('postgres')",
            "SELECT * FROM hypopg_create_index('CREATE INDEX ON t (i)')",
            "SELECT 'open",
        ] {
            let effects = effects(text);
            assert!(effects.may(Effect::Spoils) && !effects.pins.is_empty(), "{text}: {effects:?}");
        }
    }

    #[test]
    fn the_books_learn_what_resets_and_discards() {
        let all = effects("DISCARD ALL").unusual.unwrap();
        assert!(all.discards_all && all.forgets_statements && all.resetting == Resetting::ALL);
        let names = effects("RESET TimeZone; SET application_name TO DEFAULT").unusual.unwrap();
        assert_eq!(
            names.resetting,
            Resetting::Names(vec![b"timezone"[..].into(), b"application_name"[..].into()])
        );
        let one = effects("DEALLOCATE PREPARE \"My\"").unusual.unwrap();
        assert_eq!(one.deallocates.as_deref(), Some(&b"My"[..]));
        assert!(effects("SELECT currval('s')").may(Effect::ReadsSequences));
    }
}
