//! The real engines between clients that know every answer and servers that are models.
//!
//! A failing run prints its seed. `HAWSER_SEED=n` runs that one seed of each test, `HAWSER_SEEDS=n`
//! so many in place of the default, from `HAWSER_FIRST_SEED` on: for long runs by hand.

use std::time::Duration;

use hawser_lab::model::catalog;
use hawser_lab::model::client::{Behaviour, ClientConfig, Comparison, Mix};
use hawser_lab::net::NetConfig;
use hawser_lab::rng::Rng;
use hawser_lab::world::{Failure, Faults, Report, Sabotage, Seat, World, WorldConfig};
use hawser_pooler::lending::PoolSettings;
use hawser_pooler::relay::PoolMode;

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
/// currval and lastval, which get the server's own error once the client has been elsewhere.
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
            look_every: rng.between(1, 8),
            reports: seed % 3 == 1,
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
                    user: catalog::LOGIN_ROLE,
                    comparison: Comparison::ExactWithNotifier,
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

    /// Users share the backends.
    fn shared(mut self) -> Self {
        for (number, (_, client)) in self.clients.iter_mut().enumerate() {
            client.user = [catalog::LOGIN_ROLE, catalog::SECOND_ROLE][number % 2];
        }
        self.config.shared = true;
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

/// What a test is about has happened: so often on average, if enough seeds run to say that. (One of its
/// own may have drawn clients that do little.)
fn enough(what: &str, of_each_seed: impl IntoIterator<Item = u64>, average: u64) {
    const SEEDS: usize = 12;
    let of_each_seed: Vec<u64> = of_each_seed.into_iter().collect();
    let (sum, seeds) = (of_each_seed.iter().sum::<u64>(), of_each_seed.len());
    assert!(seeds < SEEDS || sum > average * seeds as u64, "hardly any {what}: {of_each_seed:?}");
}

#[test]
fn clients_cannot_tell_what_moves_from_a_direct_connection() {
    let reports = all("clients_cannot_tell_what_moves", 12, |seed| Draw::new(seed, 12, &moving()));
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
    assert!(reports.iter().map(|report| report.sessions_settled).sum::<u64>() > 0);
}

/// Each client gets what a server would send to its own user, whichever user had the backend
/// before.
#[test]
fn users_who_share_backends_cannot_tell() {
    let reports = all("users_who_share_backends_cannot_tell", 18, |seed| {
        let mix = if seed % 2 == 0 { mix() } else { moving() };
        Draw::new(seed, 12, &mix).shared()
    });
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
    assert!(reports.iter().map(|report| report.sessions_settled).sum::<u64>() > 0);
}

fn sharing_what_dies(seed: u64) -> Draw {
    Draw::new(seed, 12, &mix()).shared().each(|client| client.tolerates_loss = true).world(
        |config| {
            config.faults.dies_every = 20 * MS;
            config.faults.opening_fails_percent = 10;
        },
    )
}

/// The same if servers die and hang: no client gets another user's answer.
#[test]
fn users_who_share_backends_that_die_hear_nothing_of_others() {
    all("users_who_share_backends_that_die", 8, sharing_what_dies);
}

/// What clients differ in goes to the server within their own pipelines, which fail, end transactions
/// and change it themselves.
#[test]
fn clients_with_names_of_their_own_keep_them() {
    let mix =
        Mix { custom_settings: 6, settings: 1, writes: 20, errors: 8, transactions: 6, ..moving() };
    let reports = all("clients_with_names_of_their_own", 24, |seed| {
        let mut draw = Draw::new(seed, 12, &mix);
        if seed % 3 == 0 {
            draw = draw.shared();
        }
        for (number, (_, client)) in draw.clients.iter_mut().enumerate() {
            client.behaviour.extended_percent = 90;
            client.write_bytes_max = 0;
            client.startup = vec![("application_name".to_owned(), format!("of-{number}"))];
        }
        draw
    });
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
}

/// Sessions under the same names, which fail in pipelines, go at any byte and come again at once:
/// what goes to a server before a pipeline, be it settings or the removal of others' statements,
/// leaves each its own.
fn apart(seed: u64) -> Draw {
    let mix = Mix {
        tokens: 10,
        writes: 10,
        custom_settings: 12,
        settings: 4,
        sql_prepared: 14,
        errors: 16,
        transactions: 5,
        temporary: 1,
        locks: 1,
        cursors: 1,
        sleeps: 0,
        copies: 1,
        ..mix()
    };
    Draw::new(seed, 12, &mix).each(|client| {
        client.behaviour.bursts = true;
        client.behaviour.extended_percent = 75;
        client.behaviour.await_percent = 80;
        client.behaviour.vanish_permille = 30;
        client.write_bytes_max = 0;
        client.startup.push(("application_name".to_owned(), format!("of-{}", client.slots.start)));
    })
}

#[test]
fn clients_under_the_same_names_are_apart() {
    let reports = all("clients_under_the_same_names", 24, apart);
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
}

/// What is drawn from a seed changes with the generator: these also have scripts of their own in
/// the engine's tests.
#[test]
fn seeds_that_once_failed() {
    for seed in [17, 90, 102, 213, 766] {
        let run = Draw::new(seed, 12, &moving()).run();
        run.unwrap_or_else(|failure| panic!("moving, seed {seed}, {failure}"));
    }
    for seed in [118, 135, 366, 394, 435] {
        let run = Draw::new(seed, 12, &mix()).run();
        run.unwrap_or_else(|failure| panic!("mix, seed {seed}, {failure}"));
    }
    let run = sharing_what_dies(135).run();
    run.unwrap_or_else(|failure| panic!("die, seed 135, {failure}"));
    // 86, 350, 406 and 185: a Parse that fails, of a name that stands for a RESET or DISCARD ALL.
    for seed in [9, 35, 48, 86, 350, 406, 436, 509, 637, 727] {
        let run = sharing_with_sessions(seed).run();
        run.unwrap_or_else(|failure| panic!("sessions, seed {seed}, {failure}"));
    }
    let run = sessions_alone(185).run();
    run.unwrap_or_else(|failure| panic!("sessions alone, seed 185, {failure}"));
    // 500132: a Parse between an Execute and a SET of its pipeline.
    for seed in [691, 500_132] {
        let run = with_deaths(seed).run();
        run.unwrap_or_else(|failure| panic!("deaths, seed {seed}, {failure}"));
    }
    // 809: a text that may be anything names a statement of DISCARD ALL.
    for seed in [158, 190, 809] {
        let run = with_openings_that_fail(seed).run();
        run.unwrap_or_else(|failure| panic!("openings, seed {seed}, {failure}"));
    }
}

#[test]
fn clients_with_state_of_every_kind_leak_nothing_and_lose_nothing() {
    let reports = all("clients_with_state_of_every_kind", 12, |seed| Draw::new(seed, 12, &mix()));
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
}

/// What texts do not show is known from the servers' reports, at rest: it moves and pins like what
/// they show.
#[test]
fn clients_of_servers_that_report_lose_nothing_that_functions_do() {
    let reports = all("clients_of_servers_that_report", 16, |seed| {
        let hidden = Mix { hidden: 25, ..if seed % 2 == 0 { mix() } else { moving() } };
        Draw::new(seed, 10, &hidden).world(|config| config.reports = true)
    });
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
}

/// Out of the engine and in again, as often as they are at rest, with all that their sessions are.
#[test]
fn clients_that_go_to_another_process_lose_nothing_on_the_way() {
    let reports = all("clients_that_go_to_another_process", 16, |seed| {
        let mix = if seed % 2 == 0 { mix() } else { moving() };
        Draw::new(seed, 10, &mix).world(|config| config.moving = 1 + seed as usize % 3)
    });
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
    enough("clients that went", reports.iter().map(|report| report.moved), 50);
}

/// The test of the test: without reports it is noticed.
#[test]
fn what_functions_do_is_lost_without_reports() {
    let hidden = Mix { hidden: 40, ..moving() };
    let lost = seeds(20).any(|seed| {
        Draw::new(seed, 10, &hidden).world(|config| config.reports = false).run().is_err()
    });
    assert!(lost);
}

/// LISTEN, UNLISTEN and NOTIFY, within savepoints, pipelines and what else there is.
fn listening() -> Mix {
    Mix { notifications: 80, ..moving() }
}

#[test]
fn clients_that_listen_hear_their_own_in_their_place() {
    let reports = all("clients_that_listen_hear", 8, |seed| Draw::new(seed, 10, &listening()));
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
}

/// After what may pin the server is asked, while notifications come.
#[test]
fn clients_that_listen_hear_beside_state_of_every_kind() {
    let mix = Mix { notifications: 80, ..mix() };
    let reports = all("clients_that_listen_hear_beside", 8, |seed| Draw::new(seed, 10, &mix));
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
}

fn with_listeners_that_die(seed: u64) -> Draw {
    Draw::new(seed, 10, &listening())
        .world(|config| config.faults = faults())
        .each(|client| client.tolerates_loss = true)
}

#[test]
fn a_listening_connection_that_dies_or_cannot_be_opened_changes_no_answer() {
    all("a_listening_connection_that_dies", 8, with_listeners_that_die);
}

/// 36: a copy that a client knows to have failed, with another one after it. 75: a client that hung
/// up while it was not read, in the middle of a pipeline. 51, 180: notifications after a COMMIT in
/// mid-pipeline. 174, 274: an UNLISTEN, rolled back or with a LISTEN after it, by a client whose
/// own backend listens, too. 48, 237: the listening connection is lost with a setting changed in
/// the same transaction. 544: a client that begins to listen by its own backend notifies a channel
/// that it had before. 300, 567: a client listens on some channels by its own backend, on others by
/// the listening connection. 745: a LISTEN after a DISCARD ALL of its own pipeline. 500109:
/// notifications amid a pipeline, and a client that waits for what would go out with them.
#[test]
fn seeds_of_listening_that_once_failed() {
    for seed in [36, 75, 174, 180, 274, 300, 544, 567, 745] {
        let run = Draw::new(seed, 10, &listening()).run();
        run.unwrap_or_else(|failure| panic!("hear, seed {seed}, {failure}"));
    }
    let run = Draw::new(500_109, 10, &Mix { notifications: 80, ..mix() }).run();
    run.unwrap_or_else(|failure| panic!("beside state of every kind, seed 500109, {failure}"));
    for seed in [48, 51, 237] {
        let run = with_listeners_that_die(seed).run();
        run.unwrap_or_else(|failure| panic!("die, seed {seed}, {failure}"));
    }
}

#[test]
fn a_lost_message_of_the_listening_connections_is_noticed() {
    is_noticed("one message in 100", Sabotage::LosesMessages(100), &listening());
}

#[test]
fn bytes_may_be_cut_anywhere() {
    all("bytes_may_be_cut_anywhere", 3, |seed| {
        let draw = Draw::new(seed, 5, &mix()).world(|config| {
            config.network.chunk_bytes_max = 1;
            config.network.capacity_bytes = (16, 64);
            config.step = Duration::from_micros(20);
        });
        draw.each(|client| client.write_bytes_max = 1)
    });
}

#[test]
fn slow_readers_cost_bounded_memory() {
    let reports = all("slow_readers_cost_bounded_memory", 3, |seed| {
        let heavy = Mix { series: 60, series_rows_max: 4000, ..moving() };
        Draw::new(seed, 6, &heavy)
            .world(|config| {
                config.network.capacity_bytes = (1 << 10, 1 << 14);
                config.step = Duration::from_micros(50);
            })
            .each(|client| {
                client.behaviour.units = 10;
                client.pause_percent = 30;
            })
    });
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
}

fn sessions_alone(seed: u64) -> Draw {
    let mut draw = Draw::new(seed, 8, &Mix::everything());
    for (seat, client) in &mut draw.clients {
        seat.mode = PoolMode::Session;
        client.comparison = Comparison::ExactWithNotifier;
    }
    draw
}

#[test]
fn sessions_of_their_own_have_everything_that_a_direct_connection_has() {
    all("sessions_of_their_own_have", 4, sessions_alone);
}

fn sharing_with_sessions(seed: u64) -> Draw {
    let mut draw = Draw::new(seed, 10, &mix());
    for (number, (seat, _)) in draw.clients.iter_mut().enumerate() {
        if number % 3 == 0 {
            seat.mode = PoolMode::Session;
        }
    }
    draw
}

#[test]
fn sessions_of_their_own_share_a_pool_with_others() {
    all("sessions_of_their_own_share", 4, sharing_with_sessions);
}

/// Connections that die, hang and cannot be opened, and whole servers that do.
fn faults() -> Faults {
    Faults {
        opening_fails_percent: 20,
        dies_every: 15 * MS,
        crashes_every: 200 * MS,
        hangs_every: 20 * MS,
    }
}

fn with_deaths(seed: u64) -> Draw {
    Draw::new(seed, 10, &mix())
        .world(|config| config.faults = faults())
        .each(|client| client.tolerates_loss = true)
}

#[test]
fn a_death_ends_the_session_that_it_hits_and_changes_no_answer() {
    let reports = all("a_death_ends_the_session", 8, with_deaths);
    let died: u64 = reports.iter().map(|report| report.backends.1).sum();
    let lost: u64 = reports.iter().map(|report| report.sessions_lost).sum();
    assert!(died > 0 && lost > 0, "nothing has died: {died} {lost}");
}

fn with_openings_that_fail(seed: u64) -> Draw {
    Draw::new(seed, 10, &moving()).world(|config| {
        config.faults =
            Faults { dies_every: Duration::ZERO, crashes_every: Duration::ZERO, ..faults() };
    })
}

#[test]
fn openings_that_fail_and_servers_that_hang_are_waited_for() {
    let reports = all("openings_that_fail", 4, with_openings_that_fail);
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let draw = Draw::new(4, 10, &mix()).world(|config| config.faults = faults());
        draw.each(|client| client.tolerates_loss = true).run().expect("as seed 4 above")
    };
    assert_eq!(run(), run());
}

