//! Nodes with connections, and what is between them and the store.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::{
    Answer, Bound, Failure, Lost, Need, Node, Options, Request, Scope, Standing, Step,
};
use super::store::Store;
use crate::seeded::Random;
use crate::time::Time;

const TICK: Duration = Duration::from_millis(10);
/// How long a node waits for an answer.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// The longest delay of a lossy network.
const LATE_MAX_MS: usize = 4_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// Nothing passes between node and store.
    Cut,
    /// The node is gone.
    Dead,
    /// The process stands still, and its connections stay.
    Frozen,
}

/// What is on its way.
enum Parcel {
    Request { node: usize, number: u64, request: Request },
    Answer { node: usize, number: u64, answer: Result<Answer, Failure> },
}

struct Host {
    node: Node,
    fault: Fault,
    /// `None`: the world's.
    limit: Option<u32>,
    /// `None`: it has no use for the limit.
    wants: Option<u32>,
    used: u32,
    bound: Bound,
    /// The request under way, and when it is given up.
    asked: Option<(u64, Time)>,
    again: Time,
}

pub(super) struct World {
    random: Random,
    now: Time,
    lost: Lost,
    store: Store,
    is_still: bool,
    hosts: Vec<Host>,
    parcels: Vec<(Time, Parcel)>,
    sent: u64,
    pub(super) limit: u32,
    pub(super) is_lossy: bool,
    /// Connections that are not needed stay, idle.
    pub(super) keeps_idle: bool,
    /// Some connections more are wanted now and then.
    pub(super) has_bursts: bool,
    /// The most connections that there were at a time.
    pub(super) most_used: u32,
    limit_most: u32,
    /// Something went wrong between a node and the store.
    was_struck: bool,
}

impl World {
    pub(super) fn new(seed: u64, nodes: u64, limit: u32, lost: Lost) -> Self {
        let mut world = Self {
            random: Random::of_seed(seed),
            now: Time::from_micros(1_000_000),
            lost,
            store: Store::default(),
            is_still: false,
            hosts: Vec::new(),
            parcels: Vec::new(),
            sent: 0,
            limit,
            is_lossy: false,
            keeps_idle: false,
            has_bursts: false,
            most_used: 0,
            limit_most: limit,
            was_struck: false,
        };
        world.hosts = (0..nodes).map(|node| world.host(seed * 10 + node)).collect();
        world
    }

    fn host(&self, seed: u64) -> Host {
        Host {
            node: Node::new(Options { lost: self.lost, seed }),
            fault: Fault::None,
            limit: None,
            wants: Some(0),
            used: 0,
            bound: Bound::default(),
            asked: None,
            again: Time::ZERO,
        }
    }

    pub(super) fn want(&mut self, node: usize, count: u32) {
        self.hosts[node].wants = Some(count);
    }

    /// One node has another limit than the others.
    pub(super) fn limit(&mut self, node: usize, limit: u32) {
        self.hosts[node].limit = Some(limit);
        self.limit_most = self.limit_most.max(limit);
    }

    /// One node needs more or less than before.
    pub(super) fn change_needs(&mut self) {
        let node = self.random.below(self.hosts.len());
        let count = u32::try_from(self.random.below(8)).unwrap();
        self.want(node, count);
    }

    pub(super) fn forget(&mut self, node: usize) {
        self.hosts[node].wants = None;
    }

    pub(super) fn used(&self) -> Vec<u32> {
        self.hosts.iter().map(|host| host.used).collect()
    }

    pub(super) fn keys(&self) -> usize {
        self.store.keys()
    }

    pub(super) fn strike(&mut self, node: usize, fault: Fault) {
        self.was_struck = true;
        if fault == Fault::Dead {
            let seed = self.random.below(1 << 30) as u64;
            let Host { limit, wants, .. } = self.hosts[node];
            self.hosts[node] = Host { fault, limit, wants, ..self.host(seed) };
        } else {
            self.hosts[node].fault = fault;
        }
    }

    pub(super) fn heal(&mut self) {
        self.is_still = false;
        self.hosts.iter_mut().for_each(|host| host.fault = Fault::None);
    }

    /// Something happens.
    pub(super) fn disturb(&mut self) {
        self.was_struck = true;
        let node = self.random.below(self.hosts.len());
        match self.random.below(12) {
            0..4 => self.change_needs(),
            4 => self.forget(node),
            5 => self.strike(node, Fault::Cut),
            6 => self.strike(node, Fault::Dead),
            7 => self.strike(node, Fault::Frozen),
            8 => self.is_still = true,
            9 => {
                self.is_still = false;
                self.store.restart(self.now);
            }
            _ => self.heal(),
        }
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.now < end {
            self.now = self.now.after(TICK);
            if !self.is_still {
                self.store.end_leases(self.now);
            }
            self.deliver();
            for node in 0..self.hosts.len() {
                if !matches!(self.hosts[node].fault, Fault::Dead | Fault::Frozen) {
                    self.step(node);
                }
            }
            self.check();
        }
    }

