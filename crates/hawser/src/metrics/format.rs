//! In which of Prometheus's two formats `/metrics` is answered, and the older one.
//!
//! # Model
//! [`super::collect`] writes OpenMetrics 1.0; the text format 0.0.4 is the same text with a family's
//! name as its samples have it (`hawser_queries_total`), without units and without an end. A scraper
//! that names OpenMetrics gets it; all others get the text format, which everything can read.
//!
//! # Limits      of `Accept` the media types and `q` count; versions do not, each type has one here

use std::fmt::Write;

/// A format of `/metrics`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Text,
}

const OPEN_METRICS: &str = "application/openmetrics-text";

impl Format {
    /// What Content-Type says.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// What a client gets that accepts this: OpenMetrics if it names it, and does not like the text
    /// format better.
    pub fn wanted<'a>(accept: impl IntoIterator<Item = &'a str>) -> Self {
        let mut open_metrics: f32 = 0.0;
        let mut text: f32 = 0.0;
        for range in accept.into_iter().flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let quality = parts
                .filter_map(|part| part.split_once('='))
                .find(|(name, _)| name.trim().eq_ignore_ascii_case("q"))
                .map_or(1.0, |(_, q)| q.trim().parse().unwrap_or(0.0));
            if kind.eq_ignore_ascii_case(OPEN_METRICS) {
                open_metrics = open_metrics.max(quality);
            } else if kind.eq_ignore_ascii_case("text/plain") {
                text = text.max(quality);
            }
        }
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// A text of OpenMetrics in this format.
    pub fn write(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Text => to_text(&open_metrics),
        }
    }
}

fn to_text(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    // A family's help stands before its type, which decides its name.
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (family, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let (ending, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            // Writing to a string does not fail.
            let _ = write!(out, "# HELP {family}{ending} {help}\n# TYPE {family}{ending} {kind}\n");
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_goes_to_those_that_name_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          application/openmetrics-text;version=0.0.1;q=0.5,\
                          text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("Application/OpenMetrics-Text; version=1.0.0; Q = 1", Format::OpenMetrics),
            ("*/*", Format::Text),
            ("", Format::Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Format::Text),
            ("text/plain;version=0.0.4", Format::Text),
            ("text/plain, application/openmetrics-text;q=0.5", Format::Text),
            ("application/openmetrics-text;q=0, text/plain;q=0", Format::Text),
            ("application/openmetrics-text;q=many", Format::Text),
            (";;,,=", Format::Text),
        ] {
            assert_eq!(Format::wanted([accept]), format, "{accept}");
        }
        assert_eq!(Format::wanted([]), Format::Text);
        assert_eq!(Format::wanted(["text/plain;q=0.1", OPEN_METRICS]), Format::OpenMetrics);
    }

    #[test]
    fn a_family_has_the_name_of_its_samples_in_the_text_format() {
        let open = "# HELP a_bytes Of a.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                    a_bytes_total{b=\"c\"} 1\n# HELP d D.\n# TYPE d info\nd_info{e=\"f\"} 1\n\
                    # HELP g G.\n# TYPE g gauge\ng 2\n# EOF\n";
        let text = "# HELP a_bytes_total Of a.\n# TYPE a_bytes_total counter\n\
                    a_bytes_total{b=\"c\"} 1\n# HELP d_info D.\n# TYPE d_info gauge\n\
                    d_info{e=\"f\"} 1\n# HELP g G.\n# TYPE g gauge\ng 2\n";
        assert_eq!(to_text(open), text);
    }
}
