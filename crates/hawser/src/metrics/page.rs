//! The status page: one HTML file without scripts, that loads itself again.

use std::fmt::Write;
use std::time::SystemTime;

use super::process::ProcessFigures;
use crate::admin::averages::Totals;
use crate::admin::pooler::Pooler;

/// Rows of the table; further pools are counted only.
const POOLS_MAX: usize = 500;

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
    <meta http-equiv=\"refresh\" content=\"5\">\
    <meta name=\"viewport\" content=\"width=device-width\"><title>Hawser</title><style>\
    body{font:14px/1.5 system-ui,sans-serif;margin:2rem;color:#222;background:#fff}\
    table{border-collapse:collapse}th,td{padding:.2rem .8rem;border-bottom:1px solid #ddd;\
    text-align:right}th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}\
    .bad{color:#b00;overflow-wrap:anywhere}tr.note td{text-align:left;border-bottom-width:2px}\
    dt{float:left;clear:left;width:11rem;color:#666}dd{margin-left:11rem;overflow-wrap:anywhere}\
    @media(max-width:60rem){body{margin:1rem}table,tbody,tr,td{display:block}th{display:none}\
    tr{border-bottom:2px solid #ddd;padding:.4rem 0}tr.note td{border:0}\
    td{border:0;text-align:left;padding:0 .2rem;overflow-wrap:anywhere}\
    td[data-of]::before{content:attr(data-of);display:inline-block;min-width:9rem;color:#666}}\
    @media(max-width:30rem){dt{float:none}dd{margin-left:1rem}}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td,tr{border-color:#444}\
    .bad{color:#f77}dt,td[data-of]::before{color:#aaa}}\
    </style></head><body><h1>Hawser</h1>\n";

/// The columns of the table of pools. On a narrow screen each cell has a line of its own with its
/// column's name.
const COLUMNS: [&str; 11] = [
    "database",
    "user",
    "clients",
    "waiting",
    "servers",
    "idle",
    "size",
    "transactions",
    "queries",
    "mean query",
    "mean wait",
];

/// The page.
pub fn status(pooler: &dyn Pooler) -> String {
    let mut html = HEAD.to_owned();
    // Writing to a string does not fail.
    let _ = fill(&mut html, pooler);
    html.push_str("</body></html>\n");
    html
}

fn fill(html: &mut String, pooler: &dyn Pooler) -> std::fmt::Result {
    let figures = ProcessFigures::read();
    let uptime = SystemTime::now().duration_since(pooler.started()).unwrap_or_default().as_secs();
    html.push_str("<dl>");
    let mut item = |name: &str, value: &str, bad: bool| {
        let class = if bad { " class=\"bad\"" } else { "" };
        write!(html, "<dt>{name}</dt><dd{class}>{}</dd>", escape(value))
    };
    match pooler.ready() {
        Ok(()) if pooler.gates().all_paused() => item("state", "paused", true)?,
        Ok(()) => item("state", "ready", false)?,
        Err(reason) => item("state", &reason, true)?,
    }
    item("version", env!("CARGO_PKG_VERSION"), false)?;
    item("serving for", &duration(uptime), false)?;
    item("listens on", &pooler.listeners().join(", "), false)?;
    let max = pooler.config().reload.limits.max_client_conn;
    item("clients", &format!("{} of {max}", pooler.limits().client_count()), false)?;
    item("descriptors", &format!("{} of {}", figures.descriptors, figures.descriptors_max), false)?;
    item("private memory", &format!("{} KiB", figures.private_bytes / 1024), false)?;
    for fallback in pooler.fallbacks() {
        item("fallback", &fallback, true)?;
    }
    for row in pooler.servers() {
        let Some(reason) = row.state.reason() else { continue };
        let words = format!("{} of {} is {}: {reason}", row.server, row.database, row.state.name());
        item("server", &words, row.state.is_up() == Some(false))?;
    }
    html.push_str("</dl>\n<table><tr>");
    for column in COLUMNS {
        write!(html, "<th>{column}")?;
    }
    html.push_str("</tr>\n");
    let pools = pooler.pools();
    for entry in pools.iter().take(POOLS_MAX) {
        let pool = &entry.pool;
        let totals = Totals::of(&pool.stats);
        let (waiting, total, idle, size, paused) = {
            let queue = pool.lock();
            let size = queue.limits().size;
            (entry.waiting(&queue), queue.total(), queue.idle_count(), size, queue.is_paused())
        };
        let note = match entry.last_error() {
            Some(reason) => reason,
            None if paused => "paused".to_owned(),
            None => String::new(),
        };
        let mean = |sum: u64, count: u64| format!("{} µs", sum.checked_div(count).unwrap_or(0));
        let cells = [
            escape(&pool.database),
            escape(&pool.user),
            entry.clients.to_string(),
            waiting.to_string(),
            total.to_string(),
            idle.to_string(),
            size.to_string(),
            totals.transactions.to_string(),
            totals.queries.to_string(),
            mean(totals.query_us, totals.queries),
            mean(totals.wait_us, totals.assignments),
        ];
        html.push_str("<tr>");
        for (column, cell) in COLUMNS.iter().zip(cells) {
            write!(html, "<td data-of=\"{column}\">{cell}")?;
        }
        html.push_str("</tr>\n");
        // A line of its own, as long as it is: beside the figures it was cut off.
        if !note.is_empty() {
            let (all, note) = (COLUMNS.len(), escape(&note));
            writeln!(html, "<tr class=\"note\"><td class=\"bad\" colspan=\"{all}\">{note}</tr>")?;
        }
    }
    html.push_str("</table>\n");
    if pools.len() > POOLS_MAX {
        writeln!(html, "<p>and {} more pools: SHOW POOLS</p>", pools.len() - POOLS_MAX)?;
    }
    html.push_str("<p><a href=\"/metrics\">metrics</a></p>");
    Ok(())
}

fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    format!("{days} d {:02}:{:02}:{:02}", rest / 3_600, rest / 60 % 60, rest % 60)
}

/// Text that is no markup: names come from clients.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_stands_on_a_line_of_its_own_over_the_whole_width() {
        let fake = crate::admin::tests::fake();
        let said = "connection to server at 10.0.0.1 refused: ".repeat(20);
        let error = hawser_core::wire::error::ClientError::fatal(
            hawser_core::wire::error::SqlState::CONNECTION_FAILURE,
            said.as_str(),
        );
        fake.pools()[0].pool.set_last_error(Some(error));
        let page = status(fake.as_ref());
        let line = page.lines().find(|line| line.contains(&said)).unwrap();
        assert!(line.starts_with("<tr class=\"note\"><td class=\"bad\" colspan=\"11\">"), "{line}");
        let row = page.lines().find(|line| line.contains("<td data-of=\"database\">app<")).unwrap();
        assert_eq!(row.matches("<td data-of=").count(), COLUMNS.len(), "{row}");
        assert!(!page.contains("white-space"), "text may wrap everywhere");
    }

    #[test]
    fn names_are_no_markup() {
        assert_eq!(escape("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
        assert_eq!(duration(90_061), "1 d 01:01:01");
    }
}
