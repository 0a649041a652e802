use super::*;
use crate::wan::parse::parse;

fn link(toml: &str) -> Link {
    parse("test", &format!("[[link]]\n{toml}")).unwrap().links.remove(0)
}

#[test]
fn what_the_kernel_cannot_do_is_named() {
    for (toml, what) in [
        ("limit = { classes = 2, rate = \"1Mbit/s\" }", "limits per flow"),
        ("[[link.path]]\ndelay = \"1ms\"\n[[link.path]]\ndelay = \"2ms\"", "several paths"),
        ("rate = \"1Mbit/s\"\noverhead = \"0B\"", "overhead"),
        ("delay = \"9ms\"\njitter = \"1ms\"\nreorder = { share = \"1%\", by = \"1ms\" }", "jitter"),
        ("reorder = { share = \"0.0001%\", by = \"1ms\" }", "so small"),
    ] {
        let why = obstacle(&link(toml)).unwrap_or_default();
        assert!(why.contains(what), "{toml}: {why}");
        let asked = choose_one(&link(&format!("by = \"kernel\"\n{toml}")));
        assert!(matches!(asked, Err(UpError::Beyond { .. })), "{toml}");
        let left = choose_one(&link(&format!("by = \"auto\"\n{toml}"))).unwrap();
        assert_eq!(left, Carrier::Emulator);
    }
    for toml in [
        "rate = \"1Mbit/s\"\nrtt = \"20ms\"\njitter = \"1ms\"\nloss = \"1%\"",
        "loss = { good_to_bad = \"1%\", bad_to_good = \"1%\" }",
        "delay = \"1ms\"\nreorder = { share = \"0.1%\", by = \"1ms\" }",
        "outages = [{ at = \"1s\", lasts = \"1s\" }]",
    ] {
        assert_eq!(obstacle(&link(toml)), None, "{toml}");
    }
}

#[test]
fn who_carries_follows_from_what_is_asked() {
    assert_eq!(choose_one(&link("")).unwrap(), Carrier::Pair);
    assert_eq!(choose_one(&link("by = \"emulator\"")).unwrap(), Carrier::Pair);
    assert_eq!(choose_one(&link("by = \"emulator\"\nrtt = \"1ms\"")).unwrap(), Carrier::Emulator);
    for slow_or_by_chance in
        ["rate = \"1Gbit/s\"", "loss = \"1%\"", "rtt = \"9ms\"\njitter = \"1ms\""]
    {
        assert_eq!(choose_one(&link(slow_or_by_chance)).unwrap(), Carrier::Emulator);
    }
    assert!(is_fast_and_certain(&link("rtt = \"1ms\"")));
    assert!(is_fast_and_certain(&link("rate = \"2Gbit/s\"")));
}

#[test]
fn a_rate_becomes_a_bucket() {
    let of = |toml: &str| bucket(&link(toml).paths[0].forward, 1500).unwrap();
    let bucket = of("rate = \"80Mbit/s\"\nqueue = \"10ms\"\noverhead = \"38B\"");
    let queue = QueueBound::Bytes(100_000 + 1500 + 38);
    let (bytes_per_second, burst_bytes) = (10_000_000, 20_000);
    let asked = TokenBucket { bytes_per_second, overhead_bytes: 24, burst_bytes, queue };
    assert_eq!(bucket, asked);
    let slow = of("rate = \"8kbit/s\"\nqueue = \"7packets\"");
    assert_eq!((slow.burst_bytes, slow.queue), (1514, QueueBound::Packets(7)));
}

#[test]
fn what_an_interface_has_received_is_read() {
    let text = "Inter-|   Receive  | Transmit\n face |bytes packets errs drop fifo frame \
                compressed multicast|bytes packets errs drop fifo colls carrier compressed\n \
                a10: 99 9 0 0 0 0 0 0 1 1 0 9 0 0 0 0\n  a1: 1500 1 0 3 0 0 0 0 1 1 0 7 0 0 0 0\n";
    assert_eq!(received(text, "a1"), Some(Arrived { packets: 1, bytes: 1500 }));
    assert_eq!(received(text, "a2"), None);
}

#[test]
fn the_drops_of_devices_are_read() {
    let text = "Inter-|   Receive  | Transmit\n face |bytes packets errs drop fifo frame \
                compressed multicast|bytes packets errs drop fifo colls carrier compressed\n \
                lo: 1 1 0 0 0 0 0 0 1 1 0 9 0 0 0 0\n  wan: 1 1 0 3 0 0 0 0 1 1 0 7 0 0 0 0\n";
    assert_eq!(send_drops(text), 7);
}
