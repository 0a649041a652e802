//! What comes of a comparison: medians of rounds, as a table and as JSON.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::transfer::{Direction, Received, Sent};

/// What is compared: one line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Who sends.
    pub direction: Direction,
    /// With what.
    pub algorithm: String,
    /// Over how many connections at a time.
    pub flows: u32,
    /// What another connection uses at the same time, whose share is looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<String>,
}

/// One run of a case: each flow, as the receiver and as the sender have it.
#[derive(Clone, Debug)]
pub struct Run {
    /// In which round.
    pub round: u32,
    /// The flows.
    pub flows: Vec<(Received, Sent)>,
    /// The neighbour's.
    pub neighbour: Option<(Received, Sent)>,
}

/// The figures of one run, all flows together. Bits a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// In which round.
    pub round: u32,
    /// At the receiver, the first 5 s.
    pub startup: f64,
    /// At the receiver, from then on. None: the transfer was too short.
    pub steady: Option<f64>,
    /// Whether bytes ended a flow before its time.
    #[serde(default)]
    pub ended_by_bytes: bool,
    /// What the sender thinks, over all of it.
    pub sender: f64,
    /// Segments that were sent again, as a share.
    pub again: f64,
    /// The least round trip of all flows, in milliseconds.
    pub rtt_min_ms: f64,
    /// The mean round trip under this load.
    pub rtt_mean_ms: f64,
    /// What held the flows back, in words.
    pub limits: Vec<String>,
    /// Bits that arrived in each second, of all flows.
    pub each_second: Vec<u64>,
    /// What the neighbour had after start-up, at its receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<f64>,
}

impl Figures {
    /// Of a run of so many seconds.
    #[must_use]
    pub fn of(run: &Run, seconds: u32) -> Self {
        let flows = &run.flows;
        let sum = |of: &dyn Fn(&(Received, Sent)) -> f64| flows.iter().map(of).sum::<f64>();
        let (sent, again) = flows.iter().fold((0, 0), |(sent, again), (_, sender)| {
            (sent + sender.segments_sent, again + sender.segments_again)
        });
        let steady = |(received, sent): &(Received, Sent)| {
            received.steady(seconds, sent.ended_by_bytes(seconds))
        };
        let mut each_second = Vec::new();
        for (received, _) in flows {
            for (second, bits) in received.each_second().into_iter().enumerate() {
                if each_second.len() <= second {
                    each_second.resize(second + 1, 0);
                }
                each_second[second] += bits;
            }
        }
        let mut limits: Vec<String> =
            flows.iter().map(|(_, sender)| sender.limit.clone()).collect();
        limits.sort();
        limits.dedup();
        Self {
            round: run.round,
            startup: sum(&|(received, sent)| {
                received.startup(seconds, sent.ended_by_bytes(seconds))
            }),
            steady: flows.iter().map(steady).sum(),
            ended_by_bytes: flows.iter().any(|(_, sent)| sent.ended_by_bytes(seconds)),
            sender: sum(&|(_, sender)| sender.rate()),
            again: if sent == 0 { 0.0 } else { again as f64 / sent as f64 },
            rtt_min_ms: flows
                .iter()
                .map(|(_, s)| f64::from(s.rtt_min_us) / 1e3)
                .fold(f64::MAX, f64::min),
            rtt_mean_ms: sum(&|(_, s)| f64::from(s.rtt_mean_us) / 1e3) / flows.len().max(1) as f64,
            limits,
            each_second,
            neighbour: run.neighbour.as_ref().and_then(steady),
        }
    }
}

/// A case with what came of it. Its JSON is a contract.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was compared.
    #[serde(flatten)]
    pub case: Case,
    /// Medians of the runs: see [`Figures`].
    pub startup: f64,
    /// See [`Figures`].
    pub steady: Option<f64>,
    /// See [`Figures`].
    pub sender: f64,
    /// See [`Figures`].
    pub again: f64,
    /// See [`Figures`].
    pub rtt_min_ms: f64,
    /// See [`Figures`].
    pub rtt_mean_ms: f64,
    /// See [`Figures`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<f64>,
    /// Each run.
    pub runs: Vec<Figures>,
}

