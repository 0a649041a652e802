//! What a laboratory did, and whether it did what was asked.
//!
//! # Model
//! A run is faithful if no more than one packet in [`LATE_SHARE`] left later than the description's
//! `lateness_max`, and none was lost to anything but the description: not for lack of room on the
//! way, not by a refusal of the kernel, not by a device whose reader was too slow.
//!
//! # Why not     no late packet at all: on a virtual machine whose host takes the processor away, a
//!               few in a thousand leave some milliseconds late whatever the priority, as they do
//!               on real networks; rates, queues and losses do not change by it

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hawser_sys::namespace;
use hawser_sys::precision::Priority;
use serde::{Deserialize, Serialize};

use super::Laboratory;
use super::lateness::LatenessCounts;
use crate::wan::direction::{Cause, Counts};
use crate::wan::network::{End, PathCounts, Port};

/// One packet in this many may be late.
pub const LATE_SHARE: u64 = 100;

/// Counts since the laboratory's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// How late packets left.
    pub lateness: LatenessCounts,
    /// What the description calls late, in microseconds.
    pub lateness_max_us: u64,
    /// Packets that the kernel did not take.
    pub refused: u64,
    /// Packets for which there was no room on the way.
    pub overflows: u64,
    /// Packets that devices dropped because their reader was too slow.
    pub device_drops: u64,
    /// A device was deleted inside, and nothing is emulated any more.
    pub is_over: bool,
    /// The emulator's priority: `deadline`, `fifo` or `ordinary`; `None` where nothing is emulated.
    pub priority: Option<String>,
    /// Each direction of each path.
    pub paths: Vec<PathReport>,
}

/// One direction of one path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathReport {
    /// The link's name.
    pub link: String,
    /// Which of its paths, from 0.
    pub path: usize,
    /// `near>far`.
    pub direction: String,
    /// `emulator`, or `kernel` where the link does nothing to packets; such are not counted.
    pub carried_by: String,
    /// Packets that came.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Dropped because the path was down.
    pub dropped_by_outage: u64,
    /// Dropped because the queue was full.
    pub dropped_by_queue: u64,
    /// Dropped because the flow's class was too busy.
    pub dropped_by_limit: u64,
    /// Dropped by chance.
    pub dropped_by_loss: u64,
}

pub(super) fn snapshot(laboratory: &Laboratory) -> io::Result<Snapshot> {
    let description = &laboratory.description;
    let report = |from: Port, path: usize, carried_by: &str| {
        let link = &description.links[from.link];
        let name = |end: End| description.hosts[link.host(end)].name.as_str();
        PathReport {
            link: link.name.clone(),
            path,
            direction: format!("{}>{}", name(from.end), name(from.end.other())),
            carried_by: carried_by.to_owned(),
            ..PathReport::default()
        }
    };
    let lateness_max_us = description.lateness_max.as_micros().try_into().unwrap_or(u64::MAX);
    let mut snapshot = Snapshot { lateness_max_us, ..Snapshot::default() };
    for (link, of_link) in description.links.iter().enumerate() {
        if of_link.is_plain() {
            let ports = End::BOTH.map(|end| Port { link, end });
            snapshot.paths.extend(ports.map(|port| report(port, 0, "kernel")));
        }
    }
    let counted = |from: Port, path: usize, counts: Counts| {
        let dropped = |cause: Cause| counts.dropped[cause as usize];
        PathReport {
            packets: counts.packets,
            bytes: counts.bytes,
            dropped_by_outage: dropped(Cause::Outage),
            dropped_by_queue: dropped(Cause::Queue),
            dropped_by_limit: dropped(Cause::Limit),
            dropped_by_loss: dropped(Cause::Loss),
            ..report(from, path, "emulator")
        }
    };
    if let Some(emulator) = &laboratory.emulator {
        let books = emulator.books();
        snapshot.lateness = books.lateness.read();
        snapshot.refused = books.refused.load(Ordering::Relaxed);
        snapshot.overflows = books.overflows.load(Ordering::Relaxed);
        snapshot.is_over = books.is_over.load(Ordering::Relaxed);
        let priority = match emulator.priority() {
            Priority::Ordinary => "ordinary",
            Priority::Fifo => "fifo",
            Priority::Deadline => "deadline",
        };
        snapshot.priority = Some(priority.to_owned());
        for PathCounts { from, path, counts } in books.paths() {
            if !description.links[from.link].is_plain() {
                snapshot.paths.push(counted(from, path, counts));
            }
        }
        for host in &laboratory.hosts {
            let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
            snapshot.device_drops += send_drops(&namespace::within(host, read)??);
        }
    }
    Ok(snapshot)
}

