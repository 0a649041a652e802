use crate::parts::settings::custom_names::CustomNames;
use crate::parts::start_values::parameters::ServerParameters;
use std::sync::Arc;
use std::time::Duration;

use super::scheduler::*;
use super::*;
use crate::ids::{BackendId, ClientId, LoopId, PoolId, Slot};
use crate::time::Time;

fn limits(size: u32) -> Limits {
    Limits {
        size,
        reserve_size: 0,
        reserve_timeout: Duration::ZERO,
        idle_transaction_reserve: 0,
        lock_wait_reserve: 0,
        min_size: 0,
        queue_max: 0,
        round_robin: false,
    }
}

fn client(home: u16, index: u32) -> ClientId {
    ClientId { home: LoopId(home), slot: Slot { index, generation: 0 } }
}

const T0: Time = Time::ZERO;

/// A pool of `size` with all its backends lent; backends are their numbers.
fn lent_out(size: u32) -> Pool<u64> {
    lent_out_on(&vec![0; size as usize])
}

/// The same with one backend for each of these loops.
fn lent_out_on(homes: &[u16]) -> Pool<u64> {
    let mut pool = Pool::new(limits(count(homes.len())));
    let all = || (0..).zip(homes).map(|(n, home)| (n, client(*home, n)));
    for (_, client) in all() {
        assert!(matches!(pool.acquire(client, T0), Acquired::Wait { open: true }));
    }
    for (n, client) in all() {
        pool.opened(client.home);
        let id = u64::from(n);
        let Released::Next { waiter, .. } = pool.release(BackendId(id), id, client.home, T0) else {
            panic!("a client waits")
        };
        assert_eq!(waiter.client, client);
    }
    pool
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("few")
}

#[test]
fn no_more_backends_are_opened_than_clients_wait_or_the_size_allows() {
    let mut pool: Pool<u64> = Pool::new(limits(2));
    assert!(matches!(pool.acquire(client(0, 0), T0), Acquired::Wait { open: true }));
    assert!(matches!(pool.acquire(client(0, 1), T0), Acquired::Wait { open: true }));
    assert!(matches!(pool.acquire(client(0, 2), T0), Acquired::Wait { open: false }));
    assert_eq!(pool.total(), 2);
    assert_eq!(pool.openings_due(T0), 0);
}

#[test]
fn no_waiter_is_overtaken_more_often_than_the_bound() {
    for size in [1, 2, 5, 10] {
        let mut pool = lent_out(size);
        // The head is on loop 1; loop 0 always has later waiters of its own.
        pool.acquire(client(1, 1000), T0);
        for n in 0..200 {
            pool.acquire(client(0, 100 + n), T0.after(10 * SAME_MOMENT));
        }
        let mut before = 0;
        loop {
            let Released::Next { waiter, .. } = pool.release(BackendId(0), 0, LoopId(0), T0) else {
                panic!("a client waits")
            };
            if waiter.client == client(1, 1000) {
                break;
            }
            before += 1;
        }
        assert_eq!(before, size, "overtaken more often than the pool's size");
    }
}

