//! A comparison as one HTML file: the table, and for each group a plot of what arrived in each second.
//!
//! # Invariants
//! * one file: no script, no font, nothing from elsewhere
//! * what comes from the other end is escaped: names of algorithms and kernels are its text

use std::fmt::Write as _;

use super::bench::Comparison;
use super::figures::{ENDED_BY_BYTES, Figures, Outcome, kept, mbit_or_none};
use super::postgres::{PostgresOutcome, Work, algorithms, cell};
use super::transfer::Direction;

/// Of a plot, in SVG units.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 260.0;
/// Room for the labels of its axes, and above them for their unit.
pub const LEFT: f64 = 48.0;
const TOP: f64 = 32.0;
/// Where a plot ends, in the same units.
pub const RIGHT: f64 = 848.0;
const BOTTOM: f64 = 24.0;
/// Distinct also for the colour-blind (Okabe and Ito, 2008).
pub const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933"];
/// For lines whose colour is already taken: up to 24 lines are distinct.
const DASHES: [&str; 3] = ["", " stroke-dasharray=\"7 3\"", " stroke-dasharray=\"2 3\""];
/// Names side by side below a plot.
const NAMES: usize = 6;

/// The style of a page.
pub const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;\
color:#1b1b1b;background:#fff}table{border-collapse:collapse;width:100%}th,td{padding:.3em .6em;\
text-align:right;border-bottom:1px solid #ddd}td,th{white-space:nowrap}th:first-child,td:first-child,td.words,th.words{text-align:left}td.words,\
th.words{white-space:normal}\
h2{margin-top:2em}svg{width:100%;height:auto}.warning{border-left:4px solid #d55e00;padding-left:.7em}.quiet{color:#666}";

/// The page.
#[must_use]
pub fn page(compared: &Comparison) -> String {
    let Comparison { host, far_kernel, far_default, near_default, seconds, rounds, .. } = compared;
    let (host, far_kernel) = (escaped(host), escaped(far_kernel));
    let (far_default, near_default) = (escaped(far_default), escaped(near_default));
    let rounds = match rounds {
        1 => "One round".to_owned(),
        rounds => format!("Medians of {rounds} rounds"),
    };
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Congestion control to {host}</title><style>{STYLE}</style></head><body>\n\
         <h1>Congestion control to {host}</h1>\n\
         <p>Far end: Linux {far_kernel}, sends with {far_default} by default; this end with {near_default}. \
         {rounds} of {seconds} s, in turns. Mbit/s as the receiver has them; what the \
         sender believes stands beside.</p>\n"
    );
    if let Some(why) = &compared.incomplete {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "<p class=\"warning\"><b>Incomplete</b> {}.</p>", escaped(why));
    }
    if let Some(caveat) = compared.caveat() {
        let _ = writeln!(text, "<p class=\"warning\">{}.</p>", escaped(&caveat));
    }
    for one in &compared.path {
        let least = if one.at_least { "at least " } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "<p>The path itself, {}: datagrams {least}<b>{:.2}</b> Mbit/s, {:.3} % lost at half of that, \
             round trip {:.1} ms.</p>",
            who(one.direction),
            one.ceiling / 1e6,
            one.loss * 100.0,
            one.rtt_ms,
        );
    }
    for (direction, flows) in groups(&compared.outcomes) {
        let mut group: Vec<&Outcome> = compared
            .outcomes
            .iter()
            .filter(|one| (one.case.direction, one.case.flows) == (direction, flows))
            .filter(|one| one.case.neighbour.is_none())
            .collect();
        group.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        let who = who(direction);
        let connections = if flows == 1 { "one connection" } else { "connections" };
        let count = if flows == 1 { String::new() } else { format!("{flows} ") };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "<h2>{count}{connections}, {who}</h2>");
        table(&mut text, &group);
        plot(&mut text, &group, *seconds);
    }
    neighbours(&mut text, &compared.outcomes);
    postgres(&mut text, &compared.postgres);
    text + "</body></html>\n"
}

fn who(direction: Direction) -> &'static str {
    match direction {
        Direction::Down => "the far end sends",
        Direction::Up => "this end sends",
    }
}

