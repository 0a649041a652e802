//! Settings that are sent within the client's own pipeline, and what they must not do there.

use super::harness::*;
use crate::ids::LoopId;
use crate::relay::{PoolMode, ToLoop};
use crate::wire::error::SqlState;

/// A client with these settings from its start.
fn client_of(world: &mut World, start: &[(&str, &str)]) -> Peer {
    world.client_of(LoopId(0), PoolMode::Transaction, start)
}

fn run(name: &str) -> Vec<u8> {
    [bind(name), execute(), sync()].concat()
}

/// Two clients of one server connection, each with its own `my.user` and a statement `s`. The
/// server connection has both statements and the one that sets one setting. It last served the
/// second client.
fn two_clients() -> (World, Peer, Peer, Peer) {
    let mut world = World::new(1);
    let one = client_of(&mut world, &[("my.user", "1")]);
    let two = client_of(&mut world, &[("my.user", "2")]);
    for (client, ahead) in [(&one, "12DC"), (&two, "2DC")] {
        world.send(client, &[parse("s", "SELECT 1"), run("s")].concat());
        let server = world.servers[0].clone();
        world.send(&server, &[answers(ahead), answers("12CI")].concat());
        assert_eq!(client.kinds(), "12CZ");
        server.received();
    }
    let server = world.servers[0].clone();
    (world, one, two, server)
}

fn text_of(peer: &Peer) -> String {
    String::from_utf8_lossy(&peer.received()).into_owned()
}

#[test]
fn they_go_before_a_pipeline_that_reads_or_writes_rows() {
    let (mut world, one, two, server) = two_clients();
    world.send(&one, &run("s"));
    let sent = server.received();
    assert_eq!(kinds(&sent), "BEBES", "no query, no Sync, no Parse");
    let bound = b"\0\x02\0\0\0\x07my.user\0\0\0\x011\0\0";
    assert!(sent.windows(bound.len()).any(|part| part == bound), "{}", sent.escape_ascii());
    world.send(&server, &answers("2DC2CI"));
    assert_eq!(one.kinds(), "2CZ");
    world.send(&one, &run("s"));
    assert_eq!(server.kinds(), "BES", "it has them");
    world.send(&server, &answers("2CI"));
    world.send(&two, &[parse("", "UPDATE t SET a = 1"), run("")].concat());
    assert_eq!(server.kinds(), "BEPBES");
}

#[test]
fn clients_that_differ_in_them_share_statements_only_where_that_is_promised_to_be_safe() {
    for (in_plans, sent) in [(true, "BEPBES"), (false, "BEBES")] {
        let mut world = World::new(1);
        world.change_settings(|settings| settings.custom_settings_in_plans = Some(in_plans));
        let one = client_of(&mut world, &[("my.user", "1")]);
        world.send(&one, &[parse("s", "SELECT 1"), run("s")].concat());
        let server = world.servers[0].clone();
        world.send(&server, &[answers("12DC"), answers("12CI")].concat());
        let two = client_of(&mut world, &[("my.user", "2")]);
        server.received();
        world.send(&two, &[parse("s", "SELECT 1"), run("s")].concat());
        assert_eq!(server.kinds(), sent);
        let prepared = if in_plans { "1" } else { "" };
        world.send(&server, &[answers("2DC"), answers(prepared), answers("2CI")].concat());
        assert_eq!(two.kinds(), "12CZ");
    }
}

#[test]
fn an_error_takes_them_back() {
    let (mut world, one, two, server) = two_clients();
    world.send(&one, &run("s"));
    server.received();
    world.send(&server, &answers("2DC2EI"));
    assert_eq!(one.kinds(), "2EZ");
    world.send(&two, &run("s"));
    assert_eq!(server.kinds(), "BES", "the second client's were in force before");
    world.send(&server, &answers("2CI"));
    world.send(&one, &run("s"));
    assert_eq!(server.kinds(), "BEBES", "what the first wants has not changed");
    world.send(&server, &[answers("2DC2C"), answers("E"), answers("I")].concat());
    assert_eq!(one.kinds(), "2CEZ", "as it commits");
    world.send(&one, &query("SELECT 1"));
    assert!(text_of(&server).contains("SET \"my\".\"user\" TO '1'"));
}

#[test]
fn what_follows_waits_until_it_is_known_that_they_are_in_force() {
    let (mut world, one, _, server) = two_clients();
    world.send(&one, &[run("s"), run("s")].concat());
    assert_eq!(server.kinds(), "BEBES");
    world.send(&server, &answers("2DCEI"));
    assert_eq!(server.kinds(), "BEBES", "they are brought again");
    world.send(&server, &answers("2DC2CI"));
    assert_eq!(one.kinds(), "EZ2CZ");
}

