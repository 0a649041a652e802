//! `hawser rds ping`: whether a host answers over RDS, and how fast.
//!
//! # Model       as rds-ping: a message of no bytes to port 0, which the other host answers, at each
//!               interval, whether earlier answers are missing or not. The answer names no number, so
//!               each ping is sent from a port whose last one has been answered
//! # Limits      512 answers may be missing; then the oldest of them is given up

use std::net::IpAddr;
use std::time::Duration;

use hawser_sys::terminal::print;
use hawser_time::Time;

use super::endpoint::{Endpoint, PortEvent, now};

/// Ports that pings come from; more are bound while answers are missing. As many as in rds-ping.
const PORTS: usize = 8;
/// So many at most.
const PORTS_MAX: usize = 512;
/// So long an answer is waited for after the last ping.
const LAST: Duration = Duration::from_secs(1);

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Whom.
    pub to: IpAddr,
    /// How many; 0 is until it is ended.
    pub count: u64,
    /// Time between two.
    pub interval: Duration,
}

#[derive(Default)]
struct Slot {
    port: u16,
    number: u64,
    sent: Time,
    waits: bool,
}

/// The ports that pings come from.
#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    /// The slot of the last ping.
    last: usize,
}

impl Slots {
    /// The slot for the next ping: in turn, but for those that wait for an answer; if all do, a new one, from
    /// `bind`; where there are too many of these, the one that has waited longest.
    fn next<E>(&mut self, bind: impl FnOnce() -> Result<u16, E>) -> Result<&mut Slot, E> {
        let after = |at: usize| (self.last + 1 + at) % self.slots.len().max(1);
        let free = (0..self.slots.len()).map(after).find(|at| !self.slots[*at].waits);
        self.last = match free {
            Some(free) if self.slots.len() >= PORTS => free,
            None if self.slots.len() >= PORTS_MAX => {
                (0..self.slots.len()).min_by_key(|at| self.slots[*at].number).unwrap_or_default()
            }
            _ => {
                self.slots.push(Slot { port: bind()?, ..Slot::default() });
                self.slots.len() - 1
            }
        };
        Ok(&mut self.slots[self.last])
    }

    fn of_port(&mut self, port: u16) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.port == port)
    }
}

/// Pings, and prints a line for each answer. Returns how many came.
///
/// # Errors
/// In words.
pub fn ping(endpoint: &mut Endpoint, plan: &Plan) -> Result<u64, String> {
    let mut slots = Slots::default();
    let (mut sent, mut came, mut next) = (0_u64, 0, now());
    // The last answers may come late.
    let last = plan.interval.max(LAST);
    while plan.count == 0 || came < plan.count {
        let all_sent = plan.count > 0 && sent >= plan.count;
        if now() >= next {
            if all_sent {
                break;
            }
            let bind = || endpoint.bind(0).map_err(|error| error.to_string());
            let slot = slots.next(bind)?;
            sent += 1;
            (slot.number, slot.sent) = (sent, now());
            match endpoint.send(slot.port, (plan.to, 0), &[]) {
                Ok(()) => slot.waits = true,
                Err(error) => print(&format!(" {sent:3}: ERROR: {error}\n")),
            }
            let is_last = plan.count > 0 && sent >= plan.count;
            next = now().after(if is_last { last } else { plan.interval });
        }
        endpoint.turn(next.since(now())).map_err(|error| error.to_string())?;
        while let Some(notice) = endpoint.next_notice() {
            eprintln!("hawser: {notice}");
        }
        while let Some(event) = endpoint.next_event() {
            let PortEvent::Readable(port) = event else { continue };
            let Some(slot) = slots.of_port(port) else { continue };
            while let Some(datagram) = endpoint.receive(port) {
                let micros = now().micros_since(slot.sent);
                let from = if datagram.from == plan.to {
                    String::new()
                } else {
                    format!(" ({})", datagram.from)
                };
                let again = if slot.waits { "" } else { " DUP!" };
                came += u64::from(slot.waits);
                slot.waits = false;
                print(&format!(" {:3}: {micros} usec{from}{again}\n", slot.number));
            }
        }
    }
    if came == 0 {
        eprintln!("hawser: no answer from {}", plan.to);
    }
    Ok(came)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pings in turn from these slots, of which some wait for an answer.
    fn pings(
        slots: &mut Slots,
        numbers: std::ops::RangeInclusive<u64>,
        answered: bool,
    ) -> Vec<u16> {
        let mut ports = Vec::new();
        for number in numbers {
            let bound = slots.slots.len() as u16 + 1;
            let slot = slots.next(|| Ok::<_, ()>(bound)).expect("a port");
            (slot.number, slot.waits) = (number, !answered);
            ports.push(slot.port);
        }
        ports
    }

    #[test]
    fn an_answer_belongs_to_the_only_ping_of_its_port_that_waits() {
        let mut slots = Slots::default();
        assert_eq!(pings(&mut slots, 1..=10, true), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]);
        // Those whose answers are missing are passed over, and more ports take their place.
        assert_eq!(pings(&mut slots, 11..=20, false), [3, 4, 5, 6, 7, 8, 1, 2, 9, 10]);
        slots.of_port(4).expect("bound").waits = false;
        assert_eq!(pings(&mut slots, 21..=22, false), [4, 11]);
        // The one that has waited longest is given up for the last port.
        let rest = pings(&mut slots, 23..=23 + PORTS_MAX as u64 - 11, false);
        assert_eq!(rest.last(), Some(&3), "11 was the oldest without an answer");
        assert_eq!(slots.slots.len(), PORTS_MAX);
    }
}
