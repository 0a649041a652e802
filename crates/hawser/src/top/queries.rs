//! The page of `hawser top` with what the pools' queries are.
//!
//! # Model   rates are the difference of two answers, as of pools; before the second one, figures are
//!           since the start. *Load* is how many server connections a statement has kept busy on
//!           average.

use std::cmp::Reverse;
use std::collections::HashMap;

use ratatui::layout::Constraint;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Cell, Row, Table};

use crate::logging::without_control;
use crate::queries::QueryStatus;
use crate::status::Status;
use crate::units::{self, short};

use super::columns::fitting;

pub(super) const KEYS: &str =
    "q quit  s pools  sort: l load  c calls/s  m mean  w wait  e errors  up/down";

/// The figures of a statement, and what sorts by them. Where the terminal is narrow, the last ones are
/// left out.
const COLUMNS: [(&str, usize, Option<Sort>); 6] = [
    ("load", 5, Some(Sort::Load)),
    ("calls/s", 7, Some(Sort::Calls)),
    ("mean", 7, Some(Sort::Mean)),
    ("wait", 7, Some(Sort::Waited)),
    ("errors", 6, Some(Sort::Errors)),
    ("p99", 7, None),
];
/// What database and user may take of a line.
const OWNER_WIDTH_MAX: usize = 16;

/// By what statements are sorted: the most of it first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    Load,
    Calls,
    Errors,
    Mean,
    Waited,
}

impl Sort {
    /// The one of a letter.
    pub(super) fn of(letter: char) -> Option<Self> {
        Some(match letter {
            'l' => Self::Load,
            'c' => Self::Calls,
            'e' => Self::Errors,
            'm' => Self::Mean,
            'w' => Self::Waited,
            _ => return None,
        })
    }
}

/// One statement, with its rates.
struct Shown {
    text: String,
    owner: String,
    calls: f64,
    load: f64,
    mean_us: u64,
    p99_us: u64,
    errors: u64,
    waited_us: u64,
}

impl Shown {
    fn of(now: &QueryStatus, old: Option<&QueryStatus>, seconds: f64) -> Self {
        let more = |of: fn(&QueryStatus) -> u64| of(now).saturating_sub(old.map_or(0, of));
        let (calls, time_us) = (more(|query| query.calls), more(|query| query.time_us));
        Self {
            text: without_control(&now.query),
            owner: without_control(&format!("{}/{}", now.database, now.user)),
            calls: calls as f64 / seconds,
            load: time_us as f64 / 1e6 / seconds,
            mean_us: time_us.checked_div(calls).unwrap_or(0),
            p99_us: now.p99_us,
            errors: more(|query| query.errors),
            waited_us: more(|query| query.wait_us).checked_div(calls).unwrap_or(0),
        }
    }

    /// In the order of [`COLUMNS`].
    fn figures(&self) -> [String; COLUMNS.len()] {
        let time = |micros| match self.calls > 0.0 {
            true => units::time(micros),
            false => "-".to_owned(),
        };
        [
            format!("{:.2}", self.load),
            format!("{:.1}", self.calls),
            time(self.mean_us),
            time(self.waited_us),
            units::grouped(self.errors),
            units::time(self.p99_us),
        ]
    }

    fn style(&self) -> Style {
        if self.errors > 0 { Style::new().fg(Color::Yellow) } else { Style::new() }
    }
}

/// The page.
pub(super) struct Page {
    shown: Vec<Shown>,
    sort: Sort,
    first: usize,
}

impl Page {
    pub(super) fn new() -> Self {
        Self { shown: Vec::new(), sort: Sort::Load, first: 0 }
    }

    /// Takes another answer. `before`: an earlier one of the same process, and the seconds since it.
    pub(super) fn show(&mut self, before: Option<(&Status, f64)>, now: &Status) {
        fn key(query: &QueryStatus) -> (&str, &str, &str) {
            (&query.digest, &query.database, &query.user)
        }
        let known = before.into_iter().flat_map(|(before, _)| &before.queries);
        let known: HashMap<_, _> = known.map(|query| (key(query), query)).collect();
        let seconds = before.map_or(now.uptime_s as f64, |(_, seconds)| seconds).max(0.001);
        let shown = |query| Shown::of(query, known.get(&key(query)).copied(), seconds);
        self.shown = now.queries.iter().map(shown).collect();
        self.sort_by(self.sort);
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        let rank = |shown: &Shown| match sort {
            Sort::Load => (shown.load * 1e6) as u64,
            Sort::Calls => (shown.calls * 1e3) as u64,
            Sort::Errors => shown.errors,
            Sort::Mean => shown.mean_us,
            Sort::Waited => shown.waited_us,
        };
        self.shown.sort_by(|one, other| {
            (Reverse(rank(one)), &one.text).cmp(&(Reverse(rank(other)), &other.text))
        });
    }

    pub(super) fn scroll(&mut self, lines: isize) {
        let last = self.shown.len().saturating_sub(1);
        self.first = self.first.saturating_add_signed(lines).min(last);
    }

    pub(super) fn table(&self, width: usize) -> Table<'static> {
        let rows: Vec<_> = self.shown.iter().skip(self.first).collect();
        let figures: Vec<_> = rows.iter().map(|shown| shown.figures()).collect();
        // Half of the line is for the texts.
        let widths = fitting(COLUMNS.map(|(_, least, _)| least), &figures, width / 2);
        let texts = width.saturating_sub(widths.iter().map(|width| width + 1).sum());
        let owner = (texts / 3).min(OWNER_WIDTH_MAX);
        let query = texts.saturating_sub(owner + 1);
        let mark = Style::new().add_modifier(Modifier::UNDERLINED);
        let heads = COLUMNS.iter().zip(&widths).map(|((head, _, sort), width)| {
            let style = if *sort == Some(self.sort) { mark } else { Style::new() };
            Cell::from(format!("{head:>width$}")).style(style)
        });
        let heads = Row::new(heads.chain(["database/user", "query"].map(Cell::from)));
        let rows = rows.iter().zip(&figures).map(|(shown, figures)| {
            let figures = figures.iter().zip(&widths);
            let figures = figures.map(|(figure, width)| format!("{figure:>width$}"));
            let texts = [short(&shown.owner, owner), short(&shown.text, query)];
            Row::new(figures.chain(texts)).style(shown.style())
        });
        let all = widths.iter().copied().chain([owner, query]);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        Table::new(rows, all.map(|width| Constraint::Length(width as u16)))
            .column_spacing(1)
            .header(heads.style(bold))
    }
}
