//! The rate that a loss-based algorithm reaches, from loss and round trip.
//!
//! # Model
//! W is the mean window in segments, p the share of segments that are lost, RTT in seconds:
//! ```text
//!   W_cubic = (C (3 + b) / (4 (1 - b)))^(1/4) RTT^(3/4) / p^(3/4)     RFC 9438, 5.1; = 1.054 ... at
//!                                                                     C = 0.4, b = 0.7
//!   W_reno  = sqrt(3 / (2 p))                                         RFC 9438, 4.3 (RFC 5681's Reno)
//!   rate    = max(W_cubic, W_reno) segment / RTT
//! ```
//! CUBIC is never slower than Reno would be: that is its Reno-friendly region, at short round trips
//! and high loss.
//!
//! # Limits
//! Loss that is independent, and a window of a few segments at least: above 1 % timeouts rule, and
//! flows are slower than this. Nothing is said of the path's own rate.

/// RFC 9438, section 4.1.
const C: f64 = 0.4;
/// What a cut leaves of the window: RFC 9438, section 4.6.
const BETA: f64 = 0.7;

/// The mean window of CUBIC in segments, at a loss rate `p` (0 to 1) and a round trip in seconds.
#[must_use]
pub fn cubic_window(p: f64, rtt_s: f64) -> f64 {
    let factor = (C * (3.0 + BETA) / (4.0 * (1.0 - BETA))).powf(0.25);
    (factor * (rtt_s / p).powf(0.75)).max(reno_window(p))
}

/// The mean window of Reno in segments.
#[must_use]
pub fn reno_window(p: f64) -> f64 {
    (3.0 / (2.0 * p)).sqrt()
}

/// The rate of CUBIC in bytes a second, payload of `segment_bytes` each; `None` without loss or
/// round trip, where there is no such limit.
#[must_use]
pub fn cubic_rate(p: f64, rtt_s: f64, segment_bytes: u32) -> Option<f64> {
    (p > 0.0 && rtt_s > 0.0).then(|| cubic_window(p, rtt_s) * f64::from(segment_bytes) / rtt_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet's segment, with TCP timestamps.
    const SEGMENT_BYTES: u32 = 1448;

    fn mbit(loss_percent: f64, rtt_s: f64) -> f64 {
        cubic_rate(loss_percent / 100.0, rtt_s, SEGMENT_BYTES).unwrap() * 8.0 / 1e6
    }

    #[test]
    fn rates_at_217_ms_are_the_published_ones() {
        for (loss_percent, published) in [(0.034, 7.2), (0.01, 17.9), (0.1, 3.2)] {
            let rate = mbit(loss_percent, 0.217);
            assert!((rate / published - 1.0).abs() < 0.01, "{loss_percent} %: {rate}");
        }
    }

    #[test]
    fn the_factor_is_that_of_the_rfc() {
        assert!((cubic_window(1.0e-6, 1.0) * 1.0e-6_f64.powf(0.75) - 1.054).abs() < 0.0005);
    }

    #[test]
    fn cubic_is_reno_at_high_loss_and_at_short_round_trips() {
        // At 217 ms the regions meet at 0.56 % (equal windows: p = (1.054 RTT^0.75 / 1.2247)^4).
        let meets = (1.0538_f64 * 0.217_f64.powf(0.75) / 1.5_f64.sqrt()).powi(4);
        assert!(cubic_window(meets * 0.9, 0.217) > reno_window(meets * 0.9) * 1.01);
        assert_eq!(cubic_window(meets * 1.1, 0.217), reno_window(meets * 1.1));
        assert_eq!(cubic_window(0.001, 0.02), reno_window(0.001));
        assert!((reno_window(0.01) - 12.247).abs() < 0.001);
    }

    #[test]
    fn without_loss_there_is_no_limit() {
        assert_eq!(cubic_rate(0.0, 0.217, SEGMENT_BYTES), None);
        assert_eq!(cubic_rate(0.01, 0.0, SEGMENT_BYTES), None);
    }
}