impl Outcome {
    /// Of the runs of a case. `None` if there was none.
    #[must_use]
    pub fn of(case: &Case, runs: Vec<Figures>) -> Option<Self> {
        let median = |of: fn(&Figures) -> f64| median(runs.iter().map(of).collect());
        Some(Self {
            case: case.clone(),
            startup: median(|run| run.startup)?,
            steady: self::median(runs.iter().filter_map(|run| run.steady).collect()),
            sender: median(|run| run.sender)?,
            again: median(|run| run.again)?,
            rtt_min_ms: median(|run| run.rtt_min_ms)?,
            rtt_mean_ms: median(|run| run.rtt_mean_ms)?,
            neighbour: self::median(runs.iter().filter_map(|run| run.neighbour).collect()),
            runs,
        })
    }
}

impl Outcome {
    /// What it is ordered by: steady, or where that is not known, at the start.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.steady.unwrap_or(self.startup)
    }

    /// Whether bytes ended a transfer before its time.
    #[must_use]
    pub fn ended_by_bytes(&self) -> bool {
        self.runs.iter().any(|run| run.ended_by_bytes)
    }
}

/// What is said below figures of which some are of transfers that bytes ended.
pub const ENDED_BY_BYTES: &str = "--bytes ended transfers before their time: their rates are of the time in which bytes came, \
     and there is no steady one of less than 6 s; more --bytes or fewer --seconds";

/// Mbit/s, or `-` where a transfer was too short.
#[must_use]
pub fn mbit_or_none(bits: Option<f64>) -> String {
    bits.map_or_else(|| "-".to_owned(), |bits| format!("{:.2}", bits / 1e6))
}

/// The middle one; of an even number, the mean of the two in the middle.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

/// A table for people, the fastest first in each direction and number of flows.
#[must_use]
pub fn table(outcomes: &[Outcome]) -> String {
    let mut sorted: Vec<&Outcome> =
        outcomes.iter().filter(|one| one.case.neighbour.is_none()).collect();
    sorted.sort_by(|a, b| {
        let group = |one: &Outcome| (one.case.direction == Direction::Up, one.case.flows);
        group(a).cmp(&group(b)).then(b.rate().total_cmp(&a.rate()))
    });
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:<9} {:>5} {:<12} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8}  held back by",
        "sender", "flows", "algorithm", "steady", "start", "(sender)", "again %", "rtt ms", "least"
    );
    for one in sorted {
        let end = one.case.direction.sender();
        let mbit = |bits: f64| bits / 1e6;
        let limits = one.runs.last().map(|run| run.limits.join(", ")).unwrap_or_default();
        let _ = writeln!(
            text,
            "{end:<9} {:>5} {:<12} {:>8} {:>8.2} {:>9.2} {:>8.3} {:>8.1} {:>8.1}  {limits}",
            one.case.flows,
            one.case.algorithm,
            mbit_or_none(one.steady),
            mbit(one.startup),
            mbit(one.sender),
            one.again * 100.0,
            one.rtt_mean_ms,
            one.rtt_min_ms,
        );
    }
    text += "Mbit/s at the receiver, medians; (sender): what the sender would have told you\n";
    if outcomes.iter().any(Outcome::ended_by_bytes) {
        let _ = writeln!(text, "{ENDED_BY_BYTES}");
    }
    text + &beside(outcomes)
}

/// What a neighbour has beside each algorithm, and what part of that which it has beside its own kind.
#[must_use]
pub fn kept(outcomes: &[Outcome], one: &Outcome) -> Option<f64> {
    let name = one.case.neighbour.as_ref()?;
    let own = outcomes.iter().find(|other| {
        other.case.direction == one.case.direction
            && other.case.neighbour.as_ref() == Some(name)
            && other.case.algorithm == *name
    })?;
    let own = own.neighbour.filter(|own| *own > 0.0)?;
    Some(one.neighbour? / own)
}

