use super::*;

fn one(text: &str) -> Command {
    let mut commands = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(commands.len(), 1, "{text}");
    commands.remove(0)
}

#[test]
fn case_comments_white_space_and_semicolons_do_not_matter() {
    for text in [
        "SHOW POOLS",
        "show pools;",
        "  Show\n\tPools ; ",
        "SHOW POOLS;;",
        "/* a /* nested */ comment */ show pools -- and another",
        "show/**/pools",
        "-- first\nSHOW POOLS--x\n;",
        "select pools",
        "SHOW \"pools\"",
    ] {
        assert_eq!(one(text), Command::Show(Topic::Pools), "{text}");
    }
}

#[test]
fn every_command_is_read() {
    let name = |name: &str| Some(name.to_owned());
    for (text, expected) in [
        ("PAUSE", Command::Pause(None)),
        ("pause App", Command::Pause(name("App"))),
        ("PAUSE \"a \"\"b\"\"\"", Command::Pause(name("a \"b\""))),
        ("PAUSE *", Command::Pause(name("*"))),
        ("RESUME", Command::Resume(None)),
        ("resume db-1.x", Command::Resume(name("db-1.x"))),
        ("DISABLE a", Command::Disable("a".to_owned())),
        ("ENABLE a", Command::Enable("a".to_owned())),
        ("RECONNECT", Command::Reconnect(None)),
        ("KILL a", Command::Kill(name("a"))),
        ("KILL_CLIENT 12", Command::KillClient("12".to_owned())),
        ("KILL_CLIENT c0.1.2", Command::KillClient("c0.1.2".to_owned())),
        ("CLOSE IDLE", Command::CloseIdle(None)),
        ("close idle \"A b\"", Command::CloseIdle(name("A b"))),
        ("WAIT_CLOSE", Command::WaitClose(None)),
        ("RELOAD", Command::Reload),
        ("SUSPEND", Command::Suspend),
        ("SHUTDOWN", Command::Shutdown(Shutdown::Immediate)),
        ("shutdown wait_for_servers", Command::Shutdown(Shutdown::WaitForServers)),
        ("SHUTDOWN WAIT_FOR_CLIENTS;", Command::Shutdown(Shutdown::WaitForClients)),
        ("BEGIN", Command::Transaction(Transaction::Begin)),
        ("START TRANSACTION READ ONLY", Command::Transaction(Transaction::Begin)),
        ("COMMIT", Command::Transaction(Transaction::Commit)),
        ("ROLLBACK", Command::Transaction(Transaction::Rollback)),
        ("DISCARD ALL", Command::Clean("DISCARD ALL")),
    ] {
        assert_eq!(one(text), expected, "{text}");
    }
    for (word, topic) in Topic::ALL {
        assert_eq!(one(&format!("show {}", word.to_lowercase())), Command::Show(topic));
    }
}

#[test]
fn set_takes_words_and_both_quotes() {
    let set = |value: &str| Command::Set {
        name: "query_wait_timeout".to_owned(),
        value: value.to_owned(),
    };
    for (text, value) in [
        ("SET query_wait_timeout=10", "10"),
        ("set Query_Wait_Timeout = '10 s';", "10 s"),
        ("SET query_wait_timeout TO 10s", "10s"),
        ("SET query_wait_timeout = \"1m\"", "1m"),
        ("SET query_wait_timeout = /a/b.crt", "/a/b.crt"),
        ("SET query_wait_timeout = 'it''s'", "it's"),
        ("SET query_wait_timeout = ''", ""),
        ("SET query_wait_timeout=-1", "-1"),
    ] {
        assert_eq!(one(text), set(value), "{text}");
    }
}

#[test]
fn what_drivers_set_and_ask_unasked_is_not_a_setting_of_the_pooler() {
    for text in [
        "SET extra_float_digits = 3",
        "SET application_name = 'psql'",
        "set client_encoding to 'UTF8'",
        "SET NAMES 'utf8'",
        "SET TIME ZONE 'UTC'",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET DateStyle = ISO, MDY",
    ] {
        assert_eq!(one(text), Command::SetSession, "{text}");
    }
    assert_eq!(
        one("SHOW TRANSACTION ISOLATION LEVEL"),
        Command::ShowSession("transaction_isolation", "read committed")
    );
    assert_eq!(one("show DateStyle"), Command::ShowSession("datestyle", "ISO"));
}