/// Both lanes write the same bytes and leave the same books: were one byte other, or one decision, the
/// runs would part, for all chance hangs on what has happened.
#[test]
fn the_plain_lane_changes_nothing() {
    let mut plain = Vec::new();
    for seed in seeds(12) {
        let _repeat = Repeat("the_plain_lane_changes_nothing", seed);
        let draw = || {
            let mix = if seed % 2 == 0 { moving() } else { mix() };
            Draw::new(seed, 8, &mix).each(|client| {
                client.behaviour.extended_percent = 90;
                client.behaviour.drivers_percent = 70;
                client.behaviour.bursts = true;
                client.behaviour.units = 25;
                client.write_bytes_max = 0;
                client.tolerates_loss = true;
            })
        };
        let run = |plain_lane| {
            let world = draw().world(|config| {
                config.plain_lane = plain_lane;
                config.reports = false; // no pipeline is plain where servers report
                config.network = NetConfig::default();
                if seed % 3 == 0 {
                    config.faults.dies_every = 50 * MS;
                }
            });
            world.run().unwrap_or_else(|failure| panic!("seed {seed}, {failure}"))
        };
        let with = run(true);
        plain.push(with.plain_pipelines);
        assert_eq!(Report { plain_pipelines: 0, ..with }, run(false), "seed {seed}");
    }
    enough("pipelines by the plain lane", plain, 5);
}