/// What each algorithm leaves to a connection beside it.
fn neighbours(text: &mut String, outcomes: &[Outcome]) {
    let beside: Vec<_> = outcomes
        .iter()
        .filter_map(|one| Some((one, one.case.neighbour.as_ref()?, one.neighbour?)))
        .collect();
    if beside.is_empty() {
        return;
    }
    *text += "<h2>Beside a connection of another program</h2>\n<table><tr><th>algorithm</th>\
              <th class=\"words\">who sends</th><th>its own</th><th class=\"words\">the other is</th>\
              <th>the other's</th><th>of what it has beside its own kind</th></tr>\n";
    for (one, name, had) in beside {
        let kept = kept(outcomes, one).map_or("-".to_owned(), |kept| format!("{kept:.2}"));
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td class=\"words\">{}</td><td>{}</td><td class=\"words\">{}</td>\
             <td><b>{:.2}</b></td><td>{kept}</td></tr>",
            escaped(&one.case.algorithm),
            who(one.case.direction),
            mbit_or_none(one.steady),
            escaped(name),
            had / 1e6,
        );
    }
    *text += "</table>\n";
}

/// What PostgreSQL's programs got.
fn postgres(text: &mut String, outcomes: &[PostgresOutcome]) {
    if outcomes.is_empty() {
        return;
    }
    *text += "<h2>PostgreSQL over this path</h2>\n<table><tr><th>algorithm</th>";
    for work in Work::ALL {
        let _ = write!(text, "<th>{work}</th>");
    }
    *text += "</tr>\n";
    for algorithm in algorithms(outcomes) {
        let _ = write!(text, "<tr><td>{}</td>", escaped(algorithm));
        for work in Work::ALL {
            let _ = write!(text, "<td>{}</td>", cell(outcomes, algorithm, work));
        }
        *text += "</tr>\n";
    }
    *text += "</table>\n";
}

/// Directions and numbers of flows, each once, as they came.
fn groups(outcomes: &[Outcome]) -> Vec<(Direction, u32)> {
    let mut groups = Vec::new();
    for one in outcomes.iter().filter(|one| one.case.neighbour.is_none()) {
        let group = (one.case.direction, one.case.flows);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

fn table(text: &mut String, group: &[&Outcome]) {
    *text += "<table><tr><th>algorithm</th><th>steady</th><th>first 5 s</th><th class=\"quiet\">at the sender</th>\
              <th>sent again</th><th>round trip</th><th>least</th><th class=\"words\">held back by</th></tr>\n";
    for one in group {
        let limits = one.runs.last().map(|run| run.limits.join(", ")).unwrap_or_default();
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td><b>{}</b></td><td>{:.2}</td><td class=\"quiet\">{:.2}</td><td>{:.3} %</td>\
             <td>{:.1} ms</td><td>{:.1} ms</td><td class=\"words\">{}</td></tr>",
            escaped(&one.case.algorithm),
            mbit_or_none(one.steady),
            one.startup / 1e6,
            one.sender / 1e6,
            one.again * 100.0,
            one.rtt_mean_ms,
            one.rtt_min_ms,
            escaped(&limits),
        );
    }
    *text += "</table>\n";
    if group.iter().any(|one| one.ended_by_bytes()) {
        let _ = writeln!(text, "<p class=\"quiet\">{}.</p>", escaped(ENDED_BY_BYTES));
    }
}

/// One line a case: its run in the middle. A second's rate stands in its middle. What arrives after the
/// time is the rest of the sender's buffer, which would make the axis long and say nothing.
fn plot(text: &mut String, group: &[&Outcome], seconds: u32) {
    let whole = |line: &[u64]| line.len().min(seconds as usize);
    let lines = group.iter().filter_map(|one| middle(one));
    let lines: Vec<(&str, &[u64])> =
        lines.map(|(name, line)| (name, &line[..whole(line)])).collect();
    let most = lines.iter().flat_map(|(_, line)| line.iter().copied()).max().unwrap_or(0);
    let top = rounded_up(most as f64 / 1e6);
    let x = |second: f64| LEFT + (RIGHT - LEFT) * second / f64::from(seconds.max(1));
    let y = |mbit: f64| TOP + (HEIGHT - BOTTOM - TOP) * (1.0 - mbit / top);
    let legend = 20.0 * lines.len().div_ceil(NAMES) as f64;
    let whole = HEIGHT + legend;
    let _ = write!(
        text,
        "<svg viewBox=\"0 0 {WIDTH} {whole}\" role=\"img\" aria-label=\"Mbit/s in each second\" \
         font-size=\"12\" font-family=\"inherit\"><text x=\"{:.1}\" y=\"14\" text-anchor=\"end\">Mbit/s</text>",
        LEFT - 6.0
    );
    rate_lines(text, top, y);
    for second in (0..=seconds).step_by((seconds as usize).div_ceil(15).max(1)) {
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{second} s</text>",
            x(second.into()),
            HEIGHT - 6.0,
        );
    }
    for (place, (name, line)) in lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let points: Vec<String> = line
            .iter()
            .enumerate()
            .map(|(second, bits)| {
                format!("{:.1},{:.1}", x(second as f64 + 0.5), y(*bits as f64 / 1e6))
            })
            .collect();
        let dash = DASHES[place / COLOURS.len() % DASHES.len()];
        let at = HEIGHT + 14.0 + 20.0 * (place / NAMES) as f64;
        let from = LEFT + (WIDTH - LEFT) / NAMES as f64 * (place % NAMES) as f64;
        let _ = write!(
            text,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash} points=\"{}\"/>\
             <line x1=\"{from:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" \
             stroke-width=\"3\"{dash}/><text x=\"{:.1}\" y=\"{at:.1}\">{}</text>",
            points.join(" "),
            at - 4.0,
            from + 28.0,
            at - 4.0,
            from + 34.0,
            escaped(name),
        );
    }
    *text += "</svg>\n";
}

