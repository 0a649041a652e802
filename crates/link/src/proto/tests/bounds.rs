//! What a peer, a stalled path or an outage can do to a session: acknowledgements at odd places, gaps
//! without end, credit without end, streams that wait.

use std::time::Duration;

use hawser_multipath::paths::action::PairId;
use hawser_time::Time;
use hawser_time::seeded::Random;

use super::{S, TOKEN, at, config, data, far, filled, near, requests, tell, written};
use crate::proto::frame::{DATA_BYTES_MAX, Frame, Reason, Refusal, VERSION_MAX};
use crate::proto::incoming::{INITIAL_CREDIT, Incoming, LATER_MAX, Put};
use crate::proto::outgoing::{SEND_BYTES_MAX, SEND_OWN_BYTES};
use crate::proto::path::PathEnd;
use crate::proto::session::{
    ACK_DELAY, Config, LAST_BYTES_MAX, Request, SEND_SHARED_BYTES_MAX, Session, UNCONFIRMED_MAX,
    Unsent,
};
use crate::proto::{PathId, StreamId};

fn ack<'a>(stream: StreamId, delivered: u64, received: u64, limit: u64) -> Frame<'a> {
    Frame::Ack { stream, delivered, received, limit, finished: false }
}

/// What a path is given at this moment.
fn filled_at(session: &mut Session, path: PathId, now: Time) -> Vec<u8> {
    let mut out = Vec::new();
    session.fill(path, &mut out, 1 << 20, now);
    out
}

fn has(said: &[u8], frame: Frame<'_>) -> bool {
    let frame = written(&[frame]);
    said.windows(frame.len()).any(|part| part == frame)
}

/// A near end with two paths that are up.
fn near_with_two() -> Session {
    let mut near = Session::near(config(2), Time::ZERO);
    near.tick(Time::ZERO);
    for path in [PathId(1), PathId(2)] {
        near.dialled(path, Time::ZERO);
        filled(&mut near, path);
        near.received(path, &written(&[Frame::Welcome { version: 1 }]), Time::ZERO);
    }
    requests(&mut near);
    near
}

/// Lets a second pass in which both paths show signs of life.
fn second(session: &mut Session) {
    for path in [PathId(1), PathId(2)] {
        session.received(path, &written(&[Frame::Pong { number: 9 }]), at(1));
    }
    session.tick(at(1));
}

#[test]
fn a_late_piece_of_which_a_part_was_acknowledged_is_sent_again_from_there() {
    let (mut far, first) = far();
    let second_path = far.join(PairId(0), VERSION_MAX, Time::ZERO).unwrap();
    far.full(first);
    far.put(S, &[7; 1000], Time::ZERO);
    assert!(has(&filled(&mut far, second_path), data(0, &[7; 1000])));
    tell(&mut far, first, &[ack(S, 1, 1, INITIAL_CREDIT)]);
    filled(&mut far, first);
    second(&mut far);
    let said = filled_at(&mut far, first, at(1));
    assert!(has(&said, data(1, &[7; 999])), "{} bytes", said.len());
    // And what its path's death brings back begins there, too.
    far.lost(second_path, PathEnd::Closed, at(1));
    assert!(has(&filled_at(&mut far, first, at(1)), data(1, &[7; 999])));
}

#[test]
fn a_stream_that_is_not_confirmed_sends_no_late_copy_by_a_path_that_may_overtake_its_open() {
    let mut near = near_with_two();
    near.full(PathId(1));
    let id = near.open("db:1", Time::ZERO).unwrap();
    near.put(id, b"x", Time::ZERO);
    let bytes = Frame::Data { stream: id, offset: 0, bytes: b"x" };
    assert!(has(&filled(&mut near, PathId(2)), bytes), "with its Open");
    filled(&mut near, PathId(1));
    second(&mut near);
    assert!(!has(&filled_at(&mut near, PathId(1), at(1)), bytes));
    // Once it is confirmed, a late copy goes by the other path.
    near.received(PathId(1), &written(&[ack(id, 0, 0, INITIAL_CREDIT)]), at(1));
    near.tick(at(1).after(Duration::from_millis(20)));
    assert!(has(&filled_at(&mut near, PathId(1), at(2)), bytes));
}

