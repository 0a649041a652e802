//! currval and lastval: the answer is the client's own value or the server's own error, never another client's value.

use crate::ids::LoopId;
use crate::relay::client_info::PoolMode;
use crate::relay::tests::harness::*;

#[test]
fn currval_never_answers_with_anothers_value() {
    let mut world = World::new(1);
    let (two, server) = after_one_that_has_drawn(&mut world);
    world.send(&two, &query("SELECT lastval()"));
    let sent = server.received();
    assert_eq!(sent, [query("DISCARD SEQUENCES"), query("SELECT lastval()")].concat());
}

#[test]
fn currval_never_answers_with_anothers_value_after_other_queries_in_one_write() {
    let mut world = World::new(1);
    let (two, server) = after_one_that_has_drawn(&mut world);
    world.send(&two, &[query("SELECT 1"), query("SELECT lastval()")].concat());
    assert_eq!(server.received(), query("SELECT 1"), "whether a transaction is open is not known");
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), [query("DISCARD SEQUENCES"), query("SELECT lastval()")].concat());
    world.send(&server, &answers("CIEI"));
    assert_eq!(two.kinds(), "CZEZ");
    // Within its own transaction the value may be its own.
    world.send(&two, &[query("BEGIN"), query("INSERT"), query("SELECT lastval()")].concat());
    let sent = [query("BEGIN"), query("INSERT"), query("SELECT lastval()")].concat();
    assert_eq!(server.received(), sent, "no other has drawn since");
}

#[test]
fn currval_never_answers_with_anothers_value_in_a_transaction_that_has_drawn_none_yet() {
    for (ahead, asks) in [
        ("SHOW x", "SELECT lastval()"),
        ("", "SELECT lastval()"),
        ("SELECT f()", "SELECT lastval()"),
        ("SELECT f()", "SELECT currval('s')"),
        ("SELECT f()", "SELECT currval($1)"),
    ] {
        let mut world = World::new(1);
        let (client, server) = after_one_that_has_drawn(&mut world);
        world.send(&client, &query("BEGIN"));
        world.send(&server, &answers("CT"));
        world.send(&client, &query(ahead));
        world.send(&server, &answers("CT"));
        server.received();
        world.send(&client, &query(asks));
        let sent = server.received();
        // After a statement that may have drawn, only the server knows whether the value is the
        // transaction's own.
        let by_server = ahead == "SELECT f()" && !asks.contains('$');
        let start: &[u8] = if by_server { b"DO $hawser$" } else { b"DISCARD SEQUENCES" };
        assert!(sent[5..].starts_with(start), "{ahead}, {asks}: {}", sent.escape_ascii());
        let named = String::from_utf8_lossy(&sent).contains("ARRAY['s'::pg_catalog.regclass");
        assert_eq!(named, asks.contains("'s'"));
        assert!(sent.ends_with(&query(asks)));
        world.send(&server, &answers("CTDCT"));
        assert!(client.kinds().ends_with("DCZ"));
    }
}

#[test]
fn currval_never_answers_with_anothers_value_in_the_extended_protocol() {
    let mut world = World::new(1);
    let (two, server) = after_one_that_has_drawn(&mut world);
    let ask = [parse("", "SELECT lastval()"), bind(""), execute(), sync()].concat();
    world.send(&two, &ask);
    assert_eq!(server.received(), [query("DISCARD SEQUENCES"), ask].concat());
}

#[test]
fn currval_never_answers_with_anothers_value_in_the_midst_of_a_pipeline() {
    let within = |ahead: Vec<u8>, ask: Vec<u8>, discards: usize| {
        let mut world = World::new(1);
        let (two, server) = after_one_that_has_drawn(&mut world);
        world.send(&two, &[ahead, ask].concat());
        let sent = String::from_utf8_lossy(&server.received()).into_owned();
        assert_eq!(sent.matches("DISCARD SEQUENCES").count(), discards, "{sent:?}");
        (world, server, two)
    };
    let ask =
        |name: &str| [parse(name, "SELECT lastval()"), bind(name), execute(), sync()].concat();
    // For a named one it is sent before its Bind, which shows that it is carried out.
    let (mut world, server, two) = within(Vec::new(), ask("s"), 1);
    assert_eq!(server.kinds(), "");
    world.send(&server, &answers("112C33"));
    assert_eq!(two.kinds(), "1");
    world.send(&server, &answers("2EI"));
    assert_eq!(two.kinds(), "2EZ", "what was put in is swallowed");
    within(message(b'C', b"Sx\0"), ask(""), 1);
    within([parse("", "BEGIN"), bind(""), execute()].concat(), ask(""), 1);
    // After a statement that may have drawn, the value may be the client's own: only the server
    // knows.
    let may_draw = [parse("", "SELECT f()"), bind(""), execute()].concat();
    let (_, server, _) = within(may_draw, ask("s"), 1);
    assert!(server.kinds().is_empty());
}

