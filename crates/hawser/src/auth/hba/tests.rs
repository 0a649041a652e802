use std::path::PathBuf;

use proptest::prelude::*;

use super::super::records::testing::Memory;
use super::*;

fn load(text: &str) -> Result<HbaRules, FileErrors> {
    HbaRules::load_from(&Memory::new([("pg_hba.conf", text)]), Path::new("pg_hba.conf"))
}

fn errors(text: &str) -> Vec<String> {
    load(text).unwrap_err().iter().map(ToString::to_string).collect()
}

fn tcp(addr: &str, tls: bool) -> ConnKind<'static> {
    ConnKind::Tcp { addr: addr.parse().unwrap(), tls, name: PeerName::NotLookedUp }
}

fn conn<'a>(kind: ConnKind<'a>, database: &'a str, user: &'a str) -> ConnInfo<'a> {
    ConnInfo { kind, database, user, replication: Replication::Off, roles: UserRoles::NotLookedUp }
}

/// The line of the record that decides; 0 for none.
fn line(rules: &HbaRules, conn: &ConnInfo<'_>) -> usize {
    match rules.matches(conn, &[]) {
        Match::Rule(rule) => rule.location.line,
        Match::NoEntry => 0,
        Match::NeedsPeerName | Match::NeedsRoles => panic!("more is needed for {conn:?}"),
    }
}

const SAMPLE: &str = "\
# PostgreSQL Client Authentication Configuration File
# ===================================================
#
# Database and user names containing spaces, commas, quotes and other
# special characters must be quoted.  Quoting one of the keywords
# \"all\", \"sameuser\", \"samerole\" or \"replication\" makes the name lose
# its special character, and just match a database or username with
# that name.

# TYPE  DATABASE        USER            ADDRESS                 METHOD

# \"local\" is for Unix domain socket connections only
local   all             all                                     peer
# IPv4 local connections:
host    all             all             127.0.0.1/32            scram-sha-256
# IPv6 local connections:
host    all             all             ::1/128                 scram-sha-256
# Allow replication connections from localhost, by a user with the
# replication privilege.
local   replication     all                                     peer
host    replication     all             127.0.0.1/32            scram-sha-256
host    replication     all             ::1/128                 scram-sha-256
";

#[test]
fn the_sample_file_of_postgresql_means_what_it_says() {
    let rules = load(SAMPLE).unwrap();
    assert_eq!(rules.iter().count(), 6);
    assert_eq!(line(&rules, &conn(ConnKind::Local, "db", "joe")), 13);
    assert_eq!(line(&rules, &conn(tcp("127.0.0.1", false), "db", "joe")), 15);
    assert_eq!(line(&rules, &conn(tcp("127.0.0.1", true), "db", "joe")), 15);
    assert_eq!(line(&rules, &conn(tcp("::1", true), "db", "joe")), 17);
    assert_eq!(line(&rules, &conn(tcp("127.0.0.2", true), "db", "joe")), 0);
    let physical = |kind| ConnInfo { replication: Replication::Physical, ..conn(kind, "", "joe") };
    assert_eq!(line(&rules, &physical(ConnKind::Local)), 20);
    assert_eq!(line(&rules, &physical(tcp("127.0.0.1", false))), 21);
    let logical =
        ConnInfo { replication: Replication::Logical, ..conn(ConnKind::Local, "db", "joe") };
    assert_eq!(line(&rules, &logical), 13, "logical replication is an ordinary session here");
}

#[test]
fn members_of_roles_are_asked_for_where_nothing_else_decides() {
    let rules = load(
        "host app +readers 10.0.0.0/8 md5\n\
         host app joe 10.0.0.0/8 trust\n\
         host samerole,x \"+quoted\",ann all reject\n\
         host replication +readers all md5\n\
         host samegroup all all md5\n",
    )
    .unwrap();
    assert_eq!(rules.asks_for_roles().unwrap().line, 1);
    let unknown = |addr, database, user| {
        matches!(rules.matches(&conn(tcp(addr, false), database, user), &[]), Match::NeedsRoles)
    };
    assert!(unknown("10.1.1.1", "app", "joe"), "the first record may fit");
    assert!(!unknown("10.1.1.1", "x", "ann"), "another name decides");
    assert!(!unknown("10.1.1.1", "x", "+quoted"), "a quoted token is a name");
    assert!(
        unknown("11.1.1.1", "app", "joe"),
        "by samegroup alone: the address does not fit before"
    );
    let with = |addr, database, user, roles: &[&str]| {
        let roles: HashSet<String> = roles.iter().map(|role| (*role).to_owned()).collect();
        line(
            &rules,
            &ConnInfo { roles: UserRoles::Known(&roles), ..conn(tcp(addr, false), database, user) },
        )
    };
    assert_eq!(with("10.1.1.1", "app", "joe", &["joe", "readers"]), 1);
    assert_eq!(with("10.1.1.1", "app", "joe", &["joe"]), 2);
    assert_eq!(with("11.1.1.1", "app", "joe", &["joe", "app"]), 5);
    assert_eq!(with("11.1.1.1", "app", "ann", &["ann", "app"]), 3);
    assert_eq!(with("11.1.1.1", "app", "ann", &["ann"]), 0);
    assert!(load("host all all all md5").unwrap().asks_for_roles().is_none());
}

