//! Compression of bulk: when, for which streams, and what a hostile peer can do with it.

use std::time::Duration;

use hawser_multipath::paths::action::PairId;
use hawser_time::Time;
use hawser_time::seeded::Random;

use super::{S, TOKEN, at, requests, tell, written};
use crate::proto::compression::{BACKLOG_MIN, Compression, PATHS_BYTES_MAX};
use crate::proto::frame::{
    Assembly, COMPRESSED_BYTES_MAX, DATA_BYTES_MAX, Frame, Reason, VERSION_COMPRESSED, VERSION_MIN,
    WHOLE_BYTES_MAX,
};
use crate::proto::incoming::{INITIAL_CREDIT, WINDOW_MAX};
use crate::proto::path::PathEnd;
use crate::proto::sample::Sample;
use crate::proto::session::{Config, Paths, Request, Session};
use crate::proto::{PathId, StreamId};

fn config(compression: Compression) -> Config {
    let grace = Duration::from_secs(20);
    Config { token: TOKEN, grace, paths: Paths::Fixed(1), pairs: 1, compression }
}

/// A far end with one path that speaks `version`, and its stream 1 with as much credit as there is.
fn far(compression: Compression, version: u8) -> (Session, PathId) {
    let mut far = Session::far(config(compression), Time::ZERO);
    let path = far.join(PairId(0), version, Time::ZERO).unwrap();
    tell(&mut far, path, &[Frame::Open { stream: S, limit: WINDOW_MAX, target: "db:1" }]);
    (far, path)
}

fn text() -> Vec<u8> {
    (0..40_000).flat_map(|row| format!("{row}\t{}\tsome words\n", row % 7).into_bytes()).collect()
}

fn noise(count: usize) -> Vec<u8> {
    let mut random = Random::of_seed(1);
    (0..count).map(|_| random.below(256) as u8).collect()
}

const LATER: Time = Time::from_micros(BACKLOG_MIN.as_micros() as u64);

/// What a path is given in `turns` samples, each of which says that all before has arrived, at this rate since
/// the beginning of time.
fn said(session: &mut Session, path: PathId, turns: usize, now: Time, rate: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..turns {
        let acked_bytes = rate * now.since(Time::ZERO).as_micros() as u64 / 1_000_000;
        session.sampled(path, Sample { acked_bytes, ..Sample::default() }, now);
        session.fill(path, &mut out, 1 << 20, now);
    }
    out
}

/// The bytes of the stream in what was said, raw and compressed, and the longest of frames.
fn kinds(said: &[u8]) -> (usize, usize, usize) {
    let (mut raw, mut compressed, mut longest) = (0, 0, 0);
    let mut take = |frame: Frame<'_>| {
        match frame {
            Frame::Data { bytes, .. } => raw += bytes.len(),
            Frame::Compressed { whole, .. } => {
                compressed += whole;
                longest = longest.max(whole);
            }
            _ => {}
        }
        true
    };
    Assembly::default().feed(said, &mut take).unwrap();
    (raw, compressed, longest)
}

/// What a far end says that has had `bytes` to send for as long as makes the paths the limit.
fn of_bulk(compression: Compression, version: u8, bytes: &[u8], rate: u64) -> Vec<u8> {
    let (mut far, path) = far(compression, version);
    far.put(S, &bytes[..bytes.len() / 2], Time::ZERO);
    far.put(S, &bytes[bytes.len() / 2..], Time::ZERO);
    said(&mut far, path, 100, LATER, rate)
}

/// The far program's bytes as a near end hands them out when it receives `said`.
fn received(said: &[u8]) -> Vec<u8> {
    let mut near = Session::near(config(Compression::None), Time::ZERO);
    near.tick(Time::ZERO);
    near.dialled(PathId(1), Time::ZERO);
    near.fill(PathId(1), &mut Vec::new(), 1 << 20, Time::ZERO);
    near.received(PathId(1), &written(&[Frame::Welcome { version: 2 }]), Time::ZERO);
    assert_eq!(near.open("db:1", Time::ZERO), Ok(S));
    near.fill(PathId(1), &mut Vec::new(), 1 << 20, Time::ZERO);
    let ack = Frame::Ack { stream: S, delivered: 0, received: 0, limit: 9, finished: false };
    near.received(PathId(1), &written(&[ack]), Time::ZERO);
    let mut frames = Vec::new();
    let take = |frame: Frame<'_>| {
        if !matches!(frame, Frame::Welcome { .. }) {
            frame.write(&mut frames);
        }
        true
    };
    Assembly::default().feed(said, take).unwrap();
    let mut got = Vec::new();
    for part in frames.chunks(1000) {
        near.received(PathId(1), part, Time::ZERO);
        let ready = near.ready(S).concat();
        near.wrote(S, ready.len(), Time::ZERO);
        near.fill(PathId(1), &mut Vec::new(), 1 << 20, Time::ZERO); // it has credit again
        got.extend(ready);
    }
    assert_eq!(near.stream_count(), 1, "{:?}", requests(&mut near));
    got
}

