//! Ends connections whose peer is gone: MPTCP's, which has no TCP_USER_TIMEOUT, and those of servers.
//!
//! # Model
//! A connection is dead when bytes (or, over TCP, a probe of a full window) have been unacknowledged
//! for `timeout`, none of them was acknowledged meanwhile, and the peer has been silent for as
//! long, on all subflows. A peer that is there and does not read answers the probes of its full
//! window: it is slow, not dead. Dead is also one on which nothing is under way and bytes wait for
//! `timeout` that the peer's window has room for: a route or a queue of this host drops them. The
//! peer need not be silent then: it may repeat what this host cannot acknowledge.
//!
//! A server's connection on which nothing is unacknowledged is dead when the kernel's keepalive should
//! have ended it. The kernel does so itself where its probes leave this host; those that a full
//! queue of this host drops it does not count (tcp_keepalive_timer(), net/ipv4/tcp_timer.c).
//!
//! All connections are looked at eight times in each `timeout`, those on which something was unacknowledged then
//! more often ([`look_again`]). The time of the look that first saw it counts as the beginning, at
//! most one of those eight after the byte was sent, so that much is subtracted. So a peer that
//! falls silent is given up two looks late at most, a fifth of a second with 5 s: it was half of
//! `timeout`.
//!
//! # Why not TCP_USER_TIMEOUT for servers
//! It ends a connection also whose peer answers each probe and has not read for so long
//! (tcp_probe_timer(), net/ipv4/tcp_timer.c): a COPY into a table that is locked.
//!
//! # Invariants
//! * a descriptor is looked at only while it is open: a [`Watched`] leaves the list before it closes
//! * the list's lock is held over one question to the kernel at a time, which waits for nothing
//!
//! # Limits
//! MPTCP needs Linux 5.16, for MPTCP_INFO; before, none of it is ended here. TCP needs 4.1, for the
//! count of acknowledged bytes, and 5.4 for what does not leave this host.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, sockopt};

use super::socket::{info, subflows};
use crate::congestion::flows;
use crate::tcp_info::tcp_info;

/// The connections that are looked at.
#[derive(Debug, Default)]
pub struct Watch(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    entries: HashMap<u64, Entry>,
    next: u64,
    /// When all of them were looked at last.
    all_looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    fd: RawFd,
    seen: Seen,
    /// The longest silence that keepalive allows; `None`: it is off, or the peer is no server.
    quiet_max: Option<Duration>,
}

/// What was seen of a connection at the last looks: the first unacknowledged byte, and since when it has been.
#[derive(Clone, Copy, Debug, Default)]
struct Seen(Option<(u64, Instant)>);

impl Seen {
    /// Takes the next look. Whether the peer is dead.
    fn look(&mut self, stuck: Option<Stuck>, timeout: Duration, now: Instant) -> bool {
        let Some(Stuck { from, silent }) = stuck else {
            self.0 = None;
            return false;
        };
        let since = match self.0 {
            Some((before, since)) if before == from => since,
            _ => {
                self.0 = Some((from, now));
                return false;
            }
        };
        let stuck_for = now.saturating_duration_since(since) + between_looks_at_all(timeout);
        stuck_for >= timeout && silent >= timeout
    }
}

/// How many times in each `timeout` all connections are looked at.
const LOOKS_AT_ALL: u32 = 8;

fn between_looks_at_all(timeout: Duration) -> Duration {
    timeout / LOOKS_AT_ALL
}

/// So often [`Watch::end_dead`] is to be called.
pub fn look_again(timeout: Option<Duration>) -> Duration {
    const SLOWEST: Duration = Duration::from_secs(5);
    const FASTEST: Duration = Duration::from_millis(100);
    timeout.map_or(SLOWEST, |timeout| (timeout / 50).clamp(FASTEST, SLOWEST))
}

