//! Which congestion control the pooler's connections have, and where that is not what was asked for.
//!
//! # Invariants
//! * an algorithm that the kernel does not give costs no connection: the default stays, said once and
//!   shown as long as it lasts
//! * without `auto` no thread runs and nothing is sampled

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hawser_sys::congestion::flows::Flows;
use hawser_sys::congestion::{self, set_algorithm};

use super::Congestion;
use super::auto;
use crate::tuner::algorithm::Algorithm;
use crate::tuner::chooser::Chooser;
use crate::tuner::event::Event;

/// The decisions that are counted, as [`crate::tuner::event::Decision::name`] has them.
const DECISIONS: [&str; 7] = ["try", "keep", "revert", "harm", "undecided", "forget", "refused"];

/// A connection whose socket can be entered among those that are sampled.
pub trait Tuned: AsFd {
    /// Enters it, as long as it is open.
    fn tune(&mut self, flows: Arc<Flows>);
}

/// What the pooler's connections have.
#[derive(Debug, Default)]
pub struct CongestionUsage {
    flows: Arc<Flows>,
    /// Whether connections are sampled; unset until `auto` is first asked for.
    is_tuning: OnceLock<bool>,
    /// By what it is about; bounded by listeners and configured servers.
    fallbacks: Mutex<BTreeMap<String, String>>,
    decisions: Arc<Decisions>,
}

/// How often each thing was decided.
#[derive(Debug, Default)]
pub struct Decisions([AtomicU64; DECISIONS.len()]);

impl Decisions {
    /// Logs and counts one.
    pub fn note(&self, event: &Event) {
        tracing::info!("congestion control of {event}");
        let name = event.decision.name();
        if let Some(place) = DECISIONS.iter().position(|one| *one == name) {
            self.0[place].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl CongestionUsage {
    /// Gives a TCP connection that has just been opened what `wanted` asks for. `what` names its
    /// side if that is not available.
    pub fn apply(&self, link: &mut impl Tuned, wanted: Congestion, what: &dyn fmt::Display) {
        if let Some(flows) = self.give(link.as_fd(), wanted, what) {
            link.tune(flows);
        }
    }

    /// The same for any socket. Some: it is to be entered there, for its algorithm is to be chosen by
    /// measurement.
    pub fn give(
        &self,
        fd: impl AsFd,
        wanted: Congestion,
        what: &dyn fmt::Display,
    ) -> Option<Arc<Flows>> {
        match wanted {
            Congestion::Default => None,
            Congestion::Fixed(algorithm) => {
                match set_algorithm(&fd, algorithm.as_str()) {
                    Ok(()) => self.mended(what),
                    Err(error) => self.falls_back(what, error.to_string()),
                }
                None
            }
            Congestion::Auto => {
                let tunes = *self.is_tuning.get_or_init(|| self.begin()) && is_far(&fd);
                tunes.then(|| self.flows.clone())
            }
        }
    }

    fn begin(&self) -> bool {
        let choice = match choice() {
            Ok(choice) => choice,
            Err(reason) => {
                self.falls_back(&"auto", reason);
                return false;
            }
        };
        tracing::info!("congestion = auto: {choice}");
        let chooser = Chooser::new(choice.default, choice.candidates);
        match auto::start(chooser, &self.flows, self.decisions.clone()) {
            Ok(()) => true,
            Err(error) => {
                self.falls_back(&"auto", format!("no thread could be started: {error}"));
                false
            }
        }
    }

    fn falls_back(&self, what: &dyn fmt::Display, why: String) {
        let what = what.to_string();
        let mut fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        if fallbacks.get(&what) != Some(&why) {
            tracing::warn!(what, why, "the kernel's own congestion control stays");
            fallbacks.insert(what, why);
        }
    }

    fn mended(&self, what: &dyn fmt::Display) {
        let mut fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        if !fallbacks.is_empty() {
            fallbacks.remove(&what.to_string());
        }
    }

    /// Where the kernel's own congestion control stays although another was asked for, and why.
    pub fn fallbacks(&self) -> Vec<String> {
        let fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(what, why): (&String, &String)| format!("congestion control, {what}: {why}");
        fallbacks.iter().map(line).collect()
    }

    /// How often `auto` has decided what.
    pub fn decisions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.decisions.0.iter().map(|count| count.load(Ordering::Relaxed));
        DECISIONS.into_iter().zip(counts)
    }
}

/// Whether a connection is worth a look: its handshake took as long as a path for which there is a
/// choice does. It can have taken longer than the path, never less.
fn is_far(fd: impl AsFd) -> bool {
    hawser_sys::tcp_info::tcp_info(fd)
        .is_ok_and(|info| info.rtt_us == 0 || info.rtt_us >= crate::tuner::chooser::RTT_MIN_US)
}

/// What `auto` chooses between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What connections begin with.
    pub default: Algorithm,
    /// What is tried, in this order.
    pub candidates: Vec<Algorithm>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.candidates.iter().map(Algorithm::as_str).collect();
        write!(f, "{} to begin with, {} where losses call for it", self.default, names.join(", "))
    }
}

