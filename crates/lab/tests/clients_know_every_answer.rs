//! Simulated clients directly on simulated servers: they receive what they must, however the bytes
//! are cut and delayed. This is the zero line of every later simulation: a mismatch here is the
//! laboratory's own.

use std::collections::BTreeSet;
use std::time::Duration;

use hawser_lab::model::client::{Behaviour, ClientConfig, Comparison, Mismatch, Mix, ModelClient};
use hawser_lab::model::endpoint::ServerEndpoint;
use hawser_lab::model::{Fault, ModelServer, PgError, ServerConfig, frontend};
use hawser_lab::net::{Net, NetConfig};
use hawser_lab::rng::Rng;

/// Virtual time after which a client that is not done hangs.
const LIMIT: Duration = Duration::from_secs(600);

struct World {
    net: Net,
    server: ModelServer,
    clients: Vec<ModelClient>,
    endpoints: Vec<ServerEndpoint>,
}

impl World {
    fn new(seed: u64, count: usize, each: impl Fn(&mut ClientConfig)) -> Self {
        let mut rng = Rng::new(seed);
        let network =
            NetConfig { capacity_bytes: (64, 8192), chunk_bytes_max: 600, ..NetConfig::default() };
        let slots = 4;
        let clients = (0..count)
            .map(|client| {
                let mut config = ClientConfig {
                    seed: rng.next_u64(),
                    slots: client * slots..(client + 1) * slots,
                    ..ClientConfig::default()
                };
                each(&mut config);
                ModelClient::new(config)
            })
            .collect();
        let server = ModelServer::new(ServerConfig {
            slots: 0..count * slots,
            seed: rng.next_u64(),
            ..ServerConfig::default()
        });
        Self { net: Net::new(rng.next_u64(), network), server, clients, endpoints: Vec::new() }
    }

