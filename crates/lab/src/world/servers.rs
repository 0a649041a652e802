//! The server's side of the world: connections that are opened, answered, and made to fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::ids::{BackendId, ServerAddressId};
use hawser_pooler::parts::report::text;
use hawser_pooler::parts::report::text::Report;
use hawser_pooler::parts::start_values::parameters::ServerParameters;
use hawser_pooler::relay::{BackendSeed, ToLoop};
use hawser_pooler::wire::error::{ClientError, SqlState};

use super::host::{OUTSIDE, Opening, Outside, Stream, delay, moment};
use super::lobby;
use crate::model::backend::hand_over;
use crate::model::endpoint::ServerEndpoint;
use crate::model::wire::Reader;
use crate::model::{Fault, ModelServer, ProcessId, catalog, frontend};
use crate::net::Net;
use crate::rng::Rng;

/// What goes wrong with servers.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// How many of a hundred openings fail; waiting helps.
    pub opening_fails_percent: u64,
    /// A connection dies about this often. Zero: never.
    pub dies_every: Duration,
    /// All connections die at once about this often, and none can be opened for some time.
    pub crashes_every: Duration,
    /// A connection hangs or is slow for some time about this often.
    pub hangs_every: Duration,
}

/// How long nothing can be opened after a crash, and how long a connection hangs, at most.
const RECOVERY_MAX: Duration = Duration::from_millis(80);

/// How long no other attempt is made after one that has failed.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// The server with its connections.
pub(super) struct Servers {
    pub(super) model: ModelServer,
    pub(super) endpoints: BTreeMap<BackendId, ServerEndpoint>,
    faults: Faults,
    reports: bool,
    rng: Rng,
    next_backend: u64,
    /// When the next of each kind of fault comes.
    dies_at: Option<Duration>,
    crashes_at: Option<Duration>,
    hangs_at: Option<Duration>,
    /// Until when nothing can be opened.
    down_until: Duration,
    /// Connections that hang, and until when.
    hanging: Vec<(Duration, BackendId)>,
    pub(super) opened: u64,
    pub(super) died: u64,
}

impl Servers {
    pub(super) fn new(model: ModelServer, faults: Faults, reports: bool, mut rng: Rng) -> Self {
        let mut after =
            |every: Duration| (!every.is_zero()).then(|| delay(&mut rng, every.saturating_mul(2)));
        let (dies_at, crashes_at, hangs_at) =
            (after(faults.dies_every), after(faults.crashes_every), after(faults.hangs_every));
        Self {
            model,
            endpoints: BTreeMap::new(),
            faults,
            reports,
            rng,
            next_backend: 1,
            dies_at,
            crashes_at,
            hangs_at,
            down_until: Duration::ZERO,
            hanging: Vec::new(),
            opened: 0,
            died: 0,
        }
    }

