//! Samples connections for the chooser of [`crate::tuner`], and does what it says.
//!
//! # Model
//! One thread. Each connection has the time of its next look:
//! ```text
//!   far, sending     a quarter of its round trip, 50 ms to 250 ms
//!   far, silent      twice as long as last time, up to 2 s
//!   near             30 s: its path is not going to change
//! ```
//!
//! # Invariants
//! * at most [`LOOKS_MAX`] looks a round, 20 rounds a second: the rest comes in the next ones
//! * no lock is held over more than one question to the kernel

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hawser_sys::congestion::SetError;
use hawser_sys::congestion::flows::Flows;
use hawser_sys::tcp_info::TcpInfo;
use hawser_time::Time;

use super::usage::Decisions;
use crate::tuner::algorithm::Algorithm;
use crate::tuner::chooser::{Chooser, RTT_MIN_US};
use crate::tuner::sample::{FlowId, Sample};

/// Looks of one round: 4,000 a second, of about a microsecond each.
const LOOKS_MAX: usize = 200;
/// Between two rounds where there is something to look at.
const ROUND: Duration = Duration::from_millis(50);
/// Between two where there is not.
const REST: Duration = Duration::from_millis(500);
/// Between two looks at a connection that is silent.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// Between two looks at one that is near.
const NEAR: Duration = Duration::from_secs(30);
/// Between two looks at one that sends.
const FASTEST: Duration = Duration::from_millis(50);
const SLOWEST: Duration = Duration::from_millis(250);
/// Between two [`Chooser::tick`]s.
const TICK: Duration = Duration::from_secs(1);

/// Starts the thread. It ends when `flows` has no other holder.
///
/// # Errors
/// There can be no thread.
pub fn start(chooser: Chooser, flows: &Arc<Flows>, decisions: Arc<Decisions>) -> io::Result<()> {
    let flows = Arc::downgrade(flows);
    let mut rounds = Rounds::new(chooser, decisions);
    let thread = std::thread::Builder::new().name("congestion".to_owned());
    thread.spawn(move || {
        let began = Instant::now();
        while let Some(pause) = rounds.round_of(&flows, began.elapsed()) {
            std::thread::sleep(pause);
        }
    })?;
    Ok(())
}

/// A connection that is looked at.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Look {
    due: Time,
    flow: u64,
    bytes_acked: u64,
    pause: Duration,
}

/// What the thread does, without its clock.
pub struct Rounds {
    chooser: Chooser,
    decisions: Arc<Decisions>,
    looks: BinaryHeap<Reverse<Look>>,
    next_flow: u64,
    next_tick: Time,
}

impl Rounds {
    /// Nothing has been looked at yet.
    #[must_use]
    pub fn new(chooser: Chooser, decisions: Arc<Decisions>) -> Self {
        let looks = BinaryHeap::new();
        Self { chooser, decisions, looks, next_flow: 0, next_tick: Time::ZERO }
    }

    fn round_of(&mut self, flows: &Weak<Flows>, elapsed: Duration) -> Option<Duration> {
        let flows = flows.upgrade()?;
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        Some(self.round(&flows, Time::from_micros(micros)))
    }

    /// One round; gives how long to wait for the next.
    pub fn round(&mut self, flows: &Flows, now: Time) -> Duration {
        for flow in flows.since(self.next_flow) {
            self.next_flow = flow + 1;
            let Some(peer) = flows.peer(flow) else { continue };
            let Some(Ok(has)) = flows.algorithm(flow) else { continue };
            let Some(has) = Algorithm::new(&has) else { continue };
            if self.chooser.open(FlowId(flow), peer.ip(), has, now) {
                let due = now.after(SLOWEST);
                self.looks.push(Reverse(Look { due, flow, bytes_acked: 0, pause: SLOWEST }));
            }
        }
        for _ in 0..LOOKS_MAX {
            match self.looks.peek() {
                Some(Reverse(look)) if look.due <= now => {}
                _ => break,
            }
            let Some(Reverse(look)) = self.looks.pop() else { break };
            self.look(flows, look, now);
        }
        if self.next_tick <= now {
            self.next_tick = now.after(TICK);
            self.chooser.tick(now);
        }
        self.apply(flows, now);
        // Near connections alone are no reason to wake twenty times a second.
        match self.looks.peek() {
            Some(Reverse(look)) => look.due.since(now).clamp(ROUND, REST),
            None => REST,
        }
    }

