//! etcd, as far as it matters here: keys with leases, one write after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::{
    Answer, Change, Failure, LeaseId, Look, Place, Request, Revision, Scope, Taken, Want,
};
use crate::time::Time;

/// How long a lease lasts.
pub(super) const LASTS: Duration = Duration::from_secs(6);

#[derive(Default)]
pub(super) struct Store {
    revision: i64,
    leases: BTreeMap<LeaseId, Time>,
    places: BTreeMap<Place, (LeaseId, Revision)>,
    wants: BTreeMap<(Scope, LeaseId), (u32, Revision)>,
}

impl Store {
    pub(super) fn end_leases(&mut self, now: Time) {
        self.leases.retain(|_, until| now < *until);
        let leases = &self.leases;
        self.places.retain(|_, (owner, _)| leases.contains_key(owner));
        self.wants.retain(|(_, owner), _| leases.contains_key(owner));
    }

    /// The store has a new leader: leases start again.
    pub(super) fn restart(&mut self, now: Time) {
        self.leases.values_mut().for_each(|until| *until = now.after(LASTS));
    }

    pub(super) fn keys(&self) -> usize {
        self.places.len() + self.wants.len()
    }

    pub(super) fn serve(&mut self, now: Time, request: &Request) -> Result<Answer, Failure> {
        match request {
            Request::Grant => {
                self.revision += 1;
                let id = LeaseId(self.revision);
                self.leases.insert(id, now.after(LASTS));
                Ok(Answer::Granted(id, LASTS))
            }
            Request::KeepAlive(id) => Ok(Answer::KeptAlive(match self.leases.get_mut(id) {
                Some(until) => {
                    *until = now.after(LASTS);
                    LASTS
                }
                None => Duration::ZERO,
            })),
            Request::Look(scopes) => Ok(Answer::Seen(self.look(scopes))),
            Request::Change(owner, changes) => {
                let writes = changes
                    .iter()
                    .any(|change| matches!(change, Change::Take(_) | Change::Want(..)));
                if writes && !self.leases.contains_key(owner) {
                    return Err(Failure::LeaseEnded);
                }
                self.revision += 1;
                let made = changes.iter().map(|change| self.change(*owner, change)).collect();
                Ok(Answer::Changed(Revision(self.revision), made))
            }
        }
    }

    fn look(&self, scopes: &[Scope]) -> Look {
        let places = self.places.iter().filter(|(place, _)| scopes.contains(&place.scope));
        let taken = places.map(|(place, (owner, since))| Taken {
            place: place.clone(),
            owner: *owner,
            since: *since,
        });
        let wants = self.wants.iter().map(|((scope, owner), (count, since))| Want {
            scope: scope.clone(),
            owner: *owner,
            count: *count,
            since: *since,
        });
        Look { taken: taken.collect(), wants: wants.collect() }
    }

    fn change(&mut self, owner: LeaseId, change: &Change) -> bool {
        let revision = Revision(self.revision);
        match change {
            Change::Take(place) if self.places.contains_key(place) => return false,
            Change::Take(place) => {
                self.places.insert(place.clone(), (owner, revision));
            }
            Change::GiveBack(place, since) => {
                if self.places.get(place).is_none_or(|(_, made)| made != since) {
                    return false;
                }
                self.places.remove(place);
            }
            Change::Want(scope, count) => {
                self.wants.entry((scope.clone(), owner)).or_insert((*count, revision)).0 = *count;
            }
            Change::WantNoMore(scope) => {
                self.wants.remove(&(scope.clone(), owner));
            }
        }
        true
    }
}
