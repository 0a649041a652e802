//! tokio-postgres, which pipelines whatever is polled together. Prints `ok NAME` or `FAIL NAME why`.

use std::env;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt, future};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls, error::SqlState};
use tokio_postgres_rustls::MakeRustlsConnect;

type Outcome = Result<(), Box<dyn Error>>;

fn config() -> Config {
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let mut config = Config::new();
    config
        .host(variable("PGHOST"))
        .port(variable("PGPORT").parse().expect("a port number"))
        .user(variable("PGUSER"))
        .password(variable("PGPASSWORD"))
        .dbname(variable("PGDATABASE"));
    config
}

async fn connect() -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config().ssl_mode(SslMode::Disable).connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A connector that trusts the authority in the file that the variable names.
fn tls(variable: &str) -> Result<MakeRustlsConnect, Box<dyn Error>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(env::var(variable)?)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn check(condition: bool, what: &str) -> Outcome {
    if condition { Ok(()) } else { Err(what.into()) }
}

async fn prepared() -> Outcome {
    let (first, second) = (connect().await?, connect().await?);
    let one = first.prepare("select $1::int4 + 1").await?;
    let two = second.prepare("select $1::int4 * 2").await?;
    for n in 0..20_i32 {
        let values: (i32, i32) = (
            first.query_one(&one, &[&n]).await?.get(0),
            second.query_one(&two, &[&n]).await?.get(0),
        );
        check(values == (n + 1, n * 2), "a wrong value")?;
    }
    drop((one, two)); // closes them on the server
    check(first.query_one("select 1::int4", &[]).await?.get::<_, i32>(0) == 1, "after Close")
}

async fn pipeline() -> Outcome {
    let client = connect().await?;
    let statement = client.prepare("select $1::int4").await?;
    let numbers: Vec<i32> = (0..200).collect();
    let rows = future::try_join_all(numbers.iter().map(|n| {
        let (client, statement) = (&client, &statement);
        async move { client.query_one(statement, &[n]).await }
    }))
    .await?;
    check(
        rows.iter().zip(&numbers).all(|(row, n)| row.get::<_, i32>(0) == *n),
        "answers out of order",
    )?;
    let (good, bad, last) = future::join3(
        client.query_one("select 1::int4", &[]),
        client.query_one("select 1/0", &[]),
        client.query_one("select 3::int4", &[]),
    )
    .await;
    check(
        good?.get::<_, i32>(0) == 1 && bad.is_err() && last?.get::<_, i32>(0) == 3,
        "an error in mid-pipeline",
    )
}

async fn copy() -> Outcome {
    let client = connect().await?;
    client.batch_execute("create temp table copied (i int, t text)").await?;
    let mut sink = pin!(client.copy_in::<_, Bytes>("copy copied from stdin").await?);
    for n in 0..5000 {
        sink.send(Bytes::from(format!("{n}\trow {n}\n"))).await?;
    }
    check(sink.finish().await? == 5000, "in")?;
    let chunks: Vec<Bytes> = client.copy_out("copy copied to stdout").await?.try_collect().await?;
    check(chunks.iter().flatten().filter(|byte| **byte == b'\n').count() == 5000, "out")?;
    let mut sink = pin!(client.copy_in::<_, Bytes>("copy copied from stdin").await?);
    sink.send(Bytes::from_static(b"not a number\tx\n")).await?;
    let error = sink.finish().await.err().ok_or("a wrong row was taken")?;
    check(error.code() == Some(&SqlState::INVALID_TEXT_REPRESENTATION), "another error")?;
    // A COPY that is given up: dropped without an end.
    drop(Box::pin(client.copy_in::<_, Bytes>("copy copied from stdin").await?));
    check(
        client.query_one("select 1::int4", &[]).await?.get::<_, i32>(0) == 1,
        "after a COPY that was dropped",
    )
}

async fn cancel() -> Outcome {
    let client = connect().await?;
    let token = client.cancel_token();
    let canceller = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        token.cancel_query(NoTls).await
    };
    let query =
        tokio::time::timeout(Duration::from_secs(10), client.batch_execute("select pg_sleep(20)"));
    let (result, sent) = future::join(query, canceller).await;
    sent?;
    let error = result?.err().ok_or("not cancelled")?;
    check(error.code() == Some(&SqlState::QUERY_CANCELED), "another error")?;
    check(client.query_one("select 1::int4", &[]).await?.get::<_, i32>(0) == 1, "after a cancel")
}

/// This driver knows no way to leave a certificate unchecked: require is tested by name and authority too.
async fn tls_verify_full() -> Outcome {
    let plain = config();
    let mut named = Config::new();
    named
        .host("localhost")
        .hostaddr("127.0.0.1".parse()?)
        .port(plain.get_ports()[0])
        .user(plain.get_user().unwrap_or_default())
        .password(plain.get_password().unwrap_or_default())
        .dbname(plain.get_dbname().unwrap_or_default())
        .ssl_mode(SslMode::Require);
    let (client, connection) = named.connect(tls("TEST_CA")?).await?;
    tokio::spawn(connection);
    check(client.query_one("select 1::int4", &[]).await?.get::<_, i32>(0) == 1, "a value")?;
    check(
        named.connect(tls("TEST_OTHER_CA")?).await.is_err(),
        "a certificate of another authority was taken",
    )
}

async fn transactions() -> Outcome {
    let mut client = connect().await?;
    client.batch_execute("create temp table tx (i int)").await?;
    let mut outer = client.transaction().await?;
    outer.execute("insert into tx values (1)", &[]).await?;
    {
        let inner = outer.savepoint("a").await?;
        check(inner.execute("select 1/0", &[]).await.is_err(), "no error")?;
        inner.rollback().await?;
    }
    let portal = outer.bind("select generate_series(1, 100)", &[]).await?;
    let mut rows = 0;
    loop {
        let portion = outer.query_portal(&portal, 30).await?.len();
        rows += portion;
        if portion < 30 {
            break;
        }
    }
    check(rows == 100, "rows of a portal")?;
    outer.commit().await?;
    // One that is dropped rolls back by itself.
    let dropped = client.transaction().await?;
    dropped.execute("insert into tx values (2)", &[]).await?;
    drop(dropped);
    check(client.query_one("select count(*) from tx", &[]).await?.get::<_, i64>(0) == 1, "rows")
}

async fn error() -> Outcome {
    let client = connect().await?;
    for _ in 0..3 {
        let error = client.query("select 1 / $1::int4", &[&0_i32]).await.err().ok_or("no error")?;
        check(error.code() == Some(&SqlState::DIVISION_BY_ZERO), "another error")?;
        check(
            client.query_one("select 1::int4", &[]).await?.get::<_, i32>(0) == 1,
            "after an error",
        )?;
    }
    Ok(())
}

fn report(name: &str, outcome: Outcome) -> bool {
    match &outcome {
        Ok(()) => println!("ok {name}"),
        Err(problem) => println!("FAIL {name} {}", format!("{problem:?}").replace('\n', " ")),
    }
    outcome.is_ok()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let passed = [
        report("prepared", prepared().await),
        report("pipeline", pipeline().await),
        report("copy", copy().await),
        report("cancel", cancel().await),
        report("tls_verify_full", tls_verify_full().await),
        report("transactions", transactions().await),
        report("error", error().await),
    ];
    std::process::exit(i32::from(passed.contains(&false)));
}
