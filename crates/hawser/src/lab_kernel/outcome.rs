//! What came of it: tables for people, and JSON.

use std::fmt::Write as _;

use hawser_congestion::cc::bench::Comparison;
use hawser_congestion::cc::{datagrams, figures};
use serde::Serialize;
use serde_json::Value;

use super::boot::{BootError, Exchange};
use super::{Plan, comparison_file, report_file};

/// All networks. Its JSON is a contract.
#[derive(Clone, Debug, Serialize)]
pub struct Outcomes {
    /// What the networks' chance follows from.
    pub seed: u64,
    /// How long it took, in seconds of the host.
    pub real_seconds: f64,
    /// Each network.
    pub networks: Vec<Compared>,
}

/// One network.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The description's name.
    pub network: String,
    /// As `hawser cc bench --json`.
    pub comparison: Comparison,
    /// What the network did, as `hawser lab run --report-json`.
    pub report: Value,
}

impl Outcomes {
    /// Reads what was written inside.
    ///
    /// # Errors
    /// There is none, or it cannot be understood.
    pub fn read(plan: &Plan, exchange: &Exchange, real_seconds: f64) -> Result<Self, BootError> {
        let networks = plan.networks.iter().enumerate().map(|(number, network)| {
            Ok(Compared {
                network: network.name.clone(),
                comparison: read(exchange, &comparison_file(number))?,
                report: read(exchange, &report_file(number))?,
            })
        });
        Ok(Self {
            seed: plan.seed,
            real_seconds,
            networks: networks.collect::<Result<_, BootError>>()?,
        })
    }

    /// For people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for Compared { network, comparison, .. } in &self.networks {
            let Comparison { far_kernel, seconds, rounds, .. } = comparison;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{network}: Linux {far_kernel} in virtual time, {rounds} rounds of {seconds} s, seed {}",
                self.seed
            );
            text += &datagrams::table(&comparison.path);
            text += &figures::table(&comparison.outcomes);
            text.push('\n');
        }
        let _ = writeln!(text, "took {:.0} s", self.real_seconds);
        text
    }
}

fn read<T: serde::de::DeserializeOwned>(exchange: &Exchange, name: &str) -> Result<T, BootError> {
    let text = exchange.read(name)?;
    serde_json::from_str(&text).map_err(|error| BootError::Exchange(name.into(), error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `hawser cc bench --json` writes it.
    const COMPARISON: &str = r#"{"incomplete": null, "host": "10.77.0.2:6480", "far_kernel": "6.12.1",
        "far_default": "cubic", "near_default": "cubic", "seconds": 10, "rounds": 1, "path": [],
        "outcomes": [
          {"direction": "down", "algorithm": "cubic", "flows": 1, "startup": 1e6, "steady": 8.2e6,
           "sender": 9e6, "again": 0.0003, "rtt_min_ms": 217.0, "rtt_mean_ms": 217.5, "runs": [
             {"round": 1, "startup": 1e6, "steady": 8.2e6, "sender": 9e6, "again": 0.0003,
              "rtt_min_ms": 217.0, "rtt_mean_ms": 217.5, "limits": ["loss"], "each_second": [1, 2]}]},
          {"direction": "down", "algorithm": "bbr", "flows": 1, "startup": 1e6, "steady": 66.7e6,
           "sender": 70e6, "again": 0.0003, "rtt_min_ms": 217.0, "rtt_mean_ms": 218.5, "runs": []}],
        "postgres": []}"#;

    #[test]
    fn what_bench_writes_is_read_and_the_fastest_comes_first() {
        let comparison: Comparison = serde_json::from_str(COMPARISON).unwrap();
        let network = "long-fat".to_owned();
        let networks = vec![Compared { network, comparison, report: Value::Null }];
        let outcomes = Outcomes { seed: 7, real_seconds: 12.4, networks };
        let text = outcomes.to_text();
        let head = "long-fat: Linux 6.12.1 in virtual time, 1 rounds of 10 s, seed 7\n";
        assert!(text.starts_with(head), "{text}");
        assert!(text.find(" bbr ").unwrap() < text.find(" cubic ").unwrap(), "{text}");
        assert!(text.contains("   66.70"), "{text}");
        let json = serde_json::to_value(&outcomes).unwrap();
        assert_eq!(json["networks"][0]["comparison"]["outcomes"][0]["algorithm"], "cubic");
        assert!(serde_json::from_str::<Comparison>("{\"host\": 1}").is_err());
    }
}