/// Two loops with as many clients, all at work, of which one or the other is not run for 3 ms now and then.
#[test]
fn loops_with_as_many_clients_keep_their_shares() {
    const STEP_US: u64 = 100;
    let mut rng = crate::seeded::Random::of_seed(1);
    let mut pool = lent_out(10);
    let mut lent: Vec<(u64, ClientId)> = (0..10).map(|n| (0, client(0, n))).collect();
    for home in 0..2 {
        for n in 0..500 {
            pool.acquire(client(home, 10 + n), T0);
        }
    }
    let (mut held_up, mut again) = ([0, 0], Vec::new());
    let (mut done, mut crossed, mut without) = (0, 0, 0);
    for step in 0..20_000 {
        let now = T0.after(Duration::from_micros(step * STEP_US));
        for client in std::mem::take(&mut again) {
            pool.acquire(client, now);
        }
        for home in [0, 1] {
            if step < held_up[usize::from(home)] {
                continue;
            }
            if rng.one_in(200) {
                held_up[usize::from(home)] = step + 30;
            }
            let here = lent.iter().filter(|(_, client)| client.home.0 == home).count();
            without += u32::from(here == 0);
            for (id, (until, client)) in (0..).zip(&mut lent) {
                if client.home.0 != home || *until > step {
                    continue;
                }
                let Released::Next { waiter, .. } =
                    pool.release(BackendId(id), id, LoopId(home), now)
                else {
                    panic!("990 wait")
                };
                again.push(*client);
                crossed += u32::from(waiter.client.home.0 != home);
                done += 1;
                (*until, *client) = (step + 2, waiter.client);
            }
        }
    }
    assert!(crossed * 100 < done * 2, "{crossed} of {done} crossed");
    assert!(without < 200, "a loop had none in {without} of 40,000 turns");
}

/// Long transactions have all backends of a loop, and none comes back: its waiter gets another loop's.
#[test]
fn what_a_loop_has_beyond_its_share_does_not_hold_its_waiters_up_for_long() {
    let loops: Vec<u16> = (0..20).map(|n| u16::from(n == 19)).collect();
    for (later_us, before) in [(20_001, 20..=20), (20_000, 21..=20 * 33)] {
        let mut pool = lent_out_on(&loops);
        pool.acquire(client(0, 1000), T0);
        for n in 0..1000 {
            pool.acquire(client(1, 100 + n), T0.after(Duration::from_micros(later_us)));
        }
        let mut passed = 0;
        loop {
            let Released::Next { waiter, .. } = pool.release(BackendId(19), 19, LoopId(1), T0)
            else {
                panic!("a client waits")
            };
            if waiter.client == client(0, 1000) {
                break;
            }
            passed += 1;
        }
        assert!(before.contains(&passed), "{passed} of those that came {later_us} us later");
    }
}

#[test]
fn a_loop_prefers_its_own_waiter_and_its_own_idle_backend() {
    let mut pool = lent_out(3);
    pool.acquire(client(1, 7), T0);
    pool.acquire(client(0, 8), T0);
    let Released::Next { waiter, .. } = pool.release(BackendId(0), 0, LoopId(0), T0) else {
        panic!("a client waits")
    };
    assert_eq!(waiter.client, client(0, 8));
    let Released::Next { waiter, .. } = pool.release(BackendId(1), 1, LoopId(0), T0) else {
        panic!("a client waits")
    };
    assert_eq!(waiter.client, client(1, 7), "no waiter of its own: the head");
    assert!(matches!(pool.release(BackendId(1), 1, LoopId(1), T0), Released::Kept));
    assert!(matches!(pool.release(BackendId(2), 2, LoopId(0), T0), Released::Kept));
    let Acquired::Backend { backend, home } = pool.acquire(client(1, 9), T0) else {
        panic!("one is idle")
    };
    assert_eq!((backend, home), (1, LoopId(1)));
    let Acquired::Backend { backend, home } = pool.acquire(client(1, 9), T0) else {
        panic!("one is idle on the other loop")
    };
    assert_eq!((backend, home), (2, LoopId(0)));
}

