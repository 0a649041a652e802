//! All subsystems of a process that serves, put together; and the configuration, which a reload changes
//! in each.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};

use crate::auth::access::Access;
use crate::auth::scram::MockNonce;
use crate::cancel::servers::ToServers;
use crate::cancel::{CancelGate, Cancels};
use crate::config::{Config, ConfigError};
use crate::dial::Dialler;
use crate::gates::Gates;
use crate::inside::Inside;
use crate::limits::Limits;
use crate::lock::locked;
use crate::login::Entrance;
use crate::login::admin::Console;
use crate::login::prove::Prover;
use crate::loops::{Control, Loops, Order};
use crate::phase::Phase;
use crate::pools::census::Censuses;
use crate::pools::enquiry::Enquiries;
use crate::pools::lines::Lines;
use crate::pools::membership::Memberships;
use crate::pools::open::Openings;
use crate::pools::place::{Places, Queue};
use crate::pools::vacancy::Vacancies;
use crate::pools::{Connectings, Pools};
use crate::process::random_bytes;
use crate::resolve::clients::ClientNames;
use crate::shared::{LastReload, Shared};
use crate::takeover::{Succession, give_back};
use crate::tally::{ErrorCounts, Tally};
use crate::threads::Threads;
use crate::tls::accept::{Accepting, Acceptor};

/// All subsystems of a process that serves.
pub struct Service {
    /// What they share.
    pub shared: Arc<Shared>,
    /// TLS towards clients.
    pub acceptor: Arc<Acceptor>,
    /// Secret of this process from which salts of unknown users are made.
    pub mock: MockNonce,
    /// All pools.
    pub pools: Arc<Pools>,
    /// Server connections of the control side itself.
    pub lines: Arc<Lines>,
    /// Which pool gets a server connection under the limits.
    pub places: Arc<Places>,
    /// What servers are asked.
    pub enquiries: Arc<Enquiries>,
    /// The roles of users.
    pub memberships: Arc<Memberships>,
    /// What functions do to sessions.
    pub censuses: Arc<Censuses>,
    /// Databases that must have no connections for now.
    pub vacancies: Arc<Vacancies>,
    /// Opens pools' server connections.
    pub openings: Arc<Openings>,
    /// Clients that their servers serve themselves.
    pub inside: Arc<Inside>,
    /// Opens server connections.
    pub dialler: Arc<Dialler>,
    /// Names of clients' addresses.
    pub client_names: Arc<ClientNames>,
    /// Cancel requests to servers.
    pub to_servers: Arc<ToServers>,
    /// Cancel requests of clients.
    pub cancels: Arc<Cancels>,
    /// The processes before and after this one.
    pub succession: Arc<Succession>,
    /// The result of the last reload.
    pub last_reload: ArcSwap<LastReload>,
    /// One reload at a time.
    reloading: Mutex<()>,
}

/// Why a configuration is not put in force.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct NotInForce(pub Vec<String>);

