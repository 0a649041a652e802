//! A path with a bottleneck, a queue and loss by chance, and flows with window or rate, in virtual
//! time: as much of TCP as the chooser can see.
//!
//! # Model
//! Every [`STEP_US`] each flow sends its window over the round trip; what exceeds the bottleneck's
//! rate queues, what exceeds the queue is dropped from flows in proportion. `cubic` has RFC 9438's
//! window; `bbr` sends at the most that was delivered to it of late with 2 bandwidth-delay products
//! at most, whatever is lost. Acknowledgements come a round trip later, in the model at once.

use core::net::IpAddr;

use hawser_time::Time;
use hawser_time::seeded::SplitMix;

use super::algorithm::Algorithm;
use super::chooser::Chooser;
use super::event::Event;
use super::sample::{FlowId, Sample};

const STEP_US: u64 = 20_000;
const SEGMENT_BYTES: u32 = 1448;
/// How often flows are sampled.
const SAMPLE_STEPS: u64 = 5;
/// BBR probes by so much, and by so much it grows at its start.
const PROBE: f64 = 1.05;
const STARTUP: f64 = 2.0;

/// What a path is.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) rtt_ms: u64,
    pub(super) mbit: f64,
    pub(super) queue_segments: f64,
    pub(super) loss: f64,
}

/// 217 ms, 95 Mbit/s on the wire, 0.034 % loss.
pub(super) const LONG_FAT: Path =
    Path { rtt_ms: 217, mbit: 90.9, queue_segments: 1000.0, loss: 0.00034 };

/// A flow of the model.
pub(super) struct Sender {
    pub(super) id: FlowId,
    /// What the kernel runs now.
    pub(super) algorithm: Algorithm,
    /// What the program writes at most, in segments a second.
    pub(super) application: f64,
    /// Window that the receiver or the send buffer allows, in segments, and which of them.
    pub(super) room: Option<(f64, Room)>,
    pub(super) is_sampled: bool,
    window: f64,
    threshold: f64,
    window_max: f64,
    cut_at_us: u64,
    best_rate: f64,
    full: bool,
    sample: Sample,
    acked: f64,
    sent: f64,
}

/// What allows a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Receiver,
    Buffer,
}

/// A path with its flows and the chooser that watches them.
pub(super) struct World {
    pub(super) path: Path,
    pub(super) chooser: Chooser,
    pub(super) senders: Vec<Sender>,
    pub(super) events: Vec<(Time, Event)>,
    now_us: u64,
    queue: f64,
    random: SplitMix,
    next_id: u64,
}

impl World {
    pub(super) fn new(seed: u64, path: Path, chooser: Chooser) -> Self {
        Self {
            path,
            chooser,
            senders: Vec::new(),
            events: Vec::new(),
            now_us: 0,
            queue: 0.0,
            random: SplitMix::of_state(seed),
            next_id: 0,
        }
    }

    pub(super) fn now(&self) -> Time {
        Time::from_micros(self.now_us)
    }

    /// Opens a flow with the default algorithm; gives its place in `senders`.
    pub(super) fn open(&mut self, peer: &str) -> usize {
        self.open_as(peer, true)
    }

    /// A flow of another program, which the tuner does not watch.
    pub(super) fn open_neighbour(&mut self) -> usize {
        self.open_as("198.51.100.1", false)
    }

    fn open_as(&mut self, peer: &str, is_ours: bool) -> usize {
        let id = FlowId(self.next_id);
        self.next_id += 1;
        let peer: IpAddr = peer.parse().unwrap();
        let is_sampled =
            is_ours && self.chooser.open(id, peer, Algorithm::new("cubic").unwrap(), self.now());
        self.senders.push(Sender {
            id,
            algorithm: Algorithm::new("cubic").unwrap(),
            application: f64::INFINITY,
            room: None,
            is_sampled,
            window: 10.0,
            threshold: f64::INFINITY,
            window_max: 0.0,
            cut_at_us: 0,
            best_rate: 0.0,
            full: false,
            sample: Sample { rtt_min_us: u32::MAX, ..Sample::default() },
            acked: 0.0,
            sent: 0.0,
        });
        self.apply();
        self.senders.len() - 1
    }

