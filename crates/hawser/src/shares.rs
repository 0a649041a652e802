//! Limits on server connections that hold for several poolers together: [`hawser_pooler::shares`], with etcd for
//! its store.
//!
//! # Model
//! ```text
//!   openings ── limits ──► what this pooler uses and lacks ──► Node ──► etcd
//!                 ▲                                             │
//!                 └────────── how many there may be ◄───────────┘
//! ```
//! One task has the node: it puts bounds in force, counts what is used, and sends what the node asks for. Another
//! one closes what is over the bounds ([`Places::give_up_for_others`]).

pub mod etcd;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_pooler::shares::{Kind, Lost, Need, Node, Options, Request, Scope, Standing, Step};
use hawser_pooler::time::Time;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::config::{Config, EtcdLost};
use crate::limits::Limits;
use crate::limits::shared::State;
use crate::phase::Phase;
use crate::pools::place::Places;
use crate::process::random_u64;
use crate::shared::Shared;
use etcd::{Etcd, EtcdError};

/// Several requests have time to fail within a lease.
const ANSWERS_WITHIN: u32 = 6;
/// The longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How often what is used is counted while nothing else happens.
const COUNTED_EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two counts: openings wake the task.
const COUNTED_APART: Duration = Duration::from_millis(20);
/// How long the end of the process waits for etcd to take everything back.
const REVOKE_WITHIN: Duration = Duration::from_secs(1);

/// etcd, if limits are shared; its places name host and process.
///
/// # Errors
/// A file of certificates is no good.
pub fn load(config: &Config) -> Result<Option<Arc<Mutex<Etcd>>>, String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = format!("{} process {}", host.trim(), std::process::id());
    let etcd = Etcd::load(&config.start.etcd, name)?;
    Ok(etcd.map(|etcd| Arc::new(Mutex::new(etcd))))
}

/// What a limit is called: `max_db_connections of app`.
pub fn in_words(scope: &Scope) -> String {
    match scope.kind {
        Kind::Total => scope.kind.setting().to_owned(),
        Kind::Database | Kind::User | Kind::Server => {
            format!("{} of {}", scope.kind.setting(), scope.name)
        }
    }
}

/// What is to be seen of it where limits are not exact, or no more can be had.
pub fn fallback(state: &State) -> Option<String> {
    let failure = state.failure.as_deref()?;
    Some(match state.standing {
        Standing::Sure => format!("shared limits: no more places can be taken: {failure}"),
        Standing::Unsure => {
            format!("shared limits: others may take this pooler's places: {failure}")
        }
        Standing::Without => format!("shared limits: there is no lease: {failure}"),
    })
}

/// Shares limits until the process ends.
pub async fn run(shared: Arc<Shared>, places: Arc<Places>, etcd: Arc<Mutex<Etcd>>) {
    let (lost, lease) = {
        let config = shared.config.load();
        let settings = &config.start.etcd;
        let lost = match settings.etcd_lost {
            EtcdLost::Keep => Lost::Keep,
            EtcdLost::Close => Lost::Close,
        };
        (lost, settings.etcd_lease)
    };
    let within = (lease / ANSWERS_WITHIN).min(ANSWER_MAX);
    tokio::spawn(places.clone().give_up_for_others());
    let mut node = Node::new(Options { lost, seed: random_u64() });
    let mut reported = Reported::default();
    while shared.phase() != Phase::Ending {
        let now = shared.loops.now();
        put_in_force(&shared.limits, &mut node, now);
        match node.next(now, &needs(&shared.limits, &places)) {
            Step::Wait(until) => {
                let most = until.since(now).min(COUNTED_EVERY);
                let _ = timeout(most, shared.limits.share_lacking()).await;
                tokio::time::sleep(COUNTED_APART.min(most)).await;
            }
            Step::Send(request) => {
                let answer = etcd.lock().await.ask(&request, within).await;
                let now = shared.loops.now();
                match &answer {
                    Ok(answer) => node.answered(now, answer.clone()),
                    Err(error) => node.failed(now, error.failure()),
                }
                let came_of = match &answer {
                    Ok(_) => Outcome::Answered(&request),
                    Err(error) => Outcome::Failed(error),
                };
                reported.report(&shared.limits, &node, now, &came_of, lost);
            }
        }
    }
}