/// The run whose steady rate is in the middle.
fn middle(outcome: &Outcome) -> Option<(&str, &[u64])> {
    let mut runs: Vec<_> = outcome.runs.iter().collect();
    let rate = |run: &Figures| run.steady.unwrap_or(run.startup);
    runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let run = runs.get(runs.len() / 2)?;
    Some((outcome.case.algorithm.as_str(), run.each_second.as_slice()))
}

/// The lines of a plot at quarters of its highest rate, and what they stand for.
pub fn rate_lines(text: &mut String, top: f64, y: impl Fn(f64) -> f64) {
    for part in 0..=4 {
        let mbit = (top * f64::from(part) * 250.0).round() / 1e3;
        let at = y(mbit);
        let _ = write!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{mbit}</text>",
            LEFT - 6.0,
            at + 4.0,
        );
    }
}

/// The next round number, so that a plot's axis ends at one; 0.1 at least.
pub fn rounded_up(mbit: f64) -> f64 {
    let power = 10_f64.powf(mbit.max(0.1).log10().floor());
    [1.0, 2.0, 4.0, 5.0, 8.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|top| *top >= mbit)
        .unwrap_or(mbit)
}

/// For HTML text and attributes.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::datagrams::PathFigures;
    use crate::cc::figures::{Case, Run};
    use crate::cc::transfer::{Received, Sent};

    fn comparison(algorithm: &str) -> Comparison {
        let received = Received { buckets: vec![125_000; 100] };
        let sent = Sent {
            algorithm: algorithm.to_owned(),
            bytes: 12_500_000,
            seconds: 10.0,
            rtt_min_us: 20_000,
            rtt_mean_us: 25_000,
            rtt_max_us: 30_000,
            segments_sent: 10_000,
            segments_again: 1,
            limit: "nothing that shows".to_owned(),
        };
        let case = Case {
            direction: Direction::Down,
            algorithm: algorithm.to_owned(),
            flows: 1,
            neighbour: None,
        };
        let beside = Case { neighbour: Some("cubic".to_owned()), ..case.clone() };
        let run =
            Figures::of(&Run { round: 1, flows: vec![(received, sent)], neighbour: None }, 10);
        Comparison {
            incomplete: None,
            host: "far.example:6480".to_owned(),
            far_kernel: "6.1".to_owned(),
            far_default: "cubic".to_owned(),
            near_default: "cubic".to_owned(),
            seconds: 10,
            rounds: 1,
            path: vec![PathFigures {
                direction: Direction::Down,
                ceiling: 94.5e6,
                at_least: false,
                loss: 0.000_34,
                rtt_ms: 217.3,
            }],
            outcomes: vec![
                Outcome::of(&case, vec![run.clone()]).unwrap(),
                Outcome::of(&beside, vec![Figures { neighbour: Some(4e6), ..run }]).unwrap(),
            ],
            postgres: vec![PostgresOutcome {
                algorithm: algorithm.to_owned(),
                work: Work::FirstRow,
                figure: 870.4,
                runs: vec![870.4],
            }],
        }
    }

    #[test]
    fn the_page_is_one_file_with_a_line_for_each_case() {
        let text = page(&comparison("bbr"));
        assert!(text.contains("<td>bbr</td><td><b>10.00</b></td>"), "{text}");
        assert_eq!(text.matches("<polyline").count(), 1);
        assert!(text.contains("one connection, the far end sends"));
        assert!(text.contains("datagrams <b>94.50</b> Mbit/s, 0.034 % lost"), "{text}");
        assert!(text.contains("<td class=\"words\">cubic</td><td><b>4.00</b></td>"), "{text}");
        assert!(text.contains("<td>870.4 ms</td>"), "{text}");
        for elsewhere in ["http:", "https:", "<script", "src="] {
            assert!(!text.contains(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn short_transfers_over_a_long_path_are_said_to_be_short() {
        let mut compared = comparison("cubic");
        assert_eq!(compared.caveat(), None);
        compared.outcomes[0].rtt_min_ms = 217.0;
        let caveat = compared.caveat().unwrap();
        assert!(caveat.starts_with("10 s are short over a round trip of 217 ms"), "{caveat}");
        assert!(page(&compared).contains(&escaped(&caveat)));
        compared.seconds = 60;
        assert_eq!(compared.caveat(), None);
    }

    #[test]
    fn an_incomplete_one_says_so_before_its_figures() {
        let why = "after 3 of 9 transfers: <gone>".to_owned();
        let text = page(&Comparison { incomplete: Some(why), ..comparison("bbr") });
        let said = text.find("<b>Incomplete</b> after 3 of 9 transfers: &lt;gone&gt;.").unwrap();
        assert!(said < text.find("<table").unwrap(), "{text}");
        assert!(!page(&comparison("bbr")).contains("Incomplete"));
    }

    #[test]
    fn all_algorithms_of_linux_look_distinct() {
        let mut compared = comparison("bbr");
        let one = compared.outcomes[0].clone();
        compared.outcomes = (0..17)
            .map(|number| {
                let mut one = one.clone();
                one.case.algorithm = format!("number{number}");
                one
            })
            .collect();
        let text = page(&compared);
        let mut looks: Vec<&str> = text
            .split("<polyline ")
            .skip(1)
            .filter_map(|line| line.split(" points=").next())
            .collect();
        looks.sort_unstable();
        looks.dedup();
        assert_eq!(looks.len(), 17, "{looks:?}");
    }

    #[test]
    fn what_the_other_end_says_is_text() {
        let text = page(&comparison("<img src=x onerror='a()'>"));
        assert!(!text.contains("<img") && text.contains("&lt;img"), "{text}");
    }

    #[test]
    fn a_plot_ends_with_the_transfer_and_not_with_what_was_left_in_a_buffer() {
        let mut compared = comparison("bbr");
        compared.outcomes[0].runs[0].each_second.resize(16, 1_000);
        let text = page(&compared);
        let line = text.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert_eq!(line.split(' ').count(), 10, "{line}");
        assert!(text.contains(">10 s<") && !text.contains(">11 s<"), "{text}");
        assert!(text.contains(">Mbit/s</text>"));
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (mbit, top) in
            [(0.0, 0.1), (0.7, 0.8), (9.0, 10.0), (10.0, 10.0), (66.7, 80.0), (300.0, 400.0)]
        {
            assert!((rounded_up(mbit) - top).abs() < 1e-9, "{mbit}: {}", rounded_up(mbit));
        }
    }
}