/// PHP's lastInsertId('s') in the block of its INSERT, the pool's first question.
#[test]
fn currval_of_a_parameter_is_asked_for_by_the_sequence_that_the_bind_names() {
    let asks = "SELECT CURRVAL($1)";
    for (statement, value, named) in [
        ("", "s", Some("ARRAY['s'::pg_catalog.regclass")),
        ("p", "s", Some("ARRAY['s'::pg_catalog.regclass")),
        ("", "s\\", None),
    ] {
        let mut world = World::new(1);
        let (client, server) = after_one_that_has_drawn(&mut world);
        world.send(&client, &[query("BEGIN"), query("INSERT INTO t VALUES (1)")].concat());
        world.send(&server, &answers("CTCT"));
        server.received();
        let ask = [bind_to(statement, value), execute(), sync()].concat();
        world.send(&client, &[parse(statement, asks), ask.clone()].concat());
        let sent = server.received();
        let text = String::from_utf8_lossy(&sent).into_owned();
        assert_eq!(text.matches("DISCARD SEQUENCES").count(), 1, "{text:?}");
        match named {
            Some(named) => assert!(text.contains(named), "{text:?}"),
            None => assert!(!text.contains("DO $hawser$"), "{text:?}"),
        }
        let parsed = text.find(asks).unwrap();
        assert!(parsed < text.find("DISCARD").unwrap(), "between its Parse and its Bind");
        world.send(&server, &answers("112C332DCT"));
        assert!(client.kinds().ends_with("12DCZ"), "it swallows its own answers");
    }
}

#[test]
fn no_query_of_ours_takes_an_unnamed_statement_away_that_asks_for_currval() {
    for (asks, ahead) in [("SELECT currval('s')", "Q"), ("SELECT currval($1)", "")] {
        let mut world = World::new(1);
        let (client, server) = after_one_that_has_drawn(&mut world);
        world.send(&client, &[query("BEGIN"), query("INSERT INTO t VALUES (1)")].concat());
        world.send(&server, &answers("CTCT"));
        server.received();
        world.send(&client, &[parse("", asks), sync()].concat());
        assert_eq!(server.kinds(), format!("{ahead}PS"), "{asks}");
        world.send(&server, &answers(if ahead.is_empty() { "1T" } else { "CT1T" }));
        world.send(&client, &[bind_to("", "s"), execute(), sync()].concat());
        assert_eq!(server.kinds(), "PBECCSBES", "{asks}");
        world.send(&server, &answers("12C33T2DCT"));
        assert!(client.kinds().ends_with("1Z2DCZ"));
    }
}

/// Within a pipeline of Hawser's it was discarded again and again for a message that had to wait.
#[test]
fn what_others_have_drawn_is_discarded_once_before_an_unnamed_statement_is_bound() {
    let mut world = World::new(1);
    let (client, server) = after_one_that_has_drawn(&mut world);
    world.send(&client, &query("SELECT lastval()"));
    world.send(&server, &answers("CIEI"));
    world.send(&client, &[parse("", "SELECT f()"), sync()].concat());
    world.send(&server, &answers("1I"));
    let other = world.client();
    world.send(&other, &query("SELECT draws()"));
    world.send(&server, &answers("DCI"));
    server.received();
    world.send(&client, &[bind(""), execute(), sync()].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "QPBES");
    assert!(sent.starts_with(&query("DISCARD SEQUENCES")));
}

#[test]
fn the_first_question_of_an_only_client_is_asked_of_what_it_drew() {
    let ask = query("SELECT lastval()");
    let extended = [parse("", "SELECT f()"), bind(""), execute(), sync()].concat();
    for (draws, answer) in [(query("SELECT f()"), "CI"), (extended, "12CI")] {
        let mut world = World::new(1);
        let (one, two) = (world.client(), world.client());
        world.send(&one, &draws);
        let server = world.servers[0].clone();
        world.send(&server, &answers(answer));
        // Another has the connection in between, and draws nothing.
        world.send(&two, &query("SHOW x"));
        world.send(&server, &answers("DCI"));
        server.received();
        world.send(&one, &ask);
        assert_eq!(server.received(), ask, "no other has drawn");
        world.send(&server, &answers("DCI"));
        world.send(&two, &ask);
        assert_eq!(server.received(), [query("DISCARD SEQUENCES"), ask.clone()].concat());
    }
}

#[test]
fn what_a_client_drew_before_it_had_another_backend_is_no_answer() {
    let mut world = World::new(2);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &query("SELECT f()"));
    let first = world.servers[0].clone();
    world.send(&first, &answers("CI"));
    world.send(&two, &query("SHOW x"));
    world.send(&one, &query("SELECT f()"));
    let second = world.servers[1].clone();
    world.send(&first, &answers("CI"));
    world.send(&second, &answers("CI"));
    // The first is idle, and the second is another's.
    let three = world.client();
    first.received();
    second.received();
    world.send(&three, &query("SHOW x"));
    world.send(&one, &query("SELECT lastval()"));
    let both = [&first, &second].map(|server| String::from_utf8(server.received()).unwrap());
    let asked = both.iter().find(|sent| sent.contains("lastval")).unwrap();
    let on_second = both[1].contains("lastval");
    assert_eq!(!on_second, asked.contains("DISCARD SEQUENCES"), "{both:?}");
    assert!(!on_second, "the test shows nothing: {both:?}");
}

