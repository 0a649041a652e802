//! What `hawser cc list` shows, and what stands in the way, in words.
//!
//! # Model
//! ```text
//!   BDP                bandwidth-delay product: rate x round trip, what is under way on a full path
//!   a buffer carries   max / 2 in a round trip: the other half is the kernel's own book-keeping
//!   a buffer needs     4 BDP: 2 for BBR, which keeps up to two under way, times that half
//! ```
//! Measured at 217 ms with BBR: tcp_wmem of 1, 2, 3, 4, 6, 8 MiB gave 18, 36, 55, 66, 70, 72 Mbit/s;
//! the formula says 19, 39, 58 and then the path's own 90.

use std::fmt::Write as _;
use std::time::Duration;

use hawser_sys::mptcp::kernel::Version;
use serde::Serialize;

use super::look::Look;
use crate::tuner::algorithm::Algorithm;

/// The path that buffers are held against unless another is given.
pub const RATE_DEFAULT: u64 = 100_000_000;
/// Its round trip.
pub const RTT_DEFAULT: Duration = Duration::from_millis(100);
/// A buffer that is this many bandwidth-delay products does not limit.
const PRODUCTS_NEEDED: u64 = 4;
/// What of a buffer is payload: one part of so many.
const PAYLOAD_DIVISOR: u64 = 2;

/// BBR is in the kernel.
const BBR_SINCE: Version = Version(4, 9);
/// TCP paces by itself, and BBR keeps its model over a pause.
const PACING_SINCE: Version = Version(4, 13);

/// A path to hold buffers against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Path {
    /// Bits a second.
    pub bits_per_second: u64,
    /// Its round trip in microseconds.
    pub rtt_us: u64,
}

impl Path {
    /// Bytes under way when it is full.
    #[must_use]
    pub fn product_bytes(&self) -> u64 {
        let bits = u128::from(self.bits_per_second) * u128::from(self.rtt_us) / 1_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }

    /// Bits a second that a buffer of so many bytes allows at this round trip.
    #[must_use]
    pub fn carried(&self, buffer_bytes: u64) -> u64 {
        let bits = u128::from(buffer_bytes / PAYLOAD_DIVISOR) * 8 * 1_000_000;
        u64::try_from(bits / u128::from(self.rtt_us.max(1))).unwrap_or(u64::MAX)
    }
}

/// How much something matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it should be.
    Fine,
    /// Good to know.
    Note,
    /// It stands in the way.
    Problem,
}

/// One thing to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub grade: Grade,
    /// What, and what to do.
    pub text: String,
}

