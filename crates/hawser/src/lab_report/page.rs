//! The report: a table for people (Markdown), and one HTML file with the table and the plots.
//!
//! # Invariants  one file: no script, no font, nothing from elsewhere

use std::fmt::Write as _;

use hawser_congestion::cc::page::{COLOURS, LEFT, RIGHT, STYLE, escaped, rate_lines, rounded_up};

use super::case::{Case, Measure, Way, median};
use super::rates::Rates;
use super::{Report, Run};

/// Of a plot, in SVG units, and room for the labels of its axes.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const TOP: f64 = 32.0;
const BOTTOM: f64 = 24.0;
/// Labels of the time's axis.
const LABELS: f64 = 12.0;

fn shown(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { "never".to_owned() }
}

/// What a run gave, in a line.
#[must_use]
pub fn line(run: &Run) -> String {
    let what = format!("{}, {}, round {}", run.case.name(), run.way.title(), run.round);
    if let Some(why) = &run.failed {
        return format!("{what}: failed: {why}");
    }
    let figures = run.figures.iter().map(|(of, value)| format!("{} {}", shown(*value), of.title()));
    let figures: Vec<String> = figures.collect();
    let late =
        run.unfaithful.as_ref().map_or(String::new(), |why| format!("; not faithful: {why}"));
    format!("{what}: {}{late}", figures.join(", "))
}

/// A row of the table: what is measured, by each way, how many times plain, what others measured, what is
/// asked, and whether it is reached.
struct Row {
    title: String,
    by_way: Vec<String>,
    times: String,
    reference: &'static str,
    required: &'static str,
    met: &'static str,
}

fn rows(report: &Report) -> Vec<Row> {
    let mut cases: Vec<Case> = Vec::new();
    for run in &report.runs {
        if !cases.contains(&run.case) {
            cases.push(run.case);
        }
    }
    let rows =
        cases.iter().flat_map(|case| case.measures().iter().map(|measure| (*case, *measure)));
    rows.map(|(case, measure)| row(report, case, measure)).collect()
}

fn row(report: &Report, case: Case, measure: Measure) -> Row {
    let figures = report.figures(case, measure);
    let cell = |way: Way| {
        let values = figures.of(way);
        let failed = report
            .runs
            .iter()
            .filter(|run| run.case == case && run.way == way && run.failed.is_some())
            .count();
        let failed = match failed {
            0 => String::new(),
            count => format!(" ({count} failed)"),
        };
        let Some(middle) = median(values) else {
            return if failed.is_empty() { "-".to_owned() } else { failed.trim().to_owned() };
        };
        let (low, high) = values
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
        let spread = match values.len() {
            1 => String::new(),
            _ => format!(" ({} to {})", shown(low), shown(high)),
        };
        format!("{}{spread}{failed}", shown(middle))
    };
    let times = match (measure, median(&figures.plain), median(&figures.manage)) {
        (Measure::Seconds, Some(plain), Some(managed)) if managed > 0.0 => {
            format!("{:.1} x", plain / managed)
        }
        (Measure::Rate, Some(plain), Some(managed)) if plain > 0.0 => {
            format!("{:.1} x", managed / plain)
        }
        _ => "-".to_owned(),
    };
    let goal = case.goal(measure);
    // A run that failed has reached nothing.
    let failed = |run: &&Run| run.case == case && run.way == Way::Manage && run.failed.is_some();
    let all_ended_well = !report.runs.iter().any(|run| failed(&run));
    let met = match (report.share, (goal.met)(&figures)) {
        (100, Some(true)) if !all_ended_well => "no",
        (100, Some(true)) => "yes",
        (100, Some(false)) => "no",
        // A part of the work does not compare.
        _ => "-",
    };
    Row {
        title: format!("{}, {}", case.title(), measure.title()),
        by_way: Way::ALL.map(cell).to_vec(),
        times,
        reference: goal.reference,
        required: goal.required,
        met,
    }
}

fn about(report: &Report) -> String {
    let Report { name, server, kernel, processors, rounds, share, .. } = report;
    let rounds = match rounds {
        1 => "one round".to_owned(),
        rounds => format!("medians of {rounds} rounds, lowest to highest"),
    };
    let share = match share {
        100 => String::new(),
        share => {
            format!(" {share} % of the work was done: times do not compare with the references.")
        }
    };
    let spoilt = match report.unfaithful().count() {
        0 => String::new(),
        count => format!(
            " {count} of {} runs were not faithful (the machine was too busy): their figures are in it, and \
             they are marked below.",
            report.runs.len()
        ),
    };
    format!(
        "{name}: {server}, Linux {kernel}, {processors} processors; {rounds}. Times and rates are the receiver's.{share}{spoilt}"
    )
}

/// For a terminal, and for Markdown.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = format!("{}\n\n| |", about(report));
    for way in Way::ALL {
        // Writing to a string cannot fail.
        let _ = write!(text, " {} |", way.title());
    }
    text +=
        " plain / manage | reference | required | reached |\n|---|---|---|---|---|---|---|---|\n";
    for row in rows(report) {
        let Row { title, by_way, times, reference, required, met } = row;
        let by_way = by_way.join(" | ");
        let _ =
            writeln!(text, "| {title} | {by_way} | {times} | {reference} | {required} | {met} |");
    }
    text
}

