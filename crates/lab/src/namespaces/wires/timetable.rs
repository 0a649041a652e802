//! Outages of links that the kernel carries: a thread that cuts them and joins them again.
//!
//! # Limits      a change takes some tens of microseconds, and a late thread makes it late

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_sys::eventfd::EventFd;
use hawser_sys::namespace;
use hawser_sys::precision::{self, Readable};
use hawser_sys::rtnetlink::{Interface, Routing};

use crate::wan::outage::Outage;

/// A direction of a link that has outages.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// What comes in here
    pub(super) from: Interface,
    /// leaves by this.
    pub(super) to: Interface,
    /// But not now.
    pub(super) outages: Vec<Outage>,
}

impl Way {
    fn is_cut(&self, now: Duration) -> bool {
        self.outages.iter().any(|outage| outage.covers(now))
    }

    fn next_change(&self, now: Duration) -> Option<Duration> {
        self.outages.iter().filter_map(|outage| outage.next_change(now)).min()
    }
}

/// The thread. Dropping this ends it.
#[derive(Debug)]
pub(super) struct TimeTable {
    end: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl TimeTable {
    /// Begins in the wires' namespace; `None` where nothing is ever cut. What is cut from the start
    /// is cut when this returns.
    pub(super) fn start(
        network: OwnedFd,
        ways: Vec<Way>,
        began: Instant,
    ) -> io::Result<Option<Self>> {
        if ways.is_empty() {
            return Ok(None);
        }
        let end = Arc::new(EventFd::new()?);
        let (ready, is_ready) = std::sync::mpsc::channel::<io::Result<()>>();
        let is_over = Arc::clone(&end);
        let run = move || {
            let begin = || -> io::Result<Keeper> {
                namespace::enter(&network)?;
                let _ = precision::come_before_ordinary();
                precision::drop_timer_slack()?;
                let mut keeper =
                    Keeper { routing: Routing::open()?, is_cut: vec![false; ways.len()] };
                keeper.keep(&ways, began.elapsed())?;
                Ok(keeper)
            };
            match begin() {
                Ok(mut keeper) => {
                    let _ = ready.send(Ok(()));
                    keeper.run(&ways, began, &is_over);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        };
        let thread = std::thread::Builder::new().name("outages".into()).spawn(run)?;
        is_ready.recv().map_err(io::Error::other)??;
        Ok(Some(Self { end, thread: Some(thread) }))
    }
}

impl Drop for TimeTable {
    fn drop(&mut self) {
        if self.end.signal().is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic has been printed by the thread itself.
            let _ = thread.join();
        }
    }
}

struct Keeper {
    routing: Routing,
    is_cut: Vec<bool>,
}

impl Keeper {
    fn run(&mut self, ways: &[Way], began: Instant, end: &EventFd) {
        let descriptors = [end.as_fd()];
        let mut readable = Readable::new(&descriptors);
        loop {
            let now = began.elapsed();
            let next = ways.iter().filter_map(|way| way.next_change(now)).min();
            let timeout = next.map(|at| at.saturating_sub(began.elapsed()));
            if readable.wait(timeout).is_err() || readable.is_readable(0) {
                return;
            }
            if self.keep(ways, began.elapsed()).is_err() {
                return; // its interfaces are gone
            }
        }
    }

    /// Brings it to its present state.
    fn keep(&mut self, ways: &[Way], now: Duration) -> io::Result<()> {
        for (way, is_cut) in ways.iter().zip(&mut self.is_cut) {
            let shall = way.is_cut(now);
            if shall && !*is_cut {
                self.routing.end_redirect(way.from)?;
            } else if !shall && *is_cut {
                self.routing.redirect(way.from, way.to)?;
            }
            *is_cut = shall;
        }
        Ok(())
    }
}
