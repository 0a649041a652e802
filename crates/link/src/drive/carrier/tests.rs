//! What a carrier does with real sockets on loopback.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use hawser_sys::epoll::Events;

use super::super::keys::tests::throw_away;
use super::*;
use crate::proto::Token;
use crate::proto::compression::Compression;
use crate::proto::frame::{Frame, VERSION_MAX};
use crate::proto::session::{Config, Paths};

const S: StreamId = StreamId(1);

/// What a worker has.
struct Host {
    epoll: Epoll,
    resolving: Resolving,
    buffer: Vec<u8>,
    dialling: Option<Dialling>,
    congestion: CongestionUsage,
    now: Time,
}

impl Host {
    fn new() -> Self {
        Self {
            epoll: Epoll::new().unwrap(),
            resolving: Resolving::new().unwrap(),
            buffer: vec![0; 64 << 10],
            dialling: None,
            congestion: CongestionUsage::default(),
            now: Time::from_micros(1_000_000),
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Around<'_>) -> T) -> T {
        act(&mut Around {
            epoll: &self.epoll,
            resolving: &self.resolving,
            buffer: &mut self.buffer,
            dialling: self.dialling.as_ref(),
            targets: &BTreeSet::new(),
            congestion: (&self.congestion, Congestion::Default),
            now: self.now,
        })
    }

    /// Handles what happens within a moment.
    fn turn(&mut self, carrier: &mut Carrier) {
        let mut events = Events::with_capacity(16);
        self.epoll.wait(&mut events, Duration::from_millis(50)).unwrap();
        for event in (0..events.len()).filter_map(|at| events.get(at)) {
            match Mark::of(event.data) {
                Some(Mark::Local(_, id)) => carrier.local_happened(id, event),
                Some(Mark::Path(_, id)) => carrier.path_happened(id, event),
                None => {}
            }
        }
        self.with(|around| carrier.turn(around));
    }
}

fn config() -> Config {
    let grace = Duration::from_secs(20);
    Config {
        token: Token([1; 16]),
        grace,
        paths: Paths::Fixed(1),
        pairs: 1,
        compression: Compression::None,
    }
}

/// A far end whose stream S is to be connected, and the path that frames come by.
fn far(host: &Host) -> (Carrier, PathId) {
    let mut session = Session::far(config(), host.now);
    let path = session.join(PairId(0), VERSION_MAX, host.now).unwrap();
    let mut open = Vec::new();
    Frame::Open { stream: S, limit: 1 << 18, target: "db:1" }.write(&mut open);
    session.received(path, &open, host.now);
    while session.poll().is_some() {}
    let mut carrier = Carrier::new(0, "test".to_owned(), None, session);
    let local = Local {
        fd: None,
        phase: LocalPhase::Resolving,
        since: host.now,
        readable: false,
        writable: false,
        ended: false,
        finish: Finish::No,
    };
    carrier.locals.insert(S, local);
    (carrier, path)
}

#[test]
fn each_address_of_a_target_is_tried_for_its_time() {
    let mut host = Host::new();
    let (mut carrier, _) = far(&host);
    let refuses = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // One whose queue is full answers nothing.
    let full = hawser_sys::listen::listen_tcp("127.0.0.1:0".parse().unwrap(), 0).unwrap();
    let hangs = full.local_addr().unwrap();
    let _queued: Vec<OwnedFd> = (0..3).map(|_| dial_from(any(hangs), 0, hangs).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(20));
    let good = TcpListener::bind("127.0.0.1:0").unwrap();
    let found = vec![refuses, hangs, good.local_addr().unwrap()];
    host.with(|around| carrier.connect_at(S, found, around));
    for _ in 0..3 {
        host.turn(&mut carrier);
    }
    assert!(
        matches!(&carrier.locals[&S].phase, LocalPhase::Connecting(left) if left.len() == 1),
        "the one that does not answer is waited for"
    );
    host.now = host.now.after(DIAL_MAX);
    host.turn(&mut carrier);
    host.turn(&mut carrier);
    assert!(matches!(carrier.locals[&S].phase, LocalPhase::Open));
    good.set_nonblocking(true).unwrap();
    assert!(good.accept().is_ok());
}

#[test]
fn an_end_that_is_said_twice_is_given_once() {
    let mut host = Host::new();
    let (mut carrier, path) = far(&host);
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap();
    host.with(|around| carrier.connect_at(S, vec![address], around));
    host.turn(&mut carrier);
    let (mut program, _) = target.accept().unwrap();
    program.shutdown(Shutdown::Write).unwrap();
    host.turn(&mut carrier);
    let mut twice = Vec::new();
    for _ in 0..2 {
        Frame::Finish { stream: S, offset: 0 }.write(&mut twice);
    }
    carrier.session.received(path, &twice, host.now);
    host.turn(&mut carrier);
    assert_eq!(program.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(carrier.session.counts().streams_reset, 0);
}

#[test]
fn what_a_target_says_before_it_breaks_is_put_in_whatever_a_write_says() {
    let mut host = Host::new();
    let (mut carrier, path) = far(&host);
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap();
    host.with(|around| carrier.connect_at(S, vec![address], around));
    host.turn(&mut carrier);
    let (mut program, _) = target.accept().unwrap();
    let bytes = |offset| {
        let mut out = Vec::new();
        Frame::Data { stream: S, offset, bytes: b"query" }.write(&mut out);
        out
    };
    carrier.session.received(path, &bytes(0), host.now);
    host.turn(&mut carrier);
    program.write_all(b"last words").unwrap();
    drop(program); // with bytes unread
    // The write that fails comes before the read.
    carrier.session.received(path, &bytes(5), host.now);
    host.with(|around| carrier.requests(around));
    for _ in 0..3 {
        host.turn(&mut carrier);
    }
    let report = carrier.session.stream_reports(1, host.now);
    assert_eq!(report.first().map(|one| one.held_bytes >= 10), Some(true), "{report:?}");
    let mut said = Vec::new();
    carrier.session.fill(path, &mut said, 1 << 16, host.now);
    assert!(said.windows(10).any(|part| part == b"last words"), "{said:?}");
}

/// The near end of a session without a path.
fn near(host: &Host) -> Carrier {
    Carrier::new(0, "test".to_owned(), None, Session::near(config(), host.now))
}

#[test]
fn a_program_whose_connection_cannot_be_watched_is_reset() {
    let mut host = Host::new();
    let mut carrier = near(&host);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut program = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let fd = OwnedFd::from(listener.accept().unwrap().0);
    host.epoll.add(&fd, 99).unwrap(); // a second time is refused
    host.with(|around| carrier.open(fd, "db:1", around));
    assert_eq!(program.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_path_that_is_not_proved_yet_ends_when_keys_are_revoked() {
    let mut host = Host::new();
    let mut carrier = near(&host);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let key = throw_away();
    let known = Arc::new(arc_swap::ArcSwap::from_pointee(vec![key.public()]));
    let tls = super::super::proof::near(&key, &known).unwrap();
    let to = silent.local_addr().unwrap().to_string();
    host.dialling = Some(Dialling { pairs: vec![Pair { from: None, to }], tls });
    for _ in 0..3 {
        host.turn(&mut carrier);
    }
    assert_eq!(carrier.paths.values().map(Connection::phase).collect::<Vec<_>>(), [Phase::Shaking]);
    host.with(|around| carrier.end_unknown(&[key.public()], around));
    assert!(carrier.paths.is_empty());
}

/// The near end of a session whose path to `peer` is up.
fn with_path(host: &mut Host, listener: &TcpListener) -> (Carrier, Connection) {
    let key = throw_away();
    let known = Arc::new(arc_swap::ArcSwap::from_pointee(vec![key.public()]));
    let tls = super::super::proof::near(&key, &known).unwrap();
    let to = listener.local_addr().unwrap().to_string();
    host.dialling = Some(Dialling { pairs: vec![Pair { from: None, to }], tls });
    let mut carrier = near(host);
    host.turn(&mut carrier);
    let accepting = super::super::proof::far(&key, &known).unwrap();
    let tls = super::super::proof::begin_far(&accepting).unwrap();
    let fd = OwnedFd::from(listener.accept().unwrap().0);
    let mut peer = Connection::new(fd, tls, Phase::Shaking, host.now).unwrap();
    let mut hello = Vec::new();
    for _ in 0..20 {
        host.turn(&mut carrier);
        peer.happened(true, true);
        if peer.advance(&mut [0; 4096]).unwrap() {
            let take = |plain: &[u8]| {
                hello.extend_from_slice(plain);
                true
            };
            peer.read(&mut [0; 4096], take).unwrap();
        }
        if !hello.is_empty() {
            break;
        }
    }
    let mut welcome = Vec::new();
    Frame::Welcome { version: 1 }.write(&mut welcome);
    peer.write(&welcome).unwrap();
    for _ in 0..3 {
        host.turn(&mut carrier);
    }
    assert!(carrier.session.is_up());
    (carrier, peer)
}

#[test]
fn what_a_peer_said_before_it_reset_a_path_is_read_though_a_write_fails_first() {
    let mut host = Host::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut carrier, mut peer) = with_path(&mut host, &listener);
    let mut bye = Vec::new();
    Frame::Bye.write(&mut bye);
    peer.write(&bye).unwrap();
    peer.close();
    // A program connects before the path is read.
    let local = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut program = TcpStream::connect(local.local_addr().unwrap()).unwrap();
    let fd = OwnedFd::from(local.accept().unwrap().0);
    host.with(|around| {
        carrier.open(fd, "db:1", around);
        carrier.requests(around);
    });
    assert!(carrier.session.has_ended(), "the peer has said that it ends");
    assert_eq!(program.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_program_that_reads_late_has_a_target_s_last_words_before_the_reset() {
    let mut host = Host::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut carrier, mut peer) = with_path(&mut host, &listener);
    let local = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut program = TcpStream::connect(local.local_addr().unwrap()).unwrap();
    let fd = OwnedFd::from(local.accept().unwrap().0);
    host.with(|around| carrier.open(fd, "db:1", around));
    // More than the window of a program that reads nothing.
    let mut frames = Vec::new();
    for offset in (0..256_000).step_by(16_000) {
        Frame::Data { stream: S, offset, bytes: &[7; 16_000] }.write(&mut frames);
    }
    peer.happened(true, true);
    peer.write(&frames).unwrap();
    for _ in 0..5 {
        host.turn(&mut carrier);
        peer.flush().unwrap();
    }
    let delivered = carrier.session.counts().delivered_bytes;
    assert!(delivered > 100_000, "{delivered}");
    let mut reset = Vec::new();
    Frame::Reset { stream: S, reason: Reason::Local }.write(&mut reset);
    peer.write(&reset).unwrap();
    for _ in 0..5 {
        host.turn(&mut carrier);
    }
    program.set_nonblocking(true).unwrap();
    let (mut got, mut buffer) = (0, vec![0; 1 << 20]);
    let end = loop {
        match program.read(&mut buffer) {
            Ok(count) => got += count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                host.now = host.now.after(DRAIN_EACH);
                host.turn(&mut carrier);
            }
            Err(error) => break error.kind(),
        }
    };
    assert_eq!((got, end), (delivered, ErrorKind::ConnectionReset));
}

#[test]
fn marks_survive_epoll() {
    for mark in [
        Mark::Path(0, PathId(1)),
        Mark::Path((1 << 21) - 1, PathId(9)),
        Mark::Local(7, StreamId((1 << 40) - 1)),
    ] {
        assert_eq!(Mark::of(mark.number()), Some(mark));
    }
    assert_eq!(Mark::of(3), None);
}
