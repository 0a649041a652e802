//! How long a scan takes: `cargo run -p hawser-pooler --release --example scan_speed [ROUNDS]`.

#![expect(clippy::disallowed_methods, reason = "a measurement needs the clock")]

use std::hint::black_box;
use std::time::Instant;

use hawser_pooler::session::scan::{ScanOptions, scan};

/// Scans of each text in each of five series; the best series counts.
const ROUNDS: u32 = 400_000;

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    for (name, text) in [
        ("pgbench -S", "SELECT abalance FROM pgbench_accounts WHERE aid = 12345;"),
        ("pgbench update", "UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2;"),
        ("BEGIN", "BEGIN"),
        ("SET", "SET application_name = 'x'"),
        (
            "quoted names",
            "SELECT \"user\".\"id\", \"user\".\"name\" FROM \"user\" WHERE \"user\".\"id\" = $1",
        ),
    ] {
        let mut best = f64::MAX;
        for _ in 0..5 {
            let start = Instant::now();
            for _ in 0..rounds {
                black_box(scan(black_box(text.as_bytes()), ScanOptions::default()));
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds));
        }
        println!("{name:>16}: {best:6.1} ns, {:5.2} ns a byte", best / text.len() as f64);
    }
    let long = format!("INSERT INTO t VALUES ('{}')", "x".repeat(100_000_000));
    let start = Instant::now();
    black_box(scan(black_box(long.as_bytes()), ScanOptions::default()));
    println!("{:>16}: {:6.1} ms", "100 MB string", start.elapsed().as_secs_f64() * 1e3);
}