/// Two thousand clients on ten backends and four loops.
fn crowd(seed: u64, units: u64) -> Draw {
    let mut draw = Draw::new(seed, 2000, &moving());
    let mut rng = Rng::new(seed);
    draw.config.loops = 4;
    draw.config.pools = vec![pool(10, &mut rng)];
    draw.config.pools[0].limits.reserve_size = 0;
    draw.config.network = NetConfig { capacity_bytes: (1 << 12, 1 << 16), ..NetConfig::default() };
    draw.config.step = Duration::from_micros(20);
    draw.config.look_every = 5_000;
    for (number, (seat, client)) in draw.clients.iter_mut().enumerate() {
        // One session each.
        seat.pool = 0;
        client.slots = number..number + 1;
        client.behaviour.units = units;
        client.behaviour.think_max = MS / 2;
    }
    draw
}

#[test]
fn two_thousand_clients_share_ten_backends_over_four_loops() {
    let units = number("HAWSER_UNITS").unwrap_or(if cfg!(debug_assertions) { 3 } else { 20 });
    let reports = all("two_thousand_clients", 1, |seed| crowd(seed, units));
    assert!(reports.iter().all(|report| report.sessions_lost == 0));
    assert!(reports.iter().all(|report| report.sessions_settled > 1500), "{reports:?}");
}

