//! The status page: one HTML file without scripts, that loads itself again.

use std::fmt::Write;
use std::time::{Instant, SystemTime};

use super::collect::Looked;
use super::history::{EVERY, History, Point};
use super::markup::{self, escape};
use super::process::ProcessFigures;
use crate::admin::pooler::{PoolEntry, Pooler};
use crate::doctor::finding::{Finding, MANUAL};
use crate::tally::class_in_words;
use crate::units;

/// Rows of the table; further pools are counted only.
const POOLS_MAX: usize = 500;

const HEAD: &str = concat!(
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
     <meta http-equiv=\"refresh\" content=\"5\">\
     <meta name=\"viewport\" content=\"width=device-width\"><title>Hawser</title><style>\n",
    include_str!("page.css"),
    "</style></head><body><h1>Hawser</h1>\n"
);

/// The columns of the table of pools.
const COLUMNS: [&str; 11] = [
    "database",
    "user",
    "clients",
    "waiting",
    "server connections",
    "idle",
    "pinned",
    "transactions/s",
    "queries/s",
    "mean query",
    "mean wait",
];

/// The page.
pub(super) fn status(
    pooler: &dyn Pooler,
    history: &History,
    looked: &Looked,
    finding: Option<&Finding>,
) -> String {
    let mut html = HEAD.to_owned();
    // Writing to a string does not fail.
    let _ = fill(&mut html, pooler, history, looked, finding);
    html.push_str("</body></html>\n");
    html
}

fn fill(
    html: &mut String,
    pooler: &dyn Pooler,
    history: &History,
    looked: &Looked,
    finding: Option<&Finding>,
) -> std::fmt::Result {
    let uptime = SystemTime::now().duration_since(pooler.started()).unwrap_or_default();
    let (class, state) = match pooler.ready() {
        Ok(()) if pooler.gates().all_paused() => ("bad", "paused".to_owned()),
        Ok(()) => ("good", "ready".to_owned()),
        Err(reason) => ("bad", reason),
    };
    writeln!(
        html,
        "<p><span class=\"{class}\">{}</span><span class=\"dim\"> · version {} · up {} · </span>\
         <a href=\"{MANUAL}metrics.md#what-to-watch\">what to watch</a> · <a href=\"/metrics\">metrics</a></p>",
        escape(&state),
        env!("CARGO_PKG_VERSION"),
        units::duration(uptime.as_secs()),
    )?;
    if let Some(Finding { urgent, wrong, mend, page, .. }) = finding {
        let class = if *urgent { "bad" } else { "dim" };
        let (wrong, mend) = (escape(wrong), escape(mend));
        writeln!(
            html,
            "<p><span class=\"{class}\">Change first: {wrong}.</span> {mend} <a href=\"{page}\">more</a></p>"
        )?;
    }
    for row in pooler.servers() {
        let Some(reason) = row.state.reason() else { continue };
        let words = format!("{} of {} is {}: {reason}", row.server, row.database, row.state.name());
        let class = if row.state.is_up() == Some(false) { "bad" } else { "dim" };
        writeln!(html, "<p class=\"{class}\">server {}</p>", escape(&words))?;
    }
    plots(html, history)?;
    pools(html, pooler, history)?;
    super::queries::table(html, &looked.queries)?;
    let errors = pooler.tally().errors.by_class();
    if !errors.is_empty() {
        html.push_str("<h2>Errors that Hawser sent to clients, since its start</h2>\n<dl>");
        for (class, count) in &errors {
            let (words, count) = (class_in_words(class), units::grouped(*count));
            write!(html, "<dt>{words} (class {class})</dt><dd>{count}</dd>")?;
        }
        html.push_str("</dl>\n");
    }
    if let Some(pins) = &looked.pins
        && !pins.is_empty()
    {
        html.push_str("<h2>Pinned clients, by reason</h2>\n<dl>");
        for (reason, (count, seconds)) in pins {
            let (count, longest) = (units::grouped(*count), units::duration(*seconds));
            let reason = escape(&reason.replace('_', " "));
            write!(html, "<dt>{reason}</dt><dd>{count}, for up to {longest}</dd>")?;
        }
        html.push_str("</dl>\n");
    }
    process(html, pooler)
}

