//! Trap 6: a statement that DDL has made stale, healed where its client cannot notice.

use super::harness::*;
use crate::ids::LoopId;
use crate::parts::identity::process_ids::PROCESS_ID_FIRST;
use crate::relay::ToLoop;

/// The server's refusal to run a stale statement.
fn refusal() -> Vec<u8> {
    message(
        b'E',
        b"SERROR\0VERROR\0C0A000\0Mcached plan must not change result type\0RRevalidateCachedQuery\0\0",
    )
}

/// The same, made by Hawser.
pub(super) fn refusal_of_ours() -> Vec<u8> {
    message(b'E', crate::parts::statements::fit::CHANGED)
}

/// RowDescription of one column.
pub(super) fn rows(column: &str, type_oid: u32, format: u8) -> Vec<u8> {
    let fixed = [&[0; 6][..], &type_oid.to_be_bytes(), &[0; 6], &[0, format]].concat();
    message(b'T', &[&[0, 1][..], column.as_bytes(), b"\0", &fixed].concat())
}

pub(super) fn parameters(type_oid: u32) -> Vec<u8> {
    message(b't', &[&[0, 1][..], &type_oid.to_be_bytes()].concat())
}

pub(super) fn describe(what: u8, name: &str) -> Vec<u8> {
    message(b'D', &[&[what][..], name.as_bytes(), b"\0"].concat())
}

pub(super) fn run(name: &str) -> Vec<u8> {
    [bind(name), execute(), sync()].concat()
}

pub(super) const INT4: u32 = 23;
pub(super) const TEXT: u32 = 25;

/// A client that has prepared `s`, on a backend where it is stale now.
fn prepared() -> (World, Peer, Peer) {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("s", "SELECT * FROM t"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    server.received();
    client.received();
    (world, client, server)
}

/// The same, and the client has descriptions of its columns and parameters.
fn described() -> (World, Peer, Peer) {
    let (mut world, client, server) = prepared();
    world.send(&client, &[describe(b'S', "s"), sync()].concat());
    world.send(&server, &[parameters(INT4), rows("a", INT4, 0), answers("I")].concat());
    server.received();
    client.received();
    (world, client, server)
}

#[test]
fn trap_06_a_client_that_never_saw_the_columns_does_not_notice_the_ddl() {
    let (mut world, client, server) = prepared();
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "BES");
    world.send(&server, &[refusal(), answers("I")].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "CPDS");
    assert_eq!(client.kinds(), "");
    assert_eq!(world.idle_backends(), 0);
    let described = [parameters(INT4), rows("a", TEXT, 0), answers("I")].concat();
    for byte in [answers("31"), described].concat() {
        world.send(&server, &[byte]);
    }
    assert_eq!(server.kinds(), "BES");
    world.send(&server, &answers("2DCI"));
    assert_eq!(client.kinds(), "2DCZ");
    assert_eq!(world.idle_backends(), 1);
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "BES", "it is prepared");
}

#[test]
fn trap_06_a_client_that_saw_the_old_columns_gets_the_servers_error() {
    for now in [rows("a", TEXT, 0), rows("b", INT4, 0), message(b'n', b"")] {
        let (mut world, client, server) = described();
        world.send(&client, &run("s"));
        world.send(&server, &[refusal(), answers("I")].concat());
        server.received();
        let described = [answers("31"), parameters(INT4), now.clone(), answers("I")].concat();
        world.send(&server, &described);
        assert_eq!(client.received(), [refusal(), answers("I")].concat());
        assert_eq!(server.kinds(), "");
        assert_eq!(world.idle_backends(), 1);
        world.send(&client, &run("s"));
        assert_eq!(server.kinds(), "CPDH", "what it is like now is asked for first");
        world.send(&server, &[answers("31"), parameters(INT4), now.clone()].concat());
        assert_eq!(server.kinds(), "PDH", "and what it is like for parameters as they were");
        world.send(&server, &[answers("1"), parameters(INT4), now].concat());
        assert_eq!(server.kinds(), "CBES", "it stays an error");
        world.send(&server, &[answers("3"), lost(), answers("I")].concat());
        assert_eq!(client.received(), [refusal_of_ours(), answers("I")].concat());
    }
}