#[test]
fn small_frames_that_wait_for_a_stalled_path_are_no_lie_and_are_joined() {
    let (mut far, path) = far();
    let frames = (INITIAL_CREDIT - 2) / 10;
    for number in 0..frames {
        let done = tell(&mut far, path, &[data(1 + number * 10, &[7; 10])]);
        assert!(done.is_empty(), "frame {number}: {done:?}");
    }
    assert!(tell(&mut far, path, &[data(0, &[7])]).contains(&Request::Deliver(S)));
    assert_eq!(far.ready(S).concat().len() as u64, 1 + frames * 10);
}

#[test]
fn a_path_with_more_gaps_than_are_kept_ends_and_what_it_carried_comes_again() {
    let (mut far, first) = far();
    let second = far.join(PairId(0), VERSION_MAX, Time::ZERO).unwrap();
    let mut sent = 0;
    while !tell(&mut far, first, &[data(1 + 2 * sent, b"x")]).contains(&Request::Drop(first)) {
        sent += 1;
    }
    assert_eq!((sent, far.stream_count()), (LATER_MAX as u64, 1));
    for offset in (0..INITIAL_CREDIT).step_by(DATA_BYTES_MAX) {
        let length = (INITIAL_CREDIT - offset).min(DATA_BYTES_MAX as u64) as usize;
        tell(&mut far, second, &[data(offset, &vec![b'x'; length])]);
    }
    assert_eq!(far.ready(S).concat(), vec![b'x'; INITIAL_CREDIT as usize]);
}

#[test]
fn pieces_in_any_order_and_overlap_come_out_as_they_were_and_touch_only_when_large() {
    let all: Vec<u8> = (0..INITIAL_CREDIT).map(|at| (at * 7 % 251) as u8).collect();
    for seed in 0..20 {
        let mut random = Random::of_seed(seed);
        let mut incoming = Incoming::new();
        let most: usize = [3, 300, 30_000][random.below(3)];
        let mut starts: Vec<usize> = (0..all.len()).step_by(most.div_ceil(2)).collect();
        for at in (1..starts.len()).rev() {
            starts.swap(at, random.below(at + 1));
        }
        for start in starts {
            let end = (start + most).min(all.len());
            assert_ne!(incoming.put(start as u64, &all[start..end]), Ok(Put::Dropped));
            if random.one_in(500) {
                incoming.check_later();
            }
        }
        assert_eq!(incoming.ready().concat(), all, "seed {seed}");
        assert_eq!(incoming.held(), all.len());
    }
}

#[test]
fn what_a_session_keeps_for_sending_is_bounded_whatever_credit_a_peer_gives() {
    let (mut far, path) = far();
    let streams: Vec<StreamId> = (2..42).map(StreamId).collect();
    let mut kept = 0;
    let mut fill_up = |far: &mut Session, id: StreamId| {
        let room = far.room(id);
        far.put(id, &vec![7; room], Time::ZERO);
        kept += room as u64;
        kept
    };
    for id in &streams {
        let open = Frame::Open { stream: *id, limit: 1 << 60, target: "db:1" };
        tell(&mut far, path, &[open]);
        fill_up(&mut far, *id);
    }
    let most = streams.len() as u64 * SEND_OWN_BYTES + SEND_SHARED_BYTES_MAX;
    assert_eq!(fill_up(&mut far, streams[39]), most);
    assert_eq!(streams.iter().map(|id| far.room(*id)).sum::<usize>(), 0);
    // The first one has all that one may have; when that is delivered, the last one goes on.
    far.tick(at(1));
    while !filled(&mut far, path).is_empty() {
        far.sampled(path, crate::proto::sample::Sample::default(), Time::ZERO);
        requests(&mut far);
    }
    let done = tell(&mut far, path, &[ack(streams[0], SEND_BYTES_MAX, SEND_BYTES_MAX, 1 << 60)]);
    assert!(
        done.contains(&Request::Room(streams[0])) && done.contains(&Request::Room(streams[39]))
    );
    assert!(far.room(streams[39]) > 0);
    // A stream that ends gives back what it had.
    far.failed(streams[1], Reason::Local);
    let left: u64 = streams.iter().map(|id| far.room(*id)).max().unwrap_or(0) as u64;
    assert!(left > SEND_OWN_BYTES, "{left}");
}