/// A descriptor that leaves the lists that it is on before it is closed.
#[derive(Debug)]
pub struct Watched {
    /// `None`: it is shared, and in `lists`.
    fd: Option<OwnedFd>,
    /// Most connections are on none: one word.
    lists: Option<Box<Lists>>,
    /// A short read does not say that there is nothing more: it may be past TCP (`crate::bypass`).
    comes_back: bool,
}

#[derive(Debug, Default)]
struct Lists {
    /// An MPTCP socket that is looked at.
    watch: Option<(Arc<Watch>, u64)>,
    /// A server's connection that is.
    server: Option<(Arc<Watch>, u64)>,
    /// A connection whose congestion control may change.
    flow: Option<flows::Entry>,
    /// The descriptor, if it has another user as well.
    shared: Option<Arc<OwnedFd>>,
}

impl Watched {
    /// A descriptor that `watch` looks at from now on.
    pub fn new(fd: OwnedFd, watch: Arc<Watch>) -> Self {
        let key = watch.enter(fd.as_fd(), None);
        let lists = Lists { watch: Some((watch, key)), ..Lists::default() };
        Self { fd: Some(fd), lists: Some(Box::new(lists)), comes_back: false }
    }

    /// The same, a connection to a server that `watch` looks at from now on.
    #[must_use]
    pub fn of_server(mut self, watch: Arc<Watch>) -> Self {
        let key = watch.enter(self.as_fd(), quiet_max(self.as_fd()));
        self.lists.get_or_insert_default().server = Some((watch, key));
        self
    }

    /// The descriptor for another user as well, without another one of this process. It is closed when the last
    /// has dropped it.
    ///
    /// # Panics
    /// Never: it is in one of two places.
    #[must_use]
    pub fn share(&mut self) -> Arc<OwnedFd> {
        let shared = &mut self.lists.get_or_insert_default().shared;
        if let Some(fd) = self.fd.take() {
            *shared = Some(Arc::new(fd));
        }
        shared.clone().expect("it is not in `fd`")
    }

    /// Whether it is an MPTCP socket that is looked at.
    pub fn is_watched(&self) -> bool {
        self.lists.as_ref().is_some_and(|lists| lists.watch.is_some())
    }

    /// Whether it has been ended because its server's machine was silent.
    pub fn is_lost(&self) -> bool {
        let server = self.lists.as_ref().and_then(|lists| lists.server.as_ref());
        server.is_some_and(|(watch, key)| !watch.lock().entries.contains_key(key))
    }

    /// The same, which may be past TCP.
    #[must_use]
    pub fn coming_back(mut self) -> Self {
        self.comes_back = true;
        self
    }

    /// Whether a short read does not say that there is nothing more.
    #[inline]
    pub fn comes_back(&self) -> bool {
        self.comes_back
    }

    /// The same, whose congestion control may change from now on.
    #[must_use]
    pub fn tuned(mut self, flows: &Arc<flows::Flows>) -> Self {
        let entry = flows.enter(self.as_fd());
        self.lists.get_or_insert_default().flow = Some(entry);
        self
    }
}

impl From<OwnedFd> for Watched {
    /// A descriptor that is on no list.
    fn from(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), lists: None, comes_back: false }
    }
}