fn beside(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for one in outcomes {
        let (Some(name), Some(neighbour)) = (&one.case.neighbour, one.neighbour) else { continue };
        if text.is_empty() {
            text += "\nbeside a connection of another program, at the same time\n";
        }
        let end = one.case.direction.sender();
        let kept = match kept(outcomes, one) {
            Some(_) if one.case.algorithm == *name => String::new(),
            Some(kept) => format!(": {kept:.2} x of what it has beside {name}"),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "{end:<9} {:<12} {:>8}, and the {name} beside it {:.2} Mbit/s{kept}",
            one.case.algorithm,
            mbit_or_none(one.steady),
            neighbour / 1e6,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(rtt_mean_us: u32) -> Sent {
        Sent {
            algorithm: "cubic".to_owned(),
            bytes: 12_500_000,
            seconds: 10.0,
            rtt_min_us: 20_000,
            rtt_mean_us,
            rtt_max_us: 90_000,
            segments_sent: 1_000,
            segments_again: 10,
            limit: "loss without a queue".to_owned(),
        }
    }

    fn case(algorithm: &str) -> Case {
        Case {
            direction: Direction::Down,
            algorithm: algorithm.to_owned(),
            flows: 2,
            neighbour: None,
        }
    }

    fn figures(round: u32, steady: f64) -> Figures {
        let run = Run { round, flows: vec![(Received::default(), sent(25_000))], neighbour: None };
        Figures { steady: Some(steady), ..Figures::of(&run, 10) }
    }

    #[test]
    fn flows_are_added_up_and_round_trips_are_not() {
        let received = Received { buckets: vec![125_000; 100] };
        let flows = vec![(received.clone(), sent(30_000)), (received, sent(50_000))];
        let run = Figures::of(&Run { round: 1, flows, neighbour: None }, 10);
        assert_eq!((run.startup, run.steady), (20e6, Some(20e6)));
        assert_eq!(run.sender, 20e6);
        assert_eq!(run.again, 0.01);
        assert_eq!((run.rtt_mean_ms, run.rtt_min_ms), (40.0, 20.0));
        assert_eq!(run.each_second, [20_000_000; 10]);
        assert_eq!(run.limits, ["loss without a queue"]);
    }

    #[test]
    fn medians_are_of_rounds_and_one_bad_round_changes_nothing() {
        let runs = vec![figures(1, 60e6), figures(2, 1e6), figures(3, 62e6)];
        let outcome = Outcome::of(&case("bbr"), runs).unwrap();
        assert_eq!(outcome.steady, Some(60e6));
        assert_eq!(median(vec![1.0, 2.0]), Some(1.5));
        assert_eq!(Outcome::of(&case("bbr"), Vec::new()), None);
    }

    #[test]
    fn what_bytes_ended_is_said_and_has_no_steady_rate() {
        let received = Received { buckets: vec![125_000_000; 34] };
        let sent = Sent { seconds: 3.4, ..sent(1_000) };
        let run = Run { round: 1, flows: vec![(received, sent)], neighbour: None };
        let outcome = Outcome::of(&case("bbr"), vec![Figures::of(&run, 15)]).unwrap();
        assert_eq!((outcome.steady, outcome.startup), (None, 10e9));
        let text = table(&[outcome]);
        assert!(text.contains("       - 10000.00") && text.contains("--bytes ended"), "{text}");
        let whole = Outcome::of(&case("bbr"), vec![figures(1, 8e6)]).unwrap();
        assert!(!table(&[whole]).contains("--bytes ended"));
    }

    #[test]
    fn a_neighbour_is_held_against_one_beside_its_own_kind() {
        let one = |algorithm: &str, neighbour| {
            let runs = vec![Figures { neighbour: Some(neighbour), ..figures(1, 10e6) }];
            let case = Case { neighbour: Some("cubic".to_owned()), ..case(algorithm) };
            Outcome::of(&case, runs).unwrap()
        };
        let outcomes = [one("cubic", 20e6), one("bbr", 15e6)];
        assert_eq!(kept(&outcomes, &outcomes[1]), Some(0.75));
        let text = table(&outcomes);
        assert!(text.contains("15.00 Mbit/s: 0.75 x of what it has beside cubic"), "{text}");
        // They are no part of the comparison itself.
        assert!(!text.contains("far end       2"), "{text}");
    }

    #[test]
    fn the_fastest_comes_first_and_json_has_the_names_of_the_table() {
        let slow = Outcome::of(&case("cubic"), vec![figures(1, 8e6)]).unwrap();
        let fast = Outcome::of(&case("bbr"), vec![figures(1, 60e6)]).unwrap();
        let text = table(&[slow.clone(), fast]);
        assert!(text.find("bbr").unwrap() < text.find("cubic").unwrap(), "{text}");
        assert!(text.contains("   60.00"), "{text}");
        let json = serde_json::to_value(&slow).unwrap();
        assert_eq!((&json["algorithm"], &json["direction"]), (&"cubic".into(), &"down".into()));
        assert_eq!(json["runs"][0]["round"], 1);
    }
}
