//! Draws what a client does next: valid behaviour, in all the ways that drivers have, and more.
//!
//! # Model
//! One [`Action`] at a time, by where the client's private server says that the session stands.
//! A unit (Parse, Bind, Describe, Execute ...) is planned whole and sent message by message.

use std::collections::VecDeque;
use std::time::Duration;

use super::statement::{Mix, Statements};
use crate::model::backend::ModelBackend;
use crate::model::frontend;
use crate::model::session::Block;
use crate::model::sql::Type;
use crate::model::wire::Message;
use crate::rng::Rng;

/// What a client does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Sends a message.
    Send(Message),
    /// Waits until all is answered that will be.
    Await,
    /// Does nothing for a while.
    Think(Duration),
    /// Sends a cancel request on a connection of its own.
    Cancel,
    /// Goes without a word, in the middle of whatever it is.
    Vanish,
    /// Sends Terminate and goes.
    Leave,
}

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// What it asks for.
    pub mix: Mix,
    /// Units of work in one session.
    pub units: u64,
    /// How many of a hundred units use the extended protocol.
    pub extended_percent: u64,
    /// How many of a hundred of these are a prepared statement's whole pipeline, as drivers send it.
    pub drivers_percent: u64,
    /// After how many of a hundred units it waits for the answers; the others are pipelined.
    pub await_percent: u64,
    /// After how many of a hundred units it does nothing for a while.
    pub think_percent: u64,
    /// Longest such while.
    pub think_max: Duration,
    /// How many of a thousand units end in a sudden disconnection.
    pub vanish_permille: u64,
    /// It goes on without knowing whether the data of an extended-protocol copy were refused, and
    /// whether the statements that it names were prepared, as no driver does.
    pub foresees_outcomes: bool,
    /// It writes a pipeline at once, up to its Sync, as drivers do.
    pub bursts: bool,
    /// How many of a hundred sleeping statements are cancelled.
    pub cancel_percent: u64,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            mix: Mix::everything(),
            units: 40,
            extended_percent: 55,
            drivers_percent: 0,
            await_percent: 60,
            think_percent: 20,
            think_max: Duration::from_millis(3),
            vanish_permille: 0,
            foresees_outcomes: true,
            bursts: false,
            cancel_percent: 50,
        }
    }
}

/// Draws the actions of one session.
#[derive(Debug)]
pub struct Generator {
    rng: Rng,
    behaviour: Behaviour,
    statements: Statements,
    planned: VecDeque<Action>,
    /// Messages of the extended protocol were sent since the last Sync.
    owes_sync: bool,
    asked_cancel: bool,
    /// A statement was named or closed since the last wait.
    named: bool,
    /// All is answered that was sent.
    awaited: bool,
    units: u64,
    left: bool,
}

impl Generator {
    /// A session that owns the table, sequence, channels and locks of `slot`.
    #[must_use]
    pub fn new(seed: u64, behaviour: Behaviour, slot: usize) -> Self {
        let mut rng = Rng::new(seed);
        let statements = Statements { rng: rng.fork(), mix: behaviour.mix.clone(), slot, count: 0 };
        Self {
            rng,
            statements,
            planned: VecDeque::new(),
            owes_sync: false,
            asked_cancel: false,
            named: false,
            awaited: false,
            units: behaviour.units,
            behaviour,
            left: false,
        }
    }

    /// What to do next; `None` once the session is over.
    pub fn next_action(&mut self, session: &ModelBackend) -> Option<Action> {
        if self.left {
            return None;
        }
        let action = loop {
            if session.is_copying_in() {
                // What was planned after an Execute that turned out to be a COPY.
                self.planned.retain(|action| !matches!(action, Action::Send(message) if !b"dcfSH".contains(&message.tag)));
            }
            if let Some(action) = self.planned.pop_front() {
                // Without a Sync the server would keep the answer of what runs to itself.
                if action == Action::Await && session.is_waiting() && self.owes_sync {
                    self.planned.push_front(action);
                    break Action::Send(frontend::sync());
                }
                break action;
            }
            self.plan(session);
        };
        self.awaited = action == Action::Await;
        if let Action::Send(message) = &action {
            match message.tag {
                b'S' => self.owes_sync = session.is_copying_in(),
                b'P' | b'B' | b'D' | b'E' | b'C' | b'H' => self.owes_sync = true,
                b'Q' if !session.skips_to_sync() => self.owes_sync = false,
                _ => {}
            }
        }
        self.left = matches!(action, Action::Leave | Action::Vanish);
        Some(action)
    }