/// Waits, `within` at most, until this pooler has a lease and has seen what others hold, if limits are shared.
///
/// # Errors
/// It has none: why etcd gives none.
pub async fn first_look(limits: &Limits, within: Duration) -> Result<(), String> {
    let ready = async {
        while limits.sharing().is_some_and(|(state, _)| !state.is_ready()) {
            tokio::time::sleep(COUNTED_APART).await;
        }
    };
    timeout(within, ready).await.map_err(|_| {
        let failure = limits.sharing().and_then(|(state, _)| state.failure);
        failure.unwrap_or_else(|| format!("no answer within {} s", within.as_secs()))
    })
}

/// Gives all places back: the process ends, and has no server connection any more.
pub async fn give_back(limits: &Limits, etcd: &Mutex<Etcd>) {
    let Some(lease) = limits.sharing().and_then(|(state, _)| state.lease) else { return };
    let revoked = async { etcd.lock().await.revoke(lease, REVOKE_WITHIN).await };
    let why = match timeout(REVOKE_WITHIN, revoked).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "etcd does not answer".to_owned(),
    };
    tracing::warn!(why, "places under shared limits are free when the lease has ended");
}

fn put_in_force(limits: &Limits, node: &mut Node, now: Time) {
    let until = node.bounds_until().map(|until| Instant::now() + until.since(now));
    limits.put_shares(node.bounds(now), until);
}

/// What this pooler uses and lacks of each limit.
fn needs(limits: &Limits, places: &Places) -> BTreeMap<Scope, Need> {
    let mut needs = limits.shared_needs(&places.pools.under_limits());
    for (full, waiting) in places.waiting_under() {
        if let Some(need) = needs.get_mut(&full.scope()) {
            need.waiting = waiting;
        }
    }
    needs
}

/// What has come of a request.
enum Outcome<'a> {
    Answered(&'a Request),
    Failed(&'a EtcdError),
}

/// What has been said of how the sharing stands: each change once.
#[derive(Debug, Default)]
struct Reported {
    is_failing: bool,
    /// It has been said that all is in order.
    was_in_order: bool,
    was_sure: bool,
    is_lost: bool,
}

impl Reported {
    fn report(
        &mut self,
        limits: &Limits,
        node: &Node,
        now: Time,
        came_of: &Outcome<'_>,
        lost: Lost,
    ) {
        let standing = node.standing(now);
        let is_lost = self.was_sure && standing != Standing::Sure;
        let error = match came_of {
            Outcome::Failed(error) => Some(*error),
            Outcome::Answered(_) => None,
        };
        // A lease alone is of no use: places are keys, which etcd may refuse to this user.
        let is_mended =
            matches!(came_of, Outcome::Answered(Request::Look(_) | Request::Change(..)));
        limits.note_sharing(|state: &mut State| {
            state.standing = standing;
            state.lease = node.lease();
            state.failures += u64::from(error.is_some());
            state.losses += u64::from(is_lost && !self.is_lost);
            if is_mended {
                (state.failure, state.looked_with) = (None, node.lease());
            } else if let Some(error) = error {
                state.failure = Some(error.to_string());
            }
        });
        if let (Some(error), false) = (error, self.is_failing) {
            if self.was_sure {
                tracing::warn!(%error, "shared limits: no more places can be taken until etcd answers");
            } else {
                tracing::warn!(
                    %error,
                    "shared limits: no server connection that they limit can be opened until etcd answers"
                );
            }
        }
        if is_lost && !self.is_lost {
            match lost {
                Lost::Keep => tracing::error!(
                    "shared limits: the lease in etcd has ended or may have; this pooler keeps its server \
                     connections, whose places others may take (etcd_lost = \"keep\")"
                ),
                Lost::Close => tracing::error!(
                    "shared limits: the lease in etcd has ended or may have; server connections are closed \
                     at the end of their transactions (etcd_lost = \"close\")"
                ),
            }
        }
        if is_mended && (self.is_failing || !self.was_in_order) && standing == Standing::Sure {
            tracing::info!("shared limits: etcd answers, and this pooler has a lease");
            self.was_in_order = true;
        }
        self.is_failing = error.is_some() || (self.is_failing && !is_mended);
        self.is_lost = is_lost;
        // Until it is sure again, it is the same loss.
        self.was_sure |= standing == Standing::Sure;
    }
}