#[test]
fn once_all_backends_wait_for_locks_they_make_room_up_to_the_reserve() {
    let mut pool = lent_out(3);
    pool.set_limits(Limits { lock_wait_reserve: 2, ..limits(3) }, T0);
    for n in 0..4 {
        assert!(matches!(pool.acquire(client(0, 50 + n), T0), Acquired::Wait { open: false }));
    }
    assert_eq!(pool.set_lock_waits(2, T0), 0, "one works");
    assert_eq!(pool.set_lock_waits(3, T0), 2, "no more than the reserve");
    assert_eq!(pool.set_lock_waits(3, T0), 0);
    pool.opened(LoopId(0));
    pool.opened(LoopId(0));
    let released = pool.release(BackendId(7), 7, LoopId(0), T0);
    assert!(matches!(released, Released::Next { backend: 7, .. }), "it is kept while they wait");
    assert_eq!(pool.set_lock_waits(1, T0), 0);
    // Four count where three may.
    assert!(matches!(pool.release(BackendId(7), 7, LoopId(0), T0), Released::Close(7)));
    assert_eq!((pool.set_lock_waits(0, T0), pool.total()), (0, 4));
    assert!(matches!(pool.release(BackendId(8), 8, LoopId(0), T0), Released::Close(8)));
    assert!(matches!(pool.release(BackendId(0), 0, LoopId(0), T0), Released::Next { .. }));
}

#[test]
fn backends_that_sit_idle_do_not_keep_a_pool_of_lock_waits_full() {
    let mut pool = lent_out(2);
    pool.set_limits(Limits { lock_wait_reserve: 1, ..limits(2) }, T0);
    pool.acquire(client(0, 50), T0);
    assert_eq!(pool.park(T0), 0, "there is no reserve for it");
    assert_eq!(pool.set_lock_waits(1, T0), 1);
}

#[test]
fn backends_idle_in_a_transaction_make_room_up_to_the_reserve() {
    let mut pool = lent_out(2);
    pool.set_limits(Limits { idle_transaction_reserve: 1, ..limits(2) }, T0);
    for n in 0..3 {
        assert!(matches!(pool.acquire(client(0, 50 + n), T0), Acquired::Wait { open: false }));
    }
    assert_eq!(pool.park(T0), 1, "room for one more");
    assert_eq!(pool.park(T0), 0, "the reserve is used up");
    assert_eq!(pool.total(), 3);
    pool.opened(LoopId(0));
    pool.unpark();
    pool.unpark();
    // Three are at work where two may be: the next that is released goes.
    assert!(matches!(pool.release(BackendId(9), 9, LoopId(0), T0), Released::Close(9)));
    assert!(matches!(pool.release(BackendId(8), 8, LoopId(0), T0), Released::Next { .. }));
}

#[test]
fn the_reserve_pool_opens_only_after_its_timeout() {
    let mut pool = lent_out(1);
    let reserve = Limits { reserve_size: 1, reserve_timeout: Duration::from_secs(5), ..limits(1) };
    assert_eq!(pool.set_limits(reserve, T0), 0);
    assert!(matches!(pool.acquire(client(0, 5), T0), Acquired::Wait { open: false }));
    assert_eq!(pool.openings_due(Time::from_micros(4_999_999)), 0);
    assert_eq!(pool.openings_due(Time::from_micros(5_000_000)), 1);
    assert_eq!(pool.openings_due(Time::from_micros(9_000_000)), 0, "only as many as wait");
}

#[test]
fn after_a_failure_nothing_is_opened_until_the_back_off_ends() {
    let mut pool: Pool<u64> = Pool::new(limits(1));
    pool.acquire(client(0, 0), T0);
    pool.open_failed(T0, Duration::from_secs(1));
    assert!(matches!(pool.acquire(client(0, 1), T0), Acquired::Wait { open: false }));
    assert_eq!(pool.openings_due(Time::from_micros(999_999)), 0);
    assert_eq!(pool.openings_due(Time::from_micros(1_000_000)), 1);
}

