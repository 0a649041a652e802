//! The operator's rules in force: those of the file, and those of RULE ADD.
//!
//! # Model
//! A reload puts those of the file in force, in their order, and ends those of the console. Each change
//! makes a new set, which goes to every loop by its mailbox ([`hawser_pooler::parts::rules`]).
//!
//! # Invariants
//! * a rule that stays as it is keeps what it has counted
//! * at most [`RULES_MAX`] rules, with different names

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hawser_pooler::parts::rules::{Counts, RULES_MAX, Rule, RuleSet};
use hawser_pooler::relay::ToLoop;
use hawser_pooler::wire::error::{ClientError, SqlState};

use crate::config::{Config, RuleEntry};
use crate::lock::locked;
use crate::loops::Loops;

/// A rule in force.
#[derive(Clone, Debug)]
pub struct InForce {
    /// As it was written.
    pub entry: RuleEntry,
    /// By the console.
    pub by_hand: bool,
    /// What it matches, does and has counted.
    pub rule: Arc<Rule>,
}

/// The rules in force.
#[derive(Debug, Default)]
pub struct Rules(Mutex<Vec<InForce>>);

impl Rules {
    fn lock(&self) -> MutexGuard<'_, Vec<InForce>> {
        locked(&self.0)
    }

    /// All of them, in their order.
    pub fn all(&self) -> Vec<InForce> {
        self.lock().clone()
    }

    /// Those of the file, in place of all others.
    pub fn put_in_force(&self, config: &Config, loops: &Loops) {
        let mut rules = self.lock();
        if rules.is_empty() && config.rules().is_empty() {
            return;
        }
        let before = std::mem::take(&mut *rules);
        for entry in config.rules() {
            let same = before.iter().find(|known| !known.by_hand && known.entry == *entry);
            // (The file has been checked.)
            let made = same.cloned().or_else(|| in_force(entry, None, loops).ok());
            rules.extend(made);
        }
        publish(&rules, loops);
    }

    /// RULE ADD: one more rule, for this long.
    ///
    /// # Errors
    /// What is wrong with it, or that there is no room; nothing has changed then.
    pub fn add(
        self: &Arc<Self>,
        entry: &RuleEntry,
        lasts: Option<Duration>,
        loops: &Loops,
    ) -> Result<(), ClientError> {
        let made = InForce { by_hand: true, ..in_force(entry, lasts, loops)? };
        let mut rules = self.lock();
        if rules.iter().any(|known| known.rule.name == made.rule.name) {
            let message = format!("there is a rule \"{}\" already", made.rule.name);
            return Err(
                ClientError::error(SqlState::DUPLICATE_OBJECT, message).hint("RULE DROP ends it.")
            );
        }
        if rules.len() >= RULES_MAX {
            let message = format!("there are {RULES_MAX} rules, and may be no more");
            return Err(ClientError::error(SqlState::CONFIGURATION_LIMIT_EXCEEDED, message)
                .hint("RULE DROP ends one."));
        }
        rules.push(made);
        publish(&rules, loops);
        drop(rules);
        if let Some(lasts) = lasts {
            let (rules, loops) = (self.clone(), loops.clone());
            tokio::spawn(async move {
                tokio::time::sleep(lasts).await;
                rules.end_those_that_expired(&loops);
            });
        }
        Ok(())
    }

    /// RULE DROP. False: there is none of that name.
    pub fn drop_one(&self, name: &str, loops: &Loops) -> bool {
        self.keep(|known| *known.rule.name != *name, loops)
    }

    fn end_those_that_expired(&self, loops: &Loops) {
        let now = loops.now();
        self.keep(|known| known.rule.expires.is_none_or(|expires| now < expires), loops);
    }

    /// Ends all but these. Returns whether there were others.
    fn keep(&self, stays: impl Fn(&InForce) -> bool, loops: &Loops) -> bool {
        let mut rules = self.lock();
        let before = rules.len();
        for ended in rules.iter().filter(|known| !stays(known)) {
            let counts = &ended.rule.counts;
            tracing::info!(
                rule = &*ended.rule.name,
                matches = counts.matches(),
                refused = counts.refused(),
                "rule ended"
            );
        }
        rules.retain(stays);
        let changed = rules.len() < before;
        if changed {
            publish(&rules, loops);
        }
        changed
    }
}

fn publish(rules: &[InForce], loops: &Loops) {
    let set = Arc::new(RuleSet::new(rules.iter().map(|known| known.rule.clone()).collect()));
    loops.send_all(|| ToLoop::Rules(set.clone()));
}

fn in_force(
    entry: &RuleEntry,
    lasts: Option<Duration>,
    loops: &Loops,
) -> Result<InForce, ClientError> {
    let (when, does) = entry
        .made()
        .map_err(|wrong| ClientError::error(SqlState::INVALID_PARAMETER_VALUE, wrong.message))?;
    let rule = Rule {
        name: entry.name.as_deref().unwrap_or_default().into(),
        when,
        does,
        expires: lasts.map(|lasts| loops.now().after(lasts)),
        counts: Counts::default(),
    };
    Ok(InForce { entry: entry.clone(), by_hand: false, rule: Arc::new(rule) })
}