    fn look(&mut self, flows: &Flows, mut look: Look, now: Time) {
        let id = FlowId(look.flow);
        let Some(Ok(info)) = flows.info(look.flow) else {
            self.chooser.close(id, now);
            return;
        };
        let Some(sample) = sample(&info, now) else {
            self.chooser.close(id, now);
            return;
        };
        if !self.chooser.sample(id, sample) {
            return;
        }
        look.pause = if sample.rtt_min_us < RTT_MIN_US {
            NEAR
        } else if sample.bytes_acked == look.bytes_acked {
            (look.pause * 2).min(SILENT_MAX)
        } else {
            Duration::from_micros(u64::from(sample.rtt_us / 4)).clamp(FASTEST, SLOWEST)
        };
        look.bytes_acked = sample.bytes_acked;
        look.due = now.after(look.pause);
        self.looks.push(Reverse(look));
    }

    fn apply(&mut self, flows: &Flows, now: Time) {
        while let Some(change) = self.chooser.next_change() {
            let name = change.algorithm.as_str();
            match flows.set_algorithm(change.flow.0, name) {
                None | Some(Ok(())) => {}
                Some(Err(error @ (SetError::Unknown(_) | SetError::Denied(_)))) => {
                    tracing::warn!(%error, "congestion = auto");
                    self.chooser.refused(change.algorithm, now);
                }
                // What is wrong with one connection says nothing of the others.
                Some(Err(error @ SetError::System { .. })) => {
                    tracing::info!(%error, "congestion = auto: one connection keeps what it has");
                    self.chooser.close(change.flow, now);
                }
            }
        }
        while let Some(event) = self.chooser.next_event() {
            self.decisions.note(&event);
        }
    }
}