#[test]
fn bulk_that_shrinks_is_compressed_where_the_paths_are_what_limits_it() {
    let text = text();
    let said = of_bulk(Compression::Auto, VERSION_COMPRESSED, &text, 1_000_000);
    let (raw, compressed, longest) = kinds(&said);
    assert_eq!(raw + compressed, text.len());
    assert!(compressed > raw && longest <= WHOLE_BYTES_MAX, "{raw} {compressed} {longest}");
    assert!(said.len() < text.len() / 2, "{} of {}", said.len(), text.len());
    let got = received(&said);
    assert_eq!(got.len(), text.len());
    assert!(got == text, "what comes out is not what went in");
}

#[test]
fn nothing_is_compressed_that_is_not_wanted_not_understood_or_not_worth_it() {
    let (auto, newest) = (Compression::Auto, VERSION_COMPRESSED);
    for (why, compression, version, bytes, rate) in [
        ("not wanted", Compression::None, newest, text(), 1_000_000),
        ("the peer does not know it", auto, VERSION_MIN, text(), 1_000_000),
        ("it does not shrink", auto, newest, noise(1 << 20), 1_000_000),
        ("the path is faster", auto, newest, text(), 2 * PATHS_BYTES_MAX),
    ] {
        let (raw, compressed, _) = kinds(&of_bulk(compression, version, &bytes, rate));
        assert_eq!((raw, compressed), (bytes.len(), 0), "{why}");
    }
    // The local socket is what limits it: all that it gives is sent at once.
    let (mut far, path) = far(auto, newest);
    let mut sent = Vec::new();
    for (number, part) in text().chunks(20_000).enumerate() {
        let now = Time::from_micros(number as u64 * 100_000);
        far.put(S, part, now);
        sent.extend(said(&mut far, path, 2, now, 1_000_000));
    }
    assert_eq!(kinds(&sent).1, 0);
}

#[test]
fn what_does_not_shrink_is_tried_less_and_less_often_and_what_shrinks_later_is_found() {
    let (mut far, path) = far(Compression::Auto, VERSION_COMPRESSED);
    let bytes = [noise(3 << 20), text()].concat();
    far.put(S, &bytes, Time::ZERO);
    let said = said(&mut far, path, 400, LATER, 1_000_000);
    let (raw, compressed, _) = kinds(&said);
    assert_eq!(raw + compressed, bytes.len());
    assert!(compressed > 100_000, "{compressed}");
    assert!(far.stream_reports(1, LATER)[0].compressed_percent.is_some_and(|part| part < 50));
}

#[test]
fn what_was_compressed_goes_again_in_other_pieces_when_its_path_dies_or_is_late() {
    let (mut far, first) = far(Compression::Auto, VERSION_COMPRESSED);
    let text = text();
    far.put(S, &text, Time::ZERO);
    let lost = said(&mut far, first, 3, LATER, 1_000_000);
    let (_, compressed, longest) = kinds(&lost);
    assert!(compressed > 0 && longest > 2 * DATA_BYTES_MAX, "{compressed} {longest}");
    // By a path that does not know compression.
    let second = far.join(PairId(0), VERSION_MIN, LATER).unwrap();
    far.lost(first, PathEnd::Closed, LATER);
    let said = said(&mut far, second, 400, LATER, 1_000_000);
    assert_eq!(kinds(&said), (text.len(), 0, 0));
    assert!(received(&said) == text);
}

