//! What `hawser top` draws.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};

use super::columns::fitting;
use super::queries;
use crate::logging::without_control;
use crate::status::{PoolStatus, Status};
use crate::tally::class_in_words;
use crate::units::{self, short};

/// Lines for errors.
const ERROR_LINES: u16 = 5;
/// Answers whose figures are kept for the sparklines: as many as a wide terminal has columns.
const HISTORY: usize = 300;
/// Where sparklines begin.
const SPARKS_AT: usize = 25;
/// A client that has waited for so long has too small a pool, or another that keeps it.
const LONG_WAIT_US: u64 = 1_000_000;
/// The figures of a pool: how wide they are at least, and what sorts by them. Where the terminal is
/// narrow, the last ones are left out.
const COLUMNS: [(&str, usize, Option<Sort>); 8] = [
    ("clients", 7, Some(Sort::Clients)),
    ("waiting", 7, Some(Sort::Waiting)),
    ("longest", 7, None),
    ("servers", 8, None),
    ("tx/s", 6, Some(Sort::Transactions)),
    ("tx time", 7, None),
    ("q/s", 6, None),
    ("pinned", 6, Some(Sort::Pins)),
];
/// What is left for the name of a pool at least.
const NAME_WIDTH_MIN: usize = 10;
const KEYS: &str =
    "q quit  s queries  sort: w waiting  c clients  t tx/s  p pinned  n name  up/down";

/// By what pools are sorted: the most of it first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    Waiting,
    Clients,
    Transactions,
    Pins,
    Name,
}

impl Sort {
    /// The one of a letter.
    fn of(letter: char) -> Option<Self> {
        Some(match letter {
            'w' => Self::Waiting,
            'c' => Self::Clients,
            't' => Self::Transactions,
            'p' => Self::Pins,
            'n' => Self::Name,
            _ => return None,
        })
    }
}

/// One pool, with its rates.
struct Shown {
    pool: PoolStatus,
    name: String,
    /// Transactions a second.
    rate: f64,
    /// Queries a second.
    queries: f64,
    /// Of a transaction that ended since the last answer; `None`: none did.
    transaction_us: Option<u64>,
}

/// All that is on the screen.
pub(super) struct Screen {
    status: Status,
    pools: Vec<Shown>,
    /// Errors that clients got, by class: all, and those since the last answer.
    errors: BTreeMap<String, (u64, u64)>,
    /// Transactions and queries a second, and clients that wait, at each answer.
    history: VecDeque<[f64; 3]>,
    sort: Sort,
    first: usize,
    trouble: Option<String>,
    queries: queries::Page,
    /// In place of the pools.
    shows_queries: bool,
}

impl Screen {
    /// `before`: an earlier answer, and the seconds since it.
    pub(super) fn new(before: Option<(&Status, f64)>, now: &Status) -> Self {
        let mut screen = Self {
            status: now.clone(),
            pools: Vec::new(),
            errors: BTreeMap::new(),
            history: VecDeque::new(),
            sort: Sort::Waiting,
            first: 0,
            trouble: None,
            queries: queries::Page::new(),
            shows_queries: false,
        };
        screen.show(before, now);
        screen
    }

    /// Takes another answer.
    pub(super) fn show(&mut self, before: Option<(&Status, f64)>, now: &Status) {
        // Of another process all counters start again.
        let before = before.filter(|(before, _)| before.pid == now.pid);
        let same = |pool: &PoolStatus| {
            let (before, seconds) = before?;
            let mut pools = before.pools.iter();
            let old = pools.find(|old| old.database == pool.database && old.user == pool.user)?;
            Some((old, seconds))
        };
        self.pools = now.pools.iter().map(|pool| Shown::of(pool, same(pool))).collect();
        let old = |class: &String| before.map(|(before, _)| before.errors.get(class).copied());
        let errors = now.errors.iter().map(|(class, count)| {
            let more = old(class).map_or(0, |old| count.saturating_sub(old.unwrap_or(0)));
            (class.clone(), (*count, more))
        });
        self.errors = errors.collect();
        self.status = now.clone();
        if before.is_some() {
            let sum = |of: fn(&Shown) -> f64| self.pools.iter().map(of).sum::<f64>();
            let waiting = sum(|shown| f64::from(shown.pool.waiting));
            self.history.push_back([sum(|shown| shown.rate), sum(|shown| shown.queries), waiting]);
            if self.history.len() > HISTORY {
                self.history.pop_front();
            }
        }
        self.trouble = None;
        self.sort_by(self.sort);
        self.queries.show(before, now);
    }

