//! Two simple senders and a receiver, for real and for virtual time.
//!
//! # Model
//! *Paced*: packet n leaves at `n * interval`, whatever happens. *Window*: at most `window` packets
//! are unanswered; the receiver answers each; one without an answer for `timeout` is given up,
//! which makes room, and is not sent again.
//!
//! # Why not     a model of TCP: two of them would differ in more than the network between them.
//!               Real TCP runs in the namespaces

use std::collections::BTreeMap;
use std::time::Duration;

/// How a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One packet each `interval`.
    Paced {
        /// From one packet to the next.
        interval: Duration,
    },
    /// As many as are answered.
    Window {
        /// Packets without an answer, at most.
        window: usize,
        /// When one is given up.
        timeout: Duration,
    },
}

/// A sender of numbered packets.
#[derive(Clone, Debug)]
pub struct Sender {
    pattern: Pattern,
    begin: Duration,
    lasts: Duration,
    next: u64,
    /// Number of each packet without an answer, and when it is given up. Both rise together.
    unanswered: BTreeMap<u64, Duration>,
}

/// What a sender does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send the packet of this number now.
    Send(u64),
    /// Nothing before this time, unless an answer comes.
    Wait(Duration),
    /// No more.
    Done,
}

impl Sender {
    /// Sends from `begin` for as long as `lasts`.
    #[must_use]
    pub fn new(pattern: Pattern, begin: Duration, lasts: Duration) -> Self {
        Self { pattern, begin, lasts, next: 0, unanswered: BTreeMap::new() }
    }

    /// Packets sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.next
    }

    /// What is to be done at `now`.
    pub fn step(&mut self, now: Duration) -> Step {
        let end = self.begin + self.lasts;
        if now < self.begin {
            return Step::Wait(self.begin);
        }
        match self.pattern {
            Pattern::Paced { interval } => {
                // Not `begin + n * interval` in Duration's u32: n may be larger.
                let nanoseconds = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
                let after = Duration::from_nanos(nanoseconds.saturating_mul(self.next));
                let due = self.begin + after;
                if due >= end {
                    return Step::Done;
                }
                if due > now {
                    return Step::Wait(due);
                }
            }
            Pattern::Window { window, timeout } => {
                if now >= end {
                    return Step::Done;
                }
                while let Some(oldest) = self.unanswered.first_entry() {
                    if *oldest.get() > now {
                        break;
                    }
                    oldest.remove();
                }
                if self.unanswered.len() >= window {
                    let due = self.unanswered.first_key_value().map_or(end, |(_, &due)| due);
                    return Step::Wait(due.min(end));
                }
                self.unanswered.insert(self.next, now + timeout);
            }
        }
        self.next += 1;
        Step::Send(self.next - 1)
    }

    /// The packet of this number was answered.
    pub fn answered(&mut self, number: u64) {
        self.unanswered.remove(&number);
    }

    /// Whether the receiver answers.
    #[must_use]
    pub fn wants_answers(&self) -> bool {
        matches!(self.pattern, Pattern::Window { .. })
    }
}

/// What has arrived, as the receiver sees it.
#[derive(Clone, Debug, Default)]
pub struct Received {
    numbers: Vec<u64>,
    first: Option<(Duration, u64)>,
    last: Duration,
    bytes: u64,
    delays: Vec<Duration>,
}

impl Received {
    /// A packet of `bytes` (of payload), sent at `sent`, has arrived.
    pub fn record(&mut self, now: Duration, number: u64, sent: Duration, bytes: u64) {
        self.first.get_or_insert((now, bytes));
        self.last = now;
        self.bytes += bytes;
        self.delays.push(now.saturating_sub(sent));
        self.numbers.push(number);
    }

    /// Packets.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// Their numbers, in the order in which they came.
    #[must_use]
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// From sending to arrival, in the order in which they came.
    #[must_use]
    pub fn delays(&self) -> &[Duration] {
        &self.delays
    }

    /// Which of the first `sent` did not arrive.
    #[must_use]
    pub fn missing(&self, sent: u64) -> Vec<u64> {
        let here: std::collections::BTreeSet<u64> = self.numbers.iter().copied().collect();
        (0..sent).filter(|number| !here.contains(number)).collect()
    }

    /// Bits of payload in a second, from the first arrival (which only starts the clock) to the
    /// last.
    #[must_use]
    pub fn goodput_bits_per_second(&self) -> f64 {
        let Some((first, first_bytes)) = self.first else { return 0.0 };
        let seconds = (self.last - first).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
        let bits = ((self.bytes - first_bytes) * 8) as f64;
        if seconds > 0.0 { bits / seconds } else { 0.0 }
    }

    /// Time from sending to arrival that half of the packets did not exceed. Of real packets a mean
    /// would also tell how late a busy machine let the receiver look.
    #[must_use]
    pub fn median_delay(&self) -> Duration {
        let mut delays = self.delays.clone();
        delays.sort_unstable();
        delays.get(delays.len() / 2).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_paced_sender_keeps_its_pace_though_it_is_late() {
        let mut sender = Sender::new(Pattern::Paced { interval: ms(10) }, ms(5), ms(30));
        assert_eq!(sender.step(ms(0)), Step::Wait(ms(5)));
        assert_eq!(sender.step(ms(27)), Step::Send(0));
        assert_eq!(sender.step(ms(27)), Step::Send(1));
        assert_eq!(sender.step(ms(27)), Step::Send(2));
        assert_eq!(sender.step(ms(27)), Step::Done, "the fourth would leave at the end");
    }

    #[test]
    fn a_window_is_filled_and_moves_by_answers_and_by_timeouts() {
        let pattern = Pattern::Window { window: 2, timeout: ms(50) };
        let mut sender = Sender::new(pattern, ms(0), ms(1000));
        assert_eq!((sender.step(ms(0)), sender.step(ms(1))), (Step::Send(0), Step::Send(1)));
        assert_eq!(sender.step(ms(2)), Step::Wait(ms(50)));
        sender.answered(1);
        assert_eq!(sender.step(ms(3)), Step::Send(2));
        assert_eq!(sender.step(ms(3)), Step::Wait(ms(50)));
        assert_eq!(sender.step(ms(50)), Step::Send(3), "packet 0 is given up");
        assert_eq!(sender.step(ms(1000)), Step::Done);
    }

    #[test]
    fn goodput_and_delay_are_the_receivers() {
        let mut received = Received::default();
        for n in [0, 1, 3] {
            received.record(ms(100 + n), n, ms(n), 1000);
        }
        assert!((received.goodput_bits_per_second() - 16_000.0 / 0.003).abs() < 1e-3);
        assert_eq!(received.median_delay(), ms(100));
        assert_eq!(received.missing(5), [2, 4]);
    }
}