    /// The last that it has drawn is part of a pipeline that has no Sync yet.
    pub(super) fn is_in_pipeline(&self) -> bool {
        self.owes_sync && !self.awaited && !self.left
    }

    fn send(&mut self, message: Message) {
        self.planned.push_back(Action::Send(message));
    }

    fn plan(&mut self, session: &ModelBackend) {
        if session.is_waiting() {
            let cancels = !self.asked_cancel && self.rng.percent(self.behaviour.cancel_percent);
            self.asked_cancel = true;
            self.planned.extend(cancels.then_some(Action::Cancel));
            self.planned.push_back(Action::Await);
            return;
        }
        self.asked_cancel = false;
        if self.named && !self.owes_sync && !session.skips_to_sync() {
            self.named = false;
            self.planned.push_back(Action::Await);
            return;
        }
        if self.units == 0 {
            self.wind_up(session);
            return;
        }
        if self.rng.below(1000) < self.behaviour.vanish_permille {
            self.planned.push_back(Action::Vanish);
            return;
        }
        if session.is_copying_in() {
            self.copy(session);
        } else if (session.skips_to_sync() || self.owes_sync) && self.rng.percent(55) {
            self.send(frontend::sync());
        } else {
            self.units -= 1;
            let extended =
                session.skips_to_sync() || self.rng.percent(self.behaviour.extended_percent);
            if extended {
                self.extended(session);
            } else if self.owes_sync && self.rng.percent(90) {
                self.send(frontend::sync());
            } else {
                self.simple(session);
            }
        }
        if self.rng.percent(self.behaviour.await_percent) {
            self.planned.push_back(Action::Await);
        }
        if self.rng.percent(self.behaviour.think_percent) {
            let nanos = u64::try_from(self.behaviour.think_max.as_nanos()).unwrap_or(u64::MAX);
            self.planned.push_back(Action::Think(Duration::from_nanos(self.rng.below(nanos))));
        }
    }

    fn wind_up(&mut self, session: &ModelBackend) {
        if session.is_copying_in() {
            self.owes_sync |= session.is_extended();
            self.send(frontend::copy_fail("enough"));
        } else if session.skips_to_sync() || self.owes_sync {
            self.send(frontend::sync());
        } else {
            self.planned.push_back(Action::Await);
            self.planned.push_back(Action::Leave);
        }
    }

    fn copy(&mut self, session: &ModelBackend) {
        let extended = session.is_extended();
        match self.rng.below(12) {
            0..=4 => {
                let rows = self.rng.between(1, 5);
                let lines: String =
                    (0..rows).map(|_| format!("{}\n", self.rng.below(100))).collect();
                self.send(frontend::copy_data(lines.as_bytes()));
            }
            5 if extended => self.send(frontend::sync()),
            6 if extended => self.send(frontend::flush()),
            7 => {
                self.owes_sync |= extended;
                self.send(frontend::copy_fail("changed my mind"));
            }
            8 => {
                self.owes_sync |= extended;
                self.send(frontend::copy_data(b"not a number\n"));
                if extended && !self.behaviour.foresees_outcomes {
                    self.planned.push_back(Action::Await);
                }
            }
            _ => {
                self.owes_sync |= extended;
                self.send(frontend::copy_done());
            }
        }
    }

    fn simple(&mut self, session: &ModelBackend) {
        if self.rng.percent(4) {
            let function = if self.rng.percent(85) { 177 } else { 999_999 };
            let arguments = [self.small(), self.small()];
            self.send(frontend::function_call(function, &arguments));
            return;
        }
        let text = if self.rng.percent(70) {
            self.statements.simple(session)
        } else {
            let count = self.rng.between(2, 4);
            self.statements.several(count, session)
        };
        self.send(frontend::query(&text));
    }

    fn small(&mut self) -> i32 {
        i32::try_from(self.rng.below(1000)).expect("below a thousand")
    }

    fn extended(&mut self, session: &ModelBackend) {
        let drivers = self.behaviour.drivers_percent;
        if drivers > 0 && !self.owes_sync && self.rng.percent(drivers) {
            self.as_drivers_do(session);
            return;
        }
        let choice = self.rng.below(20);
        self.named |= !self.behaviour.foresees_outcomes && matches!(choice, 9..=11 | 17);
        match choice {
            0..=8 => self.unnamed(session),
            9..=11 => {
                let name = format!("ps{}", self.rng.below(4));
                // Which of two errors comes first in a failed transaction is not for a pooler.
                let fails = session.block() == Block::Failed && self.behaviour.mix.poolable;
                if self.rng.percent(50) || fails {
                    self.send(frontend::close(b'S', &name));
                }
                let text = self.statements.extended(session);
                self.send(frontend::parse(&name, &text, &[]));
                if self.rng.percent(60) {
                    self.send(frontend::describe(b'S', &name));
                }
            }
            12..=16 => self.named(session),
            17 => {
                let name = format!("ps{}", self.rng.below(4));
                self.send(frontend::close(b'S', &name));
            }
            18 => self.send(frontend::flush()),
            _ => self.send(frontend::execute("no_such_portal", 0)),
        }
    }

