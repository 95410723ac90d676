//! The Rust `scylla` driver against one CQL contact point: connect, prepare, write, read, verify.
//!
//! `afterglow-rust-driver-test ADDRESS:PORT KEYSPACE` ends with status 0 and a line `ok ...` if
//! every answer was right. Its reads are made three times over, so that a cache in between has
//! every chance to answer with something old.
//!
//! `... ADDRESS:PORT KEYSPACE --commands` does what it is told instead: see `commands.rs`.

mod commands;
mod session;

use futures_util::StreamExt;
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::unprepared::Statement;

use session::{Outcome, ensure, open};

const ROWS: i32 = 100;

type Row = (i32, String, Option<Vec<u8>>, Option<i64>);

fn expected(key: i32, round: i64) -> Row {
    (key, format!("c{}", key % 3), Some(vec![key as u8; 400]), Some(round))
}

async fn connect(contact: &str) -> Outcome<Session> {
    let session = open(contact).await?;
    let state = session.get_cluster_state();
    let nodes: Vec<String> =
        state.get_nodes_info().iter().map(|node| node.address.to_string()).collect();
    ensure(
        nodes == [contact],
        format!("the driver should know only {contact}, but knows {nodes:?}"),
    )?;
    Ok(session)
}

async fn read(session: &Session, select: &PreparedStatement, key: i32) -> Outcome<Option<Row>> {
    let result = session.execute_unpaged(select, (key, format!("c{}", key % 3))).await?;
    Ok(result.into_rows_result()?.maybe_first_row::<Row>()?)
}

async fn verify_all(
    session: &Session,
    select: &PreparedStatement,
    what: &str,
    row: impl Fn(i32) -> Option<Row>,
) -> Outcome {
    for pass in 0..3 {
        for key in 0..ROWS {
            let got = read(session, select, key).await?;
            ensure(got == row(key), format!("after {what}, pass {pass}, key {key}: {got:?}"))?;
        }
    }
    Ok(())
}

async fn pages(session: &Session) -> Outcome {
    let mut all = Statement::new("SELECT k, c, v, n FROM rust_rows");
    all.set_page_size(7);
    let mut pager = session.query_iter(all, ()).await?.rows_stream::<Row>()?;
    let mut keys = Vec::new();
    while let Some(row) = pager.next().await {
        keys.push(row?.0);
    }
    keys.sort_unstable();
    ensure(keys == (0..ROWS).collect::<Vec<_>>(), format!("paging by 7 gave {} keys", keys.len()))
}

async fn run(contact: &str, keyspace: &str) -> Outcome {
    let session = connect(contact).await?;
    session.use_keyspace(keyspace, false).await?;
    let create = "CREATE TABLE IF NOT EXISTS rust_rows (k int, c text, v blob, n bigint, PRIMARY KEY (k, c))";
    session.query_unpaged(create, ()).await?;
    session.await_schema_agreement().await?;

    let insert = session.prepare("INSERT INTO rust_rows (k, c, v, n) VALUES (?, ?, ?, ?)").await?;
    let select = session.prepare("SELECT k, c, v, n FROM rust_rows WHERE k = ? AND c = ?").await?;
    let update = session.prepare("UPDATE rust_rows SET n = ? WHERE k = ? AND c = ?").await?;
    let delete = session.prepare("DELETE FROM rust_rows WHERE k = ? AND c = ?").await?;

    verify_all(&session, &select, "nothing", |_| None).await?;
    for key in 0..ROWS {
        session.execute_unpaged(&insert, expected(key, 0)).await?;
    }
    verify_all(&session, &select, "INSERT", |key| Some(expected(key, 0))).await?;
    pages(&session).await?;
    for round in 1..4 {
        for key in 0..ROWS {
            session.execute_unpaged(&update, (round, key, format!("c{}", key % 3))).await?;
            let got = read(&session, &select, key).await?;
            ensure(
                got == Some(expected(key, round)),
                format!("read after UPDATE {round} of {key}: {got:?}"),
            )?;
        }
    }
    let literal = "SELECT n FROM rust_rows WHERE k = 5 AND c = 'c2'";
    for _ in 0..3 {
        let n = session
            .query_unpaged(literal, ())
            .await?
            .into_rows_result()?
            .single_row::<(Option<i64>,)>()?
            .0;
        ensure(n == Some(3), format!("unprepared read gave {n:?}"))?;
    }
    for key in (0..ROWS).step_by(2) {
        session.execute_unpaged(&delete, (key, format!("c{}", key % 3))).await?;
    }
    verify_all(&session, &select, "DELETE", |key| (key % 2 == 1).then(|| expected(key, 3))).await?;

    let refused = session.query_unpaged("SELECT nothing FROM rust_rows WHERE k = 1", ()).await;
    ensure(refused.is_err(), "a SELECT of a column that is not there was answered")?;
    session.query_unpaged("DROP TABLE rust_rows", ()).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [contact, keyspace] => run(contact, keyspace).await?,
        [contact, keyspace, "--commands"] => return commands::serve(contact, keyspace).await,
        _ => {
            let usage = "usage: afterglow-rust-driver-test ADDRESS:PORT KEYSPACE [--commands]";
            return Err(usage.into());
        }
    }
    println!("ok: {ROWS} rows");
    Ok(())
}
