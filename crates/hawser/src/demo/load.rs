//! A live load: clients that run prepared statements as fast as they are answered.
//!
//! # Model       nine of ten transactions read a row, the tenth changes one; each is one round trip of
//!               Bind, Execute and Sync of a statement that its client has prepared once
//! # Limits      trusts, and knows just enough of the protocol for this; it shares the processor with
//!               what it measures: for figures there is `make bench`

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_pooler::wire::build;
use hawser_pooler::wire::startup::{ProtocolVersion, write_startup};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::dial::talk::{Talk, TalkError};
use crate::lock::locked;
use crate::process::random_u64;
use crate::socket::stream::Stream;

/// Rows of the table.
const ROWS: u64 = 10_000;
/// One in so many transactions changes a row.
const UPDATE_EVERY: u64 = 10;
/// Pause after an error, before a client connects again.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// Classes for each doubling of time.
const FINE: usize = 8;
/// Doublings, from a microsecond on.
const COARSE: usize = 32;

const PREPARE: &str =
    "CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, balance int NOT NULL)";
const FILL: &str = "INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 10000) i \
                    ON CONFLICT DO NOTHING";
const SELECT: &[u8] = b"SELECT balance FROM accounts WHERE id = $1\0\0\0";
const UPDATE: &[u8] = b"UPDATE accounts SET balance = balance + 1 WHERE id = $1\0\0\0";

/// How many transactions took how long.
#[derive(Clone, Debug)]
pub struct Figures {
    classes: Vec<u64>,
}

impl Default for Figures {
    fn default() -> Self {
        Self { classes: vec![0; FINE * COARSE] }
    }
}

/// The class of a time: eight for each doubling, so that a quantile is true within 9 %.
fn class_of(micros: u64) -> usize {
    let micros = micros.max(1);
    let doubling = micros.ilog2() as usize;
    let fine = ((u128::from(micros) * FINE as u128) >> doubling) as usize - FINE;
    (doubling * FINE + fine).min(FINE * COARSE - 1)
}

/// The upper end of a class.
fn end_of(class: usize) -> u64 {
    let (doubling, fine) = (class / FINE, class % FINE);
    ((1u64 << doubling) * (FINE + fine + 1) as u64).div_ceil(FINE as u64)
}

impl Figures {
    /// Transactions in all.
    pub fn transactions(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The time within which this part of the transactions was done; 0 if there was none.
    pub fn quantile_us(&self, part: f64) -> u64 {
        let wanted = (self.transactions() as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return end_of(class);
            }
        }
        0
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.classes.iter_mut().zip(&other.classes) {
            *sum += count;
        }
    }
}

struct Shared {
    classes: Vec<AtomicU64>,
    connected: AtomicUsize,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
    ending: AtomicBool,
}

/// Clients at work; they end when this is dropped.
pub struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Makes the table, and sets this many clients to work.
    ///
    /// # Errors
    /// The table could not be made.
    pub async fn start(address: SocketAddr, clients: u32) -> Result<Self, TalkError> {
        let mut first = Client::connect(address, "demo").await?;
        first.talk.query(PREPARE).await?;
        first.talk.query(FILL).await?;
        let shared = Arc::new(Shared {
            classes: (0..FINE * COARSE).map(|_| AtomicU64::new(0)).collect(),
            connected: AtomicUsize::new(0),
            errors: AtomicU64::new(0),
            first_error: Mutex::new(None),
            ending: AtomicBool::new(false),
        });
        let clients =
            (0..clients).map(|_| tokio::spawn(work_on(address, shared.clone()))).collect();
        Ok(Self { shared, clients })
    }

    /// What was done since the last call.
    pub fn take_figures(&self) -> Figures {
        let take = |class: &AtomicU64| class.swap(0, Ordering::Relaxed);
        Figures { classes: self.shared.classes.iter().map(take).collect() }
    }

    /// Clients that are connected.
    pub fn connected(&self) -> usize {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// Errors that clients have had.
    pub fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }

    /// The first of them.
    pub fn first_error(&self) -> Option<String> {
        locked(&self.shared.first_error).clone()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        self.clients.iter().for_each(JoinHandle::abort);
    }
}

/// One client's life, again after each error.
async fn work_on(address: SocketAddr, shared: Arc<Shared>) {
    while !shared.ending.load(Ordering::Relaxed) {
        let mut counted = false;
        let result = async {
            let mut client = Client::connect(address, "demo").await?;
            client.prepare().await?;
            shared.connected.fetch_add(1, Ordering::Relaxed);
            counted = true;
            client.work(&shared).await
        };
        let result: Result<(), TalkError> = result.await;
        if counted {
            shared.connected.fetch_sub(1, Ordering::Relaxed);
        }
        if let Err(error) = result {
            shared.errors.fetch_add(1, Ordering::Relaxed);
            let mut first = locked(&shared.first_error);
            first.get_or_insert_with(|| error.to_string());
        }
        tokio::time::sleep(ERROR_PAUSE).await;
    }
}