    /// Runs until all clients are done; `disturb` may do something to the servers at each step.
    fn run(&mut self, mut disturb: impl FnMut(&mut Vec<ServerEndpoint>)) -> Result<(), Mismatch> {
        let mut idle = 0;
        while !self.clients.iter().all(ModelClient::is_done) {
            let now = self.net.now();
            let (net, server, endpoints) = (&self.net, &self.server, &mut self.endpoints);
            server.advance_to(now);
            for client in &mut self.clients {
                client.run(now, &mut || {
                    let (near, far) = net.pair();
                    endpoints.push(ServerEndpoint::accept(server, far));
                    near
                })?;
            }
            disturb(endpoints);
            endpoints.iter_mut().for_each(ServerEndpoint::run);
            endpoints.retain(|endpoint| !endpoint.is_over());
            let wakes = self.clients.iter().filter_map(|client| client.wakes_at(now));
            let sleeps = self.endpoints.iter().filter_map(|end| end.backend.wakes_at());
            let next = self.net.next_arrival().into_iter().chain(wakes).chain(sleeps).min();
            // Nothing is on its way and no client wants to wake: some steps may still be due, but
            // not many.
            idle = if next.is_none() { idle + 1 } else { 0 };
            let tick = now + Duration::from_micros(1);
            self.net.advance_to(next.map_or(tick, |next| next.max(tick)));
            if now > LIMIT || idle > 100 {
                let history = self.clients.iter().map(ModelClient::describe).collect();
                return Err(Mismatch { what: "no client can go on".to_owned(), history });
            }
        }
        Ok(())
    }
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("HAWSER_SEED") {
        Ok(seed) => vec![seed.parse().expect("HAWSER_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}

#[test]
fn a_direct_connection_answers_as_its_private_twin() {
    for seed in seeds(12) {
        let mut world = World::new(seed, 4, |config| {
            config.write_bytes_max = [0, 1, 13][seed as usize % 3];
            config.pause_percent = [0, 30][seed as usize % 2];
        });
        world.run(|_| {}).unwrap_or_else(|mismatch| panic!("HAWSER_SEED={seed}\n{mismatch}"));
        for (table, rows) in world.clients.iter().flat_map(ModelClient::settled) {
            let mut found = world.server.rows(table).expect("created with the cluster");
            found.sort_unstable();
            assert_eq!(&found, rows, "HAWSER_SEED={seed}: {table}");
        }
        assert!(world.clients.iter().all(|client| client.settled().len() == 4));
    }
}

#[test]
fn clients_that_vanish_leave_nothing() {
    for seed in seeds(12) {
        let mut world = World::new(seed, 4, |config| config.behaviour.vanish_permille = 60);
        world.run(|_| {}).unwrap_or_else(|mismatch| panic!("HAWSER_SEED={seed}\n{mismatch}"));
        for _ in 0..1000 {
            world.net.advance_to(world.net.now() + Duration::from_millis(1));
            world.server.advance_to(world.net.now());
            world.endpoints.iter_mut().for_each(ServerEndpoint::run);
        }
        assert_eq!(world.server.processes(), [], "HAWSER_SEED={seed}");
        assert_eq!(world.server.locks(), [], "HAWSER_SEED={seed}");
    }
}

#[test]
fn faults_end_sessions_but_never_change_an_answer() {
    let mut lost = 0;
    for seed in seeds(12) {
        let mut rng = Rng::new(seed ^ 0xfau64);
        let mut world = World::new(seed, 4, |config| config.tolerates_loss = true);
        let run = world.run(|endpoints| {
            if !endpoints.is_empty() && rng.below(400) == 0 {
                let endpoint = rng.index(endpoints.len());
                let fault = if rng.percent(50) { Fault::Reset } else { Fault::Terminate };
                endpoints[endpoint].backend.inject(fault);
            }
        });
        run.unwrap_or_else(|mismatch| panic!("HAWSER_SEED={seed}\n{mismatch}"));
        lost += world.clients.iter().map(ModelClient::sessions_lost).sum::<u64>();
    }
    assert!(lost > 0, "no fault has hit");
}

/// What each kind of mistake does to a run: the oracle must see all of them.
fn is_noticed(mut disturb: impl FnMut(&mut Rng, &mut ServerEndpoint)) {
    for seed in seeds(5) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(seed, 2, |config| {
            config.behaviour =
                Behaviour { mix: Mix { tokens: 40, ..Mix::everything() }, ..Behaviour::default() };
            config.comparison = Comparison::Exact;
        });
        let run = world.run(|endpoints| {
            if !endpoints.is_empty() && rng.below(60) == 0 {
                let endpoint = rng.index(endpoints.len());
                disturb(&mut rng, &mut endpoints[endpoint]);
            }
        });
        assert!(run.is_err(), "HAWSER_SEED={seed}: not noticed");
    }
}

#[test]
fn a_message_of_another_session_is_noticed() {
    is_noticed(|_, endpoint| {
        endpoint.backend.inject(Fault::Garbage(b"C\0\0\0\x0bCOMMIT\0".to_vec()));
    });
}

#[test]
fn an_error_that_is_not_ones_own_is_noticed() {
    is_noticed(|_, endpoint| {
        endpoint.backend.inject(Fault::ErrorAt { messages: 1, error: PgError::cancelled() });
    });
}

#[test]
fn a_lost_session_is_noticed() {
    is_noticed(|_, endpoint| endpoint.backend.inject(Fault::Reset));
}

#[test]
fn state_that_an_earlier_session_has_left_is_noticed() {
    for leak in [
        "SET TimeZone TO 'Asia/Tokyo'",
        "SET my.user_id TO 'somebody else'",
        "SET search_path TO s1, public",
        "SET standard_conforming_strings TO off",
        "SET ROLE reader",
        "PREPARE ps1 AS SELECT 'somebody else'",
        "CREATE TEMP TABLE temp_1 (v int)",
        "SELECT nextval('seq_0')",
        "DECLARE cur1 CURSOR WITH HOLD FOR SELECT 'somebody else'",
        "BEGIN",
        "BEGIN; SELECT 1/0",
    ] {
        let noticed = seeds(12).into_iter().any(|seed| {
            let mut world = World::new(seed, 4, |_| {});
            let mut soiled = BTreeSet::new();
            let run = world.run(|endpoints| {
                for backend in endpoints.iter_mut().map(|endpoint| &mut endpoint.backend) {
                    // Right after its login: the client has not asked for anything yet.
                    if backend.process().is_some_and(|process| soiled.insert(process)) {
                        backend.receive(&frontend::query(leak).encode());
                        backend.take_output();
                    }
                }
            });
            run.is_err()
        });
        assert!(noticed, "{leak}: not noticed");
    }
}
