//! What a peer of a link does over two paths: any bytes, cut anywhere, and frames that are nearly right;
//! paths that end, time that passes, local programs that give, take and end.
//!
//! Nothing panics, no more is held than was granted, and what comes out never exceeds what came in. An
//! operation has three bytes, then what it takes.

use std::time::Duration;

use hawser_link::proto::compression::Compression;
use hawser_link::proto::frame::{
    COMPRESSED_HEAD_BYTES, Frame, Reason, VERSION_MAX, VERSION_MIN, WHOLE_BYTES_MAX,
};
use hawser_link::proto::incoming::WINDOW_MAX;
use hawser_link::proto::path::PathEnd;
use hawser_link::proto::sample::Sample;
use hawser_link::proto::session::{Config, Paths, Request, Session};
use hawser_link::proto::{PathId, StreamId, Token};
use hawser_multipath::paths::action::PairId;
use hawser_time::Time;

/// The next bytes, fewer at the end.
fn take<'a>(input: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(count.min(input.len()));
    *input = rest;
    taken
}

/// A frame with fields out of the input: numbers are near to each other and to the bounds of a window.
fn frame(what: u8, high: u8, low: u8) -> Vec<u8> {
    let stream = StreamId((high % 6).into());
    let near = |value: u8| match value % 4 {
        0 => u64::from(value),
        1 => 262_144 - u64::from(value >> 2),
        2 => 262_144 + u64::from(value >> 2),
        _ => u64::MAX - u64::from(value),
    };
    let mut out = Vec::new();
    let bytes = [low; 255];
    // A zstd frame (RFC 8878) of so many equal bytes, of which one may be another.
    let many = if low.is_multiple_of(2) { u32::from(low) } else { u32::from(low) << 9 };
    let (size, block) = (many.to_le_bytes(), (many << 3 | 0b011).to_le_bytes());
    let mut zstd = [&[0x28, 0xb5, 0x2f, 0xfd, 0xa0][..], &size, &block[..3], &[7]].concat();
    if high >= 128 {
        zstd[usize::from(high % 13)] ^= low;
    }
    match what % 14 {
        0 => Frame::Hello { versions: (low, high), fresh: true, token: Token([0; 16]) },
        1 => Frame::Welcome { version: low },
        2 | 3 => Frame::Open { stream, limit: near(low), target: "db:5432" },
        // Beyond the end of the numbers there is no frame to write: the parser's own test has it.
        4 | 5 => Frame::Data {
            stream,
            offset: near(low).min(u64::MAX - 255),
            bytes: &bytes[..usize::from(low).max(1)],
        },
        6 => Frame::Ack {
            stream,
            delivered: near(low) / 2,
            received: near(low),
            limit: near(high),
            finished: what & 0x80 != 0,
        },
        7 => Frame::Finish { stream, offset: near(low) },
        8 => Frame::Reset { stream, reason: Reason::Local },
        9 => Frame::Gone { stream },
        10 | 11 => Frame::Compressed {
            stream,
            offset: near(high).min(u64::MAX - (1 << 17)),
            whole: (many as usize + usize::from(high >> 6)).clamp(14, 1 << 16),
            bytes: &zstd,
        },
        12 => Frame::Ping { number: low.into() },
        _ => Frame::Pong { number: low.into() },
    }
    .write(&mut out);
    out
}

/// Of how many bytes of streams so many on a path may tell: each compressed frame has a head.
fn may_become(bytes: usize) -> u64 {
    (bytes + bytes.div_ceil(COMPRESSED_HEAD_BYTES) * WHOLE_BYTES_MAX) as u64
}

/// Plays an input: its first byte says which end it is.
///
/// # Panics
/// Where an invariant is broken.
pub(crate) fn play(mut input: &[u8]) {
    let config = Config {
        token: Token([1; 16]),
        grace: Duration::from_secs(20),
        paths: Paths::Auto,
        pairs: 2,
        compression: Compression::Auto,
    };
    let is_near = take(&mut input, 1).first().is_some_and(|byte| byte % 2 == 0);
    let mut now = Time::ZERO;
    let mut session = if is_near { Session::near(config, now) } else { Session::far(config, now) };
    let mut paths: Vec<PathId> = Vec::new();
    let mut came_bytes = 0;
    while let [what, high, low] = *take(&mut input, 3) {
        let count = u16::from_be_bytes([high, low]);
        let path = paths.get(usize::from(what >> 7) % paths.len().max(1)).copied();
        let stream = StreamId((high % 6).into());
        match (what % 16, path) {
            (0, _) if !is_near => {
                paths.extend(session.join(PairId(0), VERSION_MIN + low % VERSION_MAX, now));
            }
            (0, _) => drop(session.open("db:5432", now)),
            (1, Some(path)) => session.lost(path, PathEnd::Closed, now),
            (2, _) => {
                now = now.after(Duration::from_millis(count.into()));
                session.tick(now);
                assert!(session.until_tick(now).is_none_or(|wait| wait < Duration::from_secs(60)));
            }
            (3, _) => {
                let room = session.room(stream).min(low.into());
                session.put(stream, &[7; 255][..room], now);
            }
            (4, _) => {
                let ready: usize = session.ready(stream).iter().map(|part| part.len()).sum();
                session.wrote(stream, ready.min(count.into()), now);
            }
            (5, _) if high > 200 => session.ended(stream),
            (5, _) if high < 20 => session.failed(stream, Reason::Local),
            (5, _) if high < 40 => session.broke(stream, Reason::Local, now),
            (6, Some(path)) => {
                let outstanding_bytes = count.into();
                session.sampled(path, Sample { outstanding_bytes, ..Sample::default() }, now);
            }
            (7, Some(path)) => session.full(path),
            (8, Some(path)) => {
                let bytes = take(&mut input, usize::from(count) % 512);
                came_bytes += may_become(bytes.len());
                session.received(path, bytes, now);
            }
            (_, Some(path)) => {
                let bytes = frame(what >> 3 ^ high, high, low);
                came_bytes += may_become(bytes.len());
                let (first, rest) = bytes.split_at(usize::from(low).min(bytes.len()));
                session.received(path, first, now);
                session.received(path, rest, now);
            }
            _ => {}
        }
        follow(&mut session, &mut paths, now);
        assert!(session.counts().delivered_bytes <= came_bytes);
        for stream in session.stream_reports(16, now) {
            assert!(stream.held_bytes as u64 <= 2 * WINDOW_MAX, "{stream:?}");
        }
    }
}

/// Does what the session asks for, as a host does.
fn follow(session: &mut Session, paths: &mut Vec<PathId>, now: Time) {
    for _ in 0..10_000 {
        let Some(request) = session.poll() else { return };
        match request {
            Request::Dial(path, _) => {
                paths.push(path);
                session.dialled(path, now);
            }
            Request::Write(path) => {
                let mut out = Vec::new();
                session.fill(path, &mut out, 4096, now);
            }
            Request::Drop(path) => paths.retain(|other| *other != path),
            Request::Finish(stream) => session.finished(stream, now),
            _ => {}
        }
    }
    panic!("requests without end");
}
