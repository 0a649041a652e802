//! What statements in flight on a server connection may change for other sessions as well.
//!
//! # Model
//! ```text
//!   sent ──► at stake ──► its transaction ends, and nothing more is outstanding ──► nothing is
//! ```
//! Other sessions learn of it when the transaction ends, whether it has succeeded or failed; of
//! start values only if a statement's command tag says that they have changed.

use crate::parts::functions::known::Foreseen;

/// What is at stake.
#[derive(Debug, Default)]
pub(crate) struct SideEffects {
    start_values: StartValues,
    /// Functions may behave differently after these statements.
    catalog: bool,
    foreseen: Option<Foreseen>,
    /// Statements may mean something else once the transaction has ended.
    schema: bool,
    /// A statement that changes the schema is prepared under its client's own name: any Bind may
    /// run it.
    parsed_schema_change: bool,
}

/// What new sessions start with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum StartValues {
    /// Nothing in flight changes them.
    #[default]
    Unchanged,
    /// A statement in flight may change them (ALTER ROLE).
    InFlight,
    /// One has succeeded, in a transaction that has not ended.
    Changed,
}

/// What a transaction that has ended may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MayHaveChanged {
    /// What new sessions start with: certainly changed.
    pub(crate) start_values: bool,
    /// What functions do.
    pub(crate) catalog: bool,
    /// What statements mean.
    pub(crate) schema: bool,
}

impl SideEffects {
    /// Whether nothing is at stake.
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        !(self.catalog | self.schema) && self.start_values == StartValues::Unchanged
    }

    #[inline]
    pub(crate) fn has_start_values(&self) -> bool {
        self.start_values != StartValues::Unchanged
    }

    pub(crate) fn has_schema(&self) -> bool {
        self.schema
    }

    /// A statement is sent that may change these.
    pub(crate) fn note(&mut self, start_values: bool, catalog: bool) {
        if start_values && self.start_values == StartValues::Unchanged {
            self.start_values = StartValues::InFlight;
        }
        self.catalog |= catalog;
    }

    /// What a statement that is sent makes is known already.
    pub(crate) fn foresee(&mut self, foreseen: Foreseen) {
        self.foreseen = Some(foreseen);
    }

    /// A statement is sent that changes the schema.
    pub(crate) fn note_schema(&mut self) {
        self.schema = true;
    }

    /// Such a statement is prepared under its client's own name.
    pub(crate) fn note_parsed(&mut self) {
        self.parsed_schema_change = true;
    }

    /// Whether such a statement is prepared.
    #[inline]
    pub(crate) fn has_parsed(&self) -> bool {
        self.parsed_schema_change
    }

    /// Its client gives the connection back.
    pub(crate) fn forget_parsed(&mut self) {
        self.parsed_schema_change = false;
    }

    /// A statement that changes start values has succeeded.
    pub(crate) fn start_values_changed(&mut self) {
        if self.has_start_values() {
            self.start_values = StartValues::Changed;
        }
    }

    /// A transaction has ended. `more`: something is still outstanding, maybe another such statement.
    pub(crate) fn settle(&mut self, more: bool) -> MayHaveChanged {
        let changed = MayHaveChanged {
            start_values: self.start_values == StartValues::Changed,
            catalog: self.catalog,
            schema: self.schema,
        };
        self.start_values = match self.start_values {
            StartValues::Changed if more => StartValues::InFlight,
            before if more => before,
            _ => StartValues::Unchanged,
        };
        self.catalog &= more;
        self.foreseen = self.foreseen.take().filter(|_| more);
        self.schema &= more;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_at_stake_stays_so_while_more_is_outstanding() {
        let mut side_effects = SideEffects::default();
        side_effects.start_values_changed();
        assert!(side_effects.is_nothing(), "of a statement that changes none");
        side_effects.note(true, true);
        side_effects.note_schema();
        let all_but_start = MayHaveChanged { start_values: false, catalog: true, schema: true };
        assert_eq!(side_effects.settle(true), all_but_start);
        side_effects.start_values_changed();
        assert_eq!(
            side_effects.settle(true),
            MayHaveChanged { start_values: true, ..all_but_start }
        );
        assert_eq!(side_effects.settle(false), all_but_start, "it is reported once");
        assert!(side_effects.is_nothing());
        assert_eq!(side_effects.settle(false), MayHaveChanged::default());
    }

    #[test]
    fn what_is_parsed_stays_until_the_connection_is_given_back() {
        let mut side_effects = SideEffects::default();
        side_effects.note_parsed();
        side_effects.settle(false);
        assert!(side_effects.has_parsed() && side_effects.is_nothing());
        side_effects.forget_parsed();
        assert!(!side_effects.has_parsed());
    }
}
