//! The client does what it is told: commands of `../../cql-clients/README.md`, a line each.

use std::io::{BufRead, Write};
use std::ops::ControlFlow;

use scylla::client::session::Session;
use scylla::response::PagingState;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlValue;
use serde_json::{Value, json};

use crate::session::{Outcome, ensure, open};

/// What it reads and writes with.
struct Client {
    session: Session,
    insert: PreparedStatement,
    select: PreparedStatement,
    page: PreparedStatement,
}

impl Client {
    async fn run(&self, command: &[Value]) -> Outcome<Value> {
        let number = |at: usize| -> Outcome<i32> {
            Ok(command[at].as_i64().ok_or("a number is missing")?.try_into()?)
        };
        let name = command.first().and_then(Value::as_str).unwrap_or_default();
        Ok(match (name, command.len()) {
            ("hosts", 1) => {
                let state = self.session.get_cluster_state();
                let nodes = state.get_nodes_info().iter();
                json!(nodes.map(|node| node.address.to_string()).collect::<Vec<_>>())
            }
            ("write", 4) => {
                let values = (number(1)?, number(2)?, command[3].as_str());
                self.session.execute_unpaged(&self.insert, values).await?;
                json!(true)
            }
            ("read", 3) => {
                let key = (number(1)?, number(2)?);
                let result = self.session.execute_unpaged(&self.select, key).await?;
                let result = result.into_rows_result()?;
                let row = result.maybe_first_row::<(i32, i32, Option<String>)>()?;
                json!([["k", "c", "v"], row])
            }
            ("batch", 3) => self.batch(number(1)?, number(2)?).await?,
            ("page", 3) => self.page(number(1)?, number(2)?).await?,
            _ => return Err(format!("no such command: {command:?}").into()),
        })
    }

    async fn batch(&self, k: i32, n: i32) -> Outcome<Value> {
        let mut batch = Batch::new(BatchType::Logged);
        let mut values = Vec::new();
        for c in 0..n {
            batch.append_statement(self.insert.clone());
            let text = CqlValue::Text(format!("b{c}"));
            values.push(vec![CqlValue::Int(k), CqlValue::Int(c), text]);
        }
        let text = format!("INSERT INTO rows (k, c, v) VALUES ({k}, {n}, 'text')");
        batch.append_statement(text.as_str());
        values.push(Vec::new());
        self.session.batch(&batch, values).await?;
        Ok(json!(true))
    }

    async fn page(&self, k: i32, size: i32) -> Outcome<Value> {
        let mut select = self.page.clone();
        select.set_page_size(size);
        let (mut rows, mut pages, mut state) = (0, 0, PagingState::start());
        loop {
            let (result, next) = self.session.execute_single_page(&select, (k,), state).await?;
            pages += 1;
            for row in result.into_rows_result()?.rows::<(i32,)>()? {
                let (c,) = row?;
                ensure(c == rows, format!("row {c} in place {rows}"))?;
                rows += 1;
            }
            match next.into_paging_control_flow() {
                ControlFlow::Break(()) => return Ok(json!([rows, pages])),
                ControlFlow::Continue(next) => state = next,
            }
        }
    }
}

/// Answers each line of standard input until it ends.
pub async fn serve(contact: &str, keyspace: &str) -> Outcome {
    let session = open(contact).await?;
    session.use_keyspace(keyspace, false).await?;
    let insert = session.prepare("INSERT INTO rows (k, c, v) VALUES (?, ?, ?)").await?;
    let select = session.prepare("SELECT * FROM rows WHERE k = ? AND c = ?").await?;
    let page = session.prepare("SELECT c FROM rows WHERE k = ?").await?;
    let client = Client { session, insert, select, page };
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    // The driver goes on while nothing is asked.
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
    });
    say(&json!({ "ok": "connected" }))?;
    while let Some(line) = lines.recv().await {
        let command: Vec<Value> = serde_json::from_str(&line)?;
        say(&match client.run(&command).await {
            Ok(answer) => json!({ "ok": answer }),
            Err(error) => json!({ "error": error.to_string() }),
        })?;
    }
    Ok(())
}

fn say(answer: &Value) -> Outcome {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}")?;
    Ok(out.flush()?)
}