impl AsFd for Watched {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        let shared = || self.lists.as_ref()?.shared.as_deref();
        self.fd.as_ref().or_else(shared).expect("it is in one of the two").as_fd()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Before the field `fd` is dropped, which closes it.
        let Some(lists) = self.lists.take() else { return };
        for (watch, key) in lists.watch.iter().chain(&lists.server) {
            watch.lock().entries.remove(key);
        }
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, fd: BorrowedFd<'_>, quiet_max: Option<Duration>) -> u64 {
        let mut list = self.lock();
        let key = list.next;
        list.next += 1;
        list.entries.insert(key, Entry { fd: fd.as_raw_fd(), seen: Seen::default(), quiet_max });
        key
    }

    /// How many connections are looked at.
    pub fn count(&self) -> usize {
        self.lock().entries.len()
    }

    /// Ends what has been dead for `timeout`: reads give the end of the stream, writes EPIPE.
    /// Returns how many. To be called as often as [`look_again`] says.
    pub fn end_dead(&self, timeout: Duration, now: Instant) -> usize {
        let keys: Vec<u64> = {
            let mut list = self.lock();
            let all = list.all_looked_at.is_none_or(|at| {
                now.saturating_duration_since(at) >= between_looks_at_all(timeout)
            });
            if all {
                list.all_looked_at = Some(now);
            }
            let due = |entry: &Entry| all || entry.seen.0.is_some();
            list.entries.iter().filter(|(_, entry)| due(entry)).map(|(key, _)| *key).collect()
        };
        keys.into_iter().filter(|key| self.end_if_dead(*key, timeout, now)).count()
    }

    fn end_if_dead(&self, key: u64, timeout: Duration, now: Instant) -> bool {
        let mut list = self.lock();
        let Some(entry) = list.entries.get_mut(&key) else { return false };
        // SAFETY: the entry is in the list, so its `Watched` has not been dropped, and cannot be
        // while the lock is held: the descriptor is open, and the same.
        let fd = unsafe { BorrowedFd::borrow_raw(entry.fd) };
        let standing = standing(fd);
        let stuck = if let Standing::Stuck(stuck) = standing { Some(stuck) } else { None };
        let is_dead = entry.seen.look(stuck, timeout, now)
            || matches!((standing, entry.quiet_max), (Standing::Quiet(silent), Some(quiet_max))
                if silent >= timeout.max(quiet_max));
        if !is_dead {
            return false;
        }
        list.entries.remove(&key);
        // An error means that it has ended already.
        let _ = rustix::net::shutdown(fd, Shutdown::Both);
        true
    }
}

/// A connection on which something is unacknowledged.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    /// The first unacknowledged byte.
    from: u64,
    /// How long the peer has been silent.
    silent: Duration,
}

/// The longest silence of the peer that the kernel's keepalive allows, where that is on.
fn quiet_max(fd: BorrowedFd<'_>) -> Option<Duration> {
    let is_on = sockopt::socket_keepalive(fd).is_ok_and(|is_on| is_on);
    let idle = sockopt::tcp_keepidle(fd).ok().filter(|_| is_on)?;
    let (interval, count) = (sockopt::tcp_keepintvl(fd).ok()?, sockopt::tcp_keepcnt(fd).ok()?);
    Some(idle + interval * count)
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug)]
enum Standing {
    /// The peer has not acknowledged something.
    Stuck(Stuck),
    /// Nothing is unacknowledged, and the peer has been silent for so long.
    Quiet(Duration),
    /// The peer's window is full, or it is not known.
    Unclear,
}

