//! RESET, SET TO DEFAULT, RESET ALL, DISCARD ALL: back to this client's start values.

use crate::ids::LoopId;
use crate::relay::client_info::PoolMode;
use crate::relay::limits;
use crate::relay::tests::harness::*;
use crate::wire::build;

const TOKYO: [(&str, &str); 1] = [("TimeZone", "Asia/Tokyo")];
const SET_TOKYO: &str = "SET \"timezone\" TO 'Asia/Tokyo'";

/// A client whose start values are in force on the only backend, and that backend.
fn from_tokyo(mode: PoolMode) -> (World, Peer, Peer) {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), mode, &TOKYO);
    if mode == PoolMode::Transaction {
        world.send(&client, &query("SELECT 1"));
    }
    let server = world.servers[0].clone();
    assert!(String::from_utf8_lossy(&server.received()).contains(SET_TOKYO));
    let told = [answers("C"), parameter("TimeZone", "Asia/Tokyo"), answers("I")].concat();
    world.send(&server, &told);
    if mode == PoolMode::Transaction {
        world.send(&server, &answers("CI"));
    }
    client.received();
    (world, client, server)
}

fn command(tag: &str) -> Vec<u8> {
    message(b'C', &[tag.as_bytes(), b"\0"].concat())
}

#[test]
fn what_follows_a_reset_in_its_text_runs_under_the_clients_start_values() {
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        let (mut world, client, server) = from_tokyo(mode);
        world.send(&client, &query("RESET TimeZone; SELECT now()"));
        let sent = format!("RESET TimeZone;{SET_TOKYO}; SELECT now()");
        assert_eq!(server.received(), query(&sent));
        let (reset, set, row) = (command("RESET"), command("SET"), answers("DCI"));
        world.send(&server, &[reset.clone(), set, row.clone()].concat());
        assert_eq!(client.received(), [reset, row].concat());
    }
}

#[test]
fn what_follows_a_reset_in_its_pipeline_runs_under_the_clients_start_values() {
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        for text in ["RESET TimeZone", "SET TimeZone TO DEFAULT", "RESET ALL"] {
            let (mut world, client, server) = from_tokyo(mode);
            let reset = [parse("", text), bind(""), execute()].concat();
            let now = [parse("", "SELECT now()"), bind(""), execute(), sync()].concat();
            world.send(&client, &[reset, now].concat());
            let sent = server.received();
            assert_eq!(kinds(&sent), "PBEPBECCPBES");
            assert!(String::from_utf8_lossy(&sent).contains(SET_TOKYO));
            world.send(&server, &answers("12C12C3312CI"));
            assert_eq!(client.kinds(), "12C12CZ");
        }
    }
}

#[test]
fn a_named_statement_that_resets_does_so_each_time_that_it_is_run() {
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        let (mut world, client, server) = from_tokyo(mode);
        world.send(&client, &[parse("r", "RESET TimeZone"), sync()].concat());
        world.send(&server, &answers("1I"));
        server.received();
        for _ in 0..2 {
            world.send(&client, &[bind("r"), execute(), sync()].concat());
            assert_eq!(server.kinds(), "BEPBECCS");
            world.send(&server, &answers("2C12C33I"));
        }
        // Bound and not run: nothing is put after another statement's Execute.
        world.send(&client, &[bind("r"), parse("", "SELECT 1"), bind(""), execute()].concat());
        assert_eq!(server.kinds(), "BPBE");
    }
}

#[test]
fn a_local_default_is_the_clients_start_value_up_to_the_end_of_the_transaction() {
    let (mut world, client, server) = from_tokyo(PoolMode::Transaction);
    world.send(&client, &query("BEGIN; SET LOCAL TimeZone TO DEFAULT; SELECT 1"));
    let local = SET_TOKYO.replace("SET", "SET LOCAL");
    let sent = format!("BEGIN; SET LOCAL TimeZone TO DEFAULT;{local}; SELECT 1");
    assert_eq!(server.received(), query(&sent));
}

#[test]
fn lists_come_back_by_a_select_whose_row_nobody_sees() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Session, &[("search_path", "a,b")]);
    let server = world.servers[0].clone();
    let row = [message(b'T', b"\0\0"), answers("DC")].concat();
    world.send(&server, &[&row[..], &answers("I")].concat());
    client.received();
    world.send(&client, &query("RESET search_path; SELECT 1; RESET search_path"));
    let (reset, ready) = (answers("C"), answers("I"));
    world.send(&server, &[&reset[..], &row, &row, &reset, &row, &ready].concat());
    assert_eq!(client.kinds(), "CTDCCZ");
}