    pub(super) fn close(&mut self, at: usize) {
        let sender = self.senders.remove(at);
        let now = self.now();
        self.chooser.close(sender.id, now);
        self.apply();
    }

    /// Megabits a second that a flow has had acknowledged while `seconds` went by.
    pub(super) fn run(&mut self, seconds: u64) -> Vec<f64> {
        let before: Vec<(FlowId, f64)> = self.senders.iter().map(|s| (s.id, s.acked)).collect();
        let end = self.now_us + seconds * 1_000_000;
        while self.now_us < end {
            self.step();
        }
        let before =
            |id| before.iter().find(|(one, _)| *one == id).map_or(0.0, |(_, acked)| *acked);
        let bits = f64::from(SEGMENT_BYTES) * 8.0 / 1e6 / seconds as f64;
        self.senders.iter().map(|sender| (sender.acked - before(sender.id)) * bits).collect()
    }

    /// So many seconds go by in which nothing is sent.
    pub(super) fn skip(&mut self, seconds: u64) {
        self.now_us += seconds * 1_000_000;
        let now = self.now();
        self.chooser.tick(now);
        self.apply();
    }

    fn chance(&mut self) -> f64 {
        (self.random.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn step(&mut self) {
        self.now_us += STEP_US;
        let step_s = STEP_US as f64 / 1e6;
        let capacity = self.path.mbit * 1e6 / 8.0 / f64::from(SEGMENT_BYTES);
        let base_s = self.path.rtt_ms as f64 / 1e3;
        let rtt_s = base_s + self.queue / capacity;
        let offered: Vec<f64> =
            self.senders.iter().map(|sender| sender.offered(rtt_s, step_s)).collect();
        let total: f64 = offered.iter().sum();
        let before = self.queue;
        let room = self.path.queue_segments;
        self.queue = (before + total - capacity * step_s).max(0.0);
        let dropped = (self.queue - room).max(0.0);
        self.queue = self.queue.min(room);
        let departed = before + total - dropped - self.queue;
        for (at, offered) in offered.into_iter().enumerate() {
            let share = if total > 0.0 { offered / total } else { 0.0 };
            let by_queue = dropped * share;
            let by_chance = 1.0 - (1.0 - self.path.loss).powf(offered);
            let is_lost = self.chance() < by_chance || self.chance() < by_queue;
            let lost = if is_lost { by_queue.max(1.0) } else { 0.0 };
            let arrived = (departed * share - lost).max(0.0);
            let now_us = self.now_us;
            self.senders[at].advance(now_us, step_s, rtt_s, base_s, arrived, offered, lost);
        }
        if (self.now_us / STEP_US).is_multiple_of(SAMPLE_STEPS) {
            for at in 0..self.senders.len() {
                let sender = &self.senders[at];
                if sender.is_sampled {
                    self.chooser.sample(sender.id, sender.sample(self.now_us));
                }
            }
        }
        if self.now_us.is_multiple_of(1_000_000) {
            let now = self.now();
            self.chooser.tick(now);
        }
        self.apply();
    }

    fn apply(&mut self) {
        while let Some(change) = self.chooser.next_change() {
            let sender = self.senders.iter_mut().find(|sender| sender.id == change.flow);
            if let Some(sender) = sender {
                sender.become_(change.algorithm);
            }
        }
        let now = self.now();
        while let Some(event) = self.chooser.next_event() {
            self.events.push((now, event));
        }
    }

    /// The decisions so far, as metrics have them.
    pub(super) fn decisions(&self) -> Vec<&'static str> {
        self.events.iter().map(|(_, event)| event.decision.name()).collect()
    }
}

impl Sender {
    fn become_(&mut self, algorithm: Algorithm) {
        self.algorithm = algorithm;
        self.full = false;
        self.best_rate = 0.0;
        self.window_max = self.window;
        self.threshold = self.window;
        self.cut_at_us = self.sample.at.as_micros();
    }