/// A mistake that is made on purpose must fail some run.
fn is_noticed(what: &str, sabotage: Sabotage, mix: &Mix) {
    let noticed = (0..20).any(|seed| {
        let draw = Draw::new(seed, 10, mix).world(|config| {
            config.sabotage = sabotage;
            config.limit = Duration::from_secs(20);
            config.loops = config.loops.max(2);
            config.cancel_max = 60 * MS;
        });
        draw.each(|client| client.behaviour.cancel_percent = 100).run().is_err()
    });
    assert!(noticed, "{what}: not noticed");
}

#[test]
fn a_lost_message_between_loops_is_noticed() {
    is_noticed("one message in 100", Sabotage::LosesMessages(100), &moving());
}

#[test]
fn a_lost_readiness_event_is_noticed() {
    is_noticed("one edge in 1000", Sabotage::LosesEdges(1000), &moving());
}

#[test]
fn a_cancel_that_strikes_after_it_was_called_done_is_noticed() {
    is_noticed("late cancels", Sabotage::CancelsLate, &Mix { sleeps: 60, ..moving() });
}

#[test]
fn a_shared_unnamed_statement_is_noticed() {
    is_noticed("an unnamed statement", Sabotage::ReplacesUnnamed, &moving());
}

#[test]
fn what_a_session_leaves_on_a_backend_is_noticed() {
    for leak in [
        "SET TimeZone TO 'Asia/Kolkata'",
        "SET my.user_id TO 'somebody else'",
        "SET search_path TO s2",
        "SET ROLE reader",
        "PREPARE ps1 AS SELECT 'somebody else'",
        "CREATE TEMP TABLE temp_1 (v int)",
        "DECLARE cur1 CURSOR WITH HOLD FOR SELECT 'somebody else'",
        "BEGIN",
    ] {
        is_noticed(leak, Sabotage::Soils(leak), &mix());
    }
}
