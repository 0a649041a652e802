//! What frames, directions and sessions do at their boundaries; whole runs are in [`simulated`].

mod bounds;
mod compressed;
mod latency;
mod simulated;
mod tails;

use std::time::Duration;

use hawser_multipath::paths::action::PairId;
use hawser_time::Time;

use super::compression::Compression;
use super::frame::{
    Assembly, COMPRESSED_BYTES_MAX, DATA_BYTES_MAX, Frame, FrameError, Reason, Refusal,
    TARGET_BYTES_MAX, VERSION_MAX, WHOLE_BYTES_MAX,
};
use super::greeting::{Greeted, Greeting, NotGreeted};
use super::path::PathEnd;
use super::session::{
    Config, Notice, OpenError, Paths, PathsFull, Request, STREAMS_MAX, Session, UNCONFIRMED_MAX,
};
use super::{PathId, StreamId, Token};
use crate::proto::incoming::INITIAL_CREDIT;
use crate::proto::session::PATHS_MAX;

const TOKEN: Token = Token([7; 16]);
const S: StreamId = StreamId(1);

fn config(paths: usize) -> Config {
    let grace = Duration::from_secs(20);
    Config {
        token: TOKEN,
        grace,
        paths: Paths::Fixed(paths),
        pairs: 1,
        compression: Compression::None,
    }
}

fn written(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    frames.iter().for_each(|frame| frame.write(&mut out));
    out
}

fn at(seconds: u64) -> Time {
    Time::from_micros(seconds * 1_000_000)
}

fn requests(session: &mut Session) -> Vec<Request> {
    std::iter::from_fn(|| session.poll()).collect()
}

fn filled(session: &mut Session, path: PathId) -> Vec<u8> {
    let mut out = Vec::new();
    session.fill(path, &mut out, 1 << 20, Time::ZERO);
    out
}

fn samples<'a>() -> Vec<Frame<'a>> {
    vec![
        Frame::Hello { versions: (1, 1), fresh: true, token: TOKEN },
        Frame::Welcome { version: 1 },
        Frame::Refused { refusal: Refusal::Session, versions: (1, 2) },
        Frame::Open { stream: S, limit: 9, target: "db:5432" },
        Frame::Data { stream: S, offset: u64::MAX - 3, bytes: b"abc" },
        Frame::Ack { stream: S, delivered: 1, received: 2, limit: 3, finished: true },
        Frame::Finish { stream: S, offset: 8 },
        Frame::Reset { stream: S, reason: Reason::Unconfirmed },
        Frame::Gone { stream: S },
        Frame::Ping { number: 1 },
        Frame::Pong { number: 1 },
        Frame::Bye,
        Frame::Rest { rests: true },
        Frame::Compressed { stream: S, offset: u64::MAX - 9, whole: 9, bytes: b"abcd" },
    ]
}

#[test]
fn each_frame_is_read_as_it_was_written_wherever_it_is_cut() {
    let bytes = written(&samples());
    for piece in [1, 2, 3, 19, 20, 1000] {
        let (mut assembly, mut seen) = (Assembly::default(), Vec::new());
        for part in bytes.chunks(piece) {
            assembly
                .feed(part, |frame| {
                    seen.push(written(&[frame]));
                    true
                })
                .unwrap();
        }
        assert_eq!(seen.concat(), bytes, "in pieces of {piece}");
        assert_eq!((seen.len(), assembly.waiting()), (samples().len(), 0));
    }
}

