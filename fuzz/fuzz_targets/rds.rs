//! What a peer sends over two lanes: any bytes, cut anywhere. Nothing panics, and queues keep their
//! bounds.
#![no_main]

use hawser_core::rds::header::MESSAGE_BYTES_MAX;
use hawser_core::rds::node::{Config, Node, OVERRUN_BYTES};
use hawser_core::time::Time;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<(bool, u8, u16)>)| {
    let (bytes, steps) = input;
    let mut config = Config::new([10, 0, 0, 2].into(), 7, 1);
    config.receive_buffer = 4096;
    let mut node = Node::new(config);
    let mut now = Time::ZERO;
    let small = [10, 0, 0, 1].into();
    let port = node.bind(0x0101).unwrap_or(2);
    let mut lanes = [node.accept(small, 40_000, now).ok(), None];
    let mut rest = &bytes[..];
    for (second, what, count) in steps {
        let lane = &mut lanes[usize::from(second)];
        match (what % 8, *lane) {
            (0, _) => *lane = lane.or_else(|| node.accept(small, 40_001, now).ok()),
            (1, Some(connection)) => {
                let wrote = node.to_write(connection)[0].len().min(count.into());
                node.wrote(connection, wrote);
                node.acknowledged(connection, wrote as u64, now);
            }
            (2, Some(connection)) => {
                node.closed(connection, now);
                *lane = None;
            }
            (3, _) => {
                now = now.after(std::time::Duration::from_millis(count.into()));
                node.tick(now);
            }
            (4, _) => drop(node.receive(port)),
            (5, _) => drop(node.send(port, (small, count), b"x", now)),
            (_, Some(connection)) => {
                let (here, after) = rest.split_at(rest.len().min(count.into()));
                rest = after;
                node.received(connection, here, now);
            }
            _ => {}
        }
        while node.poll().is_some() {}
    }
    for port in node.report().ports {
        assert!(port.queued_bytes <= 4096 + OVERRUN_BYTES + 2 * MESSAGE_BYTES_MAX);
    }
});
