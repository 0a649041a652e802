//! The parsers of what comes from clients: anything may be fed to them.

use hawser_pooler::parts::report::text::{COVERED, Report};
use hawser_pooler::session::options;
use hawser_pooler::session::scan::{ScanOptions, Scanner, scan};
use hawser_pooler::wire::error::field;
use hawser_pooler::wire::frame::{self, Framed};

use super::shrink::Random;

/// Words that lead into the scanner's corners.
const WORDS: [&str; 40] = [
    "SET ",
    "RESET ",
    "DISCARD ",
    "ALL",
    "LOCAL ",
    "SESSION ",
    "TimeZone",
    " TO ",
    "=",
    "DEFAULT",
    "DEALLOCATE ",
    "PREPARE ",
    "x ",
    "LISTEN ",
    "UNLISTEN ",
    "*",
    "CREATE ",
    "TEMP ",
    "TABLE ",
    "'",
    "''",
    "\\'",
    "E'",
    "U&'",
    "$$",
    "$a$",
    "\"",
    "--",
    "\n",
    "/*",
    "*/",
    ";",
    "(",
    ")",
    "set_config(",
    "pg_advisory_lock(",
    "DO ",
    "BEGIN ",
    "ATOMIC ",
    "\0",
];

fn text(random: &mut Random) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..random.below(24) {
        match random.below(5) {
            0 => text.push(random.byte()),
            _ => text.extend(WORDS[random.below(WORDS.len() as u64) as usize].as_bytes()),
        }
    }
    text
}

#[test]
fn the_scan_takes_any_text_and_does_not_depend_on_its_chunks() {
    for seed in 0..8_000 {
        let mut random = Random::new(seed);
        let text = text(&mut random);
        let options = ScanOptions {
            standard_conforming_strings: random.below(2) == 0,
            unsafe_encoding: random.below(4) == 0,
        };
        let whole = scan(&text, options);
        let cut = random.below(text.len() as u64 + 1) as usize;
        let mut scanner = Scanner::new(options);
        scanner.feed(&text[..cut]);
        scanner.feed(&text[cut..]);
        assert_eq!(scanner.finish(), whole, "seed {seed}, cut at {cut}: {}", text.escape_ascii());
        for statement in whole.statements() {
            assert!(text.get(statement.range.clone()).is_some(), "seed {seed}: {statement:?}");
        }
    }
}

#[test]
fn a_report_may_be_anything_and_is_read_whole_or_not_at_all() {
    const ITEMS: [&str; 28] = [
        "1",
        " ",
        " ",
        " ",
        "=",
        ",",
        ":",
        "set=",
        "names=",
        "work_mem",
        "my.x",
        "MY.X",
        "5MB",
        "%20",
        "%",
        "%2",
        "%00",
        "temp",
        "locks=",
        "12",
        "sequences",
        "cursors=",
        "listen=",
        "statements=",
        "late",
        "more",
        "seed",
        "2",
    ];
    let mut read = 0;
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let mut text = if random.below(8) == 0 { Vec::new() } else { b"1".to_vec() };
        for _ in 0..random.below(12) {
            match random.below(12) {
                0 => text.push(random.byte()),
                _ => text.extend(ITEMS[random.below(ITEMS.len() as u64) as usize].as_bytes()),
            }
        }
        let Ok(report) = Report::read(&text) else { continue };
        read += 1;
        assert!(report.parts.minus(COVERED).is_empty(), "seed {seed}");
        for set in &report.settings {
            assert_eq!(
                report.setting(&set.name),
                Some(set),
                "seed {seed}: {}",
                text.escape_ascii()
            );
        }
        // What is read says all of it: without its last byte it is another report, or none.
        if let Some(cut) = text.split_last().map(|(_, cut)| cut).filter(|cut| !cut.is_empty()) {
            let same = Report::read(cut).as_ref() == Ok(&report);
            let uncounted = text.windows(6).any(|word| word == b"locks=")
                || [&b"cursors="[..], b"listen=", b"statements="]
                    .iter()
                    .any(|list| text.windows(list.len()).any(|word| word == *list));
            assert!(!same || uncounted, "seed {seed}: {}", text.escape_ascii());
        }
    }
    assert!(read > 500, "{read}: hardly any is one");
}

#[test]
fn startup_parameters_may_be_anything() {
    const SWITCHES: [&str; 20] = [
        "-c",
        " ",
        "--",
        "-",
        "=",
        "work_mem",
        "search-path",
        "\\ ",
        "\\",
        "-d5",
        "-e",
        "-fs",
        "-B",
        "-Ff",
        "TimeZone=UTC",
        "-ab",
        "-cx=1",
        "\t",
        "log_connections",
        "datestyle",
    ];
    for seed in 0..8_000 {
        let mut random = Random::new(seed);
        let mut value = Vec::new();
        for _ in 0..random.below(12) {
            match random.below(6) {
                0 => value.push(random.byte()),
                _ => value.extend(SWITCHES[random.below(20) as usize].as_bytes()),
            }
        }
        if let Err(error) = options::parse_options(&value) {
            assert_eq!(error.sqlstate().len(), 5, "seed {seed}");
            assert!(!error.to_string().is_empty(), "seed {seed}");
        }
        let names: [&[u8]; 6] = [b"user", b"database", b"options", b"replication", b"_pq_.x", b"a"];
        let pairs: Vec<(&[u8], &[u8])> =
            (0..random.below(6)).map(|_| (names[random.below(6) as usize], &value[..])).collect();
        if let Ok(startup) = options::parse(pairs.iter().copied()) {
            assert!(!startup.user.is_empty() && !startup.database.is_empty(), "seed {seed}");
        }
    }
}

#[test]
fn any_bytes_are_framed_without_reaching_past_them() {
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let bytes: Vec<u8> = (0..random.below(20)).map(|_| random.byte() & random.byte()).collect();
        match frame::header(&bytes) {
            Framed::Short => assert!(bytes.len() < frame::HEADER_BYTES, "seed {seed}"),
            Framed::Header(header) => {
                assert!(header.body <= frame::BODY_BYTES_MAX, "seed {seed}");
                assert_eq!(header.total(), header.body + frame::HEADER_BYTES, "seed {seed}");
            }
            Framed::BadLength { length, .. } => {
                assert!(length < 4 || length as usize - 4 > frame::BODY_BYTES_MAX, "seed {seed}");
            }
        }
        if let Some((string, rest)) = frame::take_string(&bytes) {
            assert_eq!(string.len() + 1 + rest.len(), bytes.len(), "seed {seed}");
        }
        for tag in [b'C', b'M', 0] {
            if let Some(text) = field(&bytes, tag) {
                assert!(!text.contains(&0), "seed {seed}");
            }
        }
    }
}