#[test]
fn what_ends_or_needs_a_transaction_of_its_own_is_not_joined() {
    for text in
        ["BEGIN", "VACUUM t", "COMMIT", "SET TimeZone TO 'UTC'", "CALL p()", "/* */ SELECT 1"]
    {
        let (mut world, one, _, server) = two_clients();
        world.send(&one, &[parse("", text), bind(""), execute(), sync()].concat());
        assert!(server.kinds().starts_with('Q'), "{text}");
    }
    let (mut world, one, two, server) = two_clients();
    world.send(&two, &[parse("b", "BEGIN"), sync()].concat());
    world.send(&server, &answers("1I"));
    world.send(&one, &run("s"));
    world.send(&server, &answers("2DC2CI"));
    server.received();
    world.send(&two, &[bind("b"), execute(), bind("s"), execute(), sync()].concat());
    assert!(server.kinds().starts_with('Q'), "known by the client's name for it");
}

#[test]
fn a_pipeline_that_is_not_here_to_its_end_is_not_joined() {
    let (mut world, one, _, server) = two_clients();
    world.send(&one, &[bind("s"), execute()].concat());
    assert!(server.kinds().starts_with('Q'));
    let (mut world, one, _, server) = two_clients();
    world.send(&one, &[execute(), sync()].concat());
    assert_eq!(server.kinds(), "Q", "it has no portal of its own, and must not find ours");
}