/// How a connection stands, of MPTCP or else of TCP.
fn standing(fd: BorrowedFd<'_>) -> Standing {
    let millis = |millis: u32| Duration::from_millis(millis.into());
    if let Ok(info) = info(fd) {
        let silent = || match subflows(fd) {
            Ok(subflows) => subflows.iter().map(|subflow| subflow.info.last_ack_ms).min(),
            Err(_) => Some(0), // not known: better too late than wrongly
        };
        if info.unacked == 0 {
            return Standing::Unclear; // of subflows the kernel's keepalive alone judges
        }
        let silent = silent().map_or(Duration::MAX, millis);
        return Standing::Stuck(Stuck { from: info.unacked_from, silent });
    }
    let Ok(info) = tcp_info(fd) else { return Standing::Unclear };
    let silent = millis(info.last_heard_ms);
    let is_unsent = info.unsent.is_some_and(|unsent| unsent > 0);
    let has_room = info.peer_window.is_some_and(|room| room >= info.segment_bytes);
    let is_under_way = info.unacked_segments > 0;
    match info.bytes_acked {
        Some(from) if is_unsent && has_room && !is_under_way => {
            Standing::Stuck(Stuck { from, silent: Duration::MAX })
        }
        Some(from) if is_under_way || info.probes > 0 => Standing::Stuck(Stuck { from, silent }),
        Some(_) if !is_unsent => Standing::Quiet(silent),
        _ => Standing::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::mptcp::socket;

    fn connected(listener: &TcpListener) -> OwnedFd {
        let client = socket::open(false).unwrap();
        rustix::io::ioctl_fionbio(&client, false).unwrap();
        rustix::net::connect(&client, &listener.local_addr().unwrap()).unwrap();
        rustix::io::ioctl_fionbio(&client, true).unwrap();
        client
    }

    #[test]
    fn a_closed_descriptor_is_looked_at_no_more() {
        let watch = Arc::new(Watch::default());
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let watched = Watched::new(near.into(), watch.clone());
        assert_eq!(watch.count(), 1);
        assert_eq!(watch.end_dead(Duration::ZERO, Instant::now()), 0, "it is no MPTCP socket");
        drop(watched);
        assert_eq!(watch.count(), 0);
    }

    /// It took up to half of the timeout longer: looks were a quarter of it apart, and the first one counted as the
    /// beginning.
    #[test]
    fn a_peer_that_falls_silent_is_given_up_in_time_whenever_that_is() {
        let millis = Duration::from_millis;
        let timeout = Duration::from_secs(5);
        let (step, all) = (look_again(Some(timeout)), between_looks_at_all(timeout));
        let began = Instant::now();
        for idle in [false, true] {
            for phase in (0..2_000).step_by(7) {
                // One that was idle has been silent for long when something is sent.
                let sent = began + millis(phase);
                let heard = if idle { began } else { sent };
                let (mut seen, mut looked, mut now) = (Seen::default(), None::<Instant>, began);
                let ended = loop {
                    now += step;
                    if looked.is_none_or(|at| now.duration_since(at) >= all) || seen.0.is_some() {
                        looked = looked.filter(|at| now.duration_since(*at) < all).or(Some(now));
                        let silent = now.duration_since(heard);
                        let stuck = (now >= sent).then_some(Stuck { from: 1, silent });
                        if seen.look(stuck, timeout, now) {
                            break now.duration_since(sent);
                        }
                    }
                };
                assert!(ended <= timeout + 2 * step, "{ended:?} after {phase} ms, idle: {idle}");
                assert!(ended >= timeout - all, "{ended:?} after {phase} ms, idle: {idle}");
            }
        }
    }

    /// A peer that answers is left alone whether it reads or not, and with MPTCP or without.
    #[test]
    fn a_peer_that_is_there_is_left_alone() {
        if let Err(reason) = socket::probe() {
            return eprintln!("skipped: {reason}");
        }
        let both = socket::listen("127.0.0.1:0".parse().unwrap(), 4).unwrap();
        both.set_nonblocking(false).unwrap();
        let plain = TcpListener::bind("127.0.0.1:0").unwrap();
        for listener in [&both, &plain] {
            let watch = Arc::new(Watch::default());
            let watched = Watched::new(connected(listener), watch.clone());
            let (_reads_nothing, _) = listener.accept().unwrap();
            crate::stream::send(&watched, b"a little").unwrap();
            let mut now = Instant::now();
            std::thread::sleep(Duration::from_millis(50));
            for _ in 0..3 {
                assert_eq!(watch.end_dead(Duration::from_secs(1), now), 0);
                now += Duration::from_secs(60);
            }
            // Until its window is full; its probes are answered, the first after 200 ms.
            while crate::stream::send(&watched, &[0; 65536]).is_ok() {}
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(watch.end_dead(Duration::from_secs(5), now), 0);
            now += Duration::from_secs(60);
            assert_eq!(watch.end_dead(Duration::from_secs(5), now), 0);
        }
    }
}
