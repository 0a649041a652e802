//! The demonstration's parts that need no PostgreSQL.

use super::*;

#[test]
fn hawser_that_cannot_listen_ends_the_demonstration_with_the_reason() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let config = Config::from_str(
        &format!(
            "[listen]\naddress = \"{address}\"\n[[database]]\nname = \"a\"\nservers = \"x\"\n\
             [[user]]\nname = \"u\"\n[auth]\nauth_type = \"trust\"\n[pool]\nmax_client_conn = 10\n"
        ),
        "test",
    );
    let mut served = Served::start(config).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(served.wait_until_ready()).unwrap_err();
    assert!(matches!(error, DemoError::Serve(ServeError::Listen(_))), "{error}");
}

#[test]
fn the_screen_stays_in_its_place_and_ends_with_the_dashboards_address() {
    let now = Now { tps: 12_345, p50_us: 81, p99_us: 1_230, clients: 40, ..Now::default() };
    let foot = foot(6432, "127.0.0.1:9632".parse().unwrap());
    let block = format!("{}\n{foot}", now.block(&VecDeque::from([7.0, 14.0])));
    let (first, lines) = redrawn(&block, 0, 60);
    assert_eq!((first.matches('\n').count(), lines), (10, 10), "{first}");
    let (second, _) = redrawn(&block, lines, 60);
    assert_eq!(second, format!("\x1b[10A{first}"));
    let shown = first.replace("\x1b[K", "");
    assert!(shown.contains("transactions/s        12,345  ▅█\n"), "{shown}");
    assert!(shown.contains("p50 81 µs, p99 1.23 ms\n"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
    assert!(shown.ends_with("http://127.0.0.1:9632/\n"), "{shown}");
}
