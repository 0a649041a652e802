//! Each error is said with file, line and column, and says what is allowed.

use super::config;

/// A configuration that is whole, to which a mistake is added.
fn with(rest: &str) -> String {
    format!(
        "[[database]]\nname = \"app\"\nservers = [\"h:1\"]\n[[user]]\nname = \"u\"\npassword = \"p\"\n{rest}"
    )
}

/// All errors of `text`, one a line.
fn errors(text: &str) -> String {
    match config(text) {
        Ok(_) => String::new(),
        Err(errors) => errors.to_string(),
    }
}

/// `rest` begins in line 7 of the file.
#[track_caller]
fn refused(rest: &str, place: &str, words: &[&str]) {
    let errors = errors(&with(rest));
    let expected = format!("/etc/hawser/hawser.toml:{place}: ");
    let line = errors.lines().find(|line| line.starts_with(&expected));
    let line = line.unwrap_or_else(|| panic!("nothing at {place} in:\n{errors}"));
    for word in words {
        assert!(line.contains(word), "`{word}` is not in: {line}");
    }
}

#[test]
fn the_frame_of_these_tests_is_itself_accepted() {
    assert_eq!(errors(&with("")), "");
}

#[test]
fn syntax_errors_are_where_the_parser_stopped() {
    refused("[pool]\npool_size = \n", "8:13", &["not TOML"]);
    refused("[pool]\npool_size = 1\npool_size = 2\n", "9:1", &["duplicate key"]);
    refused("[pool\n", "7:6", &["not TOML"]);
}

#[test]
fn a_word_without_quotes_is_reported_to_need_them() {
    for word in ["transaction", "on", "first", "five", "none"] {
        let rest = format!("[pool]\npool_mode = {word}\n");
        assert!(
            errors(&with(&rest)).contains("text needs quotes"),
            "{word}: {}",
            errors(&with(&rest))
        );
    }
}

