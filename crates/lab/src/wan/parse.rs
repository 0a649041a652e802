//! From a file to a [`Description`].
//!
//! # Model
//! TOML, then keys as they were written ([`Keys`]), then each direction from the most general to
//! the most special: the link, its direction, the path, the path's direction. What is written
//! later wins, key by key.
//!
//! # Invariants  a description that is returned is valid; an error names the file, the line and
//!               what is allowed
//! # Why not     unknown keys let pass: a misspelt `los` would make a clean network

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Unexpected, Visitor};
use toml::Spanned;

use super::description::{
    CLASSES_MAX, Description, HOSTS_MAX, Host, LINKS_MAX, Link, PATHS_MAX, Path,
};
use super::direction::{ETHERNET_OVERHEAD_BYTES, Reorder, Wire};
use super::limit::{Excess, Limit};
use super::loss::{GilbertElliott, Loss};
use super::outage::Outage;
use super::quantity::{self, Rate, Share, Size, Span};
use super::queue::Bound;

/// Longest name of an interface: IFNAMSIZ without the NUL.
const INTERFACE_NAME_BYTES_MAX: usize = 15;
const MTU_MIN_BYTES: u32 = 1280; // IPv6 works from here
const MTU_MAX_BYTES: u32 = 65_535;
const LATENESS_MAX: Duration = Duration::from_millis(1);
/// Weights of a link's paths are added.
const WEIGHT_MAX: u32 = 10_000;

/// What is wrong with a description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {message}", .line.map_or_else(String::new, |line| format!(":{line}")))]
pub struct Invalid {
    /// Which file, or which name.
    pub file: String,
    /// From 1; `None` where it is the whole.
    pub line: Option<usize>,
    /// What is wrong, and what is allowed.
    pub message: String,
}

/// Reads a description. `file` is for messages.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse(file: &str, text: &str) -> Result<Description, Invalid> {
    let invalid = |(message, span): (String, Option<Range<usize>>)| Invalid {
        file: file.to_owned(),
        line: span.map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1),
        message,
    };
    let raw: RawDescription = toml::from_str(text)
        .map_err(|error| invalid((error.message().to_owned(), error.span())))?;
    raw.resolve().map_err(|(message, span)| invalid((message, Some(span))))
}

type Fault = (String, Range<usize>);