/// What is shown. Its JSON is a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The kernel's release.
    pub kernel: String,
    /// What new connections have.
    pub default: Option<String>,
    /// Built in or loaded.
    pub available: Vec<String>,
    /// Of these, for ordinary users.
    pub allowed: Vec<String>,
    /// Modules that could be loaded.
    pub loadable: Vec<String>,
    /// The most that tcp_rmem gives a connection, in bytes.
    pub receive_buffer_max: Option<u64>,
    /// The most that tcp_wmem gives one.
    pub send_buffer_max: Option<u64>,
    /// net.core.rmem_max.
    pub rmem_max: Option<u64>,
    /// net.core.wmem_max.
    pub wmem_max: Option<u64>,
    /// net.ipv4.tcp_slow_start_after_idle.
    pub slow_start_after_idle: Option<bool>,
    /// net.ipv4.tcp_no_metrics_save.
    pub no_metrics_save: Option<bool>,
    /// net.core.default_qdisc.
    pub default_qdisc: Option<String>,
    /// Interface and queueing discipline.
    pub qdiscs: Vec<(String, String)>,
    /// What the findings about buffers are for.
    pub path: Path,
    /// Bytes under way when that path is full.
    pub product_bytes: u64,
    /// What there is to say.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The report of `look`, for a path.
    #[must_use]
    pub fn new(look: &Look, path: Path) -> Self {
        let algorithms = look.algorithms.clone().unwrap_or_default();
        let settings = &look.settings;
        let mut findings = Findings(Vec::new());
        findings.algorithms(look);
        findings.version(look);
        findings.buffers(look, path);
        findings.settings(look);
        Self {
            kernel: look.release.clone(),
            default: look.algorithms.as_ref().map(|found| found.default.clone()),
            available: algorithms.available,
            allowed: algorithms.allowed,
            loadable: algorithms.loadable,
            receive_buffer_max: settings.receive.map(|buffer| buffer.max),
            send_buffer_max: settings.send.map(|buffer| buffer.max),
            rmem_max: settings.receive_max,
            wmem_max: settings.send_max,
            slow_start_after_idle: settings.slow_start_after_idle,
            no_metrics_save: settings.no_metrics_save,
            default_qdisc: settings.default_qdisc.clone(),
            qdiscs: look
                .disciplines
                .iter()
                .map(|one| (one.interface.clone(), one.discipline.clone()))
                .collect(),
            path,
            product_bytes: path.product_bytes(),
            findings: findings.0,
        }
    }

    /// A buffer of so many bytes does not limit a connection over the path.
    #[must_use]
    pub fn buffer_bytes_needed(&self) -> u64 {
        self.product_bytes.saturating_mul(PRODUCTS_NEEDED)
    }

    /// For people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<14} {value}");
        };
        let or_none = |words: &[String]| match words {
            [] => "none".to_owned(),
            words => words.join(" "),
        };
        row("kernel", format!("Linux {}", self.kernel));
        row("default", self.default.clone().unwrap_or_else(|| "unknown".to_owned()));
        row("available", or_none(&self.available));
        row("for all users", or_none(&self.allowed));
        row("loadable", or_none(&self.loadable));
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "not here".to_owned(), size);
        let (receive, send) = (size(self.receive_buffer_max), size(self.send_buffer_max));
        row("buffers", format!("tcp_rmem up to {receive}, tcp_wmem up to {send}"));
        let qdiscs = self.qdiscs.iter().map(|(interface, name)| format!("{interface} {name}"));
        row("qdisc", or_none(&qdiscs.collect::<Vec<_>>()));
        let Path { bits_per_second, rtt_us } = self.path;
        let ms = rtt_us as f64 / 1e3;
        let product = self::size(self.product_bytes);
        row("for a path of", format!("{}, {ms} ms: {product} under way", rate(bits_per_second)));
        text.push('\n');
        for Finding { grade, text: said } in &self.findings {
            let mark = match grade {
                Grade::Fine => "ok",
                Grade::Note => "note",
                Grade::Problem => "PROBLEM",
            };
            let _ = writeln!(text, "{mark:<8} {said}");
        }
        text
    }
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, grade: Grade, text: impl Into<String>) {
        self.0.push(Finding { grade, text: text.into() });
    }

    fn algorithms(&mut self, look: &Look) {
        let Some(found) = &look.algorithms else {
            return self
                .add(Grade::Problem, "/proc/sys/net/ipv4 cannot be read here: nothing is known");
        };
        let has = |list: &[String]| list.iter().any(|name| name == "bbr");
        let default = &found.default;
        let is_loss_based = Algorithm::new(default).is_none_or(|one| one.is_loss_based());
        if !is_loss_based {
            self.add(
                Grade::Fine,
                format!("{default}, the default, is not slowed down by chance losses"),
            );
        } else if has(&found.allowed) {
            self.add(
                Grade::Note,
                format!(
                    "{default}, the default, takes each loss for congestion: at 217 ms and 0.034 % loss \
                     cubic has 8 Mbit/s, bbr 67. bbr is here for all users: congestion = \"auto\" in \
                     hawser.toml, `hawser cc run --algorithm bbr -- COMMAND`, or `hawser cc apply`"
                ),
            );
        } else if has(&found.available) {
            self.add(
                Grade::Problem,
                "bbr is here, but not for ordinary users: as root, `sysctl -w \
                 net.ipv4.tcp_allowed_congestion_control=\"LIST bbr\"` with what is in LIST already, or \
                 `hawser cc apply --system`, which keeps it over a restart",
            );
        } else if has(&found.loadable) {
            self.add(
                Grade::Problem,
                "bbr is a module that is not loaded: as root, `modprobe tcp_bbr`, or `hawser cc apply \
                 --system`, which keeps it over a restart",
            );
        } else if look.version.is_some_and(|version| version < BBR_SINCE) {
            self.add(Grade::Problem, "this kernel is too old for bbr, which came with Linux 4.9");
        } else {
            self.add(
                Grade::Problem,
                "bbr is not in this kernel, nor a module of it on this file system. In a container or a \
                 virtual machine of a platform, it is the platform's kernel that would need it",
            );
        }
        if found.available.is_empty() {
            self.add(Grade::Problem, "no algorithm is listed: this network namespace hides them");
        }
    }

    fn version(&mut self, look: &Look) {
        let Some(version) = look.version else { return };
        let has_bbr = look
            .algorithms
            .as_ref()
            .is_some_and(|found| found.available.iter().any(|name| name == "bbr"));
        if !has_bbr || version >= PACING_SINCE {
            return;
        }
        self.add(
            Grade::Note,
            "before Linux 4.13 bbr forgets the path's rate in a pause: connections that come and go by \
             bursts gain less",
        );
        for one in look.disciplines.iter().filter(|one| one.discipline != "fq") {
            self.add(
                Grade::Problem,
                format!(
                    "before Linux 4.13 bbr needs the queueing discipline fq, and {} has {}: as root, \
                     `tc qdisc replace dev {} root fq`",
                    one.interface, one.discipline, one.interface
                ),
            );
        }
    }

    fn buffers(&mut self, look: &Look, path: Path) {
        let needed = path.product_bytes().saturating_mul(PRODUCTS_NEEDED);
        let wanted = rate(path.bits_per_second);
        for (name, what, buffer) in [
            ("tcp_wmem", "sent", look.settings.send),
            ("tcp_rmem", "received", look.settings.receive),
        ] {
            let Some(buffer) = buffer else { continue };
            let carried = path.carried(buffer.max);
            if buffer.max >= needed {
                let text = format!("{name} allows {wanted} to be {what} over this path");
                self.add(Grade::Fine, text);
                continue;
            }
            let grade = if carried < path.bits_per_second { Grade::Problem } else { Grade::Note };
            self.add(
                grade,
                format!(
                    "{name} holds what is {what} by one connection to about {} over this path: its third \
                     number is {}, and {} would not limit (as root, `sysctl -w net.ipv4.{name}=\"{} {} \
                     {}\"`)",
                    rate(carried.min(path.bits_per_second)),
                    size(buffer.max),
                    size(needed),
                    buffer.min,
                    buffer.initial,
                    needed,
                ),
            );
        }
        for (name, limit) in
            [("rmem_max", look.settings.receive_max), ("wmem_max", look.settings.send_max)]
        {
            if let Some(limit) = limit.filter(|limit| *limit < path.product_bytes()) {
                let size = size(limit);
                self.add(
                    Grade::Note,
                    format!(
                        "net.core.{name} is {size}: a program that sets its buffers itself gets no more, \
                         and the kernel then tunes them no longer. One that does not is not concerned"
                    ),
                );
            }
        }
    }

    fn settings(&mut self, look: &Look) {
        let settings = &look.settings;
        if settings.window_scaling == Some(false) {
            self.add(
                Grade::Problem,
                "net.ipv4.tcp_window_scaling is off: no connection has more than 64 KiB under way",
            );
        }
        if settings.slow_start_after_idle == Some(true) {
            self.add(
                Grade::Note,
                "net.ipv4.tcp_slow_start_after_idle is on: after a pause of some round trips a \
                 connection begins with 10 segments again; a pooler's connections pause all the time",
            );
        }
        if settings.no_metrics_save == Some(false) {
            self.add(
                Grade::Note,
                "the kernel remembers destinations (net.ipv4.tcp_no_metrics_save is off): one bad \
                 connection slows the next ones down for minutes, and comparisons are spoilt",
            );
        }
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

fn rate(bits: u64) -> String {
    match bits {
        0..1_000_000 => format!("{:.0} kbit/s", bits as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} Mbit/s", bits as f64 / 1e6),
        _ => format!("{:.1} Gbit/s", bits as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_sys::congestion::discipline::Discipline;
    use hawser_sys::congestion::{Algorithms, Buffer, Settings};

    const LONG_FAT: Path = Path { bits_per_second: 95_000_000, rtt_us: 217_000 };

    fn words(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn look() -> Look {
        Look {
            release: "6.1.0-18-amd64".to_owned(),
            version: Some(Version(6, 1)),
            algorithms: Some(Algorithms {
                default: "cubic".to_owned(),
                available: words(&["reno", "cubic"]),
                allowed: words(&["reno", "cubic"]),
                loadable: Vec::new(),
            }),
            settings: Settings {
                receive: Some(Buffer { min: 4096, initial: 131_072, max: 6 << 20 }),
                send: Some(Buffer { min: 4096, initial: 16_384, max: 4 << 20 }),
                ..Settings::default()
            },
            disciplines: vec![Discipline {
                number: 2,
                interface: "eth0".to_owned(),
                discipline: "mq".to_owned(),
            }],
        }
    }

    fn with(change: impl FnOnce(&mut Algorithms)) -> Look {
        let mut look = look();
        change(look.algorithms.as_mut().unwrap());
        look
    }

    fn said(look: &Look) -> String {
        let said = Report::new(look, LONG_FAT).findings;
        said.iter().map(|finding| format!("{:?} {}\n", finding.grade, finding.text)).collect()
    }

    #[test]
    fn each_way_to_be_without_bbr_has_its_own_advice() {
        assert!(said(&look()).contains("nor a module of it"), "{}", said(&look()));
        let loadable = with(|found| found.loadable = words(&["bbr"]));
        assert!(said(&loadable).contains("modprobe tcp_bbr"));
        let denied = with(|found| found.available.push("bbr".to_owned()));
        assert!(said(&denied).contains("not for ordinary users"));
        let there = with(|found| {
            found.available.push("bbr".to_owned());
            found.allowed.push("bbr".to_owned());
        });
        assert!(said(&there).contains("Note cubic, the default"));
        assert!(!said(&there).contains("needs the queueing discipline"));
        let default = with(|found| found.default = "bbr".to_owned());
        assert!(said(&default).contains("Fine bbr, the default"));
        let old = Look { version: Some(Version(4, 4)), ..look() };
        assert!(said(&old).contains("too old"));
        let hidden = Look { algorithms: None, ..look() };
        assert!(said(&hidden).contains("Problem /proc"));
    }

    #[test]
    fn before_4_13_bbr_needs_fq() {
        let mut old = with(|found| found.available.push("bbr".to_owned()));
        old.version = Some(Version(4, 9));
        assert!(said(&old).contains("eth0 has mq"), "{}", said(&old));
        old.disciplines[0].discipline = "fq".to_owned();
        assert!(!said(&old).contains("needs the queueing discipline"));
    }

    #[test]
    fn buffers_are_held_against_the_path() {
        // 95 Mbit/s x 217 ms.
        assert_eq!(LONG_FAT.product_bytes(), 2_576_875);
        assert!((18_000_000..20_000_000).contains(&LONG_FAT.carried(1 << 20)));
        let text = said(&look());
        assert!(
            text.contains(
                "Problem tcp_wmem holds what is sent by one connection to about 77.3 Mbit/s"
            ),
            "{text}"
        );
        assert!(text.contains("Note tcp_rmem"), "{text}");
        let mut large = look();
        large.settings.send = Some(Buffer { min: 4096, initial: 16_384, max: 4 * 2_576_875 });
        assert!(said(&large).contains("Fine tcp_wmem allows 95.0 Mbit/s to be sent"));
    }

    #[test]
    fn settings_that_stand_in_the_way_are_named() {
        let mut look = look();
        look.settings.slow_start_after_idle = Some(true);
        look.settings.no_metrics_save = Some(false);
        look.settings.window_scaling = Some(false);
        look.settings.send_max = Some(212_992);
        let text = said(&look);
        for name in
            ["slow_start_after_idle", "no_metrics_save", "window_scaling", "net.core.wmem_max"]
        {
            assert!(text.contains(name), "{name}: {text}");
        }
        assert!(!text.contains("rmem_max"));
    }

    #[test]
    fn the_text_has_a_row_for_each_thing_and_the_json_their_names() {
        let report = Report::new(&look(), LONG_FAT);
        let text = report.to_text();
        for row in [
            "kernel         Linux 6.1.0-18-amd64\n",
            "default        cubic\n",
            "loadable       none\n",
            "buffers        tcp_rmem up to 6.0 MiB, tcp_wmem up to 4.0 MiB\n",
            "qdisc          eth0 mq\n",
            "for a path of  95.0 Mbit/s, 217 ms: 2.5 MiB under way\n",
        ] {
            assert!(text.contains(row), "{row}{text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["default"], "cubic");
        assert_eq!(json["findings"][0]["grade"], "problem");
        assert_eq!(json["product_bytes"], 2_576_875);
    }
}