#[test]
fn a_late_piece_that_was_compressed_is_sent_again_in_frames() {
    let (mut far, first) = far(Compression::Auto, VERSION_COMPRESSED);
    far.put(S, &text(), Time::ZERO);
    // The first pieces are sent as they are: these arrive.
    let early = said(&mut far, first, 4, LATER, 1_000_000);
    let mut upto = 0;
    let frame = |frame: Frame<'_>| match frame {
        Frame::Data { offset, bytes, .. } => {
            upto = offset + bytes.len() as u64;
            true
        }
        Frame::Compressed { offset, whole, .. } if whole <= DATA_BYTES_MAX => {
            upto = offset + whole as u64;
            true
        }
        Frame::Compressed { .. } => false,
        _ => true,
    };
    Assembly::default().feed(&early, frame).unwrap();
    let ack =
        Frame::Ack { stream: S, delivered: 0, received: upto, limit: 1 << 24, finished: false };
    tell(&mut far, first, &[ack]);
    let second = far.join(PairId(0), VERSION_COMPRESSED, LATER).unwrap();
    far.sampled(
        first,
        Sample { rtt_us: 400_000, outstanding_bytes: 9, ..Sample::default() },
        LATER,
    );
    far.sampled(second, Sample { rtt_us: 1000, ..Sample::default() }, LATER);
    let again = far.counts().again_bytes;
    for tenth in 1..30 {
        let now = Time::from_micros(tenth * 100_000);
        for path in [first, second] {
            far.received(path, &written(&[Frame::Pong { number: 9 }]), now);
        }
        far.tick(now);
        let mut out = Vec::new();
        far.fill(second, &mut out, 1 << 20, now);
        Assembly::default().feed(&out, |_| true).unwrap();
    }
    assert!(far.counts().again_bytes > again + DATA_BYTES_MAX as u64, "{again}");
}

/// A zstd frame (RFC 8878) of so many equal bytes: a block of one byte that is repeated.
fn repeated(count: u32) -> Vec<u8> {
    let size = count.to_le_bytes();
    let block = (count << 3 | 0b011).to_le_bytes();
    // The magic number, a single segment with 4 bytes of size, the block's head, its byte.
    [&[0x28, 0xb5, 0x2f, 0xfd, 0xa0][..], &size, &block[..3], &[7]].concat()
}

#[test]
fn lies_about_what_was_compressed_end_their_stream_with_one_reason_and_no_other() {
    let noise = noise(COMPRESSED_BYTES_MAX);
    let right = repeated(5000);
    let two = [right.clone(), right.clone()].concat();
    for (why, whole, bytes) in [
        ("fewer than claimed", 5001, &right[..]),
        ("more than claimed", 4999, &right),
        ("a bomb", WHOLE_BYTES_MAX, &repeated(100_000)),
        ("two frames where one is claimed", 5000, &two),
        ("a frame that is cut", 5000, &right[..9]),
        ("no frame at all", WHOLE_BYTES_MAX, &noise),
    ] {
        let (mut far, path) = far(Compression::None, VERSION_COMPRESSED);
        let other = Frame::Open { stream: StreamId(2), limit: 9, target: "db:2" };
        tell(&mut far, path, &[other]);
        let frame = Frame::Compressed { stream: S, offset: 0, whole, bytes };
        let done = tell(&mut far, path, &[frame]);
        assert!(done.contains(&Request::Close(S, Some(Reason::Compression))), "{why}: {done:?}");
        assert!(!done.contains(&Request::Drop(path)) && far.stream_count() == 1, "{why}");
        assert_eq!(far.counts().delivered_bytes, 0);
    }
    // And what is right is right, though nothing was said of compressing here.
    let (mut far, path) = far(Compression::None, VERSION_COMPRESSED);
    let frame = Frame::Compressed { stream: S, offset: 0, whole: 5000, bytes: &right };
    assert!(tell(&mut far, path, &[frame, frame]).contains(&Request::Deliver(S)));
    assert_eq!(far.ready(S).concat(), [7; 5000]);
}

#[test]
fn credit_counts_what_comes_of_a_frame_and_is_looked_at_first() {
    let (mut far, path) = far(Compression::None, VERSION_COMPRESSED);
    // It is no zstd frame, and that is not found out.
    let offset = INITIAL_CREDIT - 99;
    let done =
        tell(&mut far, path, &[Frame::Compressed { stream: S, offset, whole: 100, bytes: &[1] }]);
    assert!(done.contains(&Request::Close(S, Some(Reason::Protocol))), "{done:?}");
}

#[test]
fn a_compressed_frame_in_the_version_without_ends_its_path() {
    let (mut far, path) = far(Compression::Auto, VERSION_MIN);
    let frame = Frame::Compressed { stream: S, offset: 0, whole: 5000, bytes: &repeated(5000) };
    assert!(tell(&mut far, path, &[frame]).contains(&Request::Drop(path)));
    assert_eq!(far.stream_count(), 1);
    far.tick(at(1));
}