/// The first question of a database may come in a later transaction than its INSERT.
#[test]
fn who_inserts_keeps_its_backend_for_the_first_question() {
    let named = [parse("s", "INSERT INTO t"), sync()].concat();
    let runs = [bind("s"), execute(), sync()].concat();
    for (prepares, inserts, answer) in [
        (None, query("INSERT INTO t"), "CI"),
        (None, [parse("", "insert into t"), bind(""), execute(), sync()].concat(), "12CI"),
        (Some(named), runs, "2CI"),
    ] {
        let mut world = World::new(1).in_which_none_has_drawn();
        let (one, two) = (world.client(), world.client());
        if let Some(prepares) = prepares {
            world.send(&two, &prepares);
            world.send(&world.servers[0].clone(), &answers("1I"));
            world.send(&one, &prepares);
        }
        world.send(&two, &query("SELECT f()"));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CI"));
        server.received();
        world.send(&one, &inserts);
        assert!(server.received().starts_with(&query("DISCARD SEQUENCES")));
        world.send(&server, &[answers("CI"), answers(answer)].concat());
        world.send(&two, &query("SELECT f()"));
        assert_eq!(server.kinds(), "", "the other waits");
        world.send(&one, &query("SELECT lastval()"));
        assert_eq!(server.received(), query("SELECT lastval()"));
        world.send(&server, &answers("DCI"));
        assert_eq!(server.received(), query("SELECT f()"), "it has asked");
    }
}

/// It removed state that only the server knew, and what the client had drawn itself.
#[test]
fn in_session_mode_what_others_have_drawn_is_discarded_before_all_and_never_again() {
    let mut world = World::new(1);
    let (two, server) = after_one_that_has_drawn(&mut world);
    world.send(&two, &query("SELECT lastval()"));
    world.send(&server, &answers("CIEI"));
    let one = world.client();
    world.send(&one, &query("SELECT nextval('s')"));
    world.send(&server, &answers("CIDCI"));
    world.wait_ms(1100);
    server.received();
    let session = world.client_of(LoopId(0), PoolMode::Session, &[]);
    let first = [parse("", "SELECT 1"), sync()].concat();
    world.send(&session, &first);
    assert_eq!(server.received(), [query("DISCARD SEQUENCES"), first].concat());
    world.send(&server, &answers("CI1I"));
    for sent in [query("SELECT nextval('s')"), [bind(""), execute(), sync()].concat()] {
        world.send(&session, &sent);
        assert_eq!(server.received(), sent);
        world.send(&server, &answers(if sent[0] == b'Q' { "DCI" } else { "2DCI" }));
    }
    world.send(&session, &query("BEGIN"));
    assert_eq!(server.received(), query("BEGIN"));
}

#[test]
fn once_anybody_has_asked_blocks_begin_without_what_others_have_drawn() {
    let mut world = World::new(1);
    let (one, two) = (world.client(), world.client());
    let first_of = |world: &mut World, text: &str| {
        world.send(&two, &query(text));
        let server = world.servers[0].clone();
        let sent = String::from_utf8_lossy(&server.received()).into_owned();
        let discards = sent.contains("DISCARD SEQUENCES");
        world.send(&server, &answers(if discards { "CICT" } else { "CT" }));
        world.send(&two, &query("COMMIT"));
        server.received();
        world.send(&server, &answers("CI"));
        two.received();
        discards
    };
    let draw = |world: &mut World, text: &str, answer: &str| {
        world.send(&one, &query(text));
        let server = world.servers[0].clone();
        world.send(&server, &answers(answer));
        server.received();
        one.received();
    };
    draw(&mut world, "SELECT nextval('s')", "DCI");
    assert!(!first_of(&mut world, "SELECT 1; BEGIN"), "no client has ever asked");
    draw(&mut world, "SELECT lastval()", "CIDCI");
    assert!(first_of(&mut world, "SELECT 1; BEGIN"));
    assert!(!first_of(&mut world, "BEGIN"), "no other has drawn since");
    draw(&mut world, "SELECT 1", "CIDCI");
    assert!(first_of(&mut world, "START TRANSACTION"), "a function may draw");
    draw(&mut world, "SELECT nextval('s')", "CIDCI");
    assert!(!first_of(&mut world, "SELECT 1"), "no block");
}

#[test]
fn currval_never_answers_with_anothers_value_after_settings_of_ours_either() {
    let mut world = World::new(1);
    let one = world.client();
    world.send(&one, &query("SELECT nextval('s')"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("DCI"));
    server.received();
    let start = [("work_mem", "7MB")];
    let two = world.client_of(LoopId(0), PoolMode::Transaction, &start);
    world.send(&two, &query("SELECT lastval()"));
    let set = block("SET \"work_mem\" TO '7MB'");
    let rest = [query("DISCARD SEQUENCES"), query("SELECT lastval()")].concat();
    assert_eq!(server.received(), [set, rest].concat());
}
