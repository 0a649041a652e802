//! `hawser rds ping`: whether a host answers over RDS, and how fast.
//!
//! # Model       as rds-ping: eight ports in turn, a message of no bytes to port 0 from each, which the
//!               other host answers, whether earlier answers are missing or not
//! # Limits      the answer names no number, so it belongs to its port's last ping

use std::net::IpAddr;
use std::time::Duration;

use hawser_core::time::Time;
use hawser_sys::clock::monotonic_micros;

use super::endpoint::{Endpoint, PortEvent};
use crate::cli::print;

/// Ports that pings come from, as in rds-ping.
const PORTS: usize = 8;
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

fn now() -> Time {
    Time::from_micros(monotonic_micros())
}

/// Pings, and prints a line for each answer. Returns how many came.
///
/// # Errors
/// In words.
pub fn ping(endpoint: &mut Endpoint, plan: &Plan) -> Result<u64, String> {
    let mut slots = Vec::with_capacity(PORTS);
    for _ in 0..PORTS {
        let port = endpoint.bind(0).map_err(|error| error.to_string())?;
        slots.push(Slot { port, ..Slot::default() });
    }
    let (mut sent, mut came, mut next) = (0_u64, 0, now());
    // The last answers may come late.
    let last = plan.interval.max(LAST);
    while plan.count == 0 || came < plan.count {
        let all_sent = plan.count > 0 && sent >= plan.count;
        if now() >= next {
            if all_sent {
                break;
            }
            let slot = &mut slots[(sent % PORTS as u64) as usize];
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
            let Some(slot) = slots.iter_mut().find(|slot| slot.port == port) else { continue };
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