/// The page.
#[must_use]
pub fn page(report: &Report) -> String {
    let name = escaped(&report.name);
    let about = escaped(&about(report));
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>MPTCP over {name}</title>\
         <style>{STYLE}body{{max-width:1200px}}td{{vertical-align:top}}</style></head><body>\n\
         <h1>MPTCP over {name}</h1>\n<p>{about}</p>\n<table><tr><th></th>"
    );
    for way in Way::ALL {
        // Writing to a string cannot fail.
        let _ = write!(text, "<th class=\"words\">{}</th>", way.title());
    }
    text += "<th class=\"words\">plain / manage</th><th class=\"words\">reference</th>\
             <th class=\"words\">required</th><th>reached</th></tr>\n";
    for row in rows(report) {
        let Row { title, by_way, times, reference, required, met } = row;
        let _ = write!(text, "<tr><td class=\"words\">{}</td>", escaped(&title));
        for cell in by_way {
            let _ = write!(text, "<td class=\"words\">{}</td>", escaped(&cell));
        }
        let _ = writeln!(
            text,
            "<td>{times}</td><td class=\"words\">{reference}</td><td class=\"words\">{required}</td><td>{met}</td></tr>"
        );
    }
    text += "</table>\n";
    for (case, way, rates) in &report.rates {
        let _ = writeln!(
            text,
            "<h2>{}, {}: rate of each subflow, and of all</h2>",
            case.name(),
            way.title()
        );
        plot(&mut text, rates);
    }
    text += "<h2>Each run</h2>\n<ul>\n";
    for run in &report.runs {
        let class = if run.failed.is_some() || run.unfaithful.is_some() {
            " class=\"warning\""
        } else {
            ""
        };
        let _ = writeln!(text, "<li{class}>{}</li>", escaped(&line(run)));
    }
    text + "</ul>\n</body></html>\n"
}

fn plot(text: &mut String, rates: &Rates) {
    let top = rounded_up(rates.highest());
    let end = rates.end().max(1.0);
    let x = |t: f64| LEFT + (RIGHT - LEFT) * t / end;
    let y = |mbit: f64| TOP + (HEIGHT - BOTTOM - TOP) * (1.0 - mbit.min(top) / top);
    let _ = write!(
        text,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Mbit/s of each subflow over time\" \
         font-size=\"12\" font-family=\"inherit\"><text x=\"{:.1}\" y=\"14\" text-anchor=\"end\">Mbit/s</text>",
        LEFT - 6.0
    );
    rate_lines(text, top, y);
    let apart = (end / LABELS).ceil();
    let mut second = 0.0;
    while second <= end {
        let at = HEIGHT - 6.0;
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{at}\" text-anchor=\"middle\">{second} s</text>",
            x(second)
        );
        second += apart;
    }
    let mut line = |points: &[(f64, f64)], colour: &str, width: f64| {
        let points: Vec<String> =
            points.iter().map(|(t, mbit)| format!("{:.1},{:.1}", x(*t), y(*mbit))).collect();
        let _ = write!(
            text,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" points=\"{}\"/>",
            points.join(" ")
        );
    };
    for (place, points) in rates.subflows.iter().enumerate() {
        // Black is the whole's.
        let colours: Vec<&str> =
            COLOURS.into_iter().filter(|colour| *colour != "#000000").collect();
        line(points, colours[place % colours.len()], 1.0);
    }
    line(&rates.whole, "#000000", 2.5);
    *text += "</svg>\n";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(share: u64) -> Report {
        let run = |way, seconds| Run {
            case: Case::CopyIn,
            way,
            round: 1,
            figures: vec![(Measure::Seconds, seconds)],
            unfaithful: None,
            failed: None,
        };
        let failed =
            Run { failed: Some("<refused>".to_owned()), figures: vec![], ..run(Way::Kernel, 0.0) };
        let late = Run { unfaithful: Some("9 of 10 late".to_owned()), ..run(Way::Manage, 8.0) };
        let never = Run {
            case: Case::Steady,
            figures: vec![(Measure::Rate, 60.0), (Measure::Reached, f64::INFINITY)],
            ..run(Way::Manage, 0.0)
        };
        let rates = Rates {
            subflows: vec![vec![(0.0, 9.0), (5.0, 9.4)]; 3],
            whole: vec![(0.0, 27.0), (5.0, 28.2)],
        };
        Report {
            name: "per-flow".to_owned(),
            server: "PostgreSQL 15.4".to_owned(),
            kernel: "6.18".to_owned(),
            processors: 2,
            rounds: 1,
            share,
            runs: vec![run(Way::Plain, 42.5), failed, late, never],
            rates: vec![(Case::CopyIn, Way::Manage, rates)],
        }
    }

    #[test]
    fn the_table_has_ways_references_and_whether_it_is_reached() {
        let text = table(&report(100));
        let row =
            "| COPY in, s | 42.50 | (1 failed) | 8.00 | 5.3 x |  | at least 5 x plain | yes |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| long COPY out, s until 71 Mbit/s | - | - | never |"), "{text}");
        assert!(text.contains("| 71 in every run | no |"), "{text}");
        assert!(text.contains("1 of 4 runs were not faithful"), "{text}");
    }

    #[test]
    fn a_part_of_the_work_does_not_compare() {
        let text = table(&report(10));
        assert!(
            text.contains("10 % of the work") && text.contains("| at least 5 x plain | - |"),
            "{text}"
        );
    }

    #[test]
    fn the_page_is_one_file_with_a_line_for_each_subflow_and_one_for_all() {
        let text = page(&report(100));
        assert_eq!(text.matches("<polyline").count(), 4);
        assert!(text.contains("copy-in, manage: rate of each subflow"), "{text}");
        assert!(text.contains("failed: &lt;refused&gt;") && !text.contains("<refused>"), "{text}");
        for elsewhere in ["http:", "https:", "<script", "src="] {
            assert!(!text.contains(elsewhere), "{elsewhere}");
        }
    }
}
