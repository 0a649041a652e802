use proptest::prelude::*;

use super::*;

fn find(text: &str) -> Findings {
    scan(text.as_bytes(), ScanOptions::default())
}

fn verb(text: &str) -> Verb {
    let found = find(text);
    assert!(!found.unsure, "{text}");
    found.single().unwrap_or_else(|| panic!("not one statement: {text}")).verb.clone()
}

fn parts(text: &str) -> PartSet {
    let found = find(text);
    assert!(!found.unsure, "{text}");
    found.parts(is_reported)
}

/// Verb as Debug prints it, with the value of SET as the text that it spans.
fn shown(text: &str) -> String {
    match verb(text) {
        Verb::Set { name, local, value } => {
            let value = match value {
                SetValue::Given(range) => text[range].to_string(),
                other => format!("{other:?}"),
            };
            format!("{}{name:?} = {value}", if local { "local " } else { "" })
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn verbs_are_read_from_the_first_words() {
    for (text, expected) in [
        ("SELECT 1", "Other"),
        ("(select 1) union (select 2)", "Other"),
        ("values (1)", "Other"),
        ("table t", "Other"),
        ("insert into t values (1)", "Other"),
        ("UPDATE t SET a = 1", "Other"),
        ("delete from t", "Other"),
        ("merge into t using s on true when matched then delete", "Other"),
        ("with a as (select 1) select * from a", "Other"),
        ("explain select 1", "Other"),
        ("copy t from stdin", "Other"),
        ("begin isolation level serializable", "Other"),
        ("start transaction read only", "Other"),
        ("COMMIT", "End { chain: false }"),
        ("end work", "End { chain: false }"),
        ("commit and chain", "End { chain: true }"),
        ("commit transaction and no chain", "End { chain: false }"),
        ("commit prepared 'x'", "FinishPrepared"),
        ("rollback prepared 'x'", "FinishPrepared"),
        ("abort", "End { chain: false }"),
        ("rollback work and chain", "End { chain: true }"),
        ("rollback to a", "Other"),
        ("ROLLBACK TRANSACTION TO SAVEPOINT \"A b\"", "Other"),
        ("rollback to savepoint", "Other"),
        ("savepoint AbC", "Other"),
        ("release savepoint a", "Other"),
        ("release savepoint", "Other"),
        ("prepare transaction 'x'", "Other"),
        ("prepare transaction as select 1", "Prepare(\"transaction\")"),
        ("prepare P (int) as select $1", "Prepare(\"p\")"),
        ("execute \"P\"(1)", "Execute(\"P\")"),
        ("deallocate p", "Deallocate(One(\"p\"))"),
        ("deallocate prepare p", "Deallocate(One(\"p\"))"),
        ("deallocate prepare", "Deallocate(One(\"prepare\"))"),
        ("deallocate prepare all", "Deallocate(All)"),
        ("deallocate \"all\"", "Deallocate(One(\"all\"))"),
        ("listen c", "Listen(\"c\")"),
        ("unlisten *", "Unlisten(All)"),
        ("unlisten c", "Unlisten(One(\"c\"))"),
        ("notify c, 'x'", "Notify"),
        ("declare c cursor for select 1", "Other"),
        ("declare c scroll cursor with hold for select 1", "DeclareHeld"),
        ("declare c cursor without hold for select 1", "Other"),
        ("declare c cursor for with hold as (select 1) select * from hold", "Other"),
        ("close all", "Close"),
        ("close c", "Close"),
        ("load 'auto_explain'", "Load"),
        ("alter role a set work_mem = 1", "Shared"),
        ("create user u", "Shared"),
        ("create user mapping for u server s", "Ddl"),
        ("drop group g", "Shared"),
        ("alter database d set x = 1", "Shared"),
        ("alter database d owner to o", "Shared"),
        ("alter database d reset x", "Shared"),
        ("drop database D", "Vacate(\"d\")"),
        ("/* a */ drop database if exists \"A \"\"B\" with (force) -- b", "Vacate(\"A \\\"B\")"),
        ("create database a", "Vacate(\"template1\")"),
        ("create database a template b owner c", "Vacate(\"b\")"),
        ("create database a with owner = c template = \"B\"", "Vacate(\"B\")"),
        ("create database a template default", "Vacate(\"template1\")"),
        ("alter database a rename to b", "Vacate(\"a\")"),
        ("alter database \"A\" set tablespace t", "Vacate(\"A\")"),
        ("alter system reset all", "Shared"),
        ("create table t (a int)", "Ddl"),
        ("truncate t", "Ddl"),
        ("grant execute on function f to u", "Ddl"),
        ("discard all", "DiscardAll"),
        ("discard temporary", "DiscardTemporary"),
        ("discard plans", "Other"),
        ("discard sequences", "Other"),
        ("reset all", "ResetAll"),
        ("reset \"TimeZone\"", "Reset(\"timezone\")"),
        ("reset time zone", "Reset(\"timezone\")"),
        ("reset my.x", "Reset(\"my.x\")"),
        ("reset session authorization", "Reset(\"session_authorization\")"),
        ("reset transaction isolation level", "Reset(\"transaction_isolation\")"),
        ("show all", "Other"),
    ] {
        assert_eq!(shown(text), expected, "{text}");
    }
}

#[test]
fn each_spelling_of_set_names_its_setting() {
    for (text, expected) in [
        ("set a to b", "\"a\" = b"),
        ("SET Work_Mem = '1MB' ;", "\"work_mem\" = '1MB'"),
        ("set session a = 1, 'b'", "\"a\" = 1, 'b'"),
        ("set local a = -1.5 -- why", "local \"a\" = -1.5"),
        ("set session = 1", "\"session\" = 1"),
        ("set local to 1", "\"local\" = 1"),
        ("set session.a = 1", "\"session.a\" = 1"),
        ("set local session.a = 1", "local \"session.a\" = 1"),
        ("set my . \"User\" = E'a\\'b'", "\"my.user\" = E'a\\'b'"),
        ("set a to default", "\"a\" = Default"),
        ("set a to 'default'", "\"a\" = 'default'"),
        ("set a from current", "\"a\" = Current"),
        ("set time zone 'UTC'", "\"timezone\" = 'UTC'"),
        ("set local time zone -7", "local \"timezone\" = -7"),
        (
            "set time zone interval '-08:00' hour to minute",
            "\"timezone\" = interval '-08:00' hour to minute",
        ),
        ("set time zone local", "\"timezone\" = Default"),
        ("set time zone default", "\"timezone\" = Default"),
        ("set time to 1", "\"time\" = 1"),
        ("set names 'utf8'", "\"client_encoding\" = 'utf8'"),
        ("set names", "\"client_encoding\" = Default"),
        ("set names default", "\"client_encoding\" = Default"),
        ("set schema 'x'", "\"search_path\" = 'x'"),
        ("set seed to 0.5", "\"seed\" = 0.5"),
        ("set role none", "\"role\" = none"),
        ("set local role \"A\"", "local \"role\" = \"A\""),
        ("set role to x", "\"role\" = x"),
        ("set session authorization 'u'", "\"session_authorization\" = 'u'"),
        ("set session authorization default", "\"session_authorization\" = Default"),
        ("set local session authorization u", "local \"session_authorization\" = u"),
        ("set session session authorization u", "\"session_authorization\" = u"),
        ("set xml option document", "\"xmloption\" = document"),
        ("set transaction read only", "Other"),
        ("set local transaction isolation level serializable", "Other"),
        ("set transaction snapshot 'x'", "Other"),
        ("SET CONSTRAINTS ALL DEFERRED", "Other"),
        ("set constraints s.a, \"B\" immediate", "Other"),
        ("set constraints to 1", "\"constraints\" = 1"),
        (
            "set session characteristics as transaction read only",
            "SetSessionCharacteristics { local: false }",
        ),
    ] {
        assert_eq!(shown(text), expected, "{text}");
    }
}

#[test]
fn verbs_touch_their_parts() {
    for (text, expected) in [
        ("set timezone = 'UTC'", "reported_setting"),
        ("set names 'x'", "reported_setting"),
        ("set search_path = a", "setting"),
        ("set search_path = a, pg_temp", "setting,temporary_object"),
        ("set search_path = E'\\x70g_temp'", "setting,temporary_object"),
        ("set search_path to 'pg_temp'", "setting,temporary_object"),
        ("set local work_mem = 1", ""),
        ("set local my.x = 1", "custom_setting"),
        ("set my.x to default", "custom_setting"),
        ("reset my.x", "custom_setting"),
        ("set role x", "role"),
        ("set session authorization x", "session_authorization"),
        ("set session characteristics as transaction read only", "setting"),
        ("set seed = 1", "seed"),
        ("set local seed = 1", "seed"), // nothing takes that back
        ("select set_config('seed', '0.5', true)", "seed"),
        ("set transaction_isolation = 'serializable'", ""),
        ("reset all; unlisten *; close all; deallocate all; discard temp", ""),
        ("listen c", "listen"),
        ("prepare p as select 1", "sql_statement"),
        ("execute p", ""),
        ("declare c cursor with hold for select 1", "held_cursor"),
        ("load 'x'", "loaded_library"),
    ] {
        assert_eq!(parts(text).to_string(), expected, "{text}");
    }
}

#[test]
fn parts_are_found_anywhere_in_a_text() {
    for (text, expected) in [
        ("select pg_advisory_lock(1)", "advisory_lock"),
        ("select pg_catalog.\"pg_try_advisory_lock_shared\" (1, 2)", "advisory_lock"),
        ("select pg_advisory_xact_lock(1), pg_advisory_unlock_all()", ""),
        ("update t set a = PG_ADVISORY_LOCK(1)", "advisory_lock"),
        ("select 'pg_advisory_lock(1)' -- pg_advisory_lock(1)\n /* pg_advisory_lock(1) */", ""),
        ("select nextval('s')", ""),
        ("select currval('s')", "sequence_value"),
        ("select lastval()", "sequence_value"),
        ("select setseed(0.1)", "seed"),
        ("select pg_backup_start('x')", "backup_in_progress"),
        ("select pg_create_physical_replication_slot('x', true, true)", "temporary_slot"),
        ("CREATE_REPLICATION_SLOT s TEMPORARY PHYSICAL", "temporary_slot"),
        ("select dblink_connect('a', 'b')", "named_connection"),
        ("select * from pg_prepared_statements", "session_catalog"),
        ("select * from pg_listening_channels()", "session_catalog"),
        ("create temp table t (a int)", "temporary_object"),
        ("create local /* x */ temporary table t (a int)", "temporary_object"),
        ("create or replace temp view v as select 1", "temporary_object"),
        ("create temp sequence s", "temporary_object"),
        ("create table pg_temp.t (a int)", "temporary_object"),
        ("create table \"pg_temp\".t (a int)", "temporary_object"),
        (
            "create function pg_temp_3.f() returns int language sql as 'select 1'",
            "temporary_object",
        ),
        ("select 1 into temp x", "temporary_object"),
        ("select 1 into local temporary table x", "temporary_object"),
        ("select insert into temp x from t", "temporary_object"),
        ("with a as (select 1) select insert into temp values from t", "temporary_object"),
        ("explain analyze create temp table t as select 1", "temporary_object"),
        ("select temp, temporary from temp", ""),
        ("select t.temp into x from t", ""),
        ("insert into temp values (1)", ""),
        ("insert into temp select 1", ""),
        ("with a as (select 1) insert into temp select * from a", ""),
        ("with a as (insert into temp (x) select 1 returning *) select * from a", ""),
        ("merge into temp using s on true when matched then delete", ""),
        ("create table temp (a int)", ""),
        ("drop table temp", ""),
        ("grant temp on database d to u", ""),
        ("create table t as execute p", "sql_statement"),
        ("explain analyze execute p", "sql_statement"),
        ("explain (analyze) execute p(1)", "sql_statement"),
        ("create trigger t before insert on x execute function f()", ""),
        ("grant execute on function f() to u", ""),
        ("prepare p as select pg_advisory_lock(1)", "sql_statement,advisory_lock"),
        ("create rule r as on insert to t do also (notify a; notify b)", ""),
        ("select 1; ; select setseed(1); select 2", "seed"),
    ] {
        assert_eq!(parts(text).to_string(), expected, "{text}");
    }
}

#[test]
fn set_config_is_read_to_its_third_argument() {
    let any = PartSet::ANY_SETTING.to_string();
    for (text, expected) in [
        ("select set_config('work_mem', '1MB', true)", ""),
        ("select set_config('role', 'x', true)", ""),
        ("select set_config('role', 'x', false)", "role"),
        ("select pg_catalog.set_config('search_path', '', false)", "setting"),
        ("select set_config('search_path', 'pg_temp', false)", "setting,temporary_object"),
        ("select set_config('TimeZone', $1, $2)", "reported_setting"),
        ("select set_config('my.x', f(1, 2), true)", "custom_setting"),
        ("select \"set_config\"('my.x', '1', false)", "custom_setting"),
        ("select set_config('a', (select ','), TRUE), set_config('b', '', false)", "setting"),
        ("select set_config($1, $2, true)", "custom_setting"),
        ("select set_config($1, $2, false)", &any),
        ("select set_config('work' || '_mem', '1', false)", &any),
        ("select set_config('a', 'b', not true)", "setting"),
        ("select set_config('a', 'b', true or false)", "setting"),
        ("select set_config from t", ""),
    ] {
        assert_eq!(parts(text).to_string(), expected, "{text}");
    }
    assert!(find("select set_config('a', 'b'").unsure);
}

#[test]
fn an_update_of_pg_settings_sets_them() {
    for text in [
        "update pg_settings set setting = '1ms' where name = 'statement_timeout'",
        "UPDATE ONLY pg_catalog.pg_settings AS s SET setting = 'x'",
        "update \"pg_catalog\".\"pg_settings\" set setting = 'x'",
        "with a as (update pg_settings set setting = 'x' returning 1) select 2",
        "explain analyze update pg_settings set setting = 'x'",
        "copy (update pg_settings set setting = 'x' returning 1) to stdout",
        "select 1; update pg_settings set setting = 'x'",
        "do $$ begin update pg_settings set setting = 'x'; end $$",
    ] {
        assert_eq!(find(text).flags, PartSet::ANY_SETTING, "{text}");
        assert!(!is_plain(text.as_bytes()), "{text}");
    }
    for text in [
        "select setting from pg_settings where name = 'work_mem'",
        "select * from pg_settings for update",
        "update t set a = 1; select * from pg_settings",
        "update t set a = 'pg_settings'",
        "do $$ declare a int; begin select count(*) into a from pg_settings; end $$",
    ] {
        assert!(find(text).flags.is_empty(), "{text}");
    }
}

#[test]
fn words_of_code_in_strings_count() {
    for (text, expected) in [
        ("do $$ begin perform f(); end $$", ""),
        ("do language plpgsql $x$ begin perform pg_advisory_lock(1); end $x$", "advisory_lock"),
        ("do 'begin create temp table t(a int); end'", "temporary_object"),
        ("do $$begin perform 'listen'; end$$", "listen"),
        ("call p('setseed')", "seed"),
        ("select 'set listen temp prepare'", ""),
        ("create function f() returns int language sql as $$ select setseed(1) $$", ""),
    ] {
        assert_eq!(parts(text).to_string(), expected, "{text}");
    }
    let set = find("do $$ begin set local my.x = 1; end $$");
    assert_eq!(set.flags, PartSet::ANY_SETTING);
    // Text that is built at run time is not visible.
    for text in [
        "do $$ begin execute 'SE' || 'T x = 1'; end $$",
        "do $$ begin perform query_to_xml($1, true, true, ''); end $$",
        "do E'begin \\x53ET x = 1; end'",
        "do 'begin SE'\n'T x = 1; end'",
        "do U&'begin end'",
        "do $$ x $$ language plpython3u",
        "do language 'plpgsql' $$ $$",
        "select query_to_xml('select 1', true, true, '')",
    ] {
        assert!(find(text).unsure, "{text}");
    }
}

#[test]
fn lexical_traps_do_not_hide_a_statement() {
    // Each hides `listen a` in one reading and not in the other; the count is the server's.
    for (text, statements) in [
        ("select ';listen a;'", 1),
        ("select ''';listen a;'", 1),
        ("select '\\'; listen a;'", 2 + 90), // the last quote is open
        ("select E'\\'; listen a;'", 1),
        ("select e'\\\\'; listen a", 2),
        ("select E'a'\n'\\'; listen a;'", 1),
        ("select E'a' -- b\n  '\\'; listen a;'", 1),
        ("select E'a' '\\'; listen a --'", 2),
        ("select 'a' /* b */\n'c'; listen a", 2),
        ("select b'1'';listen a;'", 1),
        ("select n'\\'; listen a --'", 2),
        ("select ne'\\'; listen a --'", 2),
        ("select $$;listen a;$$", 1),
        ("select $a$;$$;listen a;$a$", 1),
        ("select $a$;$a;$b$ $ab$;listen a;$a$", 1),
        ("select $a$ $a$a$; listen a", 2), // $a$ ends, then a$ is a name
        ("select a$b$; listen a; $b$", 2 + 90),
        ("select $1; listen a", 2),
        ("select $1$a$;listen a;$a$", 1),
        ("select \"a;listen a;\"", 1),
        ("select \"a\"\";listen a;\"", 1),
        ("select \"a\\\"; listen a", 2),
        ("select 1 /* ; /* ; */ ; listen a; */", 1),
        ("select 1 /*/ ; listen a; */", 1),
        ("select 1 /**/; listen a", 2),
        ("select 1 /***/; listen a", 2),
        ("select 1 +--;\n 2; listen a", 2),
        ("select 1 */*;listen a;*/ 2", 1),
        ("select 1 --;listen a", 1),
        ("select 1 --\r;listen a", 2),
        ("select 1 - -1; listen a", 2),
        ("select 4/2; listen a", 2),
        ("select (1;listen a)", 1),
        ("select 1e'\\';listen a;'", 1),
        ("select caf\u{e9}$$;listen a;$$", 2 + 90),
    ] {
        let found = find(text);
        let open = statements > 90;
        assert_eq!(found.unsure, open, "{text}: {found:?}");
        if !open {
            assert_eq!(found.statements().count(), statements, "{text}: {found:?}");
        }
    }
}

#[test]
fn backslashes_escape_where_the_setting_says_so() {
    let text = b"select 'a\\'; listen a;'";
    let options = ScanOptions { standard_conforming_strings: false, ..ScanOptions::default() };
    assert_eq!(scan(text, options).statements().count(), 1);
    assert!(scan(text, ScanOptions::default()).unsure);
    // Bit strings have no escapes in either.
    assert_eq!(scan(b"select b'\\'; listen a", options).statements().count(), 2);
}

#[test]
fn what_cannot_be_read_is_unsure() {
    for text in [
        "select 'a",
        "select \"a",
        "select /* /* */",
        "select $a$ $b$",
        "select $",
        "select $a b",
        "select E'a\\",
        "select 1\0; listen a",
        "select U&\"d\\0061t\"",
        "select u&'a'",
        "set",
        "set a",
        "set time zone",
        "discard x",
        "execute",
    ] {
        assert!(find(text).unsure, "{text}");
    }
    assert!(find(&format!("listen {}", "a".repeat(64))).unsure);
    assert!(!find(&format!("listen {}", "a".repeat(63))).unsure);
    assert!(find(&format!("select ${0}$ ${0}$", "a".repeat(300))).unsure);
    let unsafe_encoding = ScanOptions { unsafe_encoding: true, ..ScanOptions::default() };
    assert!(scan("select 'é'".as_bytes(), unsafe_encoding).unsure);
    assert!(!scan(b"select 'e'", unsafe_encoding).unsure);
}

#[test]
fn ranges_are_those_of_first_and_last_token() {
    let text = "  select 1 ; -- x\n /* y */ update t set a = 'b' -- z\n;;  ";
    let found = find(text);
    let texts: Vec<&str> = found.statements().map(|s| &text[s.range.clone()]).collect();
    assert_eq!(texts, ["select 1", "update t set a = 'b'"]);
    for empty in ["", "  ", ";;", "-- a", "/* a */ ;"] {
        assert_eq!(find(empty), Findings::default(), "{empty}");
    }
    assert!(find("select").single().is_some());
}

#[test]
fn bodies_of_sql_functions_hold_semicolons() {
    let body = "create function f() returns int begin atomic select 1; select 2; end";
    assert_eq!(verb(body), Verb::Ddl);
    let closed = format!("{body} ; ");
    assert_eq!(find(&closed).single().unwrap().range, 0..body.len());
    assert!(!find(&closed).unsure);
    assert!(find(&format!("{body}; listen a")).unsure);
    assert!(
        find("create function f() returns int begin atomic select case when a then 1 end; end")
            .unsure
    );
    assert!(
        find("create function f() returns int begin atomic select 1 end; listen a; end").unsure
    );
    assert!(find("create function f() returns int begin atomic select 1;").unsure);
    assert!(shown("set sort_mem = '1MB'").contains("work_mem"), "an old name");
    // Elsewhere it is a name with an alias.
    let view = "create or replace view v as select begin atomic from (select 1 as begin) q; ";
    let found = find(&format!("{view}set search_path = 'evil'; end"));
    assert_eq!((found.count(), found.unsure), (3, false));
    assert_eq!(parts(&format!("{view}set work_mem = 1; end")).to_string(), "setting");
}

#[test]
fn long_lists_keep_their_flags() {
    let mut text = "select 1;".repeat(STATEMENTS_MAX);
    assert!(!find(&text).truncated);
    text.push_str("drop table t; declare c cursor with hold for select 1; select lastval()");
    let found = find(&text);
    assert!(!found.truncated, "nothing depends on where these stand");
    assert_eq!(found.statements().count(), STATEMENTS_MAX);
    assert_eq!(found.flags, PartSet::of(&[Part::HeldCursor, Part::SequenceValue]));
    assert_eq!(found.ends, PartSet::of(&[Part::TemporaryObject]));
}

#[test]
fn notable_statements_are_listed_after_many_others_up_to_a_bound() {
    let mut text = "insert into t values (1);".repeat(5_000);
    text.push_str("reset timezone; select 1;");
    let number = |statement: &Statement| (statement.number, statement.verb.clone());
    let found = find(&text);
    assert!(!found.truncated);
    let last = found.statements().last().map(number);
    assert_eq!(last, Some((5_001, Verb::Reset(Name::new(b"timezone")))));
    text.push_str(&"listen a;".repeat(OF_NOTE_MAX - STATEMENTS_MAX - 1));
    assert!(!find(&text).truncated);
    assert_eq!(find(&text).statements().count(), OF_NOTE_MAX);
    text.push_str("listen b");
    let found = find(&text);
    assert!(found.truncated);
    assert_eq!(found.statements().count(), OF_NOTE_MAX);
    assert_eq!(found.flags, PartSet::of(&[Part::Listen]));
}

#[test]
fn a_search_path_may_make_plain_tables_temporary() {
    assert!(names_temporary_schema(b"pg_temp, public"));
    assert!(names_temporary_schema(b"\"$user\", \"pg_temp\""));
    assert!(names_temporary_schema(b"PG_TEMP_3"));
    assert!(!names_temporary_schema(b"\"$user\", public, pg_temperature"));
}

/// Texts that end in every state of the lexer.
const SPLIT: &[&str] = &[
    "select E'a\\'' -- b\r\n 'c\\'d''e', U&'x', u&\"y\", u & 1, b'1'\n'0', n'x'; listen \"A\"\"b\"",
    "select $a$ $ $b$ $a $a$, $$x$$, $1, $12$c$d$c$ -1 --2\n /3 /* /* **/ */ 4/**/5.6e-7; set my.\"X y\" = 'pg_temp'",
    "do language plpgsql $do$ begin perform pg_advisory_lock(1); create temp table t(); end $do$; insert into temp values(1)",
    "select \"pg_advisory_lock\"(1), set_config('my.x', '1', true), setseed(1); with a as (insert into temp select 1) select 2",
    "create function f() begin atomic select 1; end; ",
    "set time zone 'a' ; rollback to savepoint b; set session authorization x; deallocate prepare all; commit and chain",
];

fn scan_in(chunks: &[&[u8]], options: ScanOptions) -> Findings {
    let mut scanner = Scanner::new(options);
    for chunk in chunks {
        scanner.feed(chunk);
    }
    scanner.finish()
}

#[test]
fn findings_do_not_depend_on_where_chunks_end() {
    for conforming in [true, false] {
        let options =
            ScanOptions { standard_conforming_strings: conforming, unsafe_encoding: false };
        for text in SPLIT {
            // Also each prefix: a text may end in any state.
            for length in 0..=text.len() {
                let text = &text.as_bytes()[..length];
                let whole = scan(text, options);
                let bytes: Vec<&[u8]> = text.chunks(1).collect();
                assert_eq!(scan_in(&bytes, options), whole, "{}", text.escape_ascii());
                for at in 0..length {
                    let split = scan_in(&[&text[..at], &text[at..]], options);
                    assert_eq!(split, whole, "{} at {at}", text.escape_ascii());
                }
            }
        }
    }
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "'",
        "''",
        "\\",
        "\"",
        "$",
        "$a$",
        "$$",
        "/*",
        "*/",
        "--",
        "\n",
        " ",
        ";",
        "(",
        ")",
        ",",
        ".",
        "=",
        "e",
        "u",
        "&",
        "x",
        "1",
        "select",
        "set",
        "set_config",
        "create",
        "temp",
        "into",
        "insert",
        "do",
        "language",
        "true",
        "begin",
        "atomic",
        "end",
        "pg_temp",
        "listen",
        "as",
        "execute",
        "\u{e9}",
        "\0",
        "-",
        "/",
        "*",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_any_text_gives_the_same(
        text in prop_oneof![pieces(), prop::collection::vec(any::<u8>(), 0..80)],
        sizes in prop::collection::vec(1usize..9, 1..80),
        conforming: bool,
    ) {
        let options = ScanOptions { standard_conforming_strings: conforming, unsafe_encoding: true };
        let mut chunks: Vec<&[u8]> = Vec::new();
        let mut rest = &text[..];
        for size in sizes.into_iter().cycle() {
            if rest.is_empty() { break; }
            let (chunk, after) = rest.split_at(size.min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        let whole = scan(&text, options);
        prop_assert_eq!(&scan_in(&chunks, options), &whole);
        for statement in whole.statements() {
            prop_assert!(statement.range.start <= statement.range.end);
            prop_assert!(statement.range.end <= text.len());
        }
    }
}

#[test]
fn hostile_texts_take_linear_time() {
    // Quadratic work would take minutes here, not a second.
    const LENGTH: usize = 1 << 18;
    for unit in [
        "/*", "$", "$a$", "$a", "'", "''", "\"", "\\", "(", ")", "a", "-", "--\n", "*/", ";", "1",
        "'\n",
    ] {
        let body = unit.repeat(LENGTH / unit.len());
        for prefix in
            ["", "select ", "select $a$", "select E'", "do '", "set x = ", "select set_config("]
        {
            let text = format!("{prefix}{body}");
            let found = find(&text);
            assert!(found.statements().count() <= OF_NOTE_MAX);
        }
    }
}

#[test]
fn how_the_server_folds_letters_beyond_ascii_is_not_known() {
    for text in ["listen Ärger", "unlisten Ärger", "prepare Ä as select 1"] {
        assert!(find(text).unsure, "{text}");
    }
    assert!(!find("listen \"Ärger\"").unsure);
    for text in ["select größe from maße", "savepoint ä"] {
        assert!(!find(text).unsure, "{text}: no name of it is of use");
    }
}

#[test]
fn custom_names_in_set_clauses_of_ddl_are_known_to_the_server() {
    for (text, defined) in [
        ("create function f() returns int language sql set my.z = '1' as 'select 1'", Some("my.z")),
        ("alter function g() set My.Z to 1", Some("my.z")),
        ("alter role r set \"my\".z = 'a'; select 1", Some("my.z")),
        ("alter database d set my.z from current", Some("my.z")),
        ("alter function f() reset My.Z", Some("my.z")),
        ("alter role r in database d reset my.\"z\"; select 1", Some("my.z")),
        ("alter function f() reset all", None),
        ("alter table t reset (fillfactor, toast.autovacuum_enabled)", None),
        ("create procedure p() set search_path = a, b as ''", None),
        ("alter table t alter a set default b.c", None),
        ("alter table t set schema s", None),
    ] {
        let found = find(text);
        let names: Vec<_> = found.defined.iter().map(|name| name.as_bytes().to_vec()).collect();
        let expected: Vec<_> = defined.iter().map(|name| name.as_bytes().to_vec()).collect();
        assert_eq!(names, expected, "{text}");
        let pins = found.parts(|_| false).contains(Part::CustomSetting);
        assert_eq!(pins, defined.is_some(), "{text}");
    }
}

#[test]
fn a_custom_name_may_begin_with_session_characteristics() {
    let found = find("set session characteristics.x = 'a'");
    let Verb::Set { name, local: false, .. } = &found.single().unwrap().verb else { panic!() };
    assert_eq!(*name, *"characteristics.x");
    let real = find("set session characteristics as transaction read only");
    assert_eq!(real.single().unwrap().verb, Verb::SetSessionCharacteristics { local: false });
}

#[test]
fn what_runs_a_query_for_each_relation_is_unsure() {
    for text in [
        "select table_to_xml('pg_prepared_statements', true, true, '')",
        "select SCHEMA_TO_XML_AND_XMLSCHEMA('s', true, true, '')",
        "select \"database_to_xml\"(true, true, '')",
    ] {
        assert!(find(text).unsure, "{text}");
    }
    assert!(
        !find("select schema_to_xmlschema('s', true, true, '')").unsure,
        "it reads the catalog"
    );
}