/// What a plot shows of a point.
type Figure = (&'static str, fn(&Point) -> u64, fn(u64) -> String);

const PLOTS: [Figure; 6] = [
    ("transactions/s", |point| point.averages.transactions, units::grouped),
    ("queries/s", |point| point.averages.queries, units::grouped),
    ("mean wait", |point| point.averages.wait_us, units::time),
    ("clients waiting", |point| point.waiting, units::grouped),
    ("connections in use", |point| point.in_use, units::grouped),
    ("errors in 5 s", |point| point.errors, units::grouped),
];

fn plots(html: &mut String, history: &History) -> std::fmt::Result {
    html.push_str("<div class=\"plots\">\n");
    for (name, of, shown) in PLOTS {
        let values: Vec<u64> = history.points.iter().map(of).collect();
        let highest = values.iter().copied().max().unwrap_or(0);
        let last = shown(values.last().copied().unwrap_or(0));
        let span = units::duration(values.len().saturating_sub(1) as u64 * EVERY.as_secs());
        // The newest is at the right; a point is a unit wide, and the highest 24 units high.
        let right = 60 - values.len().min(60);
        let mut line = String::new();
        for (at, value) in values.iter().enumerate() {
            let height = 24.0 * *value as f64 / highest.max(1) as f64;
            write!(line, "L{} {:.1}", right + at, 25.0 - height)?;
        }
        writeln!(
            html,
            "<div>{name}<b>{last}</b><svg viewBox=\"0 0 59 26\" preserveAspectRatio=\"none\" \
             role=\"img\" aria-label=\"{name}, the last {span}\"><path stroke=\"none\" \
             d=\"M{right} 26{line}L59 26\"/><path fill=\"none\" d=\"M{}\"/></svg>\
             <span class=\"dim\">highest {}</span></div>",
            line.strip_prefix('L').unwrap_or("0 0"),
            shown(highest),
        )?;
    }
    html.push_str(
        "</div>\n<p class=\"dim\">The last 5 minutes. Connections are those to PostgreSQL. Errors are \
         Hawser's own, not PostgreSQL's.</p>\n",
    );
    Ok(())
}

fn pools(html: &mut String, pooler: &dyn Pooler, history: &History) -> std::fmt::Result {
    let pools = pooler.pools();
    html.push_str("<h2>Pools</h2>\n");
    if pools.is_empty() {
        html.push_str("<p>No pool yet: no client has logged in.</p>\n");
        return Ok(());
    }
    markup::table(html, &COLUMNS)?;
    for entry in pools.iter().take(POOLS_MAX) {
        pool(html, pooler, history, entry)?;
    }
    html.push_str(
        "</table>\n<p class=\"dim\">Server connections “3 of 4”: 3 are open, and pool_size is 4. \
         “4 + 2”: 2 more while clients idle inside transactions. A client waits while all server \
         connections of its pool are in use; a pinned one keeps its own until its session ends or \
         the reason is gone. Rates and means are of the last 5 to 10 seconds.</p>\n",
    );
    if pools.len() > POOLS_MAX {
        writeln!(html, "<p>and {} more pools: SHOW POOLS</p>", pools.len() - POOLS_MAX)?;
    }
    Ok(())
}

fn pool(
    html: &mut String,
    pooler: &dyn Pooler,
    history: &History,
    entry: &PoolEntry,
) -> std::fmt::Result {
    let pool = &entry.pool;
    let averages = history.averages(entry, Instant::now());
    let queue = pool.lock();
    let (total, idle, size) = (queue.total(), queue.idle_count(), queue.limits().size);
    let waiting = match entry.waiting(&queue) {
        0 => "0".to_owned(),
        waiting => {
            let longest = units::time(entry.oldest_wait_us(&queue, pooler.loops().now()));
            format!("{}, up to {longest}", units::grouped(waiting.into()))
        }
    };
    let is_paused = queue.is_paused();
    drop(queue);
    let note = match entry.last_error() {
        Some(reason) => Some(("bad", escape(&reason))),
        None => is_paused.then(|| ("dim", "paused: RESUME ends it".to_owned())),
    };
    let cells = [
        escape(&pool.database),
        escape(&pool.user),
        units::grouped(entry.clients as u64),
        waiting,
        units::connections(total, size),
        idle.to_string(),
        pool.pins.get().to_string(),
        units::grouped(averages.transactions),
        units::grouped(averages.queries),
        match averages.query_us {
            0 => "–".to_owned(),
            mean => units::time(mean),
        },
        units::time(averages.wait_us),
    ];
    markup::row(html, &COLUMNS, &cells)?;
    // A line of its own, as long as it is: beside the figures it was cut off.
    if let Some((class, note)) = note {
        let all = COLUMNS.len();
        writeln!(html, "<tr class=\"note\"><td class=\"{class}\" colspan=\"{all}\">{note}</tr>")?;
    }
    Ok(())
}

fn process(html: &mut String, pooler: &dyn Pooler) -> std::fmt::Result {
    let figures = ProcessFigures::read();
    let max = pooler.config().reload.limits.max_client_conn;
    let of = |count, max| format!("{} of {}", units::grouped(count), units::grouped(max));
    html.push_str("<h2>Process</h2>\n<dl>");
    let mut item =
        |name: &str, value: &str| write!(html, "<dt>{name}</dt><dd>{}</dd>", escape(value));
    item("listens on", &pooler.listeners().join(", "))?;
    item("clients", &of(pooler.limits().client_count() as u64, max.into()))?;
    item("file descriptors", &of(figures.descriptors, figures.descriptors_max))?;
    item("memory", &units::memory(figures.private_bytes))?;
    pooler.fallbacks().iter().try_for_each(|fallback| item("fallback", fallback))?;
    html.push_str("</dl>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hawser_pooler::ids::LoopId;
    use hawser_pooler::wire::error::{ClientError, SqlState};

    use super::*;
    use crate::doctor::finding::Kind;
    use crate::holders::Pins;

    #[test]
    fn rates_errors_pins_and_what_is_wrong_are_in_words() {
        let fake = crate::admin::tests::fake();
        let said = "connection to server at 10.0.0.1 refused: ".repeat(20);
        let error = ClientError::fatal(SqlState::CONNECTION_FAILURE, said.as_str());
        fake.pools()[0].pool.set_last_error(Some(error));
        let now = Instant::now();
        let mut history = History::new(now);
        for seconds in [0, 5, 10] {
            fake.pools()[0].pool.stats.of(LoopId(0)).transactions.add(5_000 * seconds);
            history.note(now + Duration::from_secs(seconds), fake.as_ref());
        }
        fake.tally().errors.count(&ClientError::fatal(SqlState::TOO_MANY_CONNECTIONS, "x"));
        let mut looked = Looked::default();
        looked.queries.all.push(crate::queries::row("SELECT a < 1", "ann", 4, 8_000));
        let pins = Pins::from([("held_cursor", (1_234, 61))]);
        looked.pins = Some(pins);
        let finding = Finding::new(Kind::Paused, true, 1, "app<1> is paused", "RESUME app");
        let page = status(fake.as_ref(), &history, &looked, Some(&finding));
        assert!(
            page.contains(
                "Change first: app&lt;1&gt; is paused.</span> RESUME app <a href=\"https:"
            )
        );
        let line = page.lines().find(|line| line.contains(&said)).unwrap();
        assert!(line.starts_with("<tr class=\"note\"><td class=\"bad\" colspan=\"11\">"), "{line}");
        let row = page.lines().find(|line| line.contains("<td data-of=\"query\">select")).unwrap();
        assert!(row.contains("select a &lt; ?<") && row.contains("\"mean\">2.00 ms"), "{row}");
        let row = page.lines().find(|line| line.contains("<td data-of=\"database\">app<")).unwrap();
        assert_eq!(row.matches("<td data-of=").count(), COLUMNS.len(), "{row}");
        assert!(row.contains("\"server connections\">0 of 20<"), "{row}");
        assert_eq!(page.matches("nowrap").count(), 1, "figures only: texts wrap");
        // 5 s after the start 25,000 more, 5 s later again 50,000: all within ten seconds.
        let plot = page.lines().find(|line| line.contains("<div>transactions/s")).unwrap();
        assert!(plot.contains("<b>7,500</b>") && plot.contains("highest 7,500"), "{plot}");
        assert!(plot.contains("M57 25.0L58 9.0L59 1.0\""), "{plot}");
        assert!(page.contains("<dt>limit reached (class 53)</dt><dd>1</dd>"), "{page}");
        assert!(page.contains("<dt>held cursor</dt><dd>1,234, for up to 00:01:01</dd>"), "{page}");
        assert!(!page.contains("<script"), "the content security policy has none");
    }

    #[test]
    fn names_are_no_markup() {
        assert_eq!(escape("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
    }
}