    fn is_bbr(&self) -> bool {
        !self.algorithm.is_loss_based()
    }

    /// Segments of this step.
    fn offered(&self, rtt_s: f64, step_s: f64) -> f64 {
        let window = self.window.min(self.room.map_or(f64::INFINITY, |(room, _)| room));
        (window / rtt_s).min(self.application) * step_s
    }

    #[expect(clippy::too_many_arguments, reason = "one step of a model, in one place")]
    fn advance(
        &mut self,
        now_us: u64,
        step_s: f64,
        rtt_s: f64,
        base_s: f64,
        arrived: f64,
        offered: f64,
        lost: f64,
    ) {
        let is_full = offered + 1e-9 >= self.window / rtt_s * step_s;
        self.acked += arrived;
        self.sent += offered;
        let rate = arrived / step_s;
        self.best_rate = (self.best_rate * (1.0 - step_s / (10.0 * rtt_s))).max(rate);
        let in_recovery = (now_us - self.cut_at_us.min(now_us)) as f64 / 1e6 < rtt_s;
        if self.is_bbr() {
            let product = self.best_rate * base_s;
            let before = self.window;
            let gain = if self.full { PROBE } else { STARTUP.powf(step_s / rtt_s) };
            if self.full {
                self.window = (product * PROBE).max(4.0);
            } else if is_full {
                self.window *= gain;
            }
            // No more arrives, although more was sent: the pipe is full.
            if !self.full && rate * rtt_s < before * 0.8 {
                self.full = true;
            }
        } else if lost > 0.0 && !in_recovery {
            self.window_max = self.window;
            self.window = (self.window * 0.7).max(2.0);
            self.threshold = self.window;
            self.cut_at_us = now_us;
        } else if self.window < self.threshold {
            if is_full {
                self.window *= 2.0_f64.powf(step_s / rtt_s);
            }
        } else if is_full {
            let since = (now_us - self.cut_at_us) as f64 / 1e6;
            let knee = (self.window_max * 0.3 / 0.4).cbrt();
            let cubic = 0.4 * (since - knee).powi(3) + self.window_max;
            let reno = self.window + 3.0 * 0.3 / 1.7 * step_s / rtt_s;
            self.window = self.window.max(cubic).max(reno).min(self.window * 1.5);
        }
        self.count(now_us, step_s, rtt_s, lost, is_full);
    }

    fn count(&mut self, now_us: u64, step_s: f64, rtt_s: f64, lost: f64, is_full: bool) {
        let step_us = (step_s * 1e6) as u64;
        let rtt_us = (rtt_s * 1e6) as u32;
        let sample = &mut self.sample;
        // Smoothed over eight acknowledgements, of which a window brings hundreds.
        sample.rtt_us = rtt_us;
        sample.rtt_min_us = sample.rtt_min_us.min(rtt_us);
        sample.segments_again += lost as u64;
        let is_limited = self.room.filter(|(room, _)| *room < self.window).map(|(_, by)| by);
        let is_by_application = !is_full && is_limited.is_none();
        if !is_by_application {
            sample.busy_us += step_us;
        }
        match is_limited {
            Some(Room::Receiver) => sample.receiver_limited_us += step_us,
            Some(Room::Buffer) => sample.buffer_limited_us += step_us,
            None => {}
        }
        sample.at = Time::from_micros(now_us);
    }

    fn sample(&self, now_us: u64) -> Sample {
        Sample {
            at: Time::from_micros(now_us),
            segment_bytes: SEGMENT_BYTES,
            window: self.window as u32,
            threshold: if self.is_bbr() { 7 } else { self.threshold.min(2e9) as u32 },
            bytes_acked: (self.acked * f64::from(SEGMENT_BYTES)) as u64,
            segments_sent: self.sent as u64,
            delivery_rate: (self.best_rate * f64::from(SEGMENT_BYTES)) as u64,
            ..self.sample
        }
    }
}
