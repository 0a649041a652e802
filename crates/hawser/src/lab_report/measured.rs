//! The figures of a run, of the bytes as they arrived.

use super::case::{Case, Measure};

/// When the better line of `two-isps` is cut and is back, in seconds of the network.
const CUT_S: f64 = 20.0;
const BACK_S: f64 = 25.0;

/// The figures of a run; its network had been up for `offset` seconds.
#[must_use]
pub fn measured(
    case: Case,
    points: &[(f64, u64)],
    offset: f64,
    processor: f64,
) -> Vec<(Measure, f64)> {
    let end = points.last().map_or(0.0, |(t, _)| *t);
    let (cut, back) = (CUT_S - offset, BACK_S - offset);
    let value = |measure: &Measure| match measure {
        Measure::Seconds => end,
        Measure::Processor => processor,
        Measure::Rate => rate(points, end / 2.0, end - 0.5),
        Measure::Reached => first(points, 0.0, 3.0, 71.0).unwrap_or(f64::INFINITY),
        Measure::Stall => stall(points, cut - 1.0, (back + 10.0).min(end)),
        Measure::Again => {
            let before = rate(points, (cut - 6.0).max(0.0), cut);
            first(points, back, 1.5, 0.85 * before).map_or(f64::INFINITY, |t| t - back)
        }
    };
    case.measures().iter().map(|measure| (*measure, value(measure))).collect()
}

/// Mbit/s between two moments.
fn rate(points: &[(f64, u64)], begin: f64, end: f64) -> f64 {
    let mut inside = points.iter().filter(|(t, _)| (begin..=end).contains(t));
    let (Some((t0, b0)), Some((t1, b1))) = (inside.next(), inside.next_back()) else { return 0.0 };
    (b1 - b0) as f64 * 8e-6 / (t1 - t0).max(1e-9)
}

/// The first moment from `begin` on after which `least` is reached for `window`.
fn first(points: &[(f64, u64)], begin: f64, window: f64, least: f64) -> Option<f64> {
    let end = points.last()?.0;
    let mut starts = points.iter().map(|(t, _)| *t).filter(|t| *t >= begin && t + window <= end);
    starts.find(|t| rate(points, *t, t + window) >= least)
}

/// The longest time without a byte.
fn stall(points: &[(f64, u64)], begin: f64, end: f64) -> f64 {
    let inside: Vec<f64> =
        points.iter().map(|(t, _)| *t).filter(|t| (begin..=end).contains(t)).collect();
    inside.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 80 Mbit/s, but for a pause from 10 to 12 s, and half of that from 12 to 15 s.
    fn points() -> Vec<(f64, u64)> {
        let mut total = 0;
        (0..400_u32)
            .map(|twentieth| {
                let t = f64::from(twentieth) / 20.0;
                total += if (10.0..12.0).contains(&t) {
                    0
                } else if (12.0..15.0).contains(&t) {
                    250_000
                } else {
                    500_000
                };
                (t, total)
            })
            .filter(|(t, _)| !(10.0..12.0).contains(t))
            .collect()
    }

    #[test]
    fn a_rate_a_stall_and_a_return_are_those_of_what_came() {
        let points = points();
        assert!((rate(&points, 2.0, 8.0) - 80.0).abs() < 0.1);
        assert!((stall(&points, 9.0, 19.0) - 2.05).abs() < 0.01);
        assert_eq!(first(&points, 0.0, 3.0, 71.0), Some(0.0));
        let back = first(&points, 12.0, 1.5, 0.85 * 80.0).unwrap();
        assert!((14.0..15.0).contains(&back), "{back}");
        assert_eq!(first(&points, 0.0, 3.0, 90.0), None);
    }

    #[test]
    fn an_outage_counts_from_the_network_s_start() {
        // The client began 9.5 s after the network: cut at 10.5 s of its own, back at 15.5 s.
        let figures = measured(Case::Outage, &points(), 9.5, 0.0);
        assert_eq!(figures[0].0, Measure::Stall);
        assert!((figures[0].1 - 2.05).abs() < 0.01, "{figures:?}");
        assert!(figures[1].1 < 0.1, "{figures:?}");
    }

    #[test]
    fn what_never_comes_is_no_figure() {
        let figures = measured(Case::Steady, &[(0.0, 0), (10.0, 12_500_000)], 0.0, 0.0);
        assert_eq!(figures[1], (Measure::Reached, f64::INFINITY));
        assert_eq!(rate(&[], 0.0, 1.0), 0.0);
    }
}
