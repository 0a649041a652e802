//! Descriptions that come with the program.

/// A description and its name.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// What `hawser lab up` calls it.
    pub name: &'static str,
    /// What it is of, in a line.
    pub summary: &'static str,
    /// The file.
    pub toml: &'static str,
}

/// All of them.
pub const NAMED: [Named; 5] = [
    Named {
        name: "long-fat",
        summary: "217 ms, 95 Mbit/s, 0.034 % loss: where congestion control decides",
        toml: include_str!("named/long-fat.toml"),
    },
    Named {
        name: "per-flow",
        summary: "20 ms, 8 classes of 10 Mbit/s by 5-tuple: where one flow is not enough",
        toml: include_str!("named/per-flow.toml"),
    },
    Named {
        name: "two-isps",
        summary: "50 Mbit/s 20 ms and 10 Mbit/s 80 ms, the better one failing now and then",
        toml: include_str!("named/two-isps.toml"),
    },
    Named { name: "lan", summary: "no limit, no delay", toml: include_str!("named/lan.toml") },
    Named {
        name: "lossy-mobile",
        summary: "60 ms with jitter, 8 Mbit/s up, 30 down, loss in bursts, reordering",
        toml: include_str!("named/lossy-mobile.toml"),
    },
];

/// The description of that name.
#[must_use]
pub fn named(name: &str) -> Option<Named> {
    NAMED.into_iter().find(|named| named.name == name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wan::parse::parse;

    #[test]
    fn each_is_valid() {
        for named in NAMED {
            parse(named.name, named.toml).unwrap();
        }
    }

    #[test]
    fn they_are_what_their_names_promise() {
        let of = |name: &str| parse(name, named(name).unwrap().toml).unwrap();
        let wire = of("long-fat").links[0].paths[0].forward.clone();
        assert_eq!(wire.delay, Duration::from_micros(108_500));
        assert_eq!(wire.rate.unwrap().bits_per_second(), 95_000_000);
        assert!((wire.loss.mean() - 0.000_34).abs() < 1e-9);
        let limit = of("per-flow").links[0].paths[0].forward.limit.clone().unwrap();
        assert_eq!(limit.rates.len(), 8);
        assert_eq!(of("two-isps").links.len(), 2);
        assert!(of("lan").links[0].is_plain());
        let mean = of("lossy-mobile").links[0].paths[0].forward.loss.mean();
        assert!((mean - 0.005).abs() < 0.0001, "{mean}");
    }
}