#[test]
fn a_configuration_of_pgbouncer_is_known_as_such() {
    let ini = "; comment\n[databases]\napp = host=localhost port=5432 dbname=app\n[pgbouncer]\nauth_type = md5\n";
    let errors = errors(ini);
    assert!(errors.contains("hawser import /etc/hawser/hawser.toml"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains(":2:1"), "{errors}");
}

#[test]
fn unknown_names_are_refused_with_the_nearest_known_one() {
    refused("[pool]\npool_sise = 1\n", "8:1", &["pool_sise", "did you mean `pool_size`"]);
    refused("[pol]\n", "7:2", &["did you mean `pool`"]);
    refused("[listen]\nquery_timeout = 1\n", "8:1", &["[[user]] or [pool]"]);
    refused("[pool]\nso_reuseport = 1\n", "8:1", &["one process uses all cores"]);
    refused("[pgbouncer]\n", "7:2", &["hawser import"]);
}

#[test]
fn values_of_another_type_or_out_of_range_say_what_is_allowed() {
    refused("[pool]\npool_size = \"20\"\n", "8:13", &["whole number", "a string"]);
    refused("[pool]\npool_size = 0\n", "8:13", &["1 to 262143"]);
    refused("[pool]\npool_size = 99999999999999999999\n", "8:13", &["64 bits"]);
    refused("[pool]\npool_mode = \"txn\"\n", "8:13", &["session, transaction, statement"]);
    refused("[pool]\nquery_timeout = \"5m\"\n", "8:17", &["min"]);
    refused("[pool]\nquery_timeout = -1\n", "8:17", &["out of range"]);
    refused("[pool]\nserver_connect_timeout = 0\n", "8:26", &["0.001s"]);
    refused("[pool]\nserver_max_memory = \"64MB\"\n", "8:21", &["KiB, MiB"]);
    refused("[pool]\nserver_round_robin = 1\n", "8:22", &["true or false", "an integer"]);
    refused("[pool]\nserver_reset_query = 1979-05-27\n", "8:22", &["a date"]);
    refused("[listen]\nunix_socket_mode = 770\n", "8:20", &["0o770"]);
    refused("[tls]\nclient_tls_protocols = \"tlsv1.1\"\n", "8:24", &["tlsv1.2, tlsv1.3"]);
    refused("[admin]\nhttp_address = \"9632\"\n", "8:16", &["127.0.0.1:9632"]);
    refused("[admin]\nhttp_address = \"\\u0000\"\n", "8:16", &["not an address"]);
}

#[test]
fn an_item_of_a_list_has_its_own_place() {
    refused("[listen]\naddress = [\"127.0.0.1:1\", \"nowhere:2\"]\n", "8:27", &["nowhere:2"]);
    refused("[auth]\nadmin_users = [\"a\", 2]\n", "8:21", &["expected a string"]);
    let errors = errors("[[database]]\nname = \"a\"\nservers = [\"h:1\",\n  \"h:0\"]\n");
    assert!(errors.contains("hawser.toml:4:3: servers: `0` is not a port"), "{errors}");
}

#[test]
fn every_wrong_item_of_a_list_is_named() {
    let lines = |rest: &str| {
        let errors = errors(&with(rest));
        let place = |line: &str| line.split(' ').next().map(|place| place[24..].to_owned());
        errors.lines().filter_map(place).collect::<Vec<_>>()
    };
    let listen = "[listen]\naddress = [\"a:1\", \"*\", 3, \"[::1\",\n\"*\", \"localhost:0\"]\n";
    assert_eq!(lines(listen), ["8:12:", "8:24:", "8:27:", "9:1:", "9:6:"]);
    let servers = "[[database]]\nname = \"b\"\nservers = [\"h:0\", \"g\", \"g\", \"u@h\"]\n";
    assert_eq!(lines(servers), ["9:12:", "9:24:", "9:29:"]);
    assert_eq!(lines("[listen]\naddress = \"a:1, b:2\"\n"), ["8:11:", "8:11:"]);
    assert_eq!(lines("[auth]\nadmin_users = [1, \"a\", 2]\n").len(), 2);
    assert_eq!(lines("[tls]\nclient_tls_protocols = [\"ssl\", \"tlsv1.2\", \"x\"]\n").len(), 2);
}

#[test]
fn tables_of_the_wrong_shape_say_how_to_write_them() {
    let errors = errors("[database]\nname = \"a\"\n[[pool]]\npool_size = 1\n");
    assert!(errors.contains("hawser.toml:1:2: ") && errors.contains("[[database]]"), "{errors}");
    assert!(errors.contains("hawser.toml:3:3: ") && errors.contains("write [pool]"), "{errors}");
    let errors = config("pool_size = 3\n").unwrap_err().to_string();
    assert!(
        errors.contains(":1:1: `pool_size` belongs in a table: write it under [pool]"),
        "{errors}"
    );
}

#[test]
fn entries_are_checked_one_by_one() {
    refused("[[database]]\nservers = [\"h:1\"]\n", "7:1", &["without name"]);
    refused("[[database]]\nname = \"b\"\n", "7:1", &["without servers"]);
    refused("[[database]]\nname = \"app\"\nservers = \"h:1\"\n", "8:8", &["already in line 2"]);
    refused("[[database]]\nname = \"pgbouncer\"\nservers = \"h:1\"\n", "8:8", &["admin database"]);
    refused("[[database]]\nname = \"b\"\nservers = \"h\"\npassword = \"x\"\n", "10:12", &["whose"]);
    for (endpoint, said) in [
        ("127.0.0.1:4318", "is not http://host:port/path"),
        ("grpc://x:1/a", "is not http://host:port/path"),
        ("http://x:4318", "is not http://host:port/path"),
        ("http:///v1/traces", "is not http://host:port/path"),
        ("https://x:4318/v1/traces", "traces are not sent by TLS"),
    ] {
        let text = format!("[log]\notlp_endpoint = \"{endpoint}\"\n");
        refused(&text, "8:17", &["otlp_endpoint", said]);
    }
    let shared = "[[database]]\nname = \"b\"\nservers = \"h\"\nhand_over_secret_file = \"x\"\n";
    refused(shared, "10:25", &["needs `user`"]);
    let with_query = format!("{shared}user = \"p\"\nconnect_query = \"SELECT 1\"\n");
    refused(&with_query, "10:25", &["connect_query"]);
    let told = "[[database]]\nname = \"b\"\nservers = \"h\"\nhand_over = \"addresses\"\n";
    refused(told, "10:13", &["needs hand_over_secret_file"]);
    let told = format!("{told}hand_over_secret_file = \"x\"\nconnect_query = \"SELECT 1\"\n");
    let told = config(&format!("{told}[auth]\nauth_type = \"trust\"\nusers_file = \"u\"\n"));
    let told = told.unwrap();
    assert!(!told.database("b").unwrap().is_shared_by_users(), "its pools are each user's own");
    refused("[[user]]\npassword = \"x\"\n", "7:1", &["without name"]);
    refused("[[user]]\nname = \"u\"\n", "8:8", &["already in line 5"]);
}

#[test]
fn contradictions_are_refused_where_they_stand() {
    refused("[auth]\nauth_type = \"hba\"\n", "8:13", &["needs an hba_file"]);
    refused("[auth]\nhba_file = \"x\"\nauth_type = \"md5\"\n", "9:13", &["remove one"]);
    refused("[auth]\nident_file = \"x\"\n", "8:14", &["hba_file"]);
    refused("[auth]\nauth_type = \"cert\"\n", "8:13", &["verify-full"]);
    refused("[auth]\nauth_type = \"any\"\n", "2:8", &["needs a user"]);
    refused("[auth]\nauth_dbname = \"b\"\n", "8:15", &["no [[database]] `b`"]);
    refused("[tls]\nclient_tls_sslmode = \"require\"\n", "8:22", &["client_tls_cert_file"]);
    refused("[tls]\nserver_tls_sslmode = \"verify-ca\"\n", "8:22", &["server_tls_ca_file"]);
    refused("[tls]\nserver_tls_key_file = \"k\"\n", "8:23", &["need each other"]);
    refused("[tls]\nserver_tls_negotiation = \"direct\"\n", "8:26", &["cannot fall back"]);
    refused("[pool]\npool_size = 3\ndefault_pool_size = 4\n", "9:1", &["given twice"]);
}

#[test]
fn all_errors_come_at_once_in_the_order_of_the_file() {
    let errors = config(&with("[pool]\nx = 1\npool_size = 0\n[zzzzzz]\n")).unwrap_err();
    let lines: Vec<_> = errors.as_slice().iter().map(|error| error.line).collect();
    assert_eq!(lines, [8, 9, 10]);
}

#[test]
fn a_configuration_without_any_login_is_refused_with_three_ways() {
    let frame = "[[database]]\nname = \"app\"\nservers = [\"h:1\"]\n";
    let refusal = errors(frame);
    for way in ["users_file", "[[user]]", "auth_user"] {
        assert!(refusal.contains(way), "{refusal}");
    }
    assert!(refusal.starts_with("/etc/hawser/hawser.toml:1:1: "), "{refusal}");
    assert!(
        errors(&format!("{frame}[auth]\nauth_type = \"trust\"\n"))
            .contains("hawser.toml:4:2: no client")
    );
    // A user without a password can be trusted, but not asked for one.
    let user = "[[user]]\nname = \"u\"\n";
    assert!(errors(&format!("{frame}{user}")).contains("no client could log in"));
    for enough in [
        "[auth]\nusers_file = \"f\"\n",
        "[[user]]\nname = \"u\"\npassword = \"p\"\n",
        "[auth]\nauth_user = \"a\"\n",
        "[auth]\nhba_file = \"f\"\n",
        "[auth]\nauth_type = \"trust\"\n[[user]]\nname = \"u\"\n",
    ] {
        assert_eq!(errors(&format!("{frame}{enough}")), "", "{enough}");
    }
}

#[test]
fn no_password_is_in_an_error_or_in_debug() {
    let secret = "hunter2";
    let ok = config(&with(&format!(
        "[[database]]\nname=\"b\"\nservers=\"h\"\nuser=\"x\"\npassword=\"{secret}\"\n[[user]]\nname=\"v\"\npassword=\"{secret}\"\n"
    )))
    .unwrap();
    assert!(!format!("{ok:?}").contains(secret));
    assert!(!format!("{:?}", ok.show()).contains(secret));
    for wrong in [
        "[[user]]\nname=\"v\"\npassword=[\"hunter2\"]\n",
        "[[user]]\nname=\"v\"\npassword=\"hunter2\n",
        "[[user]]\nname=\"v\"\npassword='hunter2' x\n",
        "[[user]]\nname=\"v\"\npassword=hunter2\n",
        "[[user]]\nname=\"v\"\npassword=\"hunter2\"\npassword=\"hunter2\"\n",
        "[[user]]\nname=\"v\"\npassword=\"hunter2\\u0000\"\n",
        "[[database]]\nname=\"b\"\nservers=\"postgres://u:hunter2@h/db\"\n",
        "[[database]]\nname=\"b\"\nservers=[\"u:hunter2@h\"]\n",
    ] {
        let errors = errors(&with(wrong));
        assert!(!errors.is_empty(), "{wrong}");
        assert!(!errors.contains(secret), "{errors}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = super::Config::load("/nonexistent/hawser.toml").unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/hawser.toml: cannot be read: "), "{error}");
}

#[test]
fn what_is_odd_but_allowed_is_a_warning() {
    let text = with("[tls]\nclient_tls_cert_file = \"c\"\n");
    let warnings = config(&text).unwrap().warnings().to_vec();
    assert_eq!(warnings.len(), 1);
    assert_eq!((warnings[0].line, warnings[0].column), (8, 24));
    let text = with("[auth]\nauth_type = \"trust\"\n[listen]\naddress = \"*\"\n");
    let warnings = config(&text).unwrap().warnings().to_vec();
    assert!(warnings[0].message.contains("0.0.0.0:6432"), "{warnings:?}");
}
