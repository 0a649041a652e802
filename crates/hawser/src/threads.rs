//! The threads of the control side: two runtimes, of two priorities.
//!
//! # Model
//! *Control* runs at the event loops' priority: it logs in clients that have to wait for something
//! (others log in on the loops that accept them), opens server connections, sends cancel requests,
//! serves HTTP and the admin console, and maintains the pools. *Login* has a thread for each core,
//! below that priority: for the long parts of a login, TLS handshakes and password hashes.
//!
//! # Why two
//! A handshake takes 1 to 4 ms of CPU and does not yield. In one runtime a pool that needs a server
//! connection, a cancel request and `/healthz` would wait for a storm of logins; and the higher
//! priority alone would put the storm before queries.
//!
//! # Why not all of a login on the lower threads
//! A plain login takes less CPU than the wake-ups of a move to another thread and back: measured a
//! sixth more CPU for each.
//!
//! # Invariant
//! A connection belongs to the runtime that serves it: one that moves is first removed from its
//! runtime, see [`crate::socket::stream::Stream::leave_runtime`].

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// How much lower than that of the event loops the priority of login threads is (nice).
const LOGIN_NICE: i32 = 10;
/// Threads of each runtime that may block: name lookups, files, and hashes that take long.
const BLOCKING_THREADS_MAX: usize = 16;

/// The threads for work of the control side that must not run on the caller's thread.
#[derive(Clone, Debug)]
pub struct Threads {
    /// For long work.
    pub login: Handle,
}

/// A task that ends when its waiter gives up.
struct Errand<T>(JoinHandle<T>);

impl<T> Drop for Errand<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Threads {
    /// All in the runtime of the caller: for tests.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn one() -> Self {
        Self { login: Handle::current() }
    }

    /// Runs long work. `None` if it panicked, or the process ends.
    pub async fn heavy<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let mut errand = Errand(self.login.spawn(work));
        (&mut errand.0).await.ok()
    }
}

/// The two runtimes.
#[derive(Debug)]
pub struct Runtimes {
    /// For all other work outside of the loops: at their priority.
    pub control: Runtime,
    /// See [`Threads::login`].
    pub login: Runtime,
}

impl Runtimes {
    /// Starts them.
    ///
    /// # Errors
    /// There is no thread or descriptor left.
    pub fn start(login_threads: usize) -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let control = builder("control", (cores / 2).max(1)).build()?;
        let login = builder("login", login_threads)
            .on_thread_start(|| {
                if let Err(error) = hawser_sys::process::lower_thread_priority(LOGIN_NICE) {
                    tracing::warn!(%error, "logins have the same priority as queries");
                }
            })
            .build()?;
        Ok(Self { control, login })
    }

    /// Handles to the threads.
    pub fn threads(&self) -> Threads {
        Threads { login: self.login.handle().clone() }
    }

    /// Ends them without waiting for hashes, or for servers.
    pub fn end(self) {
        self.login.shutdown_background();
        self.control.shutdown_background();
    }
}

fn builder(name: &str, workers: usize) -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name(name)
        .enable_all();
    builder
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn control_work_goes_on_while_every_login_thread_is_busy() {
        let runtimes = Runtimes::start(2).unwrap();
        let threads = runtimes.threads();
        let (done, held) = mpsc::channel::<()>();
        let held = std::sync::Arc::new(std::sync::Mutex::new(held));
        for _ in 0..4 {
            let held = held.clone();
            // As a handshake: it does not yield.
            threads.login.spawn(async move { held.lock().unwrap().recv() });
        }
        let (said, heard) = mpsc::channel();
        runtimes.control.spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await; // timers, too
            let name = std::thread::current().name().map(str::to_owned);
            said.send(name).unwrap();
        });
        assert_eq!(
            heard.recv_timeout(Duration::from_secs(20)).unwrap().as_deref(),
            Some("control")
        );
        drop(done);
        runtimes.end();
    }
}