    fn check(&mut self) {
        let now = self.now;
        let sure = self.hosts.iter().filter(|host| host.node.standing(now) == Standing::Sure);
        let held: u32 = sure.map(|host| host.bound.held).sum();
        assert!(held <= self.limit_most, "{held} places of {} are held", self.limit_most);
        if self.lost == Lost::Close && self.hosts.iter().all(|host| host.fault != Fault::Frozen) {
            let most: u32 = self.hosts.iter().map(|host| host.bound.most).sum();
            assert!(most <= self.limit_most, "{most} connections are allowed");
        }
        if !self.was_struck {
            let without = self.hosts.iter().find(|host| host.used > host.bound.held);
            assert!(without.is_none(), "there are connections without a place");
        }
        self.most_used = self.most_used.max(self.hosts.iter().map(|host| host.used).sum());
    }

    fn delay(&mut self) -> Duration {
        let late = self.is_lossy && self.random.one_in(20);
        let most = if late { LATE_MAX_MS } else { 10 };
        Duration::from_millis(self.random.below(most) as u64)
    }

    fn send(&mut self, parcel: Parcel) {
        if self.is_lossy && self.random.one_in(25) {
            return;
        }
        let due = self.now.after(self.delay());
        self.parcels.push((due, parcel));
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.parcels).into_iter().partition(|(at, _)| *at <= now);
        self.parcels = later;
        for (_, parcel) in due {
            match parcel {
                Parcel::Request { node, .. } | Parcel::Answer { node, .. }
                    if self.hosts[node].fault == Fault::Cut => {}
                parcel @ Parcel::Request { .. } if self.is_still => {
                    self.parcels.push((now.after(TICK), parcel));
                }
                Parcel::Request { node, number, request } => {
                    let answer = self.store.serve(now, &request);
                    self.send(Parcel::Answer { node, number, answer });
                }
                Parcel::Answer { node, number, answer } => self.answer(node, number, answer),
            }
        }
    }

    fn answer(&mut self, node: usize, number: u64, answer: Result<Answer, Failure>) {
        let host = &mut self.hosts[node];
        if host.asked.is_none_or(|(asked, _)| asked != number) || host.fault == Fault::Frozen {
            return;
        }
        host.asked = None;
        host.again = self.now;
        match answer {
            Ok(answer) => host.node.answered(self.now, answer),
            Err(failure) => host.node.failed(self.now, failure),
        }
    }

    /// The need that is reported to the node.
    pub(super) fn need_of(&self, node: usize, need: Need) -> BTreeMap<Scope, Need> {
        let host = &self.hosts[node];
        let counts = host.wants.is_some() || host.used > 0;
        counts.then(|| (Scope::total(), need)).into_iter().collect()
    }

    fn step(&mut self, node: usize) {
        let now = self.now;
        let host = &mut self.hosts[node];
        let bounds = host.node.bounds(now);
        host.bound = bounds.get(&Scope::total()).copied().unwrap_or_default();
        let wants = host.wants.unwrap_or(0);
        // A connection ends with its transaction.
        let idle_stay = self.keeps_idle && host.wants.is_some();
        let most = if idle_stay { host.bound.most } else { wants.min(host.bound.most) };
        if host.used > most && self.random.one_in(4) {
            host.used -= 1;
        }
        if host.used < wants && host.used < host.bound.most {
            host.used += 1;
        }
        let waiting = wants.saturating_sub(host.used);
        if let Some((_, until)) = host.asked {
            if now < until {
                return;
            }
            host.asked = None;
            host.node.failed(now, Failure::Unknown);
            return; // its bounds come first
        }
        let hurries = waiting > 0 && host.bound.most <= host.used;
        if now < host.again && !hurries {
            return;
        }
        let used = host.used;
        let limit = host.limit.unwrap_or(self.limit);
        let need = Need { limit, used, idle: used.saturating_sub(wants), waiting };
        let need = self.need_of(node, need);
        let host = &mut self.hosts[node];
        let step = host.node.next(now, &need);
        // Openings that come after connections were counted, under the bound of before.
        let wants = if self.has_bursts && self.random.one_in(10) { wants + 3 } else { wants };
        host.used = wants.min(host.bound.most).max(host.used);
        match step {
            Step::Wait(until) => host.again = until,
            Step::Send(request) => {
                self.sent += 1;
                host.asked = Some((self.sent, now.after(PATIENCE)));
                let number = self.sent;
                self.send(Parcel::Request { node, number, request });
            }
        }
    }
}