#[test]
fn an_error_after_a_reset_has_its_position_in_the_clients_own_text() {
    let (mut world, client, server) = from_tokyo(PoolMode::Transaction);
    world.send(&client, &query("RESET TimeZone; SELECT x"));
    let by = 1 + SET_TOKYO.len();
    let error = |at: usize| message(b'E', format!("SERROR\0VERROR\0P{at}\0\0").as_bytes());
    world.send(&server, &[error(24 + by), answers("I")].concat());
    assert_eq!(client.received(), [error(24), answers("I")].concat());
    // And of another text as it is.
    world.send(&client, &query("SELECT x"));
    world.send(&server, &[error(80), answers("I")].concat());
    assert_eq!(client.received(), [error(80), answers("I")].concat());
}

#[test]
fn a_copy_in_the_text_of_a_reset_ends_where_it_ends() {
    let (mut world, client, server) = from_tokyo(PoolMode::Transaction);
    world.send(&client, &query("COPY t FROM STDIN; RESET TimeZone; COPY u FROM STDIN"));
    // All of it at once, which no client should do.
    let data = |text: &[u8]| [message(b'd', text), message(b'c', b"")].concat();
    world.send(&server, &answers("G"));
    world.send(&client, &data(b"1\n"));
    world.send(&server, &answers("CCCG"));
    world.send(&client, &data(b"2\n"));
    assert_eq!(server.kinds(), "Qdcdc");
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "GCCGCZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_reset_in_a_long_text_has_the_start_values_right_after_it() {
    let many = "INSERT INTO t VALUES (1);".repeat(500);
    let longest = limits::WHOLE_TEXT_BYTES - 6 - "RESET TimeZone; SELECT now() /**/".len();
    for pad in [&*many, &"x".repeat(20_000), &"x".repeat(longest)] {
        let (pad, ahead) = if pad == many { ("", pad) } else { (pad, "") };
        let text =
            |set: &str| query(&format!("{ahead}RESET TimeZone{set}; SELECT now() /*{pad}*/"));
        let (mut world, client, server) = from_tokyo(PoolMode::Transaction);
        let sent = text("");
        // Half of it holds no backend.
        world.send(&client, &sent[..sent.len() - 1]);
        assert_eq!(server.kinds(), "");
        world.send(&client, &sent[sent.len() - 1..]);
        assert_eq!(server.received(), text(&format!(";{SET_TOKYO}")));
        let inserted = "C".repeat(ahead.matches("INSERT").count());
        world.send(&server, &answers(&format!("{inserted}CCDCI")));
        assert_eq!(client.kinds(), format!("{inserted}CDCZ"));
    }
}

#[test]
fn a_text_that_streams_has_the_start_values_back_when_it_has_ended() {
    for value in ["Europe/Paris", "UTC"] {
        let (mut world, client, server) = from_tokyo(PoolMode::Transaction);
        let other = world.client();
        let pad = "x".repeat(limits::WHOLE_TEXT_BYTES);
        world.send(&client, &query(&format!("RESET ALL; SET TimeZone = '{value}' /*{pad}*/")));
        let set = parameter("TimeZone", value);
        assert_eq!(server.kinds(), "Q", "no other has drawn what it may ask for, further on");
        world.send(&server, &[answers("CC"), set, answers("I")].concat());
        assert_eq!(client.kinds(), "CCSZ");
        world.send(&other, &query("SELECT 1"));
        if value != "UTC" {
            let back = parameter("TimeZone", "UTC");
            world.send(&server, &[answers("C"), back, answers("I")].concat());
        }
        world.send(&server, &answers("CI"));
        server.received();
        world.send(&client, &query("SELECT now()"));
        let sent = String::from_utf8_lossy(&server.received()).into_owned();
        assert!(!sent.contains("Tokyo"), "{sent}");
        assert_eq!(sent.contains("Paris"), value == "Europe/Paris", "{sent}");
    }
}

/// It ended the client's block: what the client rolled back later had been committed.
#[test]
fn start_values_that_come_back_in_a_transaction_block_do_not_end_it() {
    let (mut world, client, server) = from_tokyo(PoolMode::Transaction);
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    let pad = "x".repeat(limits::WHOLE_TEXT_BYTES);
    world.send(&client, &query(&format!("RESET TimeZone /*{pad}*/")));
    server.received();
    world.send(&server, &[command("RESET"), parameter("TimeZone", "UTC"), answers("T")].concat());
    assert_eq!(client.kinds(), "CZCZ", "for the client nothing has changed");
    world.send(&client, &query("SELECT now()"));
    assert_eq!(server.received(), [query(SET_TOKYO), query("SELECT now()")].concat());
    let told = [answers("C"), parameter("TimeZone", "Asia/Tokyo"), answers("T")].concat();
    world.send(&server, &[told, answers("DCT")].concat());
    assert_eq!(client.kinds(), "DCZ");
    world.send(&client, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1);
}