#[test]
fn after_a_failure_one_opening_at_a_time_tries_until_one_succeeds() {
    let mut pool: Pool<u64> = Pool::new(Limits { min_size: 3, ..limits(3) });
    for at in 0..3 {
        assert!(matches!(pool.acquire(client(0, at), T0), Acquired::Wait { open: true }));
    }
    for _ in 0..3 {
        pool.open_failed(T0, Duration::from_secs(1));
    }
    let end = Time::from_micros(1_000_000);
    assert_eq!(pool.openings_due(end), 1);
    assert_eq!((pool.openings_due(end), pool.openings_for_min_size(end)), (0, 0));
    assert_eq!(pool.open_one(end), OpenOne::NotNow);
    pool.open_failed(end, Duration::from_secs(10));
    assert_eq!(pool.openings_due(end), 0);
    pool.try_now();
    assert_eq!(pool.openings_due(end), 1, "another pool has seen the server");
    pool.opened(LoopId(0));
    assert_eq!(pool.openings_due(end), 2, "and now all");
}

#[test]
fn a_pause_keeps_backends_and_resume_hands_them_to_waiters() {
    let mut pool = lent_out(2);
    pool.pause();
    assert!(matches!(pool.release(BackendId(0), 0, LoopId(0), T0), Released::Kept));
    assert!(matches!(pool.acquire(client(1, 5), T0), Acquired::Wait { open: false }));
    let (handed, open) = pool.resume(T0);
    assert_eq!(open, 0);
    assert_eq!(handed.len(), 1);
    assert_eq!(handed[0].0.client, client(1, 5));
    assert_eq!(handed[0].1, LoopId(0));
    assert_eq!(pool.lent_count(), 2);
}

#[test]
fn a_waiter_that_left_gets_nothing() {
    let mut pool = lent_out(1);
    pool.acquire(client(0, 5), T0);
    assert!(pool.forget_waiter(client(0, 5), T0));
    assert!(!pool.forget_waiter(client(0, 5), T0));
    assert!(matches!(pool.release(BackendId(0), 0, LoopId(0), T0), Released::Kept));
}

#[test]
fn the_backend_used_last_is_lent_and_round_robin_lends_the_one_idle_longest() {
    let lent = |round_robin: bool| {
        let mut pool = lent_out_on(&[0, 0, 1]);
        for n in [0, 1, 2] {
            // The last of them on the loop of the client that asks.
            let home = LoopId(u16::from(n == 2));
            assert!(matches!(pool.release(BackendId(n), n, home, T0), Released::Kept));
        }
        pool.set_limits(Limits { round_robin, ..limits(3) }, T0);
        let mut order = Vec::new();
        for _ in 0..4 {
            let Acquired::Backend { backend, .. } = pool.acquire(client(1, 9), T0) else {
                panic!("one is idle")
            };
            order.push(backend);
            let kept = pool.release(BackendId(backend), backend, LoopId(1), T0);
            assert!(matches!(kept, Released::Kept));
        }
        order
    };
    assert_eq!(lent(false), [2, 2, 2, 2]);
    assert_eq!(lent(true), [0, 1, 2, 0]);
}