#[test]
fn several_statements_come_in_order_and_nothing_is_nothing() {
    assert_eq!(parse(" ; -- x\n;").unwrap(), []);
    assert_eq!(parse("").unwrap(), []);
    assert_eq!(
        parse("SHOW STATE; PAUSE a;RESUME a").unwrap(),
        [
            Command::Show(Topic::State),
            Command::Pause(Some("a".to_owned())),
            Command::Resume(Some("a".to_owned()))
        ]
    );
}

#[test]
fn what_is_no_command_says_what_is() {
    let error = |text: &str| parse(text).unwrap_err();
    assert_eq!(error("FROB x"), CommandError::Unknown("FROB x".to_owned()));
    assert_eq!(error("SHOW frobs"), CommandError::UnknownTopic("SHOW frobs".to_owned()));
    assert_eq!(error("SHOW a b"), CommandError::UnknownTopic("SHOW a b".to_owned()));
    assert!(error("SHOW frobs").hint().contains("POOLS, QUERIES, RULES, SERVERS"));
    assert_eq!(error("PAUSE a b"), CommandError::Form("PAUSE [database]"));
    assert_eq!(error("DISABLE"), CommandError::Form("DISABLE database"));
    assert_eq!(error("SET x"), CommandError::Form("SET name = value"));
    assert_eq!(error("SET = x"), CommandError::Form("SET name = value"));
    assert_eq!(error("/* x"), CommandError::Unterminated("comment"));
    assert_eq!(error("PAUSE \"x"), CommandError::Unterminated("quoted string"));
    assert_eq!(error("'x'"), CommandError::Unknown("'...'".to_owned()));
    assert_eq!(error(&"x".repeat(TEXT_BYTES_MAX + 1)), CommandError::TooLong);
    assert_eq!(error(&"reload;".repeat(STATEMENTS_MAX + 1)), CommandError::TooLong);
    assert_eq!(error("SHOW POOLS; FROB"), CommandError::Unknown("FROB".to_owned()));
}

#[test]
fn probes_get_what_they_have_sent() {
    for probe in ["select 1", "SELECT version()", "select pg_is_in_recovery()", "VACUUM"] {
        let told = parse(&format!("{probe};")).unwrap_err().to_string();
        assert_eq!(told, format!("invalid command '{probe}', use SHOW HELP;"));
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,60}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_mixture_of_its_own_signs_makes_the_parser_panic(
        text in "(show|set|pause|/\\*|\\*/|--|'|\"|;|=| |ä|\n){0,30}"
    ) {
        let _ = parse(&text);
    }
}

#[test]
fn a_rule_is_read_word_by_word_and_its_words_in_any_order() {
    let text = "rule add night user report TEXT '(?i)it''s' REFUSE = \"no\" FOR '10 min' force";
    let words = [("user", "report"), ("text", "(?i)it's"), ("refuse", "no")];
    let words = words.map(|(word, value)| (word.to_owned(), value.to_owned())).to_vec();
    let added = Command::RuleAdd {
        name: "night".to_owned(),
        words,
        lasts: Some(Duration::from_secs(600)),
        force: true,
    };
    assert_eq!(parse(text), Ok(vec![added]));
    assert_eq!(
        parse("RULE DROP a; RULE SHOW"),
        Ok(vec![Command::RuleDrop("a".to_owned()), Command::Show(Topic::Rules),])
    );
    for (text, message) in [
        ("RULE", "bad arguments of RULE"),
        ("RULE ADD", "bad arguments of RULE"),
        ("RULE ADD a USER", "USER, word 1 of the rule, has no value"),
        ("RULE ADD a LOG 1 FOR ever", "FOR: `ever` is not a duration"),
        ("RULE ADD a 'x'", "`'...'` is no word of a rule"),
    ] {
        let error = parse(text).unwrap_err();
        assert_eq!(error.to_string().split(": write").next(), Some(message));
        assert!(error.hint().contains("RULE ADD name"), "{}", error.hint());
    }
}
