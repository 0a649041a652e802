//! The protocol's rules of answers, without a server.

use super::*;
use crate::seeded::Random;

impl RequestQueue {
    /// The invariants.
    pub(crate) fn check(&self) {
        let syncs = self.count(Request::ends_with_ready);
        assert_eq!(self.syncs_outstanding as usize, syncs, "{:?}", self.entries);
        assert!(!self.is_skipping_to_sync() || self.entries.is_empty(), "{:?}", self.entries);
        assert!(u64::from(self.syncs_outstanding) <= self.pipeline);
        assert!(!matches!(self.in_doubt, InDoubt::Syncs { count: 0, .. }));
        for (owed, change) in self.entries.each() {
            let fits = match owed {
                Request::ParseKnown | Request::CloseKnown { .. } => {
                    matches!(change, Some(Change::Names))
                }
                Request::Unnaming => matches!(change, Some(Change::Unnamed)),
                Request::Refused => matches!(change, Some(Change::Refuses(_))),
                Request::InjectedDescribe { statement } => {
                    matches!(change, Some(Change::Compares(_))) == (statement == 0)
                }
                _ => true,
            };
            assert!(fits, "{owed:?} with {change:?}");
        }
    }

    /// How many entries satisfy this.
    pub(crate) fn count(&self, is_one: impl Fn(Request) -> bool) -> usize {
        self.owed().filter(|owed| is_one(*owed)).count()
    }
}

const BIND: Request = Request::Bind { statement: 0 };

fn queue(sent: &[Request]) -> RequestQueue {
    let mut queue = RequestQueue::default();
    for expect in sent {
        queue.push((*expect).into());
    }
    queue.check();
    queue
}

fn ignored(queue: &mut RequestQueue) -> Vec<Request> {
    let ignored = std::iter::from_fn(|| queue.take_ignored()).map(|entry| entry.owed).collect();
    queue.check();
    ignored
}

#[test]
fn a_pipeline_ends_with_its_sync() {
    let mut queue = queue(&[BIND, Request::Execute]);
    assert!(queue.is_in_pipeline() && queue.is_after_execute() && !queue.is_at_rest());
    queue.push(Request::Sync.into());
    assert!(!queue.is_in_pipeline() && !queue.is_after_execute());
    assert_eq!((queue.pipeline(), queue.answered_pipeline()), (1, 0));
    assert!(queue.has_come_to(0) && !queue.has_come_to(1) && queue.is_in_doubt(0));
    queue.complete();
    queue.complete();
    assert!(queue.owes_one_end() && !queue.is_at_rest());
    queue.complete_one_end();
    assert!(queue.is_plain() && queue.has_come_to(1) && !queue.is_in_doubt(0));
    queue.check();
}

#[test]
fn both_lanes_leave_the_same_entries() {
    for (plain, sent) in [
        (
            PlainPipeline::Named { statement: 7, describes: Describes::No },
            &[Request::Bind { statement: 7 }, Request::Execute, Request::Sync][..],
        ),
        (
            PlainPipeline::Unnamed { serial: 3, describes: false },
            &[Request::Parse { serial: 3, statement: 0 }, BIND, Request::Execute, Request::Sync],
        ),
        (PlainPipeline::Query, &[Request::Query]),
    ] {
        let full = queue(sent);
        let mut lane = RequestQueue::default();
        lane.push_plain(plain);
        lane.check();
        assert_eq!(format!("{lane:?}"), format!("{full:?}"));
    }
}

/// The state that a queue shows, apart from its fields.
fn seen(queue: &RequestQueue) -> String {
    format!(
        "{queue:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        (queue.len(), queue.is_empty(), queue.is_at_rest(), queue.owes_one_end()),
        (queue.front(), queue.second(), queue.back()),
        queue.owes_plain(),
        (queue.front_change(), queue.looks_at_description()),
        queue.since_sync().collect::<Vec<_>>(),
        (queue.owes_client(), queue.owes_client_ready(), queue.ends_by_itself()),
        queue.changes().collect::<Vec<_>>(),
    )
}

/// Does the same to both, if that is allowed.
fn do_to(queue: &mut RequestQueue, what: usize) {
    match (what, queue.front()) {
        (0, Some(front)) if !front.ends_with_ready() => drop(queue.complete()),
        (1, Some(Request::Sync | Request::Query)) => match queue.owes_one_end() {
            true => drop(queue.complete_one_end()),
            false => drop(queue.complete_with_ready()),
        },
        (2, Some(front)) if !front.ends_with_ready() => {
            while queue.take_ignored().is_some() {}
            if queue.is_empty() {
                queue.skip_to_sync();
            }
        }
        (3, Some(Request::Execute | Request::Query)) if !queue.is_copying_in() => {
            queue.copy_begins();
        }
        (4, _) if !queue.is_copying_in() => queue.push(BIND.into()),
        (5, _) if !queue.is_copying_in() => queue.push(Request::Sync.into()),
        (6, _) => drop(queue.take_own_answer()),
        (7, _) => drop(queue.mark_last_query(Change::Deallocates)),
        (8, _) => drop(queue.front_change_mut()),
        (9, _) => queue.push_unsent(Request::Unnaming.into()),
        (10, Some(_)) => drop(queue.take_copy_input()),
        (11, _) => drop(queue.give_sync_to_client()),
        _ => {}
    }
}