#[test]
fn a_report_of_them_is_no_news_and_any_other_is() {
    let mut world = World::new(1);
    world.own = vec![("application_name", "")];
    let one = client_of(&mut world, &[("application_name", "one")]);
    let ready = |value: &str| [parameter("application_name", value), answers("I")].concat();
    world.send(&one, &[parse("", "SELECT 1"), run("")].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PBEPBES");
    world.send(&server, &[answers("12DC12C"), ready("one")].concat());
    assert_eq!(one.kinds(), "12CZ");
    let two = client_of(&mut world, &[("application_name", "two")]);
    world.send(&two, &[parse("", "SELECT f()"), run("")].concat());
    world.send(&server, &[answers("2DC12C"), ready("of f")].concat());
    assert_eq!(two.kinds(), "12CSZ", "a function has set it");
    server.received();
    world.send(&two, &query("SELECT 1"));
    assert_eq!(server.kinds(), "Q", "it is the client's from then on");
}

#[test]
fn what_the_server_does_not_take_ends_the_session() {
    let (mut world, one, _, server) = two_clients();
    world.send(&one, &run("s"));
    world.send(&server, &answers("2E"));
    assert!(world.asked.told.contains(&SqlState::CONNECTION_FAILURE));
    assert!(one.is_dropped() && server.is_dropped());
}

#[test]
fn a_statement_of_ours_that_a_function_has_taken_away_is_prepared_again() {
    let (mut world, one, _, server) = two_clients();
    world.send(&one, &run("s"));
    server.received();
    let lost = message(b'E', b"SERROR\0VERROR\0C26000\0Mit does not exist\0\0");
    world.send(&server, &[lost, answers("I")].concat());
    assert_eq!(server.kinds(), "PBECCCPPBECCDS", "so is the client's, parsed under its settings");
    let prepared = [answers("12DC333112DC33"), message(b't', &[0, 0]), answers("nI")].concat();
    world.send(&server, &prepared);
    assert_eq!(server.kinds(), "CPBEBES");
    world.send(&server, &answers("312DC2CI"));
    assert_eq!(one.kinds(), "2CZ", "the client has not noticed");
}

#[test]
fn a_client_that_leaves_in_the_middle_leaves_the_settings_of_before() {
    let (mut world, one, two, server) = two_clients();
    world.send(&one, &run("s"));
    world.close(&one);
    let request = world.asked.cancels[0].clone();
    world.send(&server, &answers("2DCEI"));
    world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
    server.received();
    world.send(&two, &run("s"));
    assert_eq!(server.kinds(), "BES");
}

#[test]
fn each_search_path_has_a_statement_of_ours_that_sets_the_next() {
    let mut world = World::new(1);
    let mut clients: Vec<Peer> = Vec::new();
    let paths = ["a", "b", "c"];
    for path in paths {
        let client = client_of(&mut world, &[("search_path", path)]);
        world.send(&client, &[parse("s", "SELECT 1"), run("s")].concat());
        let server = world.servers[0].clone();
        // The statement that sets it, for the path before, and the client's own.
        world.send(&server, &[answers("12DC"), answers("12CI")].concat());
        assert_eq!(client.kinds(), "12CZ", "{path}");
        clients.push(client);
    }
    let server = world.servers[0].clone();
    server.received();
    // From the last to the first for the first time, and then in the order that is known.
    for (at, sent, told) in
        [(0, "PBEBES", "12DC2CI"), (1, "BEBES", "2DC2CI"), (2, "BEBES", "2DC2CI")]
    {
        world.send(&clients[at], &run("s"));
        let received = server.received();
        assert_eq!(kinds(&received), sent);
        let bound = [b"\0\x02\0\0\0\x0bsearch_path\0\0\0\x01", paths[at].as_bytes()].concat();
        assert!(
            received.windows(bound.len()).any(|part| part == bound),
            "{}",
            received.escape_ascii()
        );
        world.send(&server, &answers(told));
        assert_eq!(clients[at].kinds(), "2CZ");
    }
}

#[test]
fn what_a_client_sets_back_to_what_the_server_had_is_its_own_although_nothing_is_reported() {
    let mut world = World::new(1);
    let of = |world: &mut World, name| client_of(world, &[("application_name", name)]);
    let (one, two) = (of(&mut world, "a"), of(&mut world, "b"));
    let sets = "SELECT set_config('application_name', 'b', false)";
    world.send(&one, &[parse("sets", sets), run("sets")].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "QPBES");
    let reported = |name| parameter("application_name", name);
    let ahead = [answers("C"), reported("a"), answers("I")].concat();
    world.send(&server, &[ahead, answers("12DC"), reported("b"), answers("I")].concat());
    assert_eq!(one.kinds(), "12DCSZ");
    world.send(&one, &query("SET application_name = 'a'"));
    server.received();
    world.send(&server, &[answers("C"), reported("a"), answers("I")].concat());
    one.received();
    world.send(&two, &[parse("s", "SELECT 1"), run("s")].concat());
    server.received();
    world.send(&server, &[answers("12DC12C"), reported("b"), answers("I")].concat());
    assert_eq!(two.kinds(), "12CZ");
    world.send(&one, &run("sets"));
    assert_eq!(server.kinds(), "BEBES", "its own, a, is brought");
    world.send(&server, &answers("2DC2DCI"));
    let told = one.received();
    assert_eq!(kinds(&told), "2DCSZ", "as on a direct connection");
    assert!(told.windows(18).any(|part| part == b"application_name\0b"));
    world.send(&one, &run("sets"));
    assert_eq!(server.kinds(), "BES", "nothing is brought: it wants what is there");
    world.send(&server, &answers("2CI"));
    assert_eq!(one.kinds(), "2CZ");
}

/// As `two_clients`, and the second has state that no other client may have: a query of Hawser's
/// removes it before the first client's pipeline.
#[test]
fn what_takes_anothers_statements_away_goes_before_them_and_not_between() {
    let (mut world, one, two, server) = two_clients();
    world.send(&two, &query("PREPARE p AS SELECT 1"));
    world.send(&server, &answers("CI"));
    world.send(&server, &told_prepared(&["p"]));
    assert_eq!(world.idle_backends(), 1);
    server.received();
    world.send(&one, &run("s"));
    let sent = server.received();
    assert_eq!(kinds(&sent), "QCPBECPBES", "the DEALLOCATE would commit what is before it");
    assert!(sent.starts_with(&query("DEALLOCATE \"p\"")));
    // The settings are rolled back with the pipeline, as in the books.
    world.send(&server, &answers("CI312DC312EI"));
    assert_eq!(one.kinds(), "2EZ");
    two.received();
    world.send(&two, &[bind("s"), execute(), sync()].concat());
    let sent = String::from_utf8_lossy(&server.received()).into_owned();
    assert!(sent.contains("PREPARE p AS SELECT 1"), "its own is brought: {sent}");
    assert!(!sent.contains("my.user"), "its settings are in force: {sent}");
}

#[test]
fn what_takes_anothers_sequences_away_goes_before_them_and_not_between() {
    let (mut world, one, two, server) = two_clients();
    // From now on the first client's transactions begin with a DISCARD.
    world.send(&one, &query("SELECT lastval()"));
    let sent = server.received();
    assert_eq!(kinds(&sent), "QQQ", "{}", sent.escape_ascii());
    world.send(&server, &answers("CICICI"));
    world.send(&two, &run("s"));
    world.send(&server, &answers("CI2DC2CI"));
    server.received();
    world.send(&one, &run("s"));
    let sent = server.received();
    assert_eq!(kinds(&sent), "QBEBES");
    assert!(sent.starts_with(&query("DISCARD SEQUENCES")), "{}", sent.escape_ascii());
}

#[test]
fn a_query_of_ours_in_the_middle_of_a_clients_pipeline_ends_the_connection_instead() {
    let (mut world, one, _, server) = two_clients();
    world.send(&one, &[bind("s"), execute()].concat());
    assert_eq!(server.kinds(), "QBE");
    world.send(&server, &answers("CI2C"));
    one.received();
    let mut out = Vec::new();
    world.with_backend_of(&one, |backend| backend.inject_query(b"SELECT 1", &mut out));
    world.send(&one, &sync());
    assert_eq!(server.kinds(), "", "nothing more, not even the Sync");
    assert!(server.is_dropped());
    assert!(world.asked.told.contains(&SqlState::CONNECTION_FAILURE), "{:?}", world.asked.told);
}
