//! Statement texts are read as the server will read them: under its own settings, and under those
//! that something before them in the same write may set.

use crate::ids::LoopId;
use crate::relay::client_info::PoolMode;
use crate::relay::tests::harness::*;

/// A call where backslashes escape; one long string where they do not.
const CALL_IF_OFF: &str = r"SELECT '\'', set_config('statement_timeout','1',false) --'";
/// A call where they do not.
const CALL_IF_ON: &str = r"SELECT '\', set_config('statement_timeout','1',false) --'";
/// A call where backslashes escape; two strings without an effect where they do not.
const PLAIN_IF_ON: &str = r"SELECT '\', ', pg_advisory_lock(1) --'";

fn strings(value: &'static str) -> (&'static str, &'static str) {
    ("standard_conforming_strings", value)
}

/// A world with one server that has this setting by itself, a client, and another.
fn world_with(own: (&'static str, &'static str)) -> (World, Peer, Peer) {
    let mut world = World::new(1);
    world.own = vec![own];
    let (client, other) = (world.client(), world.client());
    (world, client, other)
}

/// Whether the other client gets the backend, now that the first is at rest.
fn is_lent(world: &mut World, other: &Peer) -> bool {
    let server = world.servers[0].clone();
    server.received();
    world.send(other, &query("SELECT 1"));
    !server.received().is_empty()
}

#[test]
fn texts_are_read_under_the_servers_own_settings() {
    for (own, text, free) in [
        (strings("off"), CALL_IF_OFF, false),
        (strings("on"), CALL_IF_OFF, true),
        (strings("off"), CALL_IF_ON, true),
        (strings("on"), CALL_IF_ON, false),
    ] {
        let simple = query(text);
        let unnamed = [parse("", text), bind(""), execute(), sync()].concat();
        let named = [parse("s", text), bind("s"), execute(), sync()].concat();
        for (sent, answer) in [(simple, "CI"), (unnamed, "12CI"), (named, "12CI")] {
            let (mut world, client, other) = world_with(own);
            world.send(&client, &sent);
            let server = world.servers[0].clone();
            world.send(&server, &answers(answer));
            assert_eq!(is_lent(&mut world, &other), free, "{own:?} {text}");
        }
    }
}

#[test]
fn characters_are_read_under_the_servers_own_encoding() {
    // The second byte of a character of SJIS is a backslash.
    let text = b"SELECT E'\x83\x5c', set_config('statement_timeout','1',false) --'\0";
    for (encoding, wanted, free) in
        [("SJIS", "", false), ("UTF8", "", true), ("SJIS", "UTF8", true)]
    {
        let mut world = World::new(1);
        world.own = vec![("client_encoding", encoding)];
        let start = [("client_encoding", wanted)];
        let start = if wanted.is_empty() { &[][..] } else { &start[..] };
        let client = world.client_of(LoopId(0), PoolMode::Transaction, start);
        let other = world.client();
        world.send(&client, &message(b'Q', text));
        let server = world.servers[0].clone();
        if !wanted.is_empty() {
            let told = parameter("client_encoding", wanted);
            world.send(&server, &[answers("C"), told, answers("I")].concat());
        }
        world.send(&server, &answers("CI"));
        assert_eq!(is_lent(&mut world, &other), free, "{encoding} {wanted}");
    }
}

#[test]
fn a_query_after_one_that_changes_how_it_is_read_waits_for_that() {
    for (ahead, works, free) in [
        ("SET standard_conforming_strings = off", true, false),
        ("SET standard_conforming_strings = off", false, true),
        ("SELECT set_config($$standard_conforming_strings$$, $$off$$, false)", true, false),
        ("DO $$ begin set standard_conforming_strings = off; end $$", true, false),
    ] {
        let (mut world, client, other) = world_with(strings("on"));
        world.send(&client, &[query(ahead), query(CALL_IF_OFF)].concat());
        let server = world.servers[0].clone();
        assert_eq!(server.received(), query(ahead), "the next waits: {ahead}");
        let (name, value) = strings("off");
        let answer = if works {
            [answers("C"), parameter(name, value), answers("I")].concat()
        } else {
            answers("EI")
        };
        world.send(&server, &answer);
        assert_eq!(server.received(), query(CALL_IF_OFF));
        world.send(&server, &answers("CI"));
        if !ahead.starts_with("DO") {
            assert_eq!(is_lent(&mut world, &other), free, "{ahead}");
        }
    }
}

#[test]
fn what_is_read_in_two_ways_within_one_pipeline_pins_and_spoils() {
    for ahead in [
        "SET standard_conforming_strings = off",
        "SET LOCAL standard_conforming_strings = off",
        "SELECT set_config('standard_conforming_strings', 'off', true)",
        "SELECT set_config($1, $2, true)",
    ] {
        for (name, text) in
            [("", CALL_IF_OFF), ("s", CALL_IF_OFF), ("", PLAIN_IF_ON), ("s", PLAIN_IF_ON)]
        {
            let (mut world, client, other) = world_with(strings("on"));
            let pipeline = [
                [parse("", ahead), bind(""), execute()].concat(),
                [parse(name, text), bind(name), execute(), sync()].concat(),
            ];
            world.send(&client, &pipeline.concat());
            let server = world.servers[0].clone();
            world.send(&server, &answers("12C12CI"));
            assert!(!is_lent(&mut world, &other), "{ahead} {name} {text}");
            world.close(&client);
            assert!(server.is_dropped(), "{ahead} {name} {text}");
        }
    }
}

#[test]
fn a_commit_may_take_back_how_texts_are_read() {
    let (mut world, client, other) = world_with(strings("on"));
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    world.send(&client, &query("SET LOCAL standard_conforming_strings = off"));
    let off = parameter("standard_conforming_strings", "off");
    world.send(&server, &[answers("C"), off, answers("T")].concat());
    server.received();
    world.send(&client, &[query("COMMIT"), query(CALL_IF_ON)].concat());
    assert_eq!(server.received(), query("COMMIT"));
    let on = parameter("standard_conforming_strings", "on");
    world.send(&server, &[answers("C"), on, answers("I")].concat());
    world.send(&server, &answers("CI"));
    assert!(!is_lent(&mut world, &other));
}

#[test]
fn a_statement_parsed_after_a_set_of_its_own_pipeline_is_read_again() {
    let (mut world, client, other) = world_with(strings("on"));
    // The text of the first does not show what it does.
    let first = [parse("", "SELECT f()"), bind(""), execute()].concat();
    world.send(&client, &[first, parse("s", CALL_IF_OFF), sync()].concat());
    let server = world.servers[0].clone();
    let off = parameter("standard_conforming_strings", "off");
    world.send(&server, &[answers("12C1"), off, answers("I")].concat());
    server.received();
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "PBES");
    world.send(&server, &answers("12CI"));
    assert!(!is_lent(&mut world, &other));
}

#[test]
fn strings_with_backslashes_after_what_changes_no_reading_neither_wait_nor_pin() {
    for ahead in ["BEGIN", "SET work_mem = '1MB'; RESET work_mem", "SELECT 'caf\u{e9}'"] {
        let (mut world, client, _) = world_with(strings("on"));
        world.send(&client, &[query(ahead), query(r"SELECT 'C:\', '\u{e9}'")].concat());
        assert_eq!(world.servers[0].kinds(), "QQ", "{ahead}");
    }
}