#[test]
fn one_backend_is_given_up_for_another_pool_though_clients_wait() {
    let mut pool = lent_out(2);
    assert!(matches!(pool.acquire(client(0, 7), T0), Acquired::Wait { open: false }));
    assert!(matches!(pool.acquire(client(0, 8), T0), Acquired::Wait { open: false }));
    pool.give_up_one(T0.after(Duration::from_millis(100)));
    let soon = T0.after(Duration::from_millis(99));
    assert!(matches!(pool.release(BackendId(0), 0, LoopId(0), soon), Released::Close(0)));
    assert_eq!(pool.total(), 1);
    assert!(matches!(pool.release(BackendId(1), 1, LoopId(0), soon), Released::Next { .. }));
    // Too late: the other pool has stopped asking.
    pool.give_up_one(T0.after(Duration::from_millis(100)));
    let late = T0.after(Duration::from_millis(100));
    assert!(matches!(pool.release(BackendId(1), 1, LoopId(0), late), Released::Next { .. }));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what it takes is what is tested")]
fn those_who_leave_the_queue_are_found_without_a_search_whatever_their_order() {
    const MANY: u32 = 40_000;
    let began = std::time::Instant::now();
    let mut pool = lent_out(1);
    let at = |n: u32| Time::from_micros(1_000 + u64::from(n) * 10);
    // Every second loop's clock lags.
    let since = |n: u32| if n.is_multiple_of(2) { at(n) } else { at(n.saturating_sub(30)) };
    let waiter = |n: u32| client((n % 2) as u16, n);
    for n in 0..MANY {
        assert!(matches!(pool.acquire(waiter(n), since(n)), Acquired::Wait { open: false }));
    }
    // The last first, but for each hundredth.
    for n in (0..MANY).rev().filter(|n| n % 100 != 0) {
        assert!(pool.forget_waiter(waiter(n), since(n)), "{n}");
        assert!(!pool.forget_waiter(waiter(n), since(n)), "{n} a second time");
    }
    assert_eq!(pool.waiting_count(), MANY / 100);
    assert_eq!(pool.waiters().count(), MANY as usize / 100);
    for n in (0..MANY).step_by(100) {
        assert_eq!(pool.oldest_waiter().map(|waiter| waiter.client), Some(waiter(n)));
        let Released::Next { waiter: next, .. } = pool.release(BackendId(0), 0, LoopId(0), T0)
        else {
            panic!("a client waits")
        };
        assert_eq!(next.client, waiter(n));
    }
    assert!(matches!(pool.release(BackendId(0), 0, LoopId(0), T0), Released::Kept));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn an_event_of_a_loop_that_watches_it_no_more_takes_no_backend() {
    let mut pool = lent_out_on(&[2]);
    assert!(matches!(pool.release(BackendId(0), 0, LoopId(2), T0), Released::Kept));
    assert_eq!(pool.take_idle_as_lent(BackendId(0), LoopId(0)), None);
    assert_eq!((pool.idle_count(), pool.lent_count()), (1, 0));
    assert_eq!(pool.take_idle_as_lent(BackendId(0), LoopId(2)), Some(0));
    assert_eq!((pool.idle_count(), pool.lent_count()), (0, 1));
}

/// A wish for settings of this value.
fn wish(value: &[u8], statement: u64) -> Wish {
    Wish { settings: settings(value).mark(), statement, ..Wish::default() }
}

fn settings(value: &[u8]) -> crate::session::settings::Settings {
    let pairs = [(&b"application_name"[..], value)];
    pairs.into_iter().collect::<crate::session::settings::SettingsBuilder>().build()
}

#[test]
fn the_idle_backend_with_the_settings_that_are_wanted_is_lent_whichever_loop_has_it() {
    let mut pool = lent_out_on(&[0, 1, 0, 0]);
    let none = CustomNames::NONE;
    for (n, home, value) in [(0, 0, b"a"), (1, 1, b"b"), (2, 0, b"c"), (3, 0, b"d")] {
        let has = Has { names: none, settings: settings(value).mark(), ..Has::default() };
        let known = |_: &u64, _| false;
        let kept = pool.release_with(BackendId(n), n, has, known, LoopId(home), T0);
        assert!(matches!(kept, Released::Kept));
    }
    let mut lent = |wish, known: Option<u64>| {
        let knows = |backend: &u64| Some(*backend) == known;
        let Acquired::Backend { backend, .. } =
            pool.acquire_with(client(0, 9), none, wish, knows, T0)
        else {
            panic!("some are idle")
        };
        backend
    };
    assert_eq!(lent(wish(b"b", 0), Some(2)), 1, "its settings");
    assert_eq!(lent(wish(b"b", 7), Some(0)), 0, "its statement");
    assert_eq!(lent(wish(b"b", 7), None), 3, "the most recently used");
    assert_eq!(lent(wish(b"b", 7), None), 2, "what there is");
}

#[test]
fn a_backend_goes_to_its_nearest_waiter_and_no_waiter_is_passed_too_often() {
    let size = 3;
    let mut pool = lent_out(size);
    let none = CustomNames::NONE;
    // The head wants what no backend has; all that come after it are nearer.
    for n in 0..40 {
        let wish = if n == 0 { wish(b"x", 5) } else { wish(b"y", n) };
        pool.acquire_with(client(0, 100 + n as u32), none, wish, |_| false, T0);
    }
    let mut release = |value: &[u8], known: u64| {
        let knows = |_: &u64, statement| statement == known;
        let has = Has { names: none, settings: settings(value).mark(), ..Has::default() };
        let Released::Next { waiter, .. } =
            pool.release_with(BackendId(0), 0, has, knows, LoopId(0), T0)
        else {
            panic!("a client waits")
        };
        waiter.client.slot.index - 100
    };
    assert_eq!(release(b"z", 7), 7, "its statement");
    assert_eq!(release(b"y", 3), 1, "its settings");
    assert_eq!(release(b"z", 30), 0, "too far back: the head");
    assert_eq!(release(b"z", 9), 9);
    assert_eq!(release(b"z", 10), 10, "the next has been passed three times now");
    assert_eq!(release(b"z", 11), 2, "and no more");
}

#[test]
fn what_an_older_epoch_has_learnt_of_a_server_is_not_kept() {
    let pool: SharedPool<u64> =
        SharedPool::new(PoolId(1), "db", "me", PoolSettings::default(), 1, 1);
    let said = |zone: &str| {
        let mut parameters = ServerParameters::default();
        parameters.set(b"TimeZone", zone.as_bytes());
        Arc::new(parameters)
    };
    let old = pool.epoch();
    pool.begin_epoch();
    // An opening that began before ends only now.
    pool.keep_parameters(old, said("Asia/Tokyo"));
    assert_eq!(pool.parameters(), None);
    let kept = pool.keep_parameters(pool.epoch(), said("UTC"));
    pool.keep_parameters(old, said("Asia/Tokyo"));
    assert_eq!(pool.parameters(), Some(said("UTC")));
    assert!(Arc::ptr_eq(&kept, &pool.keep_parameters(pool.epoch(), said("UTC"))));
}

#[test]
fn no_client_waits_for_a_server_that_is_down_but_for_a_lent_backend_or_a_pause() {
    use crate::wire::error::{ClientError, SqlState};
    let down = || Some(ClientError::fatal(SqlState::CONNECTION_FAILURE, "down"));
    let mut pool: Pool<u64> = Pool::new(limits(2));
    pool.set_down(down());
    assert!(
        matches!(pool.acquire(client(0, 0), T0), Acquired::Down(error) if error.message == "down")
    );
    assert_eq!((pool.waiting_count(), pool.openings_due(T0)), (0, 0));
    pool.pause();
    assert!(matches!(pool.acquire(client(0, 1), T0), Acquired::Wait { open: false }));
    let mut pool = lent_out(1);
    pool.set_down(down());
    assert!(matches!(pool.acquire(client(0, 5), T0), Acquired::Wait { open: false }));
    let mut pool: Pool<u64> = Pool::new(limits(1));
    assert!(matches!(pool.acquire(client(0, 0), T0), Acquired::Wait { open: true }));
    pool.set_down(down());
    pool.opened(LoopId(0));
    assert!(pool.down().is_none(), "a backend is there");
}

#[test]
fn as_many_clients_wait_as_may_beyond_those_that_await_an_opening_and_all_in_a_pause() {
    let mut pool: Pool<u64> = Pool::new(Limits { queue_max: 1, ..limits(1) });
    assert!(matches!(pool.acquire(client(0, 0), T0), Acquired::Wait { open: true }));
    assert!(matches!(pool.acquire(client(0, 1), T0), Acquired::Wait { open: false }));
    assert!(matches!(pool.acquire(client(0, 2), T0), Acquired::Full));
    assert_eq!(pool.waiting_count(), 2);
    pool.pause();
    assert!(matches!(pool.acquire(client(0, 3), T0), Acquired::Wait { open: false }));
}