#[test]
fn lying_lengths_and_values_are_refused_before_anything_is_kept() {
    let data = |length: usize| {
        let mut bytes = vec![5; 17];
        bytes.extend_from_slice(&(length as u16).to_be_bytes());
        bytes
    };
    assert_eq!(Frame::read(&data(0)), Err(FrameError::Length("data")));
    assert_eq!(Frame::read(&data(DATA_BYTES_MAX)), Ok(None));
    assert_eq!(Frame::read(&data(DATA_BYTES_MAX + 1)), Err(FrameError::Length("data")));
    let compressed = |length: usize, whole: usize| {
        let length = (length as u16).to_be_bytes();
        [&[14; 17][..], &length, &(whole as u32).to_be_bytes(), &[0; COMPRESSED_BYTES_MAX]].concat()
    };
    let read = |length, whole| Frame::read(&compressed(length, whole)).map(|frame| frame.is_some());
    assert_eq!(read(0, 9), Err(FrameError::Length("compressed data")));
    assert_eq!(read(COMPRESSED_BYTES_MAX, WHOLE_BYTES_MAX), Ok(true));
    let more = read(COMPRESSED_BYTES_MAX + 1, WHOLE_BYTES_MAX);
    assert_eq!(more, Err(FrameError::Length("compressed data")));
    for (length, whole) in [(9, 9), (9, 0), (9, WHOLE_BYTES_MAX + 1), (9, u32::MAX as usize)] {
        assert_eq!(read(length, whole), Err(FrameError::Length("what was compressed")));
    }
    let mut open = vec![4; 17];
    open.extend_from_slice(&(TARGET_BYTES_MAX as u16 + 1).to_be_bytes());
    assert_eq!(Frame::read(&open), Err(FrameError::Length("a target")));
    assert_eq!(Frame::read(&[0]), Err(FrameError::Kind(0)));
    assert_eq!(Frame::read(&[15]), Err(FrameError::Kind(15)));
    let mut beyond = vec![5];
    beyond.extend_from_slice(&[0xff; 16]);
    beyond.extend_from_slice(&[0, 1, 9]);
    assert_eq!(Frame::read(&beyond), Err(FrameError::Value("an offset")));
    let mut beyond = compressed(1, 2);
    beyond[9..17].fill(0xff);
    assert_eq!(Frame::read(&beyond), Err(FrameError::Value("an offset")));
    let reset = [&[8][..], &[0; 8], &[11]].concat();
    assert_eq!(Frame::read(&reset), Err(FrameError::Value("reason")));
    assert!(Assembly::default().feed(&[200], |_| true).is_err());
}

#[test]
fn a_greeting_is_whole_and_nothing_else() {
    let hello = |versions| written(&[Frame::Hello { versions, fresh: true, token: TOKEN }]);
    let mut greeting = Greeting::default();
    let bytes = hello((1, 1));
    assert_eq!(greeting.feed(&bytes[..23]), Ok(None));
    assert_eq!(
        greeting.feed(&bytes[23..]),
        Ok(Some(Greeted { token: TOKEN, fresh: true, version: 1 }))
    );
    let feed = |bytes: &[u8]| Greeting::default().feed(bytes);
    assert_eq!(feed(&hello((3, 9))), Err(NotGreeted::Version(3, 9)));
    assert_eq!(feed(&hello((0, 0))), Err(NotGreeted::Version(0, 0)));
    let version = |bytes: &[u8]| feed(bytes).unwrap().map(|greeted| greeted.version);
    assert_eq!(version(&hello((0, 9))), Some(VERSION_MAX), "a range that has ours");
    assert_eq!(feed(&[bytes, vec![0]].concat()), Err(NotGreeted::Wrong));
    assert_eq!(feed(b"GET / HTTP/1.1"), Err(NotGreeted::Wrong));
    assert_eq!(feed(&written(&[Frame::Ping { number: 1 }])), Err(NotGreeted::Wrong));
}

/// A far end with one path, and its stream 1.
fn far() -> (Session, PathId) {
    let mut session = Session::far(config(0), Time::ZERO);
    let path = session.join(PairId(0), VERSION_MAX, Time::ZERO).unwrap();
    let open = Frame::Open { stream: S, limit: INITIAL_CREDIT, target: "db:1" };
    session.received(path, &written(&[open]), Time::ZERO);
    let asked = requests(&mut session);
    assert!(asked.contains(&Request::Connect(S, "db:1".into())), "{asked:?}");
    (session, path)
}

fn tell(session: &mut Session, path: PathId, frames: &[Frame<'_>]) -> Vec<Request> {
    session.received(path, &written(frames), Time::ZERO);
    requests(session)
}

fn data(offset: u64, bytes: &[u8]) -> Frame<'_> {
    Frame::Data { stream: S, offset, bytes }
}

#[test]
fn bytes_come_out_once_and_in_order() {
    let (mut far, path) = far();
    assert!(!tell(&mut far, path, &[data(2, b"cd")]).contains(&Request::Deliver(S)));
    tell(&mut far, path, &[data(5, b"f"), data(1, b"bcde"), data(4, b"efg")]);
    assert_eq!(far.ready(S), [&b""[..], b""]);
    assert!(tell(&mut far, path, &[data(0, b"ab")]).contains(&Request::Deliver(S)));
    assert_eq!(far.ready(S).concat(), b"abcdefg");
    tell(&mut far, path, &[data(0, b"XXXX")]);
    assert_eq!(far.ready(S).concat(), b"abcdefg");
}