fn fault<T>(at: &Range<usize>, message: impl Into<String>) -> Result<T, Fault> {
    Err((message.into(), at.clone()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDescription {
    #[serde(default)]
    host: Vec<Spanned<RawHost>>,
    link: Spanned<Vec<Spanned<RawLink>>>,
    lateness_max: Option<Span>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    name: String,
    #[serde(default)]
    sysctl: std::collections::BTreeMap<String, Setting>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string, an integer or a boolean")]
enum Setting {
    Text(String),
    Number(i64),
    Switch(bool),
}

/// Structures that hold, beside what is their own, the keys of a direction. `serde(flatten)` would
/// lose the lines of errors.
macro_rules! with_the_keys_of_a_direction {
    ($(struct $name:ident { $($own:ident: $type:ty,)* })*) => {$(
        #[derive(Clone, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $($own: $type,)*
            rate: Option<Rate>,
            queue: Option<Bound>,
            limit: Option<RawLimit>,
            loss: Option<Loss>,
            delay: Option<Span>,
            jitter: Option<Span>,
            reorder: Option<RawReorder>,
            outages: Option<Vec<RawOutage>>,
            overhead: Option<Size>,
        }

        impl $name {
            fn keys(&self) -> Keys {
                Keys {
                    rate: self.rate,
                    queue: self.queue,
                    limit: self.limit.clone(),
                    loss: self.loss,
                    delay: self.delay,
                    jitter: self.jitter,
                    reorder: self.reorder,
                    outages: self.outages.clone(),
                    overhead: self.overhead,
                }
            }
        }
    )*};
}

with_the_keys_of_a_direction! {
    struct RawLink {
        name: Option<String>,
        between: Option<[String; 2]>,
        mtu: Option<u32>,
        rtt: Option<Span>,
        forward: Option<Keys>,
        backward: Option<Keys>,
        path: Option<Vec<Spanned<RawPath>>>,
    }
    struct RawPath {
        weight: Option<u32>,
        rtt: Option<Span>,
        forward: Option<Keys>,
        backward: Option<Keys>,
    }
    struct Keys {}
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReorder {
    share: Share,
    by: Span,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOutage {
    at: Span,
    lasts: Span,
    every: Option<Span>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimit {
    classes: Option<usize>,
    rate: Option<Rate>,
    rates: Option<Vec<Rate>>,
    queue: Option<Bound>,
    burst: Option<Size>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawChain {
    good_to_bad: Share,
    bad_to_good: Share,
    #[serde(default = "everything")]
    loss_in_bad: Share,
    #[serde(default)]
    loss_in_good: Share,
}

fn everything() -> Share {
    Share::new(1.0).expect("100 % is a share")
}

impl Keys {
    fn or(self, general: Self) -> Self {
        Self {
            rate: self.rate.or(general.rate),
            queue: self.queue.or(general.queue),
            limit: self.limit.or(general.limit),
            loss: self.loss.or(general.loss),
            delay: self.delay.or(general.delay),
            jitter: self.jitter.or(general.jitter),
            reorder: self.reorder.or(general.reorder),
            outages: self.outages.or(general.outages),
            overhead: self.overhead.or(general.overhead),
        }
    }

    fn with_rtt(mut self, rtt: Option<Span>, at: &Range<usize>) -> Result<Self, Fault> {
        if let Some(Span(rtt)) = rtt {
            if self.delay.is_some() {
                return fault(
                    at,
                    "`rtt` and `delay` exclude each other: `rtt` is a `delay` of half of it each way",
                );
            }
            self.delay = Some(Span(rtt / 2));
        }
        Ok(self)
    }

    fn resolve(self, at: &Range<usize>) -> Result<Wire, Fault> {
        if self.queue.is_some() && self.rate.is_none() {
            return fault(
                at,
                "`queue` without `rate`: nothing would ever wait (a limit has a `queue` of its own)",
            );
        }
        let limit = self.limit.map(|limit| limit.resolve(at)).transpose()?;
        let delay = self.delay.unwrap_or_default().0;
        let jitter = self.jitter.unwrap_or_default().0;
        if jitter > delay {
            return fault(
                at,
                format!(
                    "`jitter` of {jitter:?} with a `delay` of {delay:?}: no more than the delay is allowed"
                ),
            );
        }
        let mut outages = Vec::new();
        for RawOutage { at: Span(begin), lasts: Span(lasts), every } in
            self.outages.unwrap_or_default()
        {
            let every = every.map(|Span(every)| every);
            if every.is_some_and(|every| every <= lasts) {
                return fault(at, "an outage's `every` must be longer than it `lasts`");
            }
            outages.push(Outage { at: begin, lasts, every });
        }
        let reorder = self.reorder.map(|RawReorder { share, by: Span(by) }| Reorder { share, by });
        Ok(Wire {
            rate: self.rate,
            queue: self.queue.unwrap_or_default(),
            limit,
            loss: self.loss.unwrap_or_default(),
            delay,
            jitter,
            reorder,
            outages,
            overhead_bytes: self.overhead.map_or(ETHERNET_OVERHEAD_BYTES, |Size(bytes)| bytes),
        })
    }
}

impl RawLimit {
    fn resolve(self, at: &Range<usize>) -> Result<Limit, Fault> {
        let rates = match (self.classes, self.rate, self.rates) {
            (Some(classes), Some(rate), None) if (1..=CLASSES_MAX).contains(&classes) => {
                vec![rate; classes]
            }
            (None, None, Some(rates)) if (1..=CLASSES_MAX).contains(&rates.len()) => rates,
            _ => {
                return fault(
                    at,
                    format!(
                        "a limit has `classes` (1 to {CLASSES_MAX}) and `rate`, or `rates` with one rate for each class"
                    ),
                );
            }
        };
        let excess = match (self.queue, self.burst) {
            (queue, None) => Excess::Waits(queue.unwrap_or_default()),
            (None, Some(Size(burst_bytes))) => Excess::Dropped { burst_bytes },
            (Some(_), Some(_)) => {
                return fault(
                    at,
                    "a limit has a `queue`, in which waits what is too fast, or a `burst`, after which it is dropped",
                );
            }
        };
        Ok(Limit { rates, excess })
    }
}

impl RawDescription {
    fn resolve(self) -> Result<Description, Fault> {
        let hosts = resolve_hosts(self.host)?;
        let at = self.link.span();
        let raw_links = self.link.into_inner();
        if raw_links.is_empty() || raw_links.len() > LINKS_MAX {
            return fault(&at, format!("1 to {LINKS_MAX} links are allowed"));
        }
        let mut links: Vec<Link> = Vec::new();
        for (index, raw) in raw_links.into_iter().enumerate() {
            let at = raw.span();
            let link = raw.into_inner().resolve(index, &hosts, &at)?;
            if links.iter().any(|other| other.name == link.name) {
                return fault(&at, format!("two links are named `{}`", link.name));
            }
            links.push(link);
        }
        let lateness_max = self.lateness_max.map_or(LATENESS_MAX, |Span(span)| span);
        let description = Description { hosts, links, lateness_max };
        match description.unreachable() {
            Some(host) => {
                let name = &description.hosts[host].name;
                fault(&at, format!("no link leads to host `{name}`"))
            }
            None => Ok(description),
        }
    }
}

fn resolve_hosts(raw: Vec<Spanned<RawHost>>) -> Result<Vec<Host>, Fault> {
    if raw.is_empty() {
        let named = |name: &str| Host { name: name.to_owned(), sysctl: Vec::new() };
        return Ok(vec![named("near"), named("far")]);
    }
    let mut hosts: Vec<Host> = Vec::new();
    for raw in raw {
        let at = raw.span();
        let RawHost { name, sysctl } = raw.into_inner();
        if !is_name(&name, 63) {
            return fault(
                &at,
                format!("host `{name}`: a name has 1 to 63 lower-case letters, digits and hyphens"),
            );
        }
        if hosts.iter().any(|other| other.name == name) {
            return fault(&at, format!("two hosts are named `{name}`"));
        }
        let mut settings = Vec::new();
        for (key, value) in sysctl {
            let proper = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if !key.starts_with("net.") || !key.chars().all(proper) || key.contains("..") {
                return fault(
                    &at,
                    format!("sysctl `{key}`: only names below `net.` belong to a namespace"),
                );
            }
            let value = match value {
                Setting::Text(text) => text,
                Setting::Number(number) => number.to_string(),
                Setting::Switch(on) => u8::from(on).to_string(),
            };
            settings.push((key, value));
        }
        hosts.push(Host { name, sysctl: settings });
    }
    if hosts.len() < 2 || hosts.len() > HOSTS_MAX {
        return fault(
            &(0..0),
            format!("2 to {HOSTS_MAX} hosts are allowed, or none, which is `near` and `far`"),
        );
    }
    Ok(hosts)
}

fn is_name(name: &str, bytes_max: usize) -> bool {
    let proper = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=bytes_max).contains(&name.len()) && name.chars().all(proper) && !name.starts_with('-')
}

impl RawLink {
    fn resolve(self, index: usize, hosts: &[Host], at: &Range<usize>) -> Result<Link, Fault> {
        let name = self.name.clone().unwrap_or_else(|| format!("link{index}"));
        if !is_name(&name, INTERFACE_NAME_BYTES_MAX) || name == "lo" {
            return fault(
                at,
                format!(
                    "link `{name}`: a name, which is its interface's, has 1 to {INTERFACE_NAME_BYTES_MAX} lower-case letters, digits and hyphens, and is not `lo`"
                ),
            );
        }
        let mtu_bytes = self.mtu.unwrap_or(1500);
        if !(MTU_MIN_BYTES..=MTU_MAX_BYTES).contains(&mtu_bytes) {
            return fault(
                at,
                format!("mtu {mtu_bytes}: {MTU_MIN_BYTES} to {MTU_MAX_BYTES} is allowed"),
            );
        }
        let between = self.between(hosts, at)?;
        let general = self.keys().with_rtt(self.rtt, at)?;
        let [forward, backward] =
            [&self.forward, &self.backward].map(|d| directed(d.as_ref(), general.clone()));
        let mut paths = Vec::new();
        for raw in self.path.iter().flatten() {
            paths.push(raw.get_ref().resolve(&forward, &backward, &raw.span())?);
        }
        if paths.len() > PATHS_MAX {
            return fault(at, format!("a link has 1 to {PATHS_MAX} paths"));
        }
        if paths.is_empty() {
            let [forward, backward] = [forward.resolve(at)?, backward.resolve(at)?];
            paths.push(Path { weight: 1, forward, backward });
        }
        Ok(Link { name, between, mtu_bytes, paths })
    }

    fn between(&self, hosts: &[Host], at: &Range<usize>) -> Result<[usize; 2], Fault> {
        let Some(names) = &self.between else {
            if hosts.len() == 2 {
                return Ok([0, 1]);
            }
            return fault(at, "`between` is needed where there are more than two hosts");
        };
        let mut between = [0; 2];
        for (index, name) in between.iter_mut().zip(names) {
            let Some(found) = hosts.iter().position(|host| host.name == *name) else {
                let known: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
                return fault(
                    at,
                    format!("`between` names `{name}`, the hosts are {}", known.join(", ")),
                );
            };
            *index = found;
        }
        if between[0] == between[1] {
            return fault(at, format!("a link joins two hosts, not `{}` with itself", names[0]));
        }
        Ok(between)
    }
}

fn directed(direction: Option<&Keys>, general: Keys) -> Keys {
    match direction {
        Some(direction) => direction.keys().or(general),
        None => general,
    }
}

impl RawPath {
    fn resolve(&self, forward: &Keys, backward: &Keys, at: &Range<usize>) -> Result<Path, Fault> {
        let weight = self.weight.unwrap_or(1);
        if !(1..=WEIGHT_MAX).contains(&weight) {
            return fault(at, format!("weight {weight}: 1 to {WEIGHT_MAX} is allowed"));
        }
        let own = self.keys().with_rtt(self.rtt, at)?;
        let wire = |direction: Option<&Keys>, general: &Keys| {
            directed(direction, own.clone().or(general.clone())).resolve(at)
        };
        Ok(Path {
            weight,
            forward: wire(self.forward.as_ref(), forward)?,
            backward: wire(self.backward.as_ref(), backward)?,
        })
    }
}

struct BoundReader;

impl Visitor<'_> for BoundReader {
    type Value = Bound;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a queue like \"1000packets\", \"256KiB\" or \"50ms\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bound, E> {
        let packets = text.strip_suffix("packets").and_then(|n| n.trim().parse::<u32>().ok());
        packets
            .map(Bound::Packets)
            .or_else(|| quantity::size(text).map(|Size(bytes)| Bound::Bytes(bytes)))
            .or_else(|| quantity::span(text).map(|Span(time)| Bound::Time(time)))
            .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(BoundReader)
    }
}

struct LossReader;

impl<'de> Visitor<'de> for LossReader {
    type Value = Loss;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a share like \"0.5%\", or a table with good_to_bad, bad_to_good, loss_in_bad and \
             loss_in_good",
        )
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Loss, E> {
        quantity::share(text)
            .map(Loss::Independent)
            .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Loss, M::Error> {
        let chain = RawChain::deserialize(MapAccessDeserializer::new(map))?;
        if chain.bad_to_good.get() == 0.0 {
            return Err(M::Error::custom("`bad_to_good` of 0% would never end a bad spell"));
        }
        Ok(Loss::GilbertElliott(GilbertElliott {
            good_to_bad: chain.good_to_bad,
            bad_to_good: chain.bad_to_good,
            loss_in_bad: chain.loss_in_bad,
            loss_in_good: chain.loss_in_good,
        }))
    }
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(LossReader)
    }
}

#[cfg(test)]
mod tests;