#[test]
fn a_stream_that_is_opened_in_an_outage_waits_as_long_as_others() {
    let grace = Duration::from_secs(90);
    let mut near = Session::near(Config { grace, ..config(1) }, Time::ZERO);
    let id = near.open("db:1", Time::ZERO).unwrap();
    near.tick(Time::ZERO.after(UNCONFIRMED_MAX));
    near.tick(Time::from_micros(89_999_999));
    let said = requests(&mut near);
    assert!(!said.iter().any(|request| matches!(request, Request::Close(..))), "{said:?}");
    near.tick(at(90));
    let said = requests(&mut near);
    assert!(said.contains(&Request::Close(id, Some(Reason::Unconfirmed))), "{said:?}");
}

#[test]
fn streams_of_which_nothing_was_sent_outlive_a_session_that_the_far_end_has_forgotten() {
    let (mut near, path) = near();
    let sent = near.open("db:1", Time::ZERO).unwrap();
    filled(&mut near, path);
    near.lost(path, PathEnd::Closed, at(1));
    let unsent = near.open("db:2", at(1)).unwrap();
    near.put(unsent, b"hello", at(1));
    near.ended(unsent);
    near.tick(at(2));
    requests(&mut near);
    near.dialled(PathId(2), at(2));
    let hello = Frame::Hello { versions: (1, 2), fresh: false, token: TOKEN };
    assert_eq!(filled(&mut near, PathId(2)), written(&[hello]));
    let refused = Frame::Refused { refusal: Refusal::Session, versions: (1, 1) };
    near.received(PathId(2), &written(&[refused]), at(2));
    let said = requests(&mut near);
    // The far end may have run what the other one's first bytes ask for.
    assert!(said.contains(&Request::Close(sent, Some(Reason::Restarted))), "{said:?}");
    let again = Unsent { target: "db:2".into(), bytes: b"hello".to_vec(), ended: true };
    assert!(said.contains(&Request::Reopen(unsent, again)), "{said:?}");
    assert_eq!(said.last(), Some(&Request::Ended(Some(Reason::Restarted))));
}

#[test]
fn a_local_socket_that_breaks_has_its_last_bytes_delivered_first_but_not_without_end() {
    let (mut far, path) = far();
    far.put(S, b"last words", Time::ZERO);
    far.broke(S, Reason::Local, Time::ZERO);
    let reset = Frame::Reset { stream: S, reason: Reason::Local };
    let said = filled(&mut far, path);
    assert!(has(&said, data(0, b"last words")) && !has(&said, reset));
    tell(&mut far, path, &[ack(S, 9, 10, INITIAL_CREDIT)]);
    assert_eq!(far.stream_count(), 1);
    let done = tell(&mut far, path, &[ack(S, 10, 10, INITIAL_CREDIT)]);
    assert!(done.contains(&Request::Close(S, Some(Reason::Local))), "{done:?}");
    assert!(has(&filled(&mut far, path), reset));

    let (mut far, _) = far_again();
    far.put(S, b"last words", Time::ZERO);
    far.broke(S, Reason::Local, Time::ZERO);
    far.tick(Time::ZERO.after(LAST_BYTES_MAX - Duration::from_micros(1)));
    assert_eq!(far.stream_count(), 1);
    far.tick(Time::ZERO.after(LAST_BYTES_MAX));
    assert_eq!(far.stream_count(), 0);
}

/// As `far`, with a grace time that outlasts the last bytes.
fn far_again() -> (Session, PathId) {
    let grace = LAST_BYTES_MAX * 2;
    let mut session = Session::far(Config { grace, ..config(0) }, Time::ZERO);
    let path = session.join(PairId(0), VERSION_MAX, Time::ZERO).unwrap();
    let open = Frame::Open { stream: S, limit: INITIAL_CREDIT, target: "db:1" };
    tell(&mut session, path, &[open]);
    (session, path)
}