#[test]
fn credit_is_kept_to_the_byte_and_a_lie_ends_that_stream_alone() {
    let (mut far, path) = far();
    let open = Frame::Open { stream: StreamId(2), limit: 1, target: "db:2" };
    tell(&mut far, path, &[open]);
    assert!(tell(&mut far, path, &[data(INITIAL_CREDIT - 1, b"x")]).is_empty());
    let done = tell(&mut far, path, &[data(INITIAL_CREDIT, b"x")]);
    assert!(done.contains(&Request::Close(S, Some(Reason::Protocol))), "{done:?}");
    assert_eq!(far.stream_count(), 1);
    assert_eq!(far.room(StreamId(2)), 1, "and sends no more than it may");
    let said = filled(&mut far, path);
    let reset = written(&[Frame::Reset { stream: S, reason: Reason::Protocol }]);
    assert!(said.windows(reset.len()).any(|part| part == reset));
    // Late frames of it begin nothing.
    assert!(tell(&mut far, path, &[data(0, b"x")]).is_empty());
}

#[test]
fn an_end_that_moves_and_acknowledgements_of_what_was_not_sent_are_lies() {
    let ack = |delivered, received, limit, finished| Frame::Ack {
        stream: S,
        delivered,
        received,
        limit,
        finished,
    };
    for lie in [
        vec![Frame::Finish { stream: S, offset: 5 }, Frame::Finish { stream: S, offset: 6 }],
        vec![data(0, b"abc"), Frame::Finish { stream: S, offset: 2 }],
        vec![Frame::Finish { stream: S, offset: 2 }, data(0, b"abc")],
        vec![Frame::Finish { stream: S, offset: INITIAL_CREDIT + 1 }],
        vec![ack(0, 1, 9, false)],
        vec![ack(1, 0, 9, false)],
        vec![ack(0, 0, 9, true)],
    ] {
        let (mut far, path) = far();
        let done = tell(&mut far, path, &lie);
        assert!(done.contains(&Request::Close(S, Some(Reason::Protocol))), "{lie:?}: {done:?}");
    }
}

#[test]
fn the_last_acknowledgement_is_made_up_for_when_its_path_dies_after_the_stream_has_ended() {
    let (mut far, first) = far();
    filled(&mut far, first);
    far.ended(S);
    tell(&mut far, first, &[Frame::Finish { stream: S, offset: 0 }]);
    far.finished(S, Time::ZERO);
    let finished =
        Frame::Ack { stream: S, delivered: 0, received: 0, limit: INITIAL_CREDIT, finished: true };
    let said = filled(&mut far, first);
    assert!(said.windows(34).any(|part| part == written(&[finished])), "{said:?}");
    // The peer's frame ends the stream here; what went by the first path has not arrived.
    let second = far.join(PairId(0), VERSION_MAX, Time::ZERO).unwrap();
    let done = tell(&mut far, second, &[finished]);
    assert!(done.contains(&Request::Close(S, None)), "{done:?}");
    filled(&mut far, second);
    far.lost(first, PathEnd::Silent, Time::ZERO);
    assert_eq!(filled(&mut far, second), written(&[Frame::Gone { stream: S }]));
}

#[test]
fn frames_out_of_place_end_their_path_and_no_stream() {
    for frame in [
        Frame::Welcome { version: 1 },
        Frame::Hello { versions: (1, 1), fresh: false, token: TOKEN },
        Frame::Data { stream: StreamId(2), offset: 0, bytes: b"x" },
        Frame::Open { stream: StreamId(0), limit: 0, target: "x" },
    ] {
        let (mut far, path) = far();
        let other = far.join(PairId(0), VERSION_MAX, Time::ZERO).unwrap();
        let done = tell(&mut far, path, &[frame]);
        assert!(done.contains(&Request::Drop(path)), "{frame:?}");
        assert!(!done.contains(&Request::Drop(other)));
        assert_eq!(far.stream_count(), 1);
    }
}