#[test]
fn trap_06_a_client_that_saw_the_new_columns_is_served() {
    let (mut world, client, server) = described();
    world.send(&client, &run("s"));
    world.send(&server, &[refusal(), answers("I")].concat());
    world.send(
        &server,
        &[answers("31"), parameters(INT4), rows("a", INT4, 0), answers("I")].concat(),
    );
    server.received();
    world.send(&server, &answers("2CI"));
    assert_eq!(client.kinds(), "2CZ");
}

#[test]
fn trap_06_parameters_of_another_type_are_an_error() {
    let (mut world, client, server) = described();
    world.send(&client, &[bind("s"), describe(b'P', ""), execute(), sync()].concat());
    world.send(&server, &[refusal(), answers("I")].concat());
    world.send(
        &server,
        &[answers("31"), parameters(TEXT), rows("a", INT4, 0), answers("I")].concat(),
    );
    assert_eq!(client.kinds(), "EZ");
}

#[test]
fn trap_06_a_pipeline_that_asks_for_the_columns_again_gets_the_servers_error_as_well() {
    let (mut world, client, server) = described();
    world.send(&client, &[bind("s"), describe(b'P', ""), execute(), sync()].concat());
    world.send(&server, &[refusal(), answers("I")].concat());
    world.send(
        &server,
        &[answers("31"), parameters(INT4), rows("b", TEXT, 0), answers("I")].concat(),
    );
    assert_eq!(client.received(), [refusal(), answers("I")].concat());
    assert_eq!(server.kinds(), "BDESCPDS");
}

#[test]
fn trap_06_columns_seen_by_way_of_a_portal_count_whatever_their_format() {
    for (now, healed) in [(rows("a", INT4, 0), true), (rows("a", TEXT, 0), false)] {
        let (mut world, client, server) = prepared();
        world.send(&client, &[bind("s"), describe(b'P', ""), execute(), sync()].concat());
        world.send(&server, &[answers("2"), rows("a", INT4, 1), answers("CI")].concat());
        world.send(&client, &run("s"));
        world.send(&server, &[refusal(), answers("I")].concat());
        client.received();
        world.send(&server, &[answers("31"), parameters(INT4), now, answers("I")].concat());
        assert_eq!(client.kinds() == "", healed);
    }
}

#[test]
fn trap_06_never_in_a_transaction_block() {
    let (mut world, client, server) = prepared();
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.send(&client, &run("s"));
    client.received();
    world.send(&server, &[refusal(), answers("F")].concat());
    assert_eq!(client.kinds(), "EZ");
    world.send(&client, &query("ROLLBACK"));
    world.send(&server, &answers("CI"));
    server.received();
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "CPBES", "but the next use prepares it again");
    world.send(&server, &answers("312CI"));
    assert_eq!(client.kinds(), "CZ2CZ");
}