/// What there is to choose between here.
///
/// # Errors
/// Why there is nothing.
pub fn choice() -> Result<Choice, String> {
    let found = congestion::algorithms().map_err(|error| error.to_string())?;
    let default = Algorithm::new(&found.default)
        .ok_or_else(|| "this kernel does not say what its default is".to_owned())?;
    if !default.is_loss_based() {
        return Err(format!(
            "the kernel's default, {default}, does not slow down for chance losses"
        ));
    }
    let known =
        |names: &[String]| names.iter().filter_map(|n| Algorithm::new(n)).collect::<Vec<_>>();
    let mut candidates = Algorithm::candidates(default, &known(&found.allowed));
    // With CAP_NET_ADMIN more than other users may use.
    for better in Algorithm::candidates(default, &known(&found.available)) {
        if !candidates.contains(&better) && congestion::probe(better.as_str()).is_ok() {
            candidates = Algorithm::candidates(default, &known(&found.available));
            break;
        }
    }
    if candidates.is_empty() {
        return Err(format!(
            "there is nothing but {default} that it may use: `hawser cc list` says what is missing"
        ));
    }
    Ok(Choice { default, candidates })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::tuner::event::Decision;

    struct Plain(TcpStream);

    impl AsFd for Plain {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Tuned for Plain {
        fn tune(&mut self, _: Arc<Flows>) {}
    }

    #[test]
    fn a_fixed_algorithm_is_set_and_one_that_is_not_there_falls_back_until_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut link = Plain(stream);
        let usage = CongestionUsage::default();
        let before = congestion::algorithm(link.as_fd()).unwrap();
        let fixed = |name: &str| Congestion::from_word(name).unwrap();
        usage.apply(&mut link, fixed("nosuchthing"), &"clients");
        usage.apply(&mut link, fixed("nosuchthing"), &"clients");
        assert_eq!(usage.fallbacks().len(), 1);
        assert!(usage.fallbacks()[0].starts_with("congestion control, clients: "));
        assert_eq!(congestion::algorithm(link.as_fd()).unwrap(), before);
        let allowed = congestion::algorithms().unwrap().allowed;
        let other = allowed.iter().find(|name| **name != before).unwrap_or(&before);
        usage.apply(&mut link, fixed(other), &"clients");
        assert_eq!(congestion::algorithm(link.as_fd()).unwrap(), *other);
        assert!(usage.fallbacks().is_empty());
    }

    #[test]
    fn each_decision_has_its_count() {
        let usage = CongestionUsage::default();
        let algorithm = |name| Algorithm::new(name).unwrap();
        usage.decisions.note(&Event {
            destination: crate::tuner::destination::Prefix::of("192.0.2.1".parse().unwrap())
                .unwrap(),
            from: algorithm("cubic"),
            to: algorithm("bbr"),
            decision: Decision::Forget,
        });
        let counts: Vec<_> = usage.decisions().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [("forget", 1)]);
    }
}