#[test]
fn the_first_record_that_fits_decides() {
    let rules = load(
        "hostssl   app,\"two words\"  joe        10.0.0.0/8               scram-sha-256\n\
         hostnossl app           joe        10.0.0.0  255.0.0.0      reject\n\
         host      sameuser      all        all                      md5\n\
         host      /^app_\\d+$   /^w        fe80::/10                password\n\
         host      \"all\"       \"all\"    0.0.0.0/0                trust\n\
         hostgssenc all          all        all                      trust\n\
         hostnogssenc nogss      all        all                      trust\n\
         local     replication   rep                                 trust\n\
         local     \"replication\" all                               trust\n",
    )
    .unwrap();
    let table = [
        (tcp("10.1.2.3", true), "app", "joe", 1),
        (tcp("10.1.2.3", true), "two words", "joe", 1),
        (tcp("::ffff:10.1.2.3", true), "app", "joe", 1),
        (tcp("10.1.2.3", false), "app", "joe", 2),
        (tcp("11.1.2.3", false), "app", "joe", 0),
        (tcp("11.1.2.3", false), "joe", "joe", 3),
        (tcp("fe80::1", false), "app_12", "writer", 4),
        (tcp("fec0::1", false), "app_12", "writer", 0),
        (tcp("fe80::1", false), "app_12x", "writer", 0),
        (tcp("9.9.9.9", false), "all", "all", 3),
        (tcp("9.9.9.9", false), "all", "x", 0),
        (tcp("9.9.9.9", false), "nogss", "x", 7),
        (ConnKind::Local, "replication", "joe", 9),
        (ConnKind::Local, "app", "joe", 0),
    ];
    for (kind, database, user, expected) in table {
        let conn = conn(kind, database, user);
        assert_eq!(line(&rules, &conn), expected, "{conn:?}");
    }
    assert_eq!(rules.notices().count(), 1);
    assert!(!rules.needs_interfaces());
}

#[test]
fn masks_may_have_holes_and_host_bits_count_for_nothing() {
    let rules =
        load("host all all 10.0.0.7 255.0.0.255 trust\nhost all all 1::1/0 reject").unwrap();
    assert_eq!(line(&rules, &conn(tcp("10.9.9.7", false), "d", "u")), 1);
    assert_eq!(line(&rules, &conn(tcp("10.9.9.8", false), "d", "u")), 0);
    assert_eq!(line(&rules, &conn(tcp("2::2", false), "d", "u")), 2);
}

#[test]
fn samehost_and_samenet_follow_the_interfaces_given() {
    let rules = load("host all all samehost trust\nhost all all samenet md5\n").unwrap();
    assert!(rules.needs_interfaces());
    let own =
        [Interface { addr: "192.0.2.10".parse().unwrap(), mask: "255.255.255.0".parse().unwrap() }];
    let method = |addr| match rules.matches(&conn(tcp(addr, false), "d", "u"), &own) {
        Match::Rule(rule) => Some(rule.method),
        _ => None,
    };
    assert_eq!(method("192.0.2.10"), Some(Method::Trust));
    assert_eq!(method("192.0.2.11"), Some(Method::Md5));
    assert_eq!(method("192.0.3.11"), None);
    assert_eq!(method("::1"), None);
}

#[test]
fn a_host_name_is_asked_for_only_when_its_record_could_decide() {
    let rules = load(
        "host app all db.example.org trust\nhost app all .EXAMPLE.com md5\nhost all all all reject",
    )
    .unwrap();
    let named = |name| ConnKind::Tcp { addr: "192.0.2.1".parse().unwrap(), tls: false, name };
    let other = conn(named(PeerName::NotLookedUp), "other", "u");
    assert!(
        matches!(rules.matches(&other, &[]), Match::Rule(rule) if rule.method == Method::Reject)
    );
    let app = |name| conn(named(name), "app", "u");
    assert!(matches!(rules.matches(&app(PeerName::NotLookedUp), &[]), Match::NeedsPeerName));
    assert_eq!(line(&rules, &app(PeerName::Unknown)), 3);
    assert_eq!(line(&rules, &app(PeerName::Verified("DB.example.org"))), 1);
    assert_eq!(line(&rules, &app(PeerName::Verified("a.b.example.com"))), 2);
    assert_eq!(line(&rules, &app(PeerName::Verified("example.com"))), 3);
    assert_eq!(line(&rules, &app(PeerName::Verified("é.x"))), 3);
}