#[test]
fn a_pipeline_that_is_one_entry_is_the_same_as_its_messages() {
    for seed in 0..2_000 {
        let mut random = Random::of_seed(seed);
        let (mut whole, mut apart) = (RequestQueue::default(), RequestQueue::default());
        let (describes, notes) = (random.below(2) == 0, random.below(2) == 0);
        let seen_by = std::sync::Arc::default();
        let change = || Change::Describes(std::sync::Arc::clone(&seen_by));
        let (plain, first): (_, &[Request]) = match random.below(3) {
            0 => {
                let describes = match (describes, notes) {
                    (false, _) => Describes::No,
                    (true, false) => Describes::Known,
                    (true, true) => Describes::Noted(change()),
                };
                let plain = PlainPipeline::Named { statement: 7, describes };
                (plain, &[Request::Bind { statement: 7 }])
            }
            1 => {
                let plain = PlainPipeline::Unnamed { serial: 3, describes };
                (plain, &[Request::Parse { serial: 3, statement: 0 }, BIND])
            }
            _ => (PlainPipeline::Query, &[Request::Query]),
        };
        let is_named = matches!(plain, PlainPipeline::Named { .. });
        let carries = (is_named && notes).then(change);
        let is_query = matches!(plain, PlainPipeline::Query);
        whole.push_plain(plain);
        first.iter().for_each(|owed| apart.push((*owed).into()));
        if !is_query {
            if describes {
                apart.push(Entry { owed: Request::DescribePortal, change: carries, query: None });
            }
            apart.push(Request::Execute.into());
            apart.push(Request::Sync.into());
        }
        assert_eq!(seen(&whole), seen(&apart), "seed {seed}");
        if random.below(2) == 0 && whole.owes_plain().is_some() {
            let noted = whole.complete_plain().expect("one entry");
            assert_eq!(noted.is_some(), is_named && describes && notes);
            while apart.front().is_some_and(|front| !front.ends_with_ready()) {
                apart.complete();
            }
        }
        for _ in 0..12 {
            let what = random.below(12);
            do_to(&mut whole, what);
            do_to(&mut apart, what);
            assert_eq!(seen(&whole), seen(&apart), "seed {seed}, {what}");
        }
    }
}

#[test]
fn an_error_skips_to_the_sync_and_no_further() {
    let mut queue =
        queue(&[BIND, Request::Execute, Request::Query, Request::Sync, BIND, Request::Sync]);
    queue.complete();
    assert_eq!(ignored(&mut queue), [Request::Execute, Request::Query]);
    assert_eq!(queue.front(), Some(Request::Sync));
    assert!(!queue.is_skipping_to_sync() && !queue.is_in_pipeline());
    assert_eq!(queue.answered_pipeline(), 1, "the Query was one of its own");
}

#[test]
fn what_is_sent_after_an_error_owes_nothing_before_the_sync() {
    let mut queue = queue(&[BIND, Request::Execute]);
    assert_eq!(ignored(&mut queue).len(), 2);
    queue.skip_to_sync();
    for sent in [BIND, Request::Query, Request::InjectedSync] {
        queue.push(sent.into());
        assert!(queue.is_empty() && queue.is_in_pipeline(), "{sent:?}");
    }
    queue.push(Request::Sync.into());
    assert_eq!((queue.len(), queue.is_skipping_to_sync()), (1, false));
    queue.check();
}

#[test]
fn a_sync_of_ours_after_an_error_becomes_the_clients() {
    let mut queue = queue(&[BIND, Request::Execute]);
    ignored(&mut queue);
    queue.skip_to_sync();
    queue.push_sync_after_error();
    assert_eq!(queue.front(), Some(Request::InjectedSync));
    assert!(queue.give_sync_to_client() && !queue.give_sync_to_client());
    assert_eq!(queue.front(), Some(Request::Sync));
    queue.check();
}

fn parsing(serial: u32) -> Entry {
    let owed = Request::Parse { serial, statement: 0 };
    Entry { owed, change: Some(Change::Unnamed), query: None }
}