impl Service {
    /// With this configuration in force: reads all files that it names.
    ///
    /// # Errors
    /// All errors in those files.
    pub fn new(
        config: Config,
        loops: Loops,
        control: Control,
        errors: Arc<ErrorCounts>,
        threads: Threads,
        succession: Arc<Succession>,
    ) -> Result<Arc<Self>, NotInForce> {
        let (access, accepting, routes) = load_files(&config)?;
        let dialler = Arc::new(Dialler::default());
        dialler.links.put_in_force(&config.reload.links).map_err(NotInForce)?;
        let pools = Arc::new(Pools::new(loops.count()));
        pools.statement_memory.set_max(config.reload.pool.prepared_statements_memory.to_usize());
        pools.set_connectings(routes);
        let limits: Arc<Limits> = Arc::default();
        if !config.start.etcd.etcd.is_empty() {
            limits.share();
        }
        let shared = Arc::new(Shared {
            config: ArcSwap::from_pointee(config),
            access: ArcSwap::from_pointee(access),
            loops,
            control,
            limits,
            rules: Arc::default(),
            gates: Gates::default(),
            tally: Tally { errors, ..Tally::default() },
            threads,
            phase: watch::Sender::new(Phase::Serving),
        });
        shared.rules.put_in_force(&shared.config.load(), &shared.loops);
        let to_servers = Arc::new(ToServers::new(shared.clone(), dialler.clone()));
        let cancels = Arc::new(Cancels {
            shared: shared.clone(),
            succession: succession.clone(),
            gate: CancelGate::default(),
        });
        let lines = Arc::new(Lines::default());
        let vacancies = Arc::new(Vacancies::new(shared.clone(), pools.clone(), lines.clone()));
        let places = Arc::new(Places {
            shared: shared.clone(),
            pools: pools.clone(),
            dialler: dialler.clone(),
            lines: lines.clone(),
            vacancies: vacancies.clone(),
            cancels: to_servers.clone(),
            queue: Queue::default(),
        });
        let (of, at) = (|| shared.clone(), || pools.clone());
        let enquiries = Arc::new(Enquiries::new(of(), at(), lines.clone(), places.clone()));
        let memberships = Arc::new(Memberships::new(of(), at(), enquiries.clone()));
        let censuses = Arc::new(Censuses::new(of(), at(), enquiries.clone()));
        let openings = Arc::new(Openings {
            shared: of(),
            pools: at(),
            places: places.clone(),
            enquiries: enquiries.clone(),
            censuses: censuses.clone(),
        });
        let inside = Inside::new(of(), openings.clone(), to_servers.clone(), succession.clone());
        Ok(Arc::new(Self {
            shared,
            acceptor: Arc::new(Acceptor::new(accepting)),
            mock: MockNonce::generate(random_bytes),
            pools,
            lines,
            places,
            enquiries,
            memberships,
            censuses,
            vacancies,
            openings,
            inside: Arc::new(inside),
            dialler,
            client_names: Arc::default(),
            to_servers,
            cancels,
            succession,
            last_reload: ArcSwap::from_pointee(LastReload::default()),
            reloading: Mutex::new(()),
        }))
    }

    /// Where clients come in; `console` serves those of the admin database.
    pub fn entrance(&self, console: Console) -> Arc<Entrance> {
        let prover = Prover {
            shared: self.shared.clone(),
            mock: self.mock.clone(),
            client_names: self.client_names.clone(),
            memberships: self.memberships.clone(),
        };
        Arc::new(Entrance {
            shared: self.shared.clone(),
            acceptor: self.acceptor.clone(),
            prover,
            pools: self.pools.clone(),
            openings: self.openings.clone(),
            enquiries: self.enquiries.clone(),
            cancels: self.cancels.clone(),
            console,
        })
    }

    /// Puts another configuration in force, or the same one with its files read again. No client is
    /// disconnected; what only a restart changes stays as it is. Returns what changed, a line each.
    ///
    /// # Errors
    /// All errors in the files that it names: everything stays as it is.
    pub fn put_in_force(&self, config: Config) -> Result<Vec<String>, NotInForce> {
        let _one_at_a_time = locked(&self.reloading);
        let shared = &self.shared;
        let old = shared.config.load_full();
        let config = config.reloaded_over(&old);
        let (access, accepting, routes) = load_files(&config)?;
        let mut changes = old.changes(&config);
        self.dialler.links.put_in_force(&config.reload.links).map_err(NotInForce)?;
        let old = shared.access.load();
        changes.extend(old.changes(&access));
        access.keep_from(&old);
        self.dialler.mptcp.manager.want(config.reload.network.mptcp_manage);
        self.acceptor.replace(accepting);
        shared.access.store(Arc::new(access));
        crate::logging::put_in_force(&config.reload.log);
        shared.rules.put_in_force(&config, &shared.loops);
        shared.config.store(Arc::new(config));
        self.lines.forget();
        self.enquiries.forget();
        self.memberships.forget();
        self.dialler.resolver.ask_again();
        self.client_names.forget();
        self.pools.reconfigure(shared, routes);
        Ok(changes)
    }