    /// A key with this letter.
    pub(super) fn press(&mut self, letter: char) {
        if letter == 's' {
            self.shows_queries = !self.shows_queries;
        } else if self.shows_queries {
            queries::Sort::of(letter).into_iter().for_each(|by| self.queries.sort_by(by));
        } else {
            Sort::of(letter).into_iter().for_each(|by| self.sort_by(by));
        }
    }

    /// There was no answer.
    pub(super) fn complain(&mut self, trouble: &str) {
        self.trouble = Some(without_control(trouble));
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.pools.sort_by(|one, other| {
            let rank = |shown: &Shown| match sort {
                Sort::Waiting => u64::from(shown.pool.waiting),
                Sort::Clients => shown.pool.clients as u64,
                Sort::Transactions => shown.rate as u64,
                Sort::Pins => u64::from(shown.pool.pinned),
                Sort::Name => 0,
            };
            let busy = |shown: &Shown| (Reverse(rank(shown)), Reverse(shown.pool.clients));
            match sort {
                Sort::Name => one.name.cmp(&other.name),
                _ => busy(one).cmp(&busy(other)).then_with(|| one.name.cmp(&other.name)),
            }
        });
    }

    pub(super) fn scroll(&mut self, lines: isize) {
        if self.shows_queries {
            return self.queries.scroll(lines);
        }
        let last = self.pools.len().saturating_sub(1);
        self.first = self.first.saturating_add_signed(lines).min(last);
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let width = usize::from(frame.area().width);
        let (shown, letters) = match self.shows_queries {
            true => (self.queries.table(width), queries::KEYS),
            false => (self.table(width), KEYS),
        };
        let [head, table, errors, keys] = Layout::vertical([
            Constraint::Length(6),
            Constraint::Min(3),
            Constraint::Length(ERROR_LINES),
            Constraint::Length(if letters.len() > width { 2 } else { 1 }),
        ])
        .areas(frame.area());
        let wrap = Wrap { trim: true };
        frame.render_widget(Paragraph::new(self.head(width)), head);
        frame.render_widget(shown, table);
        frame.render_widget(Paragraph::new(self.error_lines()).wrap(wrap), errors);
        let dim = Style::new().add_modifier(Modifier::DIM);
        frame.render_widget(Paragraph::new(letters).style(dim).wrap(wrap), keys);
    }