    /// When something will happen here by itself.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let sleeps = self.endpoints.values().filter_map(|end| end.backend.wakes_at());
        let hangs = self.hanging.iter().map(|(until, _)| *until);
        let faults = [self.dies_at, self.crashes_at, self.hangs_at];
        sleeps.chain(hangs).chain(faults.into_iter().flatten()).min()
    }

    /// Nothing goes wrong from now on.
    pub(super) fn end_faults(&mut self) {
        (self.dies_at, self.crashes_at, self.hangs_at) = (None, None, None);
    }

    /// Lets what is due go wrong.
    pub(super) fn go_wrong(&mut self, now: Duration) {
        let due = |at: &mut Option<Duration>, every: Duration, rng: &mut Rng| {
            let is_due = at.is_some_and(|at| at <= now);
            if is_due {
                *at = Some(now + delay(rng, every.saturating_mul(2)));
            }
            is_due
        };
        if due(&mut self.dies_at, self.faults.dies_every, &mut self.rng)
            && let Some(id) = self.any()
            && let Some(endpoint) = self.endpoints.get_mut(&id)
        {
            self.died += 1;
            let fault = if self.rng.percent(50) { Fault::Reset } else { Fault::Terminate };
            endpoint.backend.inject(fault);
        }
        if due(&mut self.crashes_at, self.faults.crashes_every, &mut self.rng) {
            self.died += self.endpoints.len() as u64;
            self.model.crash();
            self.down_until = now + delay(&mut self.rng, RECOVERY_MAX);
        }
        if due(&mut self.hangs_at, self.faults.hangs_every, &mut self.rng)
            && let Some(id) = self.any()
            && let Some(endpoint) = self.endpoints.get_mut(&id)
        {
            let bytes = 1 + self.rng.index(20);
            let fault = if self.rng.percent(50) { Fault::Stall } else { Fault::Slow { bytes } };
            endpoint.backend.inject(fault);
            self.hanging.push((now + delay(&mut self.rng, RECOVERY_MAX), id));
        }
        let (over, hanging): (Vec<_>, Vec<_>) =
            self.hanging.drain(..).partition(|(until, _)| *until <= now);
        self.hanging = hanging;
        for (_, id) in over {
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                endpoint.backend.inject(Fault::Resume);
            }
        }
    }

    /// One of the connections.
    pub(super) fn any(&mut self) -> Option<BackendId> {
        let at = self.rng.index(self.endpoints.len());
        self.endpoints.keys().nth(at).copied()
    }

    /// Answers what can be answered now.
    pub(super) fn run(&mut self) {
        for endpoint in self.endpoints.values_mut() {
            endpoint.run();
        }
        self.endpoints.retain(|_, endpoint| !endpoint.is_over());
    }

    /// An opening has ended, with or without success.
    pub(super) fn open(&mut self, opening: Opening, net: &Net, outside: &mut Outside) {
        let Opening { pool, home, epoch, listens, .. } = opening;
        let down = outside.now < self.down_until;
        if down || self.rng.percent(self.faults.opening_fails_percent) {
            let error = ClientError::fatal(SqlState::CONNECTION_FAILURE, "connection refused");
            let retry_after = RETRY_AFTER;
            let message = match listens {
                true => ToLoop::ListenerFailed { pool, error },
                false => ToLoop::OpenFailed { pool, error, fatal: false, retry_after },
            };
            outside.send(OUTSIDE, home, message);
            return;
        }
        let (near, far) = net.pair();
        let mut endpoint = ServerEndpoint::accept(&self.model, far);
        let asking = [(String::from_utf8_lossy(text::ASKING).into_owned(), "on".to_owned())];
        let asking = if self.reports { asking.to_vec() } else { Vec::new() };
        let mut reported = None;
        let mut parameters = ServerParameters::default();
        let (mut process, mut key) = (0, Vec::new());
        let shared = pool.is_shared_by_users();
        let user = if shared { catalog::POOLER_ROLE } else { catalog::LOGIN_ROLE };
        for message in lobby::log_in(&mut endpoint.backend, user, &asking) {
            if let Some((name, value)) = lobby::parameter(&message) {
                if name.as_bytes() == text::NAME {
                    reported = Report::read(value.as_bytes()).ok();
                    continue;
                }
                parameters.set(name.as_bytes(), value.as_bytes());
            }
            if message.tag == b'K' {
                let mut reader = Reader::new(&message.body);
                process = reader.int32().unwrap_or_default();
                key = reader.rest().to_vec();
            }
        }
        let id = BackendId(self.next_backend);
        self.next_backend += 1;
        self.opened += 1;
        self.endpoints.insert(id, endpoint);
        let seed = BackendSeed {
            id,
            socket: Stream(near),
            pool,
            parameters: Arc::new(parameters),
            hand_over: shared.then(hand_over::key),
            report: reported,
            process: u32::try_from(process).unwrap_or_default(),
            key: key.into(),
            server: ServerAddressId(0),
            epoch,
            opened: moment(outside.now),
            permit: Box::new(()),
        };
        let seed = Box::new(seed);
        let message = if listens { ToLoop::ListenerOpened(seed) } else { ToLoop::Opened(seed) };
        outside.send(OUTSIDE, home, message);
    }

    /// A cancel request has arrived.
    pub(super) fn cancel(&mut self, process: u32, key: &[u8]) {
        if let Ok(process) = i32::try_from(process) {
            self.model.cancel(ProcessId(process), key);
        }
        self.run();
    }

    /// Makes a backend run a query that no client sent, whose answer is dropped.
    pub(super) fn soil(&mut self, id: BackendId, messages: &[u8]) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.backend.receive(messages);
            endpoint.backend.take_output();
        }
    }
}

/// The messages that put another unnamed statement on a server.
pub(super) fn other_unnamed() -> Vec<u8> {
    let parse = frontend::parse("", "SELECT 'somebody else'", &[]);
    [parse.encode(), frontend::sync().encode()].concat()
}