impl Snapshot {
    /// What happened since `before`, of the same laboratory.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut between = self.clone();
        between.lateness = self.lateness.since(&before.lateness);
        // An interface that was deleted inside takes its counts with it.
        let take = |from: &mut u64, before: u64| *from = from.saturating_sub(before);
        take(&mut between.refused, before.refused);
        take(&mut between.overflows, before.overflows);
        take(&mut between.device_drops, before.device_drops);
        for (path, before) in between.paths.iter_mut().zip(&before.paths) {
            take(&mut path.packets, before.packets);
            take(&mut path.bytes, before.bytes);
            take(&mut path.dropped_by_outage, before.dropped_by_outage);
            take(&mut path.dropped_by_queue, before.dropped_by_queue);
            take(&mut path.dropped_by_limit, before.dropped_by_limit);
            take(&mut path.dropped_by_loss, before.dropped_by_loss);
        }
        between
    }

    /// Why the run was not faithful; `None` where it was.
    #[must_use]
    pub fn unfaithful(&self) -> Option<String> {
        if self.is_over {
            return Some("a device was deleted inside: nothing is emulated any more".into());
        }
        let limit = Duration::from_micros(self.lateness_max_us);
        let (late, packets) = (self.lateness.later_than(limit), self.lateness.packets());
        if late * LATE_SHARE > packets {
            return Some(format!(
                "{late} of {packets} packets left more than {limit:?} late (1 in {LATE_SHARE} may): {}",
                figures(&self.lateness)
            ));
        }
        for (count, what) in [
            (self.device_drops, "dropped by a device because its reader was behind"),
            (self.refused, "refused by the kernel"),
            (self.overflows, "dropped for want of room on the way"),
        ] {
            if count > 0 {
                return Some(format!("{count} packets were {what}"));
            }
        }
        None
    }
}

fn figures(lateness: &LatenessCounts) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "lateness mean {:.3} ms, 99.9 % within {:.3} ms, worst {:.3} ms",
        ms(lateness.mean()),
        ms(lateness.quantile(0.999)),
        ms(lateness.quantile(1.0)),
    )
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in &self.paths {
            let place = format!("{}[{}] {}", path.link, path.path, path.direction);
            if path.carried_by == "kernel" {
                writeln!(f, "{place}: by the kernel (veth), not counted")?;
                continue;
            }
            let dropped = [
                (path.dropped_by_loss, "loss"),
                (path.dropped_by_queue, "queue"),
                (path.dropped_by_limit, "limit"),
                (path.dropped_by_outage, "outage"),
            ];
            let dropped: Vec<String> = dropped
                .into_iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, cause)| format!("{count} dropped by {cause}"))
                .collect();
            let dropped =
                if dropped.is_empty() { "none dropped".into() } else { dropped.join(", ") };
            let megabytes = Duration::from_micros(path.bytes).as_secs_f64();
            writeln!(f, "{place}: {} packets, {megabytes:.3} MB, {dropped}", path.packets)?;
        }
        if let Some(priority) = &self.priority {
            let figures = figures(&self.lateness);
            writeln!(f, "by the emulator (TUN), {priority} priority: {figures}")?;
        }
        Ok(())
    }
}

/// Packets that interfaces dropped when sending, by `/proc/net/dev`: the 12th figure of a line.
fn send_drops(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let figures = lines.filter(|(name, _)| name.trim() != "lo").map(|(_, figures)| figures);
    figures.filter_map(|f| f.split_whitespace().nth(11)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespaces::lateness::Lateness;

    fn of(late_ms: &[u64]) -> Snapshot {
        let lateness = Lateness::default();
        late_ms.iter().for_each(|&ms| lateness.record(Duration::from_millis(ms)));
        Snapshot {
            lateness: lateness.read(),
            lateness_max_us: 1_000,
            priority: Some("fifo".into()),
            ..Snapshot::default()
        }
    }

    #[test]
    fn one_late_packet_in_a_hundred_is_faithful_and_two_are_not() {
        let mut late = vec![0; 99];
        late.push(5);
        assert_eq!(of(&late).unfaithful(), None);
        late[0] = 5;
        let reason = of(&late).unfaithful().unwrap();
        assert!(reason.contains("2 of 100 packets left more than 1ms late"), "{reason}");
        assert!(reason.contains("worst"), "{reason}");
    }

    #[test]
    fn a_packet_lost_to_the_machine_is_unfaithful() {
        for spoil in [
            |s: &mut Snapshot| s.device_drops = 1,
            |s: &mut Snapshot| s.refused = 1,
            |s: &mut Snapshot| s.overflows = 1,
        ] {
            let mut snapshot = of(&[0; 10]);
            spoil(&mut snapshot);
            assert!(snapshot.unfaithful().unwrap().starts_with("1 packets were"));
        }
    }
}