    /// Reads the configuration file again and puts it in force, and logs what changed.
    ///
    /// # Errors
    /// All errors: everything stays as it is.
    pub fn reload(&self) -> Result<(), NotInForce> {
        let done = self.read_again();
        let (restart, refused) = match &done {
            Ok(restart) => (restart.clone(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        self.last_reload.store(Arc::new(LastReload { at: SystemTime::now(), refused, restart }));
        done.map(drop)
    }

    /// Returns the settings that need a restart.
    fn read_again(&self) -> Result<Vec<&'static str>, NotInForce> {
        let old = self.shared.config.load_full();
        let config = old.read_again().map_err(|errors| NotInForce(vec![errors.to_string()]))?;
        // Earlier warnings have been logged; their positions may have moved.
        let said: HashSet<&str> = old.warnings().iter().map(|old| old.message.as_str()).collect();
        let new = |warning: &&ConfigError| !said.contains(warning.message.as_str());
        let warnings: Vec<_> =
            config.warnings().iter().filter(new).map(ToString::to_string).collect();
        let restart = old.diff_restart(&config);
        let changes = self.put_in_force(config)?;
        for setting in &restart {
            tracing::warn!(setting, "the setting has changed, which needs a restart");
        }
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        if changes.is_empty() {
            tracing::info!("configuration reloaded: nothing changed");
        } else {
            let changes = changes.join("; ");
            tracing::info!(changes, "configuration reloaded");
        }
        Ok(restart)
    }

    /// Carries out the orders of the event loops, until the process ends.
    pub async fn take_orders(self: Arc<Self>, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Open { pool, home } => {
                    let openings = self.openings.clone();
                    tokio::spawn(async move { openings.open_for(pool, home).await });
                }
                Order::OpenListener { pool, home } => {
                    let openings = self.openings.clone();
                    tokio::spawn(async move { openings.open_listener_for(pool, home).await });
                }
                Order::Vacate { pool, database, client } => {
                    let vacancies = self.vacancies.clone();
                    tokio::spawn(async move { vacancies.vacate(pool, &database, client).await });
                }
                Order::Give { home, client } => {
                    if let Err(given) = self.succession.give((home, *client)) {
                        give_back(&self.shared.loops, given.0, given.1);
                    }
                }
                Order::GoInside { client, fd, session } => self.inside.put(client, fd, &session),
                Order::CallBack(client) => self.inside.call_back(client),
                Order::CancelInside(client, request) => {
                    let inside = self.inside.clone();
                    tokio::spawn(async move { inside.cancel(client, request).await });
                }
                Order::ExpectChange(pool) => {
                    self.enquiries.expect_change(pool);
                    self.censuses.look_at_once(pool);
                }
                Order::Cancel(request) => {
                    let to_servers = self.to_servers.clone();
                    tokio::spawn(async move { to_servers.send(request).await });
                }
            }
        }
    }
}

type Files = (Access, Option<Accepting>, Connectings);

fn load_files(config: &Config) -> Result<Files, NotInForce> {
    let mut errors = Vec::new();
    let access = Access::load(config).map_err(|error| errors.extend(error)).ok();
    let accepting = Accepting::load(&config.reload.client_tls)
        .map_err(|error| errors.push(error.to_string()))
        .ok();
    let connectings = Connectings::load(config).map_err(|error| errors.extend(error)).ok();
    match (access, accepting, connectings) {
        (Some(access), Some(accepting), Some(connectings)) if errors.is_empty() => {
            Ok((access, accepting, connectings))
        }
        _ => Err(NotInForce(errors)),
    }
}