/// Runs a command on the console.
///
/// # Errors
/// It is refused, or nothing answers.
pub async fn command(address: SocketAddr, command: &str) -> Result<(), TalkError> {
    Client::connect(address, "hawser").await?.talk.query(command).await.map(drop)
}

/// Clients that run a statement again and again, whatever comes of it.
pub struct Repeating {
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Repeating {
    /// Sets this many to work.
    pub fn start(address: SocketAddr, clients: u32, statement: &'static str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let client = |_| {
            let over = over.clone();
            tokio::spawn(async move {
                let Ok(mut client) = Client::connect(address, "demo").await else { return };
                while !over.load(Ordering::Relaxed) {
                    if client.talk.query(statement).await.is_err() {
                        // Refused, by the rule that is to come.
                        tokio::time::sleep(ERROR_PAUSE).await;
                    }
                }
            })
        };
        let clients = (0..clients).map(client).collect();
        Self { over, clients }
    }

    /// Lets each finish what it runs.
    pub async fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        for client in self.clients {
            // One that has panicked is at its end, too.
            let _ = client.await;
        }
    }
}

struct Client {
    talk: Talk,
    /// State of a generator of numbers: any will do here (xorshift64, Marsaglia 2003).
    random: u64,
}

impl Client {
    async fn connect(address: SocketAddr, database: &str) -> Result<Self, TalkError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut talk = Talk::new(Stream::Plain(stream.into()));
        let names = [("user", "demo"), ("database", database), ("application_name", "hawser demo")];
        let parameters = names.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        write_startup(talk.out(), ProtocolVersion::V3_0, parameters);
        let mut client = Self { talk, random: random_u64() | 1 };
        client.round_trip().await?;
        Ok(client)
    }

    async fn prepare(&mut self) -> Result<(), TalkError> {
        let out = self.talk.out();
        build::parse(out, b"select", SELECT);
        build::parse(out, b"update", UPDATE);
        self.synchronise().await
    }

    async fn synchronise(&mut self) -> Result<(), TalkError> {
        self.talk.out().extend_from_slice(&build::SYNC);
        self.round_trip().await
    }

    /// Sends what is collected, and reads up to ReadyForQuery.
    async fn round_trip(&mut self) -> Result<(), TalkError> {
        self.talk.send().await?;
        self.talk.end(&[]).await?.into_answer().map(drop)
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    async fn work(&mut self, shared: &Shared) -> Result<(), TalkError> {
        while !shared.ending.load(Ordering::Relaxed) {
            let random = self.next_random();
            let statement: &[u8] =
                if random.is_multiple_of(UPDATE_EVERY) { b"update" } else { b"select" };
            let id = (random >> 8) % ROWS + 1;
            let text = id.to_string();
            build::bind_texts(self.talk.out(), statement, std::iter::once(Some(text.as_bytes())));
            build::execute(self.talk.out(), b"");
            let began = Instant::now();
            self.synchronise().await?;
            let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            shared.classes[class_of(micros)].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_within_its_class_and_no_class_is_wide() {
        for micros in (1..5_000).chain([1 << 20, 123_456_789]) {
            let class = class_of(micros);
            assert!(micros <= end_of(class), "{micros} us in class {class}");
            assert!(class == 0 || micros >= end_of(class - 1) || class < 3 * FINE, "{micros} us");
            assert!(end_of(class) as f64 <= micros as f64 * 1.13 + 1.0, "{micros} us");
        }
        assert_eq!(class_of(u64::MAX), FINE * COARSE - 1);
        assert_eq!(class_of(0), 0);
    }

    #[test]
    fn quantiles_are_those_of_what_was_counted() {
        let mut figures = Figures::default();
        assert_eq!(figures.quantile_us(0.5), 0);
        for _ in 0..99 {
            figures.classes[class_of(100)] += 1;
        }
        figures.classes[class_of(10_000)] += 1;
        assert_eq!(figures.transactions(), 100);
        assert!((100..=113).contains(&figures.quantile_us(0.5)));
        assert!((100..=113).contains(&figures.quantile_us(0.99)));
        assert!((10_000..=11_300).contains(&figures.quantile_us(1.0)));
        let mut sum = Figures::default();
        sum.add(&figures);
        sum.add(&figures);
        assert_eq!(sum.transactions(), 200);
    }
}
