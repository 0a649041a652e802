//! The rate of each subflow over time: of what `mptcp manage --trace` and `mptcp status --watch` write.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

/// A trace has ten looks a second: a rate is that of a second.
const WINDOW_S: f64 = 1.0;
/// Between two points of a line.
const APART_S: f64 = 0.25;

/// A line for each subflow, of the connection that carried most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Seconds and Mbit/s.
    pub subflows: Vec<Vec<(f64, f64)>>,
    /// Their sum.
    pub whole: Vec<(f64, f64)>,
}

impl Rates {
    /// The last moment.
    #[must_use]
    pub fn end(&self) -> f64 {
        self.whole.last().map_or(0.0, |(t, _)| *t)
    }

    /// The highest rate of the whole.
    #[must_use]
    pub fn highest(&self) -> f64 {
        self.whole.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }
}

fn looks(text: &str) -> impl Iterator<Item = Value> + '_ {
    // The last line may have been cut by the end of its writer.
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

fn carried(subflow: &Value) -> f64 {
    let bytes = |name: &str| subflow[name].as_f64().unwrap_or(0.0);
    bytes("received") + bytes("acked")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Of `mptcp manage --trace`: what each subflow has carried, ten times a second.
#[must_use]
pub fn of_trace(text: &str) -> Rates {
    let looks: Vec<Value> = looks(text).collect();
    let mut most: BTreeMap<&str, f64> = BTreeMap::new();
    for look in &looks {
        let Some(name) = look["connection"].as_str() else { continue };
        most.insert(name, list(&look["subflows"]).iter().map(carried).sum());
    }
    let Some((name, _)) = most.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)) else {
        return Rates::default();
    };
    let mut lines: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let mut earlier: BTreeMap<u64, VecDeque<(f64, f64)>> = BTreeMap::new();
    let mut rates = Rates::default();
    let mut begin = None;
    for look in looks.iter().filter(|look| look["connection"] == name) {
        let Some(seconds) = look["seconds"].as_f64() else { continue };
        let now = seconds - *begin.get_or_insert(seconds);
        let is_due = rates.whole.last().is_none_or(|(last, _)| now - last >= APART_S);
        let mut whole = 0.0;
        for subflow in list(&look["subflows"]) {
            let Some(cookie) = subflow["cookie"].as_u64() else { continue };
            let history = earlier.entry(cookie).or_default();
            history.push_back((now, carried(subflow)));
            while history.front().is_some_and(|(t, _)| *t < now - WINDOW_S) {
                history.pop_front();
            }
            let (Some((t0, b0)), Some((t1, b1))) = (history.front(), history.back()) else {
                continue;
            };
            if t1 - t0 > WINDOW_S / 3.0 && is_due {
                let rate = (b1 - b0) * 8e-6 / (t1 - t0);
                whole += rate;
                lines.entry(cookie).or_default().push((now, rate));
            }
        }
        if is_due {
            rates.whole.push((now, whole));
        }
    }
    rates.subflows = lines.into_values().collect();
    rates
}

/// Of `mptcp status --watch --json`: rates, once a second.
#[must_use]
pub fn of_status(text: &str) -> Rates {
    let looks: Vec<Value> = looks(text).collect();
    let rate = |subflow: &Value| {
        let bits = |name: &str| subflow[name].as_f64().unwrap_or(0.0);
        (bits("received_bit_s") + bits("sent_bit_s")) / 1e6
    };
    let mut most: BTreeMap<&str, f64> = BTreeMap::new();
    for look in &looks {
        for connection in list(&look["connections"]) {
            let Some(token) = connection["token"].as_str() else { continue };
            let sum: f64 = list(&connection["subflows"]).iter().map(rate).sum();
            *most.entry(token).or_default() += sum;
        }
    }
    let Some((token, _)) = most.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)) else {
        return Rates::default();
    };
    let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    let mut rates = Rates::default();
    let mut begin = None;
    for (second, look) in looks.iter().enumerate() {
        let of_all = list(&look["connections"]);
        let Some(connection) = of_all.iter().find(|c| c["token"] == token) else { continue };
        let now = (second - *begin.get_or_insert(second)) as f64;
        let mut whole = 0.0;
        for subflow in list(&connection["subflows"]) {
            let ends = format!("{} {}", subflow["local"], subflow["remote"]);
            lines.entry(ends).or_default().push((now, rate(subflow)));
            whole += rate(subflow);
        }
        rates.whole.push((now, whole));
    }
    rates.subflows = lines.into_values().collect();
    rates
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trace_has_a_line_for_each_subflow_of_what_carried_most() {
        let mut text = String::new();
        for tenth in 0..50_u64 {
            let other = json!({"seconds": tenth, "connection": "other", "subflows":
                               [{"cookie": 9, "received": tenth, "acked": 0}]});
            // 10 and 20 Mbit/s; one sends, the other receives.
            let look = json!({"seconds": 3.0 + tenth as f64 / 10.0, "connection": "psql", "subflows":
                              [{"cookie": 1, "received": tenth * 125_000, "acked": 7},
                               {"cookie": 2, "received": 0, "acked": tenth * 250_000}]});
            text += &format!("{other}\n{look}\n");
        }
        text += "{\"seconds\": 9, \"connec";
        let rates = of_trace(&text);
        assert_eq!(rates.subflows.len(), 2);
        let (end, whole) = rates.whole[rates.whole.len() - 1];
        assert!((4.5..=4.9).contains(&end) && (whole - 30.0).abs() < 0.1, "{end} {whole}");
        let (_, first) = rates.subflows[0][5];
        assert!((first - 10.0).abs() < 0.1, "{first}");
        assert!((rates.highest() - 30.0).abs() < 0.1);
    }

    #[test]
    fn a_status_has_one_as_well() {
        let connection = |token: &str, bits: u64| {
            json!({"token": token, "subflows": [
                {"local": "a:1", "remote": "b:1", "received_bit_s": bits, "sent_bit_s": null},
                {"local": "a:2", "remote": "b:1", "received_bit_s": bits / 2, "sent_bit_s": 0}]})
        };
        let none = json!({"connections": []});
        let both =
            json!({"connections": [connection("0x1", 1_000), connection("0x2", 10_000_000)]});
        let rates = of_status(&format!("{none}\n{both}\n{both}\n{none}\n"));
        assert_eq!(rates.whole, [(0.0, 15.0), (1.0, 15.0)]);
        assert_eq!(rates.subflows, [[(0.0, 10.0), (1.0, 10.0)], [(0.0, 5.0), (1.0, 5.0)]]);
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(of_trace(""), Rates::default());
        assert_eq!(of_status("{\n"), Rates::default());
        assert!(Rates::default().end().abs() < f64::EPSILON);
    }
}