#[test]
fn there_are_no_more_streams_than_there_may_be() {
    let (mut far, path) = far();
    for number in 2..=STREAMS_MAX as u64 + 3 {
        let open = Frame::Open { stream: StreamId(number), limit: 0, target: "x" };
        far.received(path, &written(&[open]), Time::ZERO);
    }
    assert_eq!(far.stream_count(), STREAMS_MAX);
    let said = filled(&mut far, path);
    let full = Frame::Reset { stream: StreamId(STREAMS_MAX as u64 + 1), reason: Reason::Full };
    assert!(said.windows(10).any(|part| part == written(&[full])));
    let mut near = Session::near(config(1), Time::ZERO);
    for _ in 0..STREAMS_MAX {
        near.open("x:1", Time::ZERO).unwrap();
    }
    assert_eq!(near.open("x:1", Time::ZERO), Err(OpenError::Full));
    assert_eq!(near.open("", Time::ZERO), Err(OpenError::Target));
}

#[test]
fn a_peer_that_opens_without_end_and_confirms_nothing_ends_its_session() {
    let mut far = Session::far(config(0), Time::ZERO);
    let path = far.join(PairId(0), VERSION_MAX, Time::ZERO).unwrap();
    for number in 1..1_000_000 {
        let open = Frame::Open { stream: StreamId(number), limit: 0, target: "x" };
        far.received(path, &written(&[open]), Time::ZERO);
        requests(&mut far);
        if far.has_ended() {
            assert!(number < 40_000, "{number}");
            return;
        }
    }
    panic!("a million streams were opened");
}

#[test]
fn there_are_no_more_paths_than_there_may_be() {
    let mut far = Session::far(config(0), Time::ZERO);
    for _ in 0..PATHS_MAX {
        far.join(PairId(0), VERSION_MAX, Time::ZERO).unwrap();
    }
    assert_eq!(far.join(PairId(0), VERSION_MAX, Time::ZERO), Err(PathsFull));
}

/// A near end whose one path is up.
fn near() -> (Session, PathId) {
    let mut session = Session::near(config(1), Time::ZERO);
    session.tick(Time::ZERO);
    assert_eq!(requests(&mut session), [Request::Dial(PathId(1), PairId(0))]);
    let path = PathId(1);
    session.dialled(path, Time::ZERO);
    let hello = Frame::Hello { versions: (1, 2), fresh: true, token: TOKEN };
    assert_eq!(filled(&mut session, path), written(&[hello]));
    session.received(path, &written(&[Frame::Welcome { version: 1 }]), Time::ZERO);
    requests(&mut session);
    assert_eq!(session.path_reports(Time::ZERO)[0].stage, "up");
    (session, path)
}

#[test]
fn a_stream_stays_on_its_first_path_until_it_is_confirmed() {
    let mut near = Session::near(config(2), Time::ZERO);
    near.tick(Time::ZERO);
    for path in [PathId(1), PathId(2)] {
        near.dialled(path, Time::ZERO);
        filled(&mut near, path);
        near.received(path, &written(&[Frame::Welcome { version: 1 }]), Time::ZERO);
    }
    let id = near.open("db:1", Time::ZERO).unwrap();
    near.put(id, &[1; 200_000], Time::ZERO);
    assert!(filled(&mut near, PathId(1)).len() > 200_000);
    near.put(id, &[1; 60_000], Time::ZERO);
    assert_eq!(filled(&mut near, PathId(2)), b"");
    let ack = Frame::Ack { stream: id, delivered: 0, received: 0, limit: 1 << 20, finished: false };
    near.received(PathId(1), &written(&[ack]), Time::ZERO);
    near.put(id, &[1; 60_000], Time::ZERO);
    assert!(!filled(&mut near, PathId(2)).is_empty(), "it is bulk now, and confirmed");
    // Its death has everything that it carried sent again, by the other one.
    near.lost(PathId(1), PathEnd::Closed, Time::ZERO);
    let mut again = 0;
    near.tick(at(1)); // no small stream is open
    for _ in 0..9 {
        // What is under way has arrived: no more than that is given to a path at once.
        let one = filled(&mut near, PathId(2)).len();
        assert!(one <= 100_000, "{one}");
        again += one;
        near.sampled(PathId(2), super::sample::Sample::default(), Time::ZERO);
    }
    assert!(again > 200_000);
}