#[test]
fn options_are_read_and_cert_implies_verify_full() {
    let rules = load(
        "hostssl all all all cert map=m clientname=DN\n\
         hostssl all all all md5 clientcert=verify-ca\n\
         hostssl all all all trust clientcert=verify-full clientname=CN\n\
         local all all ident map=\"my map\"\n",
    )
    .unwrap();
    let options: Vec<&Options> = rules.iter().map(|rule| &rule.options).collect();
    assert_eq!(options[0].map.as_deref(), Some("m"));
    assert_eq!(options[0].client_cert, ClientCert::VerifyFull);
    assert_eq!(options[0].client_name, ClientName::Dn);
    assert_eq!(options[1].client_cert, ClientCert::VerifyCa);
    assert_eq!(options[2].client_cert, ClientCert::VerifyFull);
    assert_eq!(options[3].map.as_deref(), Some("my map"));
    assert_eq!(rules.iter().nth(3).unwrap().method, Method::Peer, "as in PostgreSQL");
}

#[test]
fn what_cannot_be_done_is_refused_with_place_and_reason() {
    let table = [
        ("foo all all md5", ":1:1: invalid connection type \"foo\": it must be local, host,"),
        ("local,host all all md5", ":1:7: multiple values specified for connection type"),
        ("local", ":1:6: end-of-line before database specification"),
        ("local all  # end", ":1:17: end-of-line before role specification"),
        ("local all all", ":1:14: end-of-line before authentication method"),
        ("host all all", ":1:13: end-of-line before IP address specification"),
        ("host all all 10.0.0.1", ":1:22: end-of-line before netmask specification"),
        ("host all all 10.0.0.1/33 md5", ":1:14: invalid CIDR mask in address \"10.0.0.1/33\""),
        ("host all all 10.0.0.1/ md5", ":1:14: invalid CIDR mask"),
        ("host all all ::1/129 md5", ":1:14: invalid CIDR mask"),
        ("host all all 10.1/8 md5", ":1:14: invalid IP address \"10.1\""),
        ("host all all fe80::1%eth0 md5", ":1:14: invalid IP address"),
        ("host all all h.org/8 md5", ":1:14: specifying both host name and CIDR mask is invalid"),
        ("host all all 10.0.0.1 ::1 md5", ":1:23: IP address and mask do not match"),
        ("host all all 10.0.0.1 md5 md5", ":1:23: invalid IP mask \"md5\""),
        ("host all all 10.0.0.1/8,::1/8 md5", ":1:25: multiple values specified for host address"),
        ("host /( all all md5", ":1:6: invalid regular expression \"(\""),
        ("host all all all md6", ":1:18: invalid authentication method \"md6\": it must be trust,"),
        (
            "host all all all ident",
            ":1:18: authentication method \"ident\" is not supported: it must",
        ),
        ("host all all all gss", ":1:18: authentication method \"gss\" is not supported"),
        ("host all all all pam pamservice=a/b", ":1:22: invalid pamservice: \"a/b\""),
        (
            "host all all all md5 pamservice=a",
            ":1:22: authentication option \"pamservice\" is only",
        ),
        ("host all all all ldap x=y", ":1:23: unrecognized authentication option name: \"x\""),
        ("host all all all ldap", ":1:18: authentication method \"ldap\" requires argument"),
        ("host all all all ldap ldapport=x", ":1:23: invalid LDAP port number: \"x\""),
        (
            "host all all all md5 ldaptls=1",
            ":1:22: authentication option \"ldaptls\" is only valid",
        ),
        ("host all all all ldap map=x", ":1:23: authentication option \"map\" is only valid for"),
        ("host all all all oauth", ":1:18: authentication method \"oauth\" requires argument"),
        ("host all all all oauth validator=x", ":1:24: validator \"x\" is not permitted"),
        ("host all all all md5 issuer=x", ":1:22: authentication option \"issuer\" is only valid"),
        ("host all all all peer", ":1:18: peer authentication is only supported on local sockets"),
        ("host all all all cert", ":1:18: cert authentication is only supported on hostssl"),
        ("host all all all md5 map=x", ":1:22: authentication option \"map\" is only valid for"),
        ("host all all all md5 foo", ":1:22: authentication option not in name=value format: foo"),
        ("host all all all md5 foo=1", ":1:22: unrecognized authentication option name: \"foo\""),
        ("host all all all md5 clientcert=verify-ca", ":1:22: clientcert can only be configured"),
        ("hostssl all all all md5 clientcert=1", ":1:25: invalid value for clientcert: \"1\""),
        ("hostssl all all all cert clientcert=verify-ca", ":1:26: clientcert only accepts"),
        ("hostssl all all all cert clientname=cn", ":1:26: invalid value for clientname: \"cn\""),
        ("host \"all all all md5", ":1:6: the closing quote is missing"),
        ("host all é,\"ü ö\" all,all md5", ":1:22: multiple values specified for host address"),
        ("local \\\n  all \\\n all md6", ":3:6: invalid authentication method"),
        ("", ":1:1: the file contains no entries"),
        ("# only\n\n , ,\n", ":1:1: the file contains no entries"),
    ];
    for (text, expected) in table {
        let errors = errors(text);
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        let expected = format!("pg_hba.conf{expected}");
        assert!(errors[0].starts_with(&expected), "{text}\n got {}\nwant {expected}", errors[0]);
    }
    assert_eq!(errors("x\nlocal all all trust\ny\n").len(), 2, "all errors are reported");
}

