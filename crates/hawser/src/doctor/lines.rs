//! A path that is slow, by what TCP has measured since its connections began.
//!
//! # Limits  it is of what Hawser sends: of results to clients, of statements to servers

use hawser_congestion::tuner::algorithm::Algorithm;
use hawser_congestion::tuner::chooser::RTT_MIN_US;

use super::finding::{Finding, Kind};
use crate::holders::LineStatus;
use crate::units;

/// Fewer segments say nothing of loss.
const SEGMENTS_MIN: u64 = 1_000;
/// One in so many segments lost is too much for an algorithm that takes loss for congestion.
const LOST_ONE_IN: u64 = 1_000;
/// Less time at work says nothing of windows.
const BUSY_US_MIN: u64 = 1_000_000;
/// In a hundred, so much of the busy time with a full window or buffer: that limits (as the tuner's).
const LIMITED_MIN: u64 = 30;

pub(super) fn judge(line: &LineStatus, found: &mut Vec<Finding>) {
    // What is near is as fast as its ends.
    if line.rtt_min_us < RTT_MIN_US {
        return;
    }
    let LineStatus { peer, segments_sent, segments_again, busy_us, algorithm, .. } = line;
    let far = format!("{} away", units::time(line.rtt_min_us.into()));
    let who = match line.to_server {
        true => format!("server {peer}"),
        false => format!("clients of {peer}"),
    };
    let is_loss_based = Algorithm::new(algorithm).is_some_and(|one| one.is_loss_based());
    if *segments_sent >= SEGMENTS_MIN
        && segments_again * LOST_ONE_IN >= *segments_sent
        && is_loss_based
    {
        let lost = *segments_again as f64 * 100.0 / *segments_sent as f64;
        let wrong = format!(
            "the line to {who} is lossy: {lost:.2} % of {} segments were sent again, {far} by {algorithm}",
            units::grouped(*segments_sent),
        );
        let mend = match line.to_server {
            true => format!(
                "servers = [\"{peer}?congestion=auto\"] tries a better algorithm by measurement."
            ),
            false => "congestion = \"auto\" in [listen] tries a better algorithm by measurement."
                .to_owned(),
        };
        found.push(Finding::new(Kind::LossyLine, false, *segments_again, &wrong, &mend));
    }
    let part = |limited_us: u64| limited_us * 100 / (*busy_us).max(1);
    let mut limited = |kind, limited_us, what: &str, mend: &str| {
        if *busy_us >= BUSY_US_MIN && part(limited_us) >= LIMITED_MIN {
            let wrong = format!(
                "{what} holds up the line to {who}: {} % of {} at work, {far}",
                part(limited_us),
                units::time(*busy_us),
            );
            found.push(Finding::new(kind, false, limited_us, &wrong, mend));
        }
    };
    limited(
        Kind::ReceiverWindow,
        line.receiver_limited_us,
        "the receiver's window",
        "If its programs read at once, its buffers are too small: `hawser cc apply --system --buffers 16777216 \
         --persist` on that host.",
    );
    limited(
        Kind::SendBuffer,
        line.buffer_limited_us,
        "the send buffer of this host",
        "`hawser cc apply --system --buffers 16777216 --persist` here; no tcp_socket_buffer in the configuration.",
    );
    if line.to_server {
        let wrong =
            format!("{who} is {far}: each statement of a transaction takes that long at least");
        let mend = "Run Hawser beside that server and let it keep the clients' connections, or have a replica \
                    here; bulk goes faster over a link: `hawser wan setup HOST`.";
        found.push(Finding::new(Kind::FarServer, false, line.rtt_min_us.into(), &wrong, mend));
    }
}