    fn head(&self, width: usize) -> Vec<Line<'static>> {
        let status = &self.status;
        let sum = |of: fn(&PoolStatus) -> u32| {
            self.pools.iter().map(|shown| u64::from(of(&shown.pool))).sum::<u64>()
        };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let first = format!(
            "hawser {}  {}  up {}  pid {}  {} event loops  memory {}",
            status.version,
            without_control(&status.state),
            units::duration(status.uptime_s),
            status.pid,
            status.loops,
            units::memory(status.private_bytes),
        );
        let second = format!(
            "clients {} of {}  server connections {} ({} idle)  pinned {}",
            units::grouped(status.clients as u64),
            units::grouped(status.clients_max.into()),
            sum(PoolStatus::servers),
            sum(|pool| pool.servers_idle),
            sum(|pool| pool.pinned),
        );
        let last = self.history.back().copied();
        let now = last.unwrap_or([0.0, 0.0, sum(|pool| pool.waiting) as f64]);
        let names = ["transactions/s", "queries/s", "clients waiting"];
        let spark = |(at, name): (usize, &str)| {
            let figure = units::grouped(now[at].round() as u64);
            let numbers = self.history.iter().map(|point| &point[at]);
            let line = units::sparkline(numbers, width.saturating_sub(SPARKS_AT));
            Line::from(format!("{name:<15} {figure:>8} {line}"))
        };
        let mut lines = vec![Line::styled(first, bold), Line::from(second)];
        lines.extend(names.into_iter().enumerate().map(spark));
        lines
    }

    fn table(&self, width: usize) -> Table<'static> {
        let rows: Vec<_> = self.pools.iter().skip(self.first).collect();
        let figures: Vec<_> = rows.iter().map(|shown| shown.figures()).collect();
        let least = COLUMNS.map(|(_, least, _)| least);
        let widths = fitting(least, &figures, width.saturating_sub(NAME_WIDTH_MIN));
        let name = width.saturating_sub(widths.iter().map(|width| width + 1).sum());
        let mark = |sorts: bool| match sorts {
            true => Style::new().add_modifier(Modifier::UNDERLINED),
            false => Style::new(),
        };
        let heads = COLUMNS.iter().zip(&widths).map(|((head, _, sort), width)| {
            Cell::from(format!("{head:>width$}")).style(mark(*sort == Some(self.sort)))
        });
        let first = Cell::from("database/user").style(mark(self.sort == Sort::Name));
        let heads = Row::new(std::iter::once(first).chain(heads));
        let rows = rows.iter().zip(&figures).map(|(shown, figures)| {
            let figures = figures.iter().zip(&widths);
            let figures = figures.map(|(figure, width)| format!("{figure:>width$}"));
            Row::new(std::iter::once(short(&shown.name, name)).chain(figures)).style(shown.style())
        });
        let all = std::iter::once(name).chain(widths.iter().copied());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        Table::new(rows, all.map(|width| Constraint::Length(width as u16)))
            .column_spacing(1)
            .header(heads.style(bold))
    }

    /// What is wrong, the newest and worst first.
    fn error_lines(&self) -> Vec<Line<'static>> {
        let red = Style::new().fg(Color::Red);
        let mut lines = Vec::new();
        lines.extend(self.trouble.iter().map(|text| Line::styled(text.clone(), red)));
        let classes: Vec<_> = self
            .errors
            .iter()
            .map(|(class, (all, more))| match more {
                0 => format!("{} {}", class_in_words(class), units::grouped(*all)),
                more => format!("{} {} (+{more})", class_in_words(class), units::grouped(*all)),
            })
            .collect();
        let grows = self.errors.values().any(|(_, more)| *more > 0);
        let style = if grows { Style::new().fg(Color::Yellow) } else { Style::new() };
        let text = match classes.is_empty() {
            true => "Hawser's errors to clients: none".to_owned(),
            false => format!("Hawser's errors to clients: {}", classes.join(", ")),
        };
        lines.push(Line::styled(text, style));
        for shown in &self.pools {
            if let Some(error) = &shown.pool.last_error {
                let text = format!("{}: {}", shown.name, without_control(error));
                lines.push(Line::styled(text, red));
            }
        }
        for fallback in &self.status.fallbacks {
            lines.push(Line::from(format!("fallback: {}", without_control(fallback))));
        }
        lines.truncate(usize::from(ERROR_LINES));
        lines
    }
}

impl Shown {
    fn of(pool: &PoolStatus, before: Option<(&PoolStatus, f64)>) -> Self {
        let name = format!("{}/{}", pool.database, pool.user);
        let more = |of: fn(&PoolStatus) -> u64| {
            before.map_or(0, |(old, _)| of(pool).saturating_sub(of(old)))
        };
        let transactions = more(|pool| pool.transactions);
        let seconds = before.map_or(1.0, |(_, seconds)| seconds.max(0.001));
        Self {
            name: without_control(&name),
            rate: transactions as f64 / seconds,
            queries: more(|pool| pool.queries) as f64 / seconds,
            transaction_us: more(|pool| pool.transaction_us).checked_div(transactions),
            pool: pool.clone(),
        }
    }

    /// In the order of [`COLUMNS`].
    fn figures(&self) -> [String; COLUMNS.len()] {
        let pool = &self.pool;
        let whole = |rate: f64| units::grouped(rate.round() as u64);
        [
            units::grouped(pool.clients as u64),
            units::grouped(pool.waiting.into()),
            match pool.waiting {
                0 => "-".to_owned(),
                _ => units::time(pool.oldest_wait_us),
            },
            match pool.paused {
                true => "paused".to_owned(),
                false => units::connections(pool.servers(), pool.size),
            },
            whole(self.rate),
            self.transaction_us.map_or("-".to_owned(), units::time),
            whole(self.queries),
            units::grouped(pool.pinned.into()),
        ]
    }