#[test]
fn trap_06_never_once_something_was_answered() {
    let (mut world, client, server) = prepared();
    let pipeline = [bind("s"), execute(), bind("s"), execute(), sync()].concat();
    world.send(&client, &pipeline);
    world.send(&server, &[answers("2C"), refusal(), answers("I")].concat());
    assert_eq!(client.kinds(), "2CEZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_06_never_with_more_than_one_pipeline_under_way() {
    let (mut world, client, server) = prepared();
    world.send(&client, &[run("s"), query("SELECT 1")].concat());
    world.send(&server, &[refusal(), answers("ICI")].concat());
    assert_eq!(client.kinds(), "EZCZ");
}

#[test]
fn trap_06_never_twice() {
    let (mut world, client, server) = prepared();
    world.send(&client, &run("s"));
    world.send(&server, &[refusal(), answers("I")].concat());
    world.send(
        &server,
        &[answers("31"), parameters(INT4), rows("a", TEXT, 0), answers("I")].concat(),
    );
    world.send(&server, &[refusal(), answers("I")].concat());
    assert_eq!(client.kinds(), "EZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_06_a_statement_that_cannot_be_prepared_any_more_is_the_first_error() {
    let (mut world, client, server) = prepared();
    world.send(&client, &run("s"));
    world.send(&server, &[refusal(), answers("I")].concat());
    world.send(&server, &[answers("3EI")].concat());
    assert_eq!(client.received(), [refusal(), answers("I")].concat());
    assert_eq!(world.idle_backends(), 1);
    server.received();
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "PBES");
}

#[test]
fn trap_06_what_comes_meanwhile_waits_its_turn() {
    let (mut world, client, server) = prepared();
    let names = [parse("t", "SELECT 2"), message(b'C', b"Ss\0"), sync()].concat();
    world.send(&client, &[bind("s"), execute(), names].concat());
    world.send(&server, &[refusal(), answers("I")].concat());
    world.send(&client, &query("SELECT 3"));
    assert_eq!(server.kinds(), "BEPSCPDS");
    world.send(
        &server,
        &[answers("31"), parameters(INT4), rows("a", TEXT, 0), answers("I")].concat(),
    );
    assert_eq!(server.kinds(), "BEPSQ");
    world.send(&server, &answers("2C1ICI"));
    assert_eq!(client.kinds(), "2C13ZCZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_06_a_client_that_leaves_meanwhile_leaves_nothing_behind() {
    for after in 0..2 {
        let (mut world, client, server) = prepared();
        let other = world.client();
        world.send(&client, &run("s"));
        world.send(&server, &refusal());
        if after > 0 {
            world.send(&server, &answers("I"));
            world.send(&server, &answers("31"));
        }
        world.close(&client);
        let rest = [parameters(INT4), rows("a", TEXT, 0)].concat();
        world.send(&server, if after > 0 { &rest } else { &[] });
        world.send(&server, &answers("I"));
        let request = world.asked.cancels[0].clone();
        world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
        assert_eq!(world.idle_backends(), 1);
        world.send(&other, &query("SELECT 1"));
        world.send(&server, &answers("CI"));
        assert_eq!(other.kinds(), "CZ");
    }
}

/// The messages sent meanwhile are Hawser's; the client's own pipeline is sent again after them.
#[test]
fn a_cancel_request_that_comes_meanwhile_hits_the_pipeline_when_it_is_sent_again() {
    for after in 0..2 {
        let (mut world, client, server) = prepared();
        world.send(&client, &run("s"));
        world.send(&server, &refusal());
        if after > 0 {
            world.send(&server, &answers("I"));
        }
        let cancel = ToLoop::Cancel { process: PROCESS_ID_FIRST, key: [9; 4].into() };
        world.deliver(LoopId(0), cancel);
        assert_eq!(world.asked.cancels.len(), 0);
        if after == 0 {
            world.send(&server, &answers("I"));
        }
        server.received();
        let same = [parameters(INT4), rows("a", TEXT, 0)].concat();
        world.send(&server, &[answers("31"), same, answers("I")].concat());
        assert_eq!(server.kinds(), "BES");
        assert_eq!(world.asked.cancels.len(), 1);
    }
}

/// The server's answer to a Bind of a statement that it does not have.
fn lost() -> Vec<u8> {
    message(b'E', b"SERROR\0VERROR\0C26000\0Mprepared statement \"hw1\" does not exist\0\0")
}

#[test]
fn trap_06_a_statement_that_a_function_has_deallocated_is_prepared_again() {
    let (mut world, client, server) = described();
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "BES");
    world.send(&server, &[lost(), answers("I")].concat());
    assert_eq!(server.kinds(), "CPDS");
    assert_eq!(client.kinds(), "");
    let same = [parameters(INT4), rows("a", INT4, 0), answers("I")].concat();
    world.send(&server, &[answers("31"), same].concat());
    assert_eq!(server.kinds(), "BES");
    world.send(&server, &answers("2DCI"));
    assert_eq!(client.kinds(), "2DCZ");
}

#[test]
fn trap_06_a_statement_that_is_lost_where_nothing_can_be_healed_fails_once() {
    let (mut world, client, server) = prepared();
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.send(&client, &run("s"));
    world.send(&server, &[lost(), answers("F")].concat());
    world.send(&client, &query("ROLLBACK"));
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZEZCZ");
    server.received();
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "CPBES", "and is prepared again for the next client");
}

#[test]
fn trap_06_a_deallocate_in_a_do_block_leaves_no_shared_statement_in_the_books() {
    let (mut world, client, server) = prepared();
    world.send(&client, &query("DO $$ begin deallocate all; end $$"));
    world.send(&server, &answers("CI"));
    world.send(&server, &told_prepared(&[]));
    assert_eq!(world.idle_backends(), 1);
    server.received();
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "CPBES", "prepared again");
}