#[test]
fn a_local_socket_that_still_holds_a_broken_peer_s_last_bytes_is_not_closed_but_not_kept_for_ever()
{
    let reset = |reason| Frame::Reset { stream: S, reason };
    let closed = |reason| Request::Close(S, Some(reason));
    let given = || {
        let (mut far, path) = far();
        tell(&mut far, path, &[data(0, b"last words")]);
        far.wrote(S, 10, Time::ZERO);
        (far, path)
    };
    let (mut far, path) = given();
    let done = tell(&mut far, path, &[reset(Reason::Local)]);
    assert!(
        done.contains(&Request::Drain(S)) && !done.contains(&closed(Reason::Local)),
        "{done:?}"
    );
    assert!(has(&filled(&mut far, path), Frame::Gone { stream: S }), "the peer need not wait");
    far.drained(S);
    assert_eq!(requests(&mut far), [closed(Reason::Local)]);
    far.drained(S);
    assert_eq!(requests(&mut far), []);

    let (mut far, path) = given();
    tell(&mut far, path, &[reset(Reason::Local)]);
    assert!(far.until_tick(Time::ZERO).is_some_and(|wait| wait <= LAST_BYTES_MAX));
    far.tick(Time::ZERO.after(LAST_BYTES_MAX - Duration::from_micros(1)));
    assert!(!requests(&mut far).contains(&closed(Reason::Local)));
    far.tick(Time::ZERO.after(LAST_BYTES_MAX));
    assert!(requests(&mut far).contains(&closed(Reason::Local)));

    // What the link itself has to say is said at once.
    let (mut far, path) = given();
    let done = tell(&mut far, path, &[reset(Reason::Protocol)]);
    assert!(done.contains(&closed(Reason::Protocol)), "{done:?}");
    let (mut far, path) = given();
    tell(&mut far, path, &[reset(Reason::Local)]);
    let done = tell(&mut far, path, &[Frame::Bye]);
    assert!(done.contains(&closed(Reason::Local)), "{done:?}");
}

#[test]
fn a_receiver_says_what_has_come_though_its_local_socket_takes_nothing() {
    let (mut far, path) = far();
    filled(&mut far, path);
    tell(&mut far, path, &[data(0, b"query")]);
    far.tick(Time::ZERO.after(ACK_DELAY));
    assert!(has(&filled(&mut far, path), ack(S, 0, 5, INITIAL_CREDIT)));
}

#[test]
fn a_stream_of_which_nothing_gets_through_by_paths_that_come_and_die_ends_after_the_grace_time() {
    let again = |near: &mut Session, second| {
        near.tick(at(second));
        let dialled = requests(near).into_iter().find_map(|request| match request {
            Request::Dial(path, _) => Some(path),
            _ => None,
        });
        let path = dialled.unwrap();
        near.dialled(path, at(second));
        filled(near, path);
        near.received(path, &written(&[Frame::Welcome { version: 1 }]), at(second));
        filled(near, path);
        path
    };
    let (mut near, first) = near();
    let (stuck, idle) = (near.open("db:1", at(1)).unwrap(), near.open("db:2", at(1)).unwrap());
    filled(&mut near, first);
    near.received(first, &written(&[ack(stuck, 0, 0, 9), ack(idle, 0, 0, 9)]), at(1));
    near.put(stuck, b"query", at(1));
    filled(&mut near, first);
    let mut path = first;
    for second in [5, 10, 15] {
        near.lost(path, PathEnd::Closed, at(second));
        path = again(&mut near, second + 1);
    }
    near.lost(path, PathEnd::Closed, at(19));
    assert!(!requests(&mut near).contains(&Request::Close(stuck, Some(Reason::Stalled))));
    path = again(&mut near, 20);
    near.lost(path, PathEnd::Closed, at(21));
    let done = requests(&mut near);
    assert!(done.contains(&Request::Close(stuck, Some(Reason::Stalled))), "{done:?}");
    assert_eq!(near.stream_count(), 1, "one that waits for nothing goes on");
}