/// What the chooser needs of TCP_INFO. `None` where the kernel is older than 4.10.
pub fn sample(info: &TcpInfo, at: Time) -> Option<Sample> {
    Some(Sample {
        at,
        segment_bytes: info.segment_bytes,
        rtt_us: info.rtt_us,
        rtt_min_us: info.rtt_min_us.unwrap_or(info.rtt_us),
        window: info.window,
        threshold: info.threshold,
        bytes_acked: info.bytes_acked?,
        segments_sent: info.segments_sent?.into(),
        segments_again: info.segments_again.into(),
        busy_us: info.busy_us?,
        receiver_limited_us: info.receiver_limited_us?,
        buffer_limited_us: info.buffer_limited_us?,
        delivery_rate: info.delivery_rate?,
        is_application_limited: info.is_application_limited,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn rounds() -> Rounds {
        let algorithm = |name| Algorithm::new(name).unwrap();
        let chooser = Chooser::new(algorithm("cubic"), vec![algorithm("bbr")]);
        Rounds::new(chooser, Arc::default())
    }

    #[test]
    fn a_local_connection_is_never_looked_at() {
        let flows = Arc::new(Flows::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _entry = flows.enter(&near);
        let mut rounds = rounds();
        assert_eq!(rounds.round(&flows, Time::ZERO), REST);
        assert!(rounds.looks.is_empty());
        assert_eq!(rounds.next_flow, 1);
    }

    #[test]
    fn a_connection_that_sends_is_looked_at_often_a_silent_or_near_one_seldom() {
        let flows = Arc::new(Flows::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let entry = flows.enter(&stream);
        let mut rounds = rounds();
        let (peer, cubic) = ("203.0.113.9".parse().unwrap(), Algorithm::new("cubic").unwrap());
        assert!(rounds.chooser.open(FlowId(entry.number()), peer, cubic, Time::ZERO));
        let look = Look {
            due: Time::ZERO,
            flow: entry.number(),
            bytes_acked: 0,
            pause: Duration::from_millis(250),
        };
        rounds.look(&flows, look, Time::ZERO);
        // It is near: this is loopback.
        assert_eq!(rounds.looks.pop().unwrap().0.pause, NEAR);
        drop(entry);
        let look = Look { due: Time::ZERO, flow: 0, bytes_acked: 0, pause: SLOWEST };
        rounds.look(&flows, look, Time::ZERO);
        assert!(rounds.looks.is_empty(), "it has been closed");
    }

    #[test]
    fn what_an_old_kernel_does_not_give_is_no_sample() {
        assert_eq!(sample(&TcpInfo::default(), Time::ZERO), None);
        let info = TcpInfo {
            bytes_acked: Some(1),
            segments_sent: Some(2),
            busy_us: Some(3),
            receiver_limited_us: Some(4),
            buffer_limited_us: Some(5),
            delivery_rate: Some(6),
            rtt_us: 7,
            ..TcpInfo::default()
        };
        let sample = sample(&info, Time::from_micros(9)).unwrap();
        assert_eq!((sample.rtt_min_us, sample.bytes_acked, sample.buffer_limited_us), (7, 1, 5));
    }

    /// A connection that loses without a queue until its algorithm is to be changed.
    fn in_a_trial(rounds: &mut Rounds, flow: u64) {
        let peer = "203.0.113.9".parse().unwrap();
        let cubic = Algorithm::new("cubic").unwrap();
        assert!(rounds.chooser.open(FlowId(flow), peer, cubic, Time::ZERO));
        for look in 0..100 {
            let sample = Sample {
                at: Time::from_micros(look * 100_000),
                segment_bytes: 1448,
                rtt_us: 201_000,
                rtt_min_us: 200_000,
                window: 1200,
                threshold: 1000 - (look / 20) as u32,
                bytes_acked: look * 100_000,
                segments_sent: look * 70,
                segments_again: look / 20,
                busy_us: look * 100_000,
                ..Sample::default()
            };
            assert!(rounds.chooser.sample(FlowId(flow), sample));
        }
    }

    /// Any error on any socket ended the algorithm for the whole process.
    #[test]
    fn a_socket_that_cannot_have_an_algorithm_takes_it_from_no_other() {
        let flows = Arc::new(Flows::default());
        let (odd, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let entry = flows.enter(&odd);
        let mut rounds = rounds();
        in_a_trial(&mut rounds, entry.number());
        rounds.apply(&flows, Time::from_micros(10_000_000));
        assert!(rounds.chooser.has_choice());
        assert!(!rounds.chooser.sample(FlowId(entry.number()), Sample::default()), "left alone");
        assert_eq!(rounds.chooser.next_change(), None);
        // One that the kernel has not got, or not for this process, is tried no more.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let entry = flows.enter(&listener);
        let algorithm = |name| Algorithm::new(name).unwrap();
        rounds.chooser = Chooser::new(algorithm("cubic"), vec![algorithm("nosuchthing")]);
        in_a_trial(&mut rounds, entry.number());
        rounds.apply(&flows, Time::from_micros(10_000_000));
        assert!(!rounds.chooser.has_choice());
    }

    #[test]
    fn the_thread_ends_with_those_whose_connections_it_looks_at() {
        let flows = Arc::new(Flows::default());
        let weak = Arc::downgrade(&flows);
        let mut rounds = rounds();
        assert!(rounds.round_of(&weak, Duration::ZERO).is_some());
        drop(flows);
        assert!(rounds.round_of(&weak, Duration::ZERO).is_none());
    }
}