/// The next client had it.
#[test]
fn a_reset_that_is_rolled_back_after_a_text_that_streams_leaves_its_setting_to_no_other() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SET work_mem = '5MB'"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &value("5MB"));
    let pad = "x".repeat(limits::WHOLE_TEXT_BYTES);
    for text in ["RESET work_mem", "RESET ALL"] {
        world.send(&client, &query("BEGIN"));
        world.send(&server, &answers("CT"));
        world.send(&client, &query(&format!("{text} /*{pad}*/")));
        world.send(&server, &answers("CT"));
        server.received();
        world.send(&client, &query("ROLLBACK"));
        world.send(&server, &answers("CI"));
        assert_eq!(world.idle_backends(), 0, "{text}: the server is asked first");
        world.send(&server, &value("5MB"));
        assert_eq!(world.idle_backends(), 1, "{text}");
    }
    let other = world.client();
    server.received();
    world.send(&other, &query("SELECT 1"));
    let sent = [block("RESET \"work_mem\""), query("SELECT 1")].concat();
    assert_eq!(server.received(), sent);
}

/// Runs `statement` of a client of session mode whose server has answered everything. Returns
/// whether its start values are set again after it.
fn is_restored(world: &mut World, client: &Peer, server: &Peer, statement: &str) -> bool {
    world.send(client, &[bind(statement), execute(), sync()].concat());
    let sent = server.kinds();
    let restored = sent == "BEPBECCS";
    assert!(restored || sent == "BES", "{sent}");
    world.send(server, &answers(if restored { "2C12C33I" } else { "2CI" }));
    assert_eq!(client.kinds(), "2CZ");
    restored
}

#[test]
fn in_session_mode_a_parse_that_fails_leaves_what_its_name_resets() {
    let (mut world, client, server) = from_tokyo(PoolMode::Session);
    for name in ["", "r"] {
        world.send(&client, &[parse(name, "RESET TimeZone"), sync()].concat());
        world.send(&server, &answers("1I"));
        // Ignored after an error, with one more of the same name.
        let plain = parse(name, "SELECT 1");
        world.send(&client, &[&bind("none"), &plain, &plain, &sync()[..]].concat());
        world.send(&server, &answers("EI"));
        server.received();
        client.received();
        assert!(is_restored(&mut world, &client, &server, name), "{name:?}");
        // So is a Close.
        let close = message(b'C', &[b"S", name.as_bytes(), b"\0"].concat());
        world.send(&client, &[&bind("none")[..], &close, &sync()].concat());
        world.send(&server, &answers("EI"));
        server.received();
        client.received();
        assert!(is_restored(&mut world, &client, &server, name), "{name:?}");
        // Closed and parsed again, it is another statement.
        world.send(&client, &[&close[..], &plain, &sync()].concat());
        world.send(&server, &answers("31I"));
        server.received();
        client.received();
        assert!(!is_restored(&mut world, &client, &server, name), "{name:?}");
    }
    // The name is taken; and the pipeline after that does not wait for the outcome.
    world.send(&client, &[parse("s", "RESET TimeZone"), sync()].concat());
    world.send(&server, &answers("1I"));
    server.received();
    let refused = [parse("s", "SELECT 1"), sync()].concat();
    world.send(&client, &[&refused[..], &bind("s"), &execute(), &sync()].concat());
    assert_eq!(server.kinds(), "PS", "what s stands for is not known yet");
    world.send(&server, &answers("UI"));
    assert_eq!(server.kinds(), "BEPBECCS");
    world.send(&server, &answers("2C12C33I"));
    assert_eq!(client.kinds(), "1ZEZ2CZ");
}

#[test]
fn in_session_mode_statements_that_are_closed_make_room_for_others() {
    let (mut world, client, server) = from_tokyo(PoolMode::Session);
    for number in 0..=limits::UNUSUAL_PORTALS_MAX {
        let name = format!("r{number}");
        let close = message(b'C', &[b"S", name.as_bytes(), b"\0"].concat());
        world.send(&client, &[parse(&name, "RESET TimeZone"), close, sync()].concat());
        world.send(&server, &answers("13I"));
        assert_eq!(client.kinds(), "13Z", "{name}");
    }
}