#[test]
fn lines_continue_quotes_hold_and_comments_end_as_in_postgresql() {
    let rules = load(
        "local \"a \"\"b\"\" #,c\",@\"names\" \"\" trust # comment \\\nhost x x all md5\n\
         local a\\\nb all tru\\\nst\r\n\
         local x#comment\n",
    );
    // `@"names"` names a file; `x#comment` is the token x.
    let errors = rules.unwrap_err();
    assert_eq!(errors.iter().count(), 2, "{errors}");
    let files = Memory::new([
        (
            "/etc/h/pg_hba.conf",
            "local \"a \"\"b\"\" #,c\",@\"the names\" \"\" trust # comment \\\nhost x x all md5\n\
             local a\\\nb all tru\\\nst\r\n",
        ),
        ("/etc/h/the names", "n1, n2 # c\n\"n 3\"\n@more\n"),
        ("/etc/h/more", "n4"),
    ]);
    let rules = HbaRules::load_from(&files, Path::new("/etc/h/pg_hba.conf")).unwrap();
    assert_eq!(rules.iter().count(), 2, "a comment continues too");
    for database in ["a \"b\" #,c", "n1", "n2", "n 3", "n4"] {
        assert_eq!(line(&rules, &conn(ConnKind::Local, database, "")), 1, "{database}");
    }
    assert_eq!(line(&rules, &conn(ConnKind::Local, "ab", "u")), 3);
    assert_eq!(line(&rules, &conn(ConnKind::Local, "@more", "")), 0);
}

#[test]
fn files_are_included_in_place_and_in_order() {
    let files = Memory::new([
        (
            "/h/pg_hba.conf",
            "local first all trust\ninclude sub/a\ninclude_if_exists none\ninclude_dir d\nlocal last all trust",
        ),
        ("/h/sub/a", "local a all trust\ninclude_if_exists b\n"),
        ("/h/sub/b", "local b all trust\n"),
        ("/h/d/2.conf", "local two all trust\n"),
        ("/h/d/10.conf", "local ten all trust\n"),
        ("/h/d/.x.conf", "nonsense"),
        ("/h/d/x.conf~", "nonsense"),
    ]);
    let rules = HbaRules::load_from(&files, Path::new("/h/pg_hba.conf")).unwrap();
    let places: Vec<String> = rules.iter().map(|rule| rule.location.to_string()).collect();
    assert_eq!(
        places,
        [
            "/h/pg_hba.conf:1:1",
            "/h/sub/a:1:1",
            "/h/sub/b:1:1",
            "/h/d/10.conf:1:1",
            "/h/d/2.conf:1:1",
            "/h/pg_hba.conf:5:1"
        ]
    );
}

