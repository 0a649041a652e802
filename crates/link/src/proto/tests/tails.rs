//! The last bytes of a stream, which go by two paths.

use std::time::Duration;

use hawser_multipath::paths::action::PairId;
use hawser_time::Time;

use super::{S, data, far, filled, tell, written};
use crate::proto::PathId;
use crate::proto::frame::{Assembly, Frame, VERSION_MAX};
use crate::proto::incoming::WINDOW_MAX;
use crate::proto::outgoing::TAIL_BYTES_MAX;
use crate::proto::sample::Sample;
use crate::proto::session::Session;

const RTT_US: u32 = 100_000;

/// A far end with two paths of a tenth of a second, and its stream 1 with as much credit as there is.
fn far_with_two() -> (Session, [PathId; 2]) {
    let (mut far, first) = far();
    let second = far.join(PairId(0), VERSION_MAX, Time::ZERO).unwrap();
    let ack =
        Frame::Ack { stream: S, delivered: 0, received: 0, limit: WINDOW_MAX, finished: false };
    tell(&mut far, first, &[ack]);
    for path in [first, second] {
        filled(&mut far, path);
        far.sampled(path, Sample { rtt_us: RTT_US, ..Sample::default() }, Time::ZERO);
    }
    (far, [first, second])
}

/// Has both paths send what they may, until there is nothing; the ranges of the stream on each, and how often its
/// end.
fn sent(far: &mut Session, paths: [PathId; 2], now: Time) -> ([Vec<(u64, u64)>; 2], usize) {
    let (mut ranges, mut ends) = ([Vec::new(), Vec::new()], 0);
    for _ in 0..200 {
        for (path, ranges) in paths.into_iter().zip(&mut ranges) {
            far.sampled(path, Sample { rtt_us: RTT_US, ..Sample::default() }, now);
            let mut out = Vec::new();
            far.fill(path, &mut out, 1 << 20, now);
            let take = |frame: Frame<'_>| {
                match frame {
                    Frame::Data { offset, bytes, .. } => {
                        ranges.push((offset, offset + bytes.len() as u64));
                    }
                    Frame::Finish { .. } => ends += 1,
                    _ => {}
                }
                true
            };
            Assembly::default().feed(&out, take).unwrap();
        }
    }
    (ranges, ends)
}

/// By how many paths a byte went.
fn times(ranges: &[Vec<(u64, u64)>; 2], byte: u64) -> usize {
    let has =
        |ranges: &&Vec<(u64, u64)>| ranges.iter().any(|(from, to)| (*from..*to).contains(&byte));
    ranges.iter().filter(has).count()
}

fn total(ranges: &[Vec<(u64, u64)>; 2]) -> u64 {
    ranges.iter().flatten().map(|(from, to)| to - from).sum()
}

#[test]
fn the_last_bytes_of_a_stream_that_has_ended_and_its_end_go_by_two_paths_at_once() {
    let (mut far, paths) = far_with_two();
    let length = 1_000_000;
    far.put(S, &vec![7; length as usize], Time::ZERO);
    far.ended(S);
    let (ranges, ends) = sent(&mut far, paths, Time::ZERO);
    assert_eq!(ends, 2);
    assert_eq!((times(&ranges, length - 1), times(&ranges, length - TAIL_BYTES_MAX)), (2, 2));
    assert_eq!(total(&ranges), length + TAIL_BYTES_MAX, "and nothing else");
}

#[test]
fn the_last_bytes_of_a_burst_go_by_two_paths_once_nothing_more_comes() {
    let (mut far, paths) = far_with_two();
    far.put(S, &vec![7; 1_000_000], Time::ZERO);
    let (ranges, _) = sent(&mut far, paths, Time::ZERO);
    assert_eq!(total(&ranges), 1_000_000, "more may come");
    let (half, soon) = (Duration::from_micros(RTT_US.into()) / 2, Duration::from_millis(1));
    far.tick(Time::ZERO.after(half - soon));
    assert_eq!(total(&sent(&mut far, paths, Time::ZERO.after(half - soon)).0), 0);
    let later = Time::ZERO.after(2 * half);
    far.tick(later);
    let (ranges, _) = sent(&mut far, paths, later);
    assert_eq!(total(&ranges), TAIL_BYTES_MAX);
    far.tick(later.after(half));
    assert_eq!(total(&sent(&mut far, paths, later.after(half)).0), 0, "once");
}

#[test]
fn what_gives_slowly_is_not_sent_twice_and_a_small_burst_only_in_part() {
    let (mut far, paths) = far_with_two();
    let mut bytes = 0;
    for millis in (0..4000).step_by(10) {
        let now = Time::from_micros(millis * 1000);
        far.put(S, &[7; 4000], now);
        far.tick(now);
        bytes += total(&sent(&mut far, paths, now).0);
        let ack = Frame::Ack {
            stream: S,
            delivered: bytes.saturating_sub(40_000),
            received: bytes.saturating_sub(40_000),
            limit: WINDOW_MAX,
            finished: false,
        };
        far.received(paths[0], &written(&[ack]), now);
    }
    assert_eq!(bytes, 400 * 4000);
    let (mut far, paths) = far_with_two();
    far.put(S, &[7; 16_000], Time::ZERO);
    far.ended(S);
    assert_eq!(total(&sent(&mut far, paths, Time::ZERO).0), 18_000);
}

#[test]
fn a_path_without_a_second_one_is_sent_nothing_twice() {
    let (mut far, path) = far();
    filled(&mut far, path);
    far.put(S, b"the end", Time::ZERO);
    far.ended(S);
    let end = [data(0, b"the end"), Frame::Finish { stream: S, offset: 7 }];
    assert_eq!(filled(&mut far, path), written(&end));
    far.tick(Time::from_micros(400_000));
    assert_eq!(filled(&mut far, path), b"");
}
