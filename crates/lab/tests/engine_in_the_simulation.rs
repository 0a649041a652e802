//! The real engines between clients that know every answer and servers that are models.
//!
//! A failing run prints its seed. `HAWSER_SEED=n` runs that one seed of each test, `HAWSER_SEEDS=n`
//! so many in place of the default, from `HAWSER_FIRST_SEED` on: for long runs by hand.

use std::time::Duration;

use hawser_core::engine::PoolMode;
use hawser_core::pool::PoolSettings;
use hawser_lab::model::client::{Behaviour, ClientConfig, Comparison, Mix};
use hawser_lab::net::NetConfig;
use hawser_lab::rng::Rng;
use hawser_lab::world::{Failure, Faults, Report, Sabotage, Seat, World, WorldConfig};

const MS: Duration = Duration::from_millis(1);

/// Sessions that a client has one after the other, at most.
const SESSIONS: usize = 3;

/// Start values that clients ask for, each as the server would show it or in another form.
const START: [(&str, &[&str]); 8] = [
    ("application_name", &["one", "two", "it's"]),
    ("TimeZone", &["Asia/Tokyo", "europe/berlin", "UTC"]),
    ("DateStyle", &["ISO, DMY", "dmy", "German"]),
    ("IntervalStyle", &["sql_standard", "iso_8601"]),
    ("client_encoding", &["UTF8", "latin1"]),
    ("standard_conforming_strings", &["off", "on"]),
    ("search_path", &["s1, public", "s2, public", "s3, s1, public"]),
    ("statement_timeout", &["90s", "0"]),
];

fn startup(rng: &mut Rng) -> Vec<(String, String)> {
    let mut asked = Vec::new();
    for (name, values) in START {
        if rng.percent(25) {
            asked.push((name.to_owned(), (*rng.pick(values)).to_owned()));
        }
    }
    asked
}

/// What a pooler carries from server to server, and what pins. Left out is what it does not promise:
/// currval and lastval, which get the server's own error once the client has been elsewhere, and
/// SQL's EXECUTE and DEALLOCATE of the protocol's statements, which have other names there, and a
/// RESET with other statements behind it in one text or pipeline, which run before it is mended.
fn mix() -> Mix {
    Mix { sequence_reads_percent: 0, poolable: true, ..Mix::everything() }
}

/// Mostly what moves.
fn moving() -> Mix {
    Mix {
        custom_settings: 0,
        roles: 0,
        temporary: 0,
        locks: 0,
        notifications: 0,
        sql_prepared: 1,
        cursors: 1,
        discards: 1,
        ..mix()
    }
}

fn pool(size: u32, rng: &mut Rng) -> PoolSettings {
    let mut settings = PoolSettings {
        query_wait_timeout: Duration::ZERO,
        max_prepared_statements: *rng.pick(&[3, 10, 200]),
        server_lifetime: *rng.pick(&[Duration::ZERO, 50 * MS]),
        ..PoolSettings::default()
    };
    settings.limits.size = size;
    settings.limits.idle_transaction_reserve = *rng.pick(&[0, size]);
    settings.limits.reserve_size = *rng.pick(&[0, 1]);
    settings.limits.reserve_timeout = 5 * MS;
    settings
}

/// A world drawn from a seed, which a test may change.
struct Draw {
    config: WorldConfig,
    clients: Vec<(Seat, ClientConfig)>,
}

impl Draw {
    fn new(seed: u64, count: usize, mix: &Mix) -> Self {
        let mut rng = Rng::new(seed);
        let pools: Vec<PoolSettings> = (0..rng.between(1, 2))
            .map(|_| {
                let size = rng.between(1, 4);
                pool(u32::try_from(size).expect("small"), &mut rng)
            })
            .collect();
        let network = match rng.below(4) {
            0 => {
                NetConfig { capacity_bytes: (64, 600), chunk_bytes_max: 40, ..NetConfig::default() }
            }
            1 => NetConfig { chunk_bytes_max: 600, ..NetConfig::default() },
            _ => NetConfig { capacity_bytes: (1 << 12, 1 << 17), ..NetConfig::default() },
        };
        let config = WorldConfig {
            seed: rng.next_u64(),
            loops: u16::try_from(rng.between(1, 4)).expect("small"),
            network,
            message_max: *rng.pick(&[MS / 10, MS, 10 * MS]),
            pools,
            ..WorldConfig::default()
        };
        let clients = (0..count)
            .map(|number| {
                let pool = rng.index(config.pools.len());
                let behaviour = Behaviour {
                    mix: mix.clone(),
                    units: rng.between(5, 30),
                    extended_percent: *rng.pick(&[20, 55, 90]),
                    await_percent: *rng.pick(&[30, 60, 100]),
                    foresees_outcomes: false,
                    vanish_permille: *rng.pick(&[0, 0, 20]),
                    ..Behaviour::default()
                };
                let client = ClientConfig {
                    seed: rng.next_u64(),
                    slots: number * SESSIONS..(number + 1) * SESSIONS,
                    behaviour,
                    startup: startup(&mut rng),
                    comparison: Comparison::Exact,
                    write_bytes_max: *rng.pick(&[0, 0, 7, 100]),
                    pause_percent: *rng.pick(&[0, 0, 20]),
                    tolerates_loss: false,
                };
                (Seat { pool, mode: PoolMode::Transaction }, client)
            })
            .collect();
        Self { config, clients }
    }

    fn each(mut self, change: impl Fn(&mut ClientConfig)) -> Self {
        self.clients.iter_mut().for_each(|(_, client)| change(client));
        self
    }

    fn world(mut self, change: impl Fn(&mut WorldConfig)) -> Self {
        change(&mut self.config);
        self
    }

    fn run(self) -> Result<Report, Failure> {
        World::new(self.config, self.clients, 5 * MS).run()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    match number("HAWSER_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("HAWSER_FIRST_SEED").unwrap_or(0);
            first..first + number("HAWSER_SEEDS").unwrap_or(count)
        }
    }
}

/// Prints the seed of a run that panics.
struct Repeat(&'static str, u64);

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(test, seed) = self;
            eprintln!(
                "repeat: HAWSER_SEED={seed} cargo test -p hawser-lab --test engine_in_the_simulation {test}"
            );
        }
    }
}

/// Runs as many worlds as asked for; all must be as they must be.
fn all(test: &'static str, count: u64, draw: impl Fn(u64) -> Draw) -> Vec<Report> {
    seeds(count)
        .map(|seed| {
            let _repeat = Repeat(test, seed);
            draw(seed).run().unwrap_or_else(|failure| panic!("seed {seed}, {failure}"))
        })
        .collect()
}

#[test]
fn clients_cannot_tell_what_moves_from_a_direct_connection() {
    let reports = all("clients_cannot_tell_what_moves", 60, |seed| Draw::new(seed, 12, &moving()));
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
    assert!(reports.iter().map(|report| report.sessions_settled).sum::<u64>() > 0);
}

#[test]
fn clients_with_state_of_every_kind_leak_nothing_and_lose_nothing() {
    let reports = all("clients_with_state_of_every_kind", 60, |seed| Draw::new(seed, 12, &mix()));
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
}