#[test]
fn missing_looping_and_empty_includes_are_errors() {
    let files = Memory::new([
        ("/h/missing", "include gone\nlocal @gone all trust\ninclude_dir gone\n"),
        ("/h/loop", "include loop\n"),
        ("/h/self", "local @self all trust\n"),
        ("/h/twice", "include twice\ninclude twice\n"),
        ("/h/empty", "local @none all trust"),
        ("/h/none", "# nothing\n"),
        ("/h/bad", "local @broken all trust"),
        ("/h/broken", "ok\n\"open"),
    ]);
    let errors = |path: &str| HbaRules::load_from(&files, Path::new(path)).unwrap_err().to_string();
    let missing = errors("/h/missing");
    assert_eq!(missing.lines().count(), 3, "{missing}");
    assert!(missing.starts_with("/h/missing:1:9: could not open file \"/h/gone\": "), "{missing}");
    assert!(missing.contains("/h/missing:2:7: could not open file \"/h/gone\": "), "{missing}");
    assert!(errors("/h/loop").contains("maximum nesting depth of 10 exceeded"));
    assert!(errors("/h/self").contains("maximum nesting depth of 10 exceeded"));
    assert!(errors("/h/twice").lines().count() <= records::ERRORS_MAX);
    assert_eq!(errors("/h/empty"), "/h/empty:1:7: the included file holds no names");
    assert_eq!(errors("/h/bad"), "/h/broken:2:1: the closing quote is missing");
    assert!(errors("/h/nowhere").starts_with("/h/nowhere:1:1: could not open file"));
}

#[test]
fn a_file_that_is_not_utf_8_is_refused_at_the_byte() {
    let files =
        Memory::from_bytes([(PathBuf::from("f"), b"local all all trust\nlocal \xff".to_vec())]);
    let errors = HbaRules::load_from(&files, Path::new("f")).unwrap_err();
    assert_eq!(errors.to_string(), "f:2:7: the file is not valid UTF-8 here");
}

#[test]
fn the_disk_is_read_with_its_directories() {
    let root = std::env::temp_dir().join(format!("hawser-hba-{}", std::process::id()));
    std::fs::create_dir_all(root.join("d/sub.conf")).unwrap();
    std::fs::write(root.join("pg_hba.conf"), "include_dir d\n").unwrap();
    std::fs::write(root.join("d/a.conf"), "local all all trust\n").unwrap();
    let rules = HbaRules::load(&root.join("pg_hba.conf"));
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(rules.unwrap().iter().count(), 1);
}

#[test]
fn refusals_use_the_words_of_postgresql() {
    let tls = conn(tcp("192.0.2.1", true), "d", "u");
    let plain = conn(tcp("2001:db8::1", false), "d", "u");
    let local = conn(ConnKind::Local, "d", "u");
    let physical = ConnInfo { replication: Replication::Physical, ..plain };
    assert_eq!(
        Refused::no_entry(&plain),
        Refused {
            sqlstate: "28000",
            message: "no pg_hba.conf entry for host \"2001:db8::1\", user \"u\", database \"d\", no encryption".to_owned()
        }
    );
    assert_eq!(
        Refused::no_entry(&tls).message,
        "no pg_hba.conf entry for host \"192.0.2.1\", user \"u\", database \"d\", SSL encryption"
    );
    assert_eq!(
        Refused::no_entry(&local).message,
        "no pg_hba.conf entry for host \"[local]\", user \"u\", database \"d\", no encryption"
    );
    assert_eq!(
        Refused::no_entry(&physical).message,
        "no pg_hba.conf entry for replication connection from host \"2001:db8::1\", user \"u\", no encryption"
    );
    let rules =
        load("host all all all reject\nhost all all all md5\nlocal all all peer\n").unwrap();
    let refusals: Vec<Refused> = rules.iter().map(|rule| rule.refusal(&plain)).collect();
    assert_eq!(
        refusals[0].message,
        "pg_hba.conf rejects connection for host \"2001:db8::1\", user \"u\", database \"d\", no encryption"
    );
    assert_eq!(
        rules.iter().next().unwrap().refusal(&physical).message,
        "pg_hba.conf rejects replication connection for host \"2001:db8::1\", user \"u\", no encryption"
    );
    assert_eq!(refusals[1].sqlstate, "28P01");
    assert_eq!(refusals[1].message, "password authentication failed for user \"u\"");
    assert_eq!(refusals[2].message, "Peer authentication failed for user \"u\"");
}

proptest! {
    #[test]
    fn loading_never_panics(text in r#"[a-z0-9"@#,/+=.:é \\\t\r\n-]{0,120}"#) {
        let _ = load(&text);
    }

    #[test]
    fn loading_words_never_panics(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "local", "host", "hostssl", "all", "\"", "\\\n", "\n", ",", "#", "@x", "/x", "::1/0",
                "10.0.0.1", "255.0.0.0", "md5", "cert", "map=x", "include", "sameuser", "é",
            ]),
            0..24,
        )
    ) {
        if let Ok(rules) = load(&words.join(" ")) {
            rules.matches(&conn(tcp("10.0.0.1", true), "x", "y"), &[]);
        }
    }
}