#[test]
fn a_silent_path_is_dead_and_one_with_nothing_under_way_is_not() {
    let (mut near, path) = near();
    near.open("db:1", Time::ZERO).unwrap();
    filled(&mut near, path);
    near.tick(Time::from_micros(1_999_999));
    assert!(!requests(&mut near).contains(&Request::Drop(path)));
    near.tick(at(2));
    let lost = Request::Notice(Notice::PathLost(path, PathEnd::Silent, 0));
    assert!(requests(&mut near).contains(&lost));
}

#[test]
fn an_idle_path_is_pinged_and_an_answer_keeps_it() {
    let (mut near, path) = near();
    // What is under way is acknowledged: nothing is waited for.
    near.sampled(path, super::sample::Sample { acked_bytes: 24, ..Default::default() }, Time::ZERO);
    let wait = near.until_tick(Time::ZERO).unwrap();
    assert_eq!(wait, super::path::PING_EACH_IDLE);
    near.tick(at(5));
    assert_eq!(filled(&mut near, path), written(&[Frame::Ping { number: 1 }]));
    near.received(path, &written(&[Frame::Pong { number: 1 }]), at(6));
    near.sampled(path, super::sample::Sample { acked_bytes: 33, ..Default::default() }, at(6));
    near.tick(at(10));
    assert!(!requests(&mut near).contains(&Request::Drop(path)));
    near.tick(at(11));
    filled(&mut near, path);
    near.tick(at(20));
    assert!(requests(&mut near).contains(&Request::Drop(path)), "the second one was not answered");
}

#[test]
fn streams_wait_for_the_grace_time_and_no_longer() {
    let (mut near, path) = near();
    let id = near.open("db:1", Time::ZERO).unwrap();
    near.lost(path, PathEnd::Closed, at(1));
    near.tick(Time::from_micros(20_999_999));
    assert!(!near.has_ended());
    near.tick(at(21));
    let said = requests(&mut near);
    assert!(said.contains(&Request::Close(id, Some(Reason::Grace))), "{said:?}");
    assert_eq!(said.last(), Some(&Request::Ended(Some(Reason::Grace))));
}

#[test]
fn an_idle_session_without_paths_begins_again() {
    let (mut near, path) = near();
    near.lost(path, PathEnd::Closed, at(1));
    // Not at once: the far end may wait for the last word of a stream.
    near.tick(Time::from_micros(20_999_999));
    assert!(!near.has_ended());
    near.tick(at(21));
    assert_eq!(requests(&mut near).last(), Some(&Request::Ended(None)));
}

#[test]
fn a_far_end_that_has_forgotten_the_session_ends_it() {
    let (mut near, path) = near();
    let id = near.open("db:1", Time::ZERO).unwrap();
    filled(&mut near, path); // its Open
    near.lost(path, PathEnd::Closed, at(1));
    near.tick(at(2));
    requests(&mut near);
    near.dialled(PathId(2), at(2));
    let hello = Frame::Hello { versions: (1, 2), fresh: false, token: TOKEN };
    assert_eq!(filled(&mut near, PathId(2)), written(&[hello]));
    let refused = Frame::Refused { refusal: Refusal::Session, versions: (1, 1) };
    near.received(PathId(2), &written(&[refused]), at(2));
    let said = requests(&mut near);
    assert!(said.contains(&Request::Close(id, Some(Reason::Restarted))), "{said:?}");
}

#[test]
fn a_stream_that_is_never_confirmed_ends() {
    let (mut near, path) = near();
    let id = near.open("db:1", Time::ZERO).unwrap();
    let until = Time::ZERO.after(UNCONFIRMED_MAX); // it is more than the grace time
    for second in 0..30 {
        filled(&mut near, path);
        near.received(path, &written(&[Frame::Pong { number: 9 }]), at(second));
        near.tick(at(second));
    }
    assert_eq!(near.stream_count(), 1);
    near.tick(until);
    let said = requests(&mut near);
    assert!(said.contains(&Request::Close(id, Some(Reason::Unconfirmed))), "{said:?}");
}

#[test]
fn dials_that_fail_are_made_less_often() {
    let mut near = Session::near(config(1), Time::ZERO);
    let (mut dials, mut now) = (0, Time::ZERO);
    while now < at(60) {
        near.tick(now);
        for request in requests(&mut near) {
            if let Request::Dial(path, _) = request {
                dials += 1;
                near.lost(path, PathEnd::NotDialled, now);
            }
        }
        now = now.after(near.until_tick(now).unwrap().max(Duration::from_millis(1)));
    }
    assert!((12..22).contains(&dials), "{dials} dials in a minute");
}
