//! Text and tables within HTML.

use std::fmt::{self, Write};

/// Text that is no markup: names come from clients.
pub(super) fn escape(text: &str) -> String {
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

/// Begins a table, with the names of its columns.
pub(super) fn table(html: &mut String, columns: &[&str]) -> fmt::Result {
    html.push_str("<table><tr>");
    columns.iter().try_for_each(|column| write!(html, "<th data-of=\"{column}\">{column}"))?;
    html.push_str("</tr>\n");
    Ok(())
}

/// A row of it. On a narrow screen each cell has its column's name.
pub(super) fn row(html: &mut String, columns: &[&str], cells: &[String]) -> fmt::Result {
    html.push_str("<tr>");
    let mut all = columns.iter().zip(cells);
    all.try_for_each(|(column, cell)| write!(html, "<td data-of=\"{column}\">{cell}"))?;
    html.push_str("</tr>\n");
    Ok(())
}