    fn style(&self) -> Style {
        match &self.pool {
            pool if pool.last_error.is_some() => Style::new().fg(Color::Red),
            pool if pool.oldest_wait_us >= LONG_WAIT_US => Style::new().fg(Color::Yellow),
            pool if pool.paused => Style::new().add_modifier(Modifier::DIM),
            _ => Style::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::admin::tests::fake;
    use crate::queries::QueryStatus;

    fn status() -> Status {
        let mut status = Status::of(fake().as_ref());
        let mut app = status.pools[0].clone();
        (app.database, app.user) = ("app".to_owned(), "ann".to_owned());
        (app.clients, app.waiting, app.oldest_wait_us) = (40, 3, 1_234_000);
        (app.servers_active, app.servers_idle, app.servers_opening, app.size) = (7, 0, 1, 4);
        (app.pinned, app.paused, app.last_error) = (2, false, None);
        (app.transactions, app.transaction_us) = (1000, 10_000_000);
        let mut report = app.clone();
        (report.database, report.clients, report.waiting) = ("report".to_owned(), 90, 0);
        report.oldest_wait_us = 0;
        report.transactions = 5;
        status.pools = vec![report, app];
        status.fallbacks.clear();
        status
    }

    /// The lines of the screen, and those of a style.
    fn drawn(screen: &Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn line<'a>(lines: &'a [String], start: &str) -> &'a str {
        lines.iter().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{lines:#?}"))
    }

    #[test]
    fn at_80_by_24_pools_waits_pins_rates_and_errors_are_there_uncut() {
        let before = status();
        let mut now = before.clone();
        now.pools[1].transactions += 500;
        now.pools[1].transaction_us += 2_000_000;
        now.pools[1].queries += 3_000;
        now.errors.insert("53".to_owned(), 3);
        now.pools[0].last_error = Some("connection to server at db1 failed".to_owned());
        let screen = Screen::new(Some((&before, 2.0)), &now);
        let lines = drawn(&screen, 80, 24);
        assert!(lines[0].starts_with("hawser ") && lines[0].contains("ready"), "{lines:#?}");
        assert!(lines[1].contains("server connections 16 (0 idle)  pinned 4"), "{lines:#?}");
        let sparks = ["transactions/s 250 █", "queries/s 1,500 █", "clients waiting 3 █"];
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(lines[2..5].iter().map(words).collect::<Vec<_>>(), sparks);
        let head: Vec<_> = lines[6].split_whitespace().collect();
        let names = "database/user clients waiting longest servers tx/s tx time q/s pinned";
        assert_eq!(head.join(" "), names);
        let app: Vec<_> = line(&lines, "app/ann").split_whitespace().collect();
        assert_eq!(
            app,
            "app/ann 40 3 1.2 s 4 + 4 250 4.00 ms 1,500 2".split(' ').collect::<Vec<_>>()
        );
        let report: Vec<_> = line(&lines, "report/ann ").split_whitespace().collect();
        assert_eq!(report, "report/ann 90 0 - 4 + 4 0 - 0 2".split(' ').collect::<Vec<_>>());
        assert_eq!(line(&lines, "Hawser's"), "Hawser's errors to clients: limit reached 3 (+3)");
        assert_eq!(line(&lines, "report/ann: "), "report/ann: connection to server at db1 failed");
        assert_eq!(lines[23], KEYS);
        let ends = |start: &str| line(&lines, start).chars().count();
        assert_eq!((ends("app/ann"), ends("database/user")), (80, 80), "{lines:#?}");
    }

    #[test]
    fn the_page_of_queries_has_their_rates_and_is_sorted() {
        let query = |text: &str, calls, time_us| QueryStatus {
            digest: text.to_owned(),
            database: "app".to_owned(),
            user: "ann".to_owned(),
            query: text.to_owned(),
            calls,
            errors: 0,
            rows: calls,
            time_us,
            p99_us: 2_000,
            wait_us: 0,
        };
        let mut before = status();
        before.queries = vec![query("select often", 100, 1_000), query("select slow\x1b", 1, 10)];
        let mut now = before.clone();
        now.queries[0].calls += 200;
        now.queries[0].time_us += 20_000;
        now.queries[1].calls += 2;
        now.queries[1].time_us += 3_000_000;
        now.queries[1].errors += 2;
        let mut screen = Screen::new(Some((&before, 2.0)), &now);
        screen.press('s');
        let lines = drawn(&screen, 100, 24);
        let words = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(6), "load calls/s mean wait errors p99 database/user query");
        assert_eq!(words(7), "1.50 1.0 1.5 s 0 µs 2 2.00 ms app/ann select slow\\u{1b}");
        assert_eq!(words(8), "0.01 100.0 100 µs 0 µs 0 2.00 ms app/ann select often");
        assert_eq!(lines[23], queries::KEYS);
        screen.press('c');
        assert!(drawn(&screen, 100, 24)[7].ends_with("select often"));
        screen.scroll(1);
        assert!(drawn(&screen, 100, 24)[7].contains("select slow"));
        screen.press('s');
        assert!(drawn(&screen, 100, 24)[6].starts_with("database/user"));
    }

    #[test]
    fn no_figure_is_cut_and_what_is_cut_shows_it() {
        let before = status();
        let mut now = before.clone();
        now.pools[1].database = "a_rather_long_name".to_owned();
        now.pools[1].last_error = Some(format!("connection {}", "refused ".repeat(20)));
        now.pools[0].clients = 12_345_678;
        now.pools[0].paused = true;
        let screen = Screen::new(Some((&before, 2.0)), &now);
        let lines = drawn(&screen, 80, 24);
        assert!(line(&lines, "report/ann ").contains(" 12,345,678 "), "{lines:#?}");
        assert!(line(&lines, "report/ann ").contains(" paused "), "{lines:#?}");
        let name = line(&lines, "a_rather").split(' ').next().unwrap();
        assert!(name.ends_with('…'), "{lines:#?}");
        assert_eq!(lines.concat().matches("refused").count(), 20, "{lines:#?}");
        let lines = drawn(&screen, 40, 24);
        let head: Vec<_> = lines[6].split_whitespace().collect();
        assert_eq!(head, ["database/user", "clients", "waiting", "longest"], "{lines:#?}");
        assert!(line(&lines, "a_rather").ends_with(" 3   1.2 s"), "{lines:#?}");
    }

    #[test]
    fn pools_are_sorted_and_scrolled() {
        let mut screen = Screen::new(None, &status());
        let first =
            |screen: &Screen| drawn(screen, 80, 24)[7].split('/').next().unwrap().to_owned();
        assert_eq!(first(&screen), "app", "who waits comes first");
        for (sort, name) in
            [(Sort::Clients, "report"), (Sort::Name, "app"), (Sort::Transactions, "report")]
        {
            screen.sort_by(sort);
            assert_eq!(first(&screen), name, "{sort:?}");
        }
        screen.scroll(100);
        assert_eq!(first(&screen), "app", "the last one stays");
        screen.scroll(-100);
        assert_eq!(first(&screen), "report");
        screen.show(None, &status());
        assert_eq!(first(&screen), "report", "the order outlives an answer");
    }

    #[test]
    fn what_is_well_has_no_colour() {
        let mut now = status();
        let colours = |now: &Status| {
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            terminal.draw(|frame| Screen::new(None, now).draw(frame)).unwrap();
            let cells = terminal.backend().buffer().content().iter();
            let mut found: Vec<_> =
                cells.map(|cell| cell.fg).filter(|c| *c != Color::Reset).collect();
            found.dedup();
            found
        };
        assert_eq!(colours(&now), [Color::Yellow], "one has waited for 1.2 s");
        now.pools[1].oldest_wait_us = 12_000;
        assert_eq!(colours(&now), [], "a short wait is what a pool is for");
        now.pools[0].last_error = Some("refused".to_owned());
        assert_eq!(colours(&now), [Color::Red]);
    }

    #[test]
    fn what_clients_and_servers_send_moves_no_cursor_and_narrow_screens_hold() {
        let mut now = status();
        now.pools[0].database = "a\x1b[2J\n".repeat(20);
        now.pools[1].last_error = Some("b\x1b]0;x\x07".to_owned());
        let mut screen = Screen::new(None, &now);
        screen.complain("no answer\x1b[1m");
        for (width, height) in [(80, 24), (40, 10), (20, 5), (1, 1)] {
            let lines = drawn(&screen, width, height);
            assert!(!lines.concat().contains(char::is_control), "{lines:#?}");
        }
        assert!(drawn(&screen, 80, 24).iter().any(|line| line.starts_with("no answer")));
    }

    #[test]
    fn counters_of_another_process_make_no_rates() {
        let (before, mut now) = (status(), status());
        now.pid += 1;
        now.pools[0].transactions += 100;
        let screen = Screen::new(Some((&before, 1.0)), &now);
        assert!(screen.pools.iter().all(|shown| shown.rate == 0.0));
    }
}
