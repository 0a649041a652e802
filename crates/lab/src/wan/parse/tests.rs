//! What a file may say, and the errors for what it may not.

use super::*;

fn ok(toml: &str) -> Description {
    parse("net.toml", toml).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(toml: &str) -> String {
    parse("net.toml", toml).unwrap_err().to_string()
}

#[test]
fn the_least_is_a_link() {
    let description = ok("[[link]]");
    assert_eq!(description.hosts.len(), 2);
    assert_eq!(
        (description.hosts[0].name.as_str(), description.hosts[1].name.as_str()),
        ("near", "far")
    );
    let link = &description.links[0];
    assert_eq!((link.name.as_str(), link.between, link.mtu_bytes), ("link0", [0, 1], 1500));
    assert!(link.is_plain());
}

#[test]
fn the_special_wins_over_the_general_key_by_key() {
    let description = ok(r#"
        [[link]]
        rate = "10Mbit/s"
        delay = "10ms"
        [link.forward]
        delay = "20ms"
        [[link.path]]
        rate = "20Mbit/s"
        [[link.path]]
        rtt = "100ms"
        [link.path.forward]
        rate = "30Mbit/s"
    "#);
    let of =
        |wire: &Wire| (wire.rate.unwrap().bits_per_second() / 1_000_000, wire.delay.as_millis());
    let paths = &description.links[0].paths;
    assert_eq!((of(&paths[0].forward), of(&paths[0].backward)), ((20, 20), (20, 10)));
    assert_eq!((of(&paths[1].forward), of(&paths[1].backward)), ((30, 50), (10, 50)));
}

#[test]
fn all_that_can_be_asked_is_read() {
    let description = ok(r#"
        lateness_max = "2ms"
        [[host]]
        name = "near"
        sysctl = { "net.ipv4.tcp_congestion_control" = "bbr", "net.mptcp.enabled" = true }
        [[host]]
        name = "far"
        [[link]]
        name = "wan"
        between = ["far", "near"]
        mtu = 1400
        rate = "10Mbit/s"
        queue = "20ms"
        delay = "30ms"
        jitter = "5ms"
        loss = { good_to_bad = "1%", bad_to_good = "20%" }
        reorder = { share = "1%", by = "3ms" }
        outages = [{ at = "1s", lasts = "2s", every = "10s" }, { at = "100s", lasts = "1s" }]
        overhead = "38B"
        limit = { rates = ["1Mbit/s", "2Mbit/s"], burst = "16KiB" }
    "#);
    assert_eq!(description.hosts[0].sysctl[1], ("net.mptcp.enabled".into(), "1".into()));
    let link = &description.links[0];
    assert_eq!(link.between, [1, 0]);
    let wire = &link.paths[0].forward;
    assert_eq!(wire.queue, Bound::Time(Duration::from_millis(20)));
    assert_eq!(wire.outages.len(), 2);
    assert_eq!(wire.overhead_bytes, 38);
    assert_eq!(wire.limit.as_ref().unwrap().excess, Excess::Dropped { burst_bytes: 16_384 });
    assert!((wire.loss.mean() - 0.01 / 0.21).abs() < 1e-9);
}

#[test]
fn an_error_names_file_line_and_what_is_allowed() {
    let unit = refused("[[link]]\nname = \"wan\"\nrate = \"95MB/s\"\n");
    assert!(unit.starts_with("net.toml:3: ") && unit.contains("Mbit/s or Gbit/s"), "{unit}");
    let key = refused("[[link]]\nlos = \"1%\"\n");
    assert!(key.starts_with("net.toml:2: ") && key.contains("`loss`"), "{key}");
    let deep = refused("[[link]]\n[link.forward]\n\nloss = { good_to_bad = \"1%\" }\n");
    assert!(deep.starts_with("net.toml:4: ") && deep.contains("bad_to_good"), "{deep}");
    let queue = refused("[[link]]\nrate = \"1Mbit/s\"\nqueue = \"1000\"\n");
    assert!(queue.starts_with("net.toml:3: ") && queue.contains("1000packets"), "{queue}");
    let syntax = refused("[[link]]\nrate = \n");
    assert!(syntax.starts_with("net.toml:2: "), "{syntax}");
}

#[test]
fn what_has_no_meaning_is_refused_at_its_link() {
    for (rest, reason) in [
        ("queue = \"10packets\"", "`queue` without `rate`"),
        ("rtt = \"10ms\"\ndelay = \"5ms\"", "exclude each other"),
        ("delay = \"1ms\"\njitter = \"2ms\"", "no more than the delay"),
        ("outages = [{ at = \"1s\", lasts = \"2s\", every = \"2s\" }]", "longer than it `lasts`"),
        ("limit = { classes = 8 }", "`classes` (1 to 4096) and `rate`"),
        ("limit = { classes = 0, rate = \"1Mbit/s\" }", "1 to 4096"),
        ("limit = { rates = [] }", "`rates` with one rate"),
        ("limit = { rates = [\"1Mbit/s\"], queue = \"9packets\", burst = \"1KiB\" }", "`burst`"),
        ("name = \"a-name-that-is-too-long\"", "1 to 15"),
        ("name = \"lo\"", "is not `lo`"),
        ("mtu = 500", "1280 to 65535"),
        ("between = [\"near\", \"mars\"]", "the hosts are near, far"),
        ("between = [\"near\", \"near\"]", "with itself"),
        ("path = [{ weight = 0 }]", "1 to 10000"),
    ] {
        let message = refused(&format!("\n[[link]]\n{rest}\n"));
        assert!(message.contains(reason), "{rest}: {message}");
        let line: usize = message.split(':').nth(1).unwrap().parse().unwrap();
        assert!((2..=4).contains(&line), "{rest}: {message}");
    }
}

#[test]
fn hosts_are_named_once_and_reached() {
    let host = |name: &str| format!("[[host]]\nname = \"{name}\"\n");
    let link = "[[link]]\nbetween = [\"a\", \"b\"]\n";
    let lonely = refused(&(host("a") + &host("b") + &host("c") + link));
    assert!(lonely.contains("no link leads to host `c`"), "{lonely}");
    assert!(refused(&(host("a") + &host("a") + link)).contains("two hosts"));
    assert!(refused(&(host("A") + &host("b") + link)).contains("lower-case"));
    assert!(refused(&(host("a") + link)).contains("2 to 32 hosts"));
    assert!(refused("").contains("link"));
    assert!(refused("link = []").contains("1 to 64 links"));
    let outside = "[[host]]\nname = \"a\"\nsysctl = { \"kernel.hostname\" = \"x\" }\n";
    assert!(refused(&(outside.to_owned() + &host("b") + link)).contains("below `net.`"));
}