    /// Parse, Bind, Describe, Execute of the unnamed statement and portal, as most drivers do.
    fn unnamed(&mut self, session: &ModelBackend) {
        let text = self.statements.extended(session);
        let params = parameters(&text);
        self.send(frontend::parse("", &text, &[]));
        self.bind("", "", &params, 0);
        if self.rng.percent(60) {
            self.send(frontend::describe(b'P', ""));
        }
        let limit = if self.rng.percent(80) { 0 } else { self.rng.between(1, 20) };
        self.send(frontend::execute("", i32::try_from(limit).unwrap_or(0)));
        if self.rng.percent(70) {
            self.send(frontend::sync());
        }
    }

    /// A statement is prepared once and executed often, each time with a pipeline of its own.
    fn as_drivers_do(&mut self, session: &ModelBackend) {
        self.named = true;
        let name = format!("ps{}", self.rng.below(4));
        match session.statement(&name) {
            None => {
                let text = self.statements.extended(session);
                self.send(frontend::parse(&name, &text, &[]));
                if self.rng.percent(60) {
                    self.send(frontend::describe(b'S', &name));
                }
            }
            Some((params, columns)) => {
                self.bind("", &name, &params, columns);
                if self.rng.percent(60) {
                    self.send(frontend::describe(b'P', ""));
                }
                self.send(frontend::execute("", 0));
            }
        }
        self.send(frontend::sync());
    }

    fn bind(&mut self, portal: &str, statement: &str, params: &[Type], columns: usize) {
        let values: Vec<Option<String>> = params
            .iter()
            .map(|kind| match kind {
                Type::Text if self.rng.percent(3) => None,
                Type::Int4 | Type::Int8 if self.rng.percent(3) => Some("twelve".to_owned()),
                Type::Int4 | Type::Int8 => Some(self.rng.below(40).to_string()),
                _ => Some(format!("p{}", self.rng.below(1000))),
            })
            .collect();
        let values: Vec<Option<&str>> = values.iter().map(Option::as_deref).collect();
        let binary = columns > 0 && self.rng.percent(20);
        self.send(frontend::bind(portal, statement, &values, binary));
    }

    /// A prepared statement again, perhaps through a portal that is read in parts.
    fn named(&mut self, session: &ModelBackend) {
        let mut known = session.statements();
        if !self.behaviour.foresees_outcomes && !self.awaited {
            known.retain(|name| !name.is_empty());
        }
        let name = if known.is_empty() || self.rng.percent(5) {
            format!("ps{}", self.rng.below(4))
        } else {
            self.rng.pick(&known).clone()
        };
        let (params, columns) = session.statement(&name).unwrap_or_default();
        let portal =
            if self.rng.percent(60) { String::new() } else { format!("po{}", self.rng.below(3)) };
        if !portal.is_empty() && self.rng.percent(80) {
            self.send(frontend::close(b'P', &portal));
        }
        self.bind(&portal, &name, &params, columns);
        if self.rng.percent(30) {
            self.send(frontend::describe(b'P', &portal));
        }
        for _ in 0..self.rng.between(1, 3) {
            let limit = if self.rng.percent(60) { 0 } else { self.rng.between(1, 15) };
            self.send(frontend::execute(&portal, i32::try_from(limit).unwrap_or(0)));
            if limit == 0 {
                break;
            }
        }
        if self.rng.percent(30) {
            self.send(frontend::close(b'P', &portal));
        }
        if self.rng.percent(50) {
            self.send(frontend::sync());
        }
    }
}

/// The types of the parameters of a generated text.
fn parameters(text: &str) -> Vec<Type> {
    let conforming = crate::model::sql::parse(text, true).ok();
    let parsed = conforming.and_then(|mut parsed| parsed.pop());
    let params = parsed.map(|parsed| parsed.params).unwrap_or_default();
    params.into_iter().map(|kind| kind.unwrap_or(Type::Text)).collect()
}