#[test]
fn in_session_mode_a_parse_that_fails_resets_nothing_for_a_later_one() {
    let (mut world, client, server) = from_tokyo(PoolMode::Session);
    let resets = [parse("s", "RESET TimeZone"), sync()].concat();
    world.send(&client, &[&bind("none")[..], &resets, &parse("s", "SELECT 1"), &sync()].concat());
    world.send(&server, &answers("EI1I"));
    server.received();
    client.received();
    assert!(!is_restored(&mut world, &client, &server, "s"));
}

#[test]
fn discard_all_gives_a_session_of_its_own_the_clients_start_values_again() {
    let (mut world, client, server) = from_tokyo(PoolMode::Session);
    world.send(&client, &query("DISCARD ALL"));
    assert_eq!(server.received(), query("DISCARD ALL"));
    let utc = parameter("TimeZone", "UTC");
    world.send(&server, &[command("DISCARD ALL"), utc.clone(), answers("I")].concat());
    assert_eq!(client.kinds(), "CZ", "for the client nothing has changed");
    world.send(&client, &query("SELECT now()"));
    let sent = server.received();
    assert_eq!(kinds(&sent), "PBECCS", "beside the unnamed statement, which stays");
    assert!(String::from_utf8_lossy(&sent).contains(SET_TOKYO));
    world.send(&server, &answers("12C33I"));
    assert_eq!(server.kinds(), "Q", "it has waited");
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ");
    // Refused in a transaction, and then nothing has to be restored.
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.send(&client, &[query("DISCARD ALL"), query("ROLLBACK")].concat());
    world.send(&server, &answers("EF"));
    world.send(&server, &answers("CI"));
    server.received();
    world.send(&client, &query("SELECT now()"));
    assert_eq!(server.kinds(), "Q");
}

#[test]
fn what_follows_a_pipelined_discard_all_waits_for_it_and_for_the_start_values() {
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        let (mut world, client, server) = from_tokyo(mode);
        let discard = [parse("", "DISCARD ALL"), bind(""), execute()].concat();
        let now = [parse("", "SELECT now()"), bind(""), execute(), sync()].concat();
        world.send(&client, &[discard, now].concat());
        assert_eq!(server.kinds(), "PBES", "with a Sync of ours");
        let utc = parameter("TimeZone", "UTC");
        world.send(
            &server,
            &[&answers("12")[..], &command("DISCARD ALL"), &utc, &answers("I")].concat(),
        );
        let sent = server.received();
        let native = mode == PoolMode::Session;
        assert_eq!(kinds(&sent), if native { "PBECCS" } else { "QPBES" });
        assert!(String::from_utf8_lossy(&sent).contains(SET_TOKYO));
        world.send(&server, &answers(if native { "12C33I" } else { "CI" }));
        assert_eq!(server.kinds(), if native { "PBES" } else { "" });
        world.send(&server, &answers("12CI"));
        assert_eq!(client.kinds(), "12C12CZ");
    }
}

#[test]
fn what_a_pipelined_discard_all_changes_is_reported_at_the_end_of_the_clients_pipeline() {
    for follows in [true, false] {
        let (mut world, client, server) = from_tokyo(PoolMode::Transaction);
        let told = parameter("TimeZone", "UTC");
        world.send(&client, &query("SET TimeZone TO 'UTC'"));
        world.send(&server, &[answers("C"), told.clone(), answers("I")].concat());
        assert_eq!(client.kinds(), "CSZ");
        let discard = [parse("", "DISCARD ALL"), bind(""), execute()].concat();
        world.send(&client, &[discard, message(b'H', b"")].concat());
        world.send(&server, &[&answers("12")[..], &command("DISCARD ALL"), &answers("I")].concat());
        assert_eq!(client.kinds(), "12C");
        server.received();
        let tokyo = parameter("TimeZone", "Asia/Tokyo");
        if follows {
            world.send(&client, &[parse("", "SELECT 1"), bind(""), execute(), sync()].concat());
            assert_eq!(server.kinds(), "QPBES");
            world.send(&server, &[answers("C"), tokyo.clone(), answers("I12CI")].concat());
            let ended = [answers("12C"), tokyo, answers("I")].concat();
            assert_eq!(client.received(), ended);
        } else {
            world.send(&client, &sync());
            assert_eq!(client.received(), [tokyo, answers("I")].concat());
        }
    }
}

#[test]
fn a_pipelined_discard_all_that_fails_takes_the_rest_of_its_pipeline_with_it() {
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        let (mut world, client, server) = from_tokyo(mode);
        let one = |text: &str| [parse("", text), bind(""), execute()].concat();
        let pipeline = [one("INSERT"), one("DISCARD ALL"), one("DROP TABLE t"), sync()].concat();
        world.send(&client, &pipeline);
        assert_eq!(server.kinds(), "PBEPBES");
        world.send(&server, &answers("12C12EI"));
        assert_eq!(server.kinds(), "", "up to its Sync all is ignored");
        assert_eq!(client.kinds(), "12C12EZ");
        world.send(&client, &query("SELECT now()"));
        assert_eq!(server.kinds(), "Q", "{mode:?}: nothing has been discarded");
    }
}

