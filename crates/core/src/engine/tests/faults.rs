//! What goes wrong in the middle of a pipeline, and what clients and servers do that they should
//! not: nothing of it may reach another client, or keep a backend for ever.

use super::harness::*;

/// Close of a statement.
fn close(name: &str) -> Vec<u8> {
    message(b'C', &[b"S", name.as_bytes(), b"\0"].concat())
}

fn flush() -> Vec<u8> {
    message(b'H', b"")
}

#[test]
fn trap_02_an_error_does_not_hide_that_the_next_pipeline_has_no_sync_yet() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &[parse("", "SELEC"), sync()].concat());
    world.send(&client, &[parse("", "SELECT 1"), bind(""), flush()].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PSPBH");
    world.send(&server, &answers("EI12"));
    assert_eq!(client.kinds(), "EZ12");
    world.send(&other, &query("SELECT 2"));
    assert_eq!(server.kinds(), "", "the portal is still open");
    world.send(&client, &[execute(), sync()].concat());
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ");
    assert_eq!(server.kinds(), "ESQ");
}

#[test]
fn what_the_server_ignores_after_an_error_names_and_closes_nothing() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("kept", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    server.received();
    client.received();
    world.send(&client, &[parse("", "SELEC"), flush()].concat());
    world.send(&server, &answers("E"));
    assert_eq!(client.kinds(), "E");
    server.received();
    world.send(&client, &[parse("new", "SELECT 2"), close("kept"), query("DISCARD ALL")].concat());
    world.send(&client, &sync());
    assert_eq!(server.kinds(), "S");
    world.send(&server, &answers("I"));
    assert_eq!(client.kinds(), "Z");
    world.send(&client, &[bind("kept"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "BES", "it is still there");
    world.send(&server, &answers("2CI"));
    world.send(&client, &[bind("new"), execute(), sync()].concat());
    assert!(
        String::from_utf8_lossy(&server.received()).contains("\0new\0"),
        "the server knows no such name, and says so"
    );
}

#[test]
fn a_close_behind_an_error_that_is_still_under_way_takes_nothing_away() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("kept", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&client, &[parse("", "SELEC"), close("kept"), sync()].concat());
    world.send(&server, &answers("EI"));
    server.received();
    world.send(&client, &[bind("kept"), execute(), sync()].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "BES");
    assert!(!String::from_utf8_lossy(&sent).contains("kept"), "under its shared name");
}

#[test]
fn trap_14_an_unnamed_statement_of_another_client_is_not_run_after_an_error() {
    // The second client's Parse or Close of the unnamed statement is ignored by the server
    // because of an error ahead of it: the server still has the first client's.
    for pipeline in [
        [bind("nonesuch"), parse("", "SELECT 'two'"), sync()].concat(),
        [bind("nonesuch"), close(""), sync()].concat(),
        [bind("nonesuch"), bind(""), sync()].concat(),
    ] {
        let mut world = World::new(1);
        let (one, two) = (world.client(), world.client());
        world.send(&one, &[parse("", "SELECT 'one'"), sync()].concat());
        let server = world.servers[0].clone();
        world.send(&server, &answers("1I"));
        world.send(&two, &pipeline);
        world.send(&server, &answers("EI"));
        server.received();
        world.send(&two, &[bind(""), execute(), sync()].concat());
        assert_eq!(server.kinds(), "CBES", "behind a Close, so that the Bind fails");
    }
}

#[test]
fn a_statement_prepared_in_a_failed_transaction_is_the_servers_to_judge() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("one", "ROLLBACK"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&client, &query("BEGIN; SELEC"));
    world.send(&server, &answers("EF"));
    server.received();
    client.received();
    world.send(&client, &[parse("two", "ROLLBACK"), bind("two"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "CPBES", "closed first, or the server would call it a duplicate");
    world.send(&server, &answers("312CI"));
    assert_eq!(client.kinds(), "12CZ");
    assert_eq!(world.idle_backends(), 1);
}
