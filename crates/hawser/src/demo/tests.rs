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