#[test]
fn set_config_to_null_in_a_parse_means_the_clients_start_value() {
    const NULL: &str = "SELECT set_config('TimeZone', null, false), oops";
    const OWN: &str = "SELECT set_config('TimeZone', 'Asia/Tokyo', false), oops";
    for (mode, name) in
        [(PoolMode::Transaction, ""), (PoolMode::Transaction, "s"), (PoolMode::Session, "")]
    {
        let (mut world, client, server) = from_tokyo(mode);
        world.send(&client, &[parse(name, NULL), bind(name), execute(), sync()].concat());
        let sent = server.received();
        assert_eq!(kinds(&sent), "PBES");
        assert!(String::from_utf8_lossy(&sent).contains(OWN));
        if mode == PoolMode::Transaction {
            // The error is about what follows the value.
            let at = |text: &str| text.find("oops").unwrap() + 1;
            let error = |position: usize| {
                message(b'E', format!("SERROR\0C42703\0Mno oops\0P{position}\0\0").as_bytes())
            };
            world.send(&server, &[error(at(OWN)), answers("I")].concat());
            assert_eq!(client.received(), [error(at(NULL)), answers("I")].concat());
        }
    }
}

#[test]
fn a_text_with_set_config_to_null_is_not_shared_with_who_began_with_another_value() {
    const NULL: &str = "SELECT set_config('TimeZone', null, false)";
    let (mut world, client, server) = from_tokyo(PoolMode::Transaction);
    let other = world.client();
    world.send(&other, &[parse("s", NULL), sync()].concat());
    world.send(&server, &[answers("C"), parameter("TimeZone", "UTC"), answers("I")].concat());
    assert!(String::from_utf8_lossy(&server.received()).contains(NULL));
    world.send(&server, &answers("1I"));
    world.send(&client, &[parse("s", NULL), sync()].concat());
    let sent = server.received();
    assert!(String::from_utf8_lossy(&sent).contains("'Asia/Tokyo', false"), "{}", kinds(&sent));
}

/// A Bind of one parameter, in text.
fn bind_value(statement: &str, value: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    build::bind_texts(&mut out, statement.as_bytes(), [value.map(str::as_bytes)].into_iter());
    out
}

#[test]
fn a_null_that_comes_as_a_parameter_of_set_config_means_the_clients_start_value() {
    const GIVEN: &str = "SELECT set_config('TimeZone', $1, false)";
    for (mode, name) in [
        (PoolMode::Transaction, ""),
        (PoolMode::Transaction, "s"),
        (PoolMode::Session, ""),
        (PoolMode::Session, "s"),
    ] {
        let (mut world, client, server) = from_tokyo(mode);
        world.send(&client, &[parse(name, GIVEN), sync()].concat());
        assert_eq!(server.kinds(), "PS");
        world.send(&server, &answers("1I"));
        client.received();
        for (value, sent) in [(None, "Asia/Tokyo"), (Some("Europe/Paris"), "Europe/Paris")] {
            world.send(&client, &[bind_value(name, value), execute(), sync()].concat());
            let received = server.received();
            assert_eq!(kinds(&received), "BES", "{mode:?}");
            let length = u32::try_from(sent.len()).unwrap().to_be_bytes();
            let value = [&length[..], sent.as_bytes()].concat();
            assert!(received.windows(value.len()).any(|bytes| bytes == value), "{received:?}");
            world.send(&server, &answers("2DCI"));
            assert_eq!(client.kinds(), "2DCZ");
        }
        // The statement that has taken its name is another one.
        if name.is_empty() {
            let other = [parse(name, "SELECT $1"), bind_value(name, None), execute(), sync()];
            world.send(&client, &other.concat());
            let received = server.received();
            assert!(!String::from_utf8_lossy(&received).contains("Tokyo"), "{received:?}");
        }
    }
}

#[test]
fn a_null_that_comes_as_a_parameter_stays_one_for_who_began_with_nothing_else() {
    let mut world = World::new(1);
    let client = world.client();
    let given = parse("", "SELECT set_config('TimeZone', $1, false)");
    let sent = [given, bind_value("", None), execute(), sync()].concat();
    world.send(&client, &sent);
    assert_eq!(world.servers[0].received(), sent);
}