#[test]
fn what_is_ignored_gives_its_change_back_and_what_follows_the_sync_keeps_it() {
    let mut queue = queue(&[BIND]);
    queue.push(parsing(1));
    queue.push(parsing(2));
    queue.push(Request::Sync.into());
    queue.push(parsing(3));
    let mut ignored = || queue.take_ignored().map(|entry| (entry.owed, entry.change.is_some()));
    assert_eq!(ignored(), Some((BIND, false)));
    assert_eq!(ignored(), Some((parsing(1).owed, true)));
    assert_eq!(ignored(), Some((parsing(2).owed, true)));
    assert_eq!(ignored(), None);
    queue.complete_with_ready();
    assert!(matches!(queue.front_change(), Some(Change::Unnamed)));
    queue.complete();
    assert!(queue.is_empty());
    queue.check();
}

#[test]
fn an_answer_of_ours_is_given_when_nothing_precedes_it() {
    let named = || Entry { owed: Request::ParseKnown, change: Some(Change::Names), query: None };
    let mut queue = queue(&[BIND]);
    queue.push(named());
    queue.push_copy_input(false);
    queue.push(named());
    assert!(queue.take_own_answer().is_none());
    queue.complete();
    let given = queue.take_own_answer().unwrap();
    assert_eq!(given.bytes, build::PARSE_COMPLETE);
    assert!(matches!(given.change, Some(Change::Names)));
    assert!(queue.take_own_answer().is_none(), "copy data precede it");
    assert!(queue.take_copy_input() && !queue.take_copy_input());
    assert!(queue.take_own_answer().is_some() && queue.is_empty());
}

#[test]
fn an_entry_is_five_words() {
    // Two of its answer, two of its change, one of what it is counted as.
    assert!(size_of::<Entry>() <= 40, "{}", size_of::<Entry>());
}

#[test]
fn a_copy_reads_syncs_and_ends_well_without_answers_to_them() {
    let mut queue = queue(&[Request::Query]);
    queue.copy_begins();
    assert!(queue.is_copying_in() && queue.is_sync_of_copy() && !queue.ends_by_itself());
    queue.push_copy_input(false);
    assert!(queue.is_sync_of_copy());
    queue.push_copy_input(true);
    assert!(!queue.is_copying_in() && !queue.is_sync_of_copy() && queue.ends_by_itself());
    queue.copy_ended();
    queue.complete_with_ready();
    assert!(queue.is_plain());
}

#[test]
fn a_copy_that_fails_answers_the_syncs_after_its_data_and_leaves_the_others_in_doubt() {
    let mut queue = queue(&[Request::Query]);
    queue.copy_begins();
    assert!(queue.is_sync_of_copy()); // other data follows: it may have been read
    queue.push_copy_input(false);
    assert!(queue.is_sync_of_copy()); // none does
    queue.copy_failed();
    assert_eq!(queue.len(), 2);
    assert!(queue.has_syncs_in_doubt() && !queue.is_copying_in());
    assert!(!queue.take_ready_in_doubt(), "it is the Query's, whose error has come");
    queue.complete_with_ready();
    assert!(!queue.take_ready_in_doubt(), "a Sync is outstanding, whichever it is");
    queue.complete_with_ready();
    assert!(queue.is_at_rest() && !queue.is_plain());
    assert!(queue.take_ready_in_doubt() && !queue.take_ready_in_doubt());
    assert!(queue.is_plain());
    queue.check();
}

#[test]
fn ready_in_doubt_is_not_that_of_a_query_or_a_call_before_its_completion() {
    for next in [Request::Query, Request::Call] {
        let mut queue = queue(&[Request::Query]);
        queue.copy_begins();
        assert!(queue.is_sync_of_copy());
        queue.push_copy_input(false);
        queue.copy_failed();
        queue.complete_with_ready();
        queue.push(next.into());
        assert!(queue.take_ready_in_doubt());
        assert!(!queue.has_syncs_in_doubt());
        queue.complete_with_ready();
        assert!(queue.is_plain());
    }
}

#[test]
fn a_copy_strikes_what_was_sent_before_it_was_known() {
    let data = Request::CopyInput { ends: false };
    let mut queue = queue(&[BIND, Request::Execute]);
    for sent in [false, true] {
        queue.push_copy_input(sent);
    }
    queue.push(Request::Sync.into());
    queue.complete();
    assert_eq!(queue.since_sync().count(), 0);
    queue.copy_begins();
    assert!(!queue.is_copying_in(), "its end has been sent");
    assert_eq!(queue.len(), 2, "the Sync is outside of it");
    assert!(!queue.contains(data) && !queue.is_in_pipeline());
    queue.check();

    let mut queue = self::queue(&[Request::Query, Request::Sync, Request::Query]);
    queue.copy_begins();
    assert!(queue.is_copying_in() && queue.ends_by_itself(), "the Query after it fails it");
    assert_eq!(queue.len(), 3, "and the Sync is answered");
    queue.check();
}

#[test]
fn copy_data_that_no_copy_took_go_with_the_ready() {
    let mut queue = queue(&[Request::Query]);
    queue.push_copy_input(false);
    queue.push_copy_input(false);
    assert_eq!(queue.len(), 2, "one for a run of them");
    queue.complete_with_ready();
    assert!(queue.is_at_rest());
}
