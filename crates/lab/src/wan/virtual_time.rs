//! A network and its traffic in virtual time.
//!
//! # Model       the clock jumps to whatever comes first: an arrival or a sender's next packet
//! # Invariants  the same description, seed and traffic give the same result, to the nanosecond
//! # Limits      packets go over one link: what lies further is for the caller to send on

use std::time::Duration;

use super::description::Description;
use super::flow::Flow;
use super::network::{Network, PathCounts, Port};
use super::traffic::{Pattern, Received, Sender, Step};

/// Bytes of an IPv4 header and a UDP header: what a payload is carried in.
pub const UDP_HEADER_BYTES: u64 = 28;

/// Traffic between the ends of a link.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Where it enters.
    pub from: Port,
    /// For limits and ECMP. Answers go back by its reverse.
    pub flow: Flow,
    /// When packets leave.
    pub pattern: Pattern,
    /// Bytes of payload in each packet.
    pub payload_bytes: u64,
    /// Bytes of payload in each answer.
    pub answer_bytes: u64,
    /// When the first packet leaves.
    pub begin: Duration,
    /// For how long it sends.
    pub lasts: Duration,
}

/// What became of one [`Traffic`].
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Packets sent.
    pub sent: u64,
    /// What the receiver saw.
    pub received: Received,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    traffic: usize,
    number: u64,
    sent: Duration,
    is_answer: bool,
}

/// Runs traffic through the network of a description until nothing is on its way.
///
/// # Panics
/// Where traffic enters at a link that the description does not have.
#[must_use]
pub fn run(
    description: &Description,
    seed: u64,
    traffic: &[Traffic],
) -> (Vec<Outcome>, Vec<PathCounts>) {
    let mut network: Network<Packet> = Network::new(description, seed);
    let mut senders: Vec<Sender> =
        traffic.iter().map(|t| Sender::new(t.pattern, t.begin, t.lasts)).collect();
    let mut received = vec![Received::default(); traffic.len()];
    let mut wake: Vec<Option<Duration>> = traffic.iter().map(|t| Some(t.begin)).collect();
    loop {
        let next_send = wake.iter().flatten().min().copied();
        let Some(now) = next_send.into_iter().chain(network.next_arrival()).min() else { break };
        while let Some(arrival) = network.take_arrival(now) {
            let Packet { traffic: index, number, sent, is_answer } = arrival.packet;
            let of = &traffic[index];
            if is_answer {
                senders[index].answered(number);
                wake[index] = wake[index].map(|_| now);
                continue;
            }
            received[index].record(arrival.at, number, sent, of.payload_bytes);
            if senders[index].wants_answers() {
                let answer = Packet { is_answer: true, ..arrival.packet };
                let bytes = of.answer_bytes + UDP_HEADER_BYTES;
                network.enter(now, arrival.port, of.flow.reverse(), bytes, answer);
            }
        }
        for (index, of) in traffic.iter().enumerate() {
            while wake[index].is_some_and(|at| at <= now) {
                wake[index] = match senders[index].step(now) {
                    Step::Send(number) => {
                        let packet = Packet { traffic: index, number, sent: now, is_answer: false };
                        let bytes = of.payload_bytes + UDP_HEADER_BYTES;
                        network.enter(now, of.from, of.flow, bytes, packet);
                        Some(now)
                    }
                    Step::Wait(at) => Some(at),
                    Step::Done => None,
                };
            }
        }
    }
    let sent = senders.iter().map(Sender::sent);
    let outcomes = sent.zip(received).map(|(sent, received)| Outcome { sent, received }).collect();
    (outcomes, network.counts().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wan::network::End;
    use crate::wan::parse::parse;

    fn traffic(pattern: Pattern) -> Traffic {
        Traffic {
            from: Port { link: 0, end: End::First },
            flow: Flow::udp([10, 77, 0, 1].into(), 1, [10, 77, 0, 2].into(), 2),
            pattern,
            payload_bytes: 1000,
            answer_bytes: 16,
            begin: Duration::ZERO,
            lasts: Duration::from_secs(60),
        }
    }

    #[test]
    fn a_window_fills_the_rate_or_the_round_trip() {
        let toml = "[[link]]\nrate = \"10Mbit/s\"\nqueue = \"200packets\"\nrtt = \"100ms\"";
        let description = parse("test", toml).unwrap();
        let goodput = |window| {
            let pattern = Pattern::Window { window, timeout: Duration::from_secs(1) };
            run(&description, 1, &[traffic(pattern)]).0[0].received.goodput_bits_per_second()
        };
        // 1 packet of 1,000 bytes of payload in a round trip of 100 ms and the time to send both.
        let round_trip = 0.1 + f64::from((1042 + 58) * 8) / 10e6;
        assert!((goodput(1) / (8000.0 / round_trip) - 1.0).abs() < 0.001);
        assert!((goodput(150) / (10e6 * 1000.0 / 1042.0) - 1.0).abs() < 0.001);
    }

    #[test]
    fn a_run_repeats_to_the_nanosecond() {
        let description = parse("test", crate::wan::named::named("lossy-mobile").unwrap().toml);
        let description = description.unwrap();
        let pattern = Pattern::Window { window: 100, timeout: Duration::from_millis(500) };
        let once = |seed| {
            let (outcomes, counts) = run(&description, seed, &[traffic(pattern)]);
            (outcomes[0].received.numbers().to_vec(), outcomes[0].received.median_delay(), counts)
        };
        assert_eq!(once(4), once(4));
        assert_ne!(once(4).0, once(5).0);
    }

    #[test]
    fn more_flows_than_one_fill_more_classes() {
        let description =
            parse("test", crate::wan::named::named("per-flow").unwrap().toml).unwrap();
        let pattern = Pattern::Window { window: 100, timeout: Duration::from_secs(1) };
        let flows = |count: u16| {
            let of = |port| Traffic {
                flow: Flow::udp([10, 77, 0, 1].into(), port, [10, 77, 0, 2].into(), 2),
                ..traffic(pattern)
            };
            let all: Vec<Traffic> = (1..=count).map(of).collect();
            let (outcomes, _) = run(&description, 1, &all);
            outcomes.iter().map(|o| o.received.goodput_bits_per_second()).sum::<f64>() / 1e6
        };
        let one = 10.0 * 1000.0 / 1042.0;
        assert!((flows(1) / one - 1.0).abs() < 0.001);
        assert!((flows(64) / (8.0 * one) - 1.0).abs() < 0.01, "64 flows hit all 8 classes");
    }
}
