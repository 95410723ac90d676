//! The client does what it is told: commands of `../../cql-clients/README.md`, a line each.

use std::io::{BufRead, Write};

use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;
use serde_json::{Value, json};

use crate::session::{Outcome, open};

/// What it reads and writes with.
struct Client {
    session: Session,
    insert: PreparedStatement,
    select: PreparedStatement,
}

impl Client {
    async fn run(&self, command: &[Value]) -> Outcome<Value> {
        let number = |at: usize| command[at].as_i64().map(|number| number as i32);
        let name = command.first().and_then(Value::as_str).unwrap_or_default();
        Ok(match (name, command.len()) {
            ("hosts", 1) => {
                let state = self.session.get_cluster_state();
                let nodes = state.get_nodes_info().iter();
                json!(nodes.map(|node| node.address.to_string()).collect::<Vec<_>>())
            }
            ("write", 4) => {
                let values = (number(1), number(2), command[3].as_str());
                self.session.execute_unpaged(&self.insert, values).await?;
                json!(true)
            }
            ("read", 3) => {
                let key = (number(1), number(2));
                let result = self.session.execute_unpaged(&self.select, key).await?;
                let result = result.into_rows_result()?;
                let row = result.maybe_first_row::<(i32, i32, Option<String>)>()?;
                json!([["k", "c", "v"], row])
            }
            _ => return Err(format!("no such command: {command:?}").into()),
        })
    }
}

/// Answers each line of standard input until it ends.
pub async fn serve(contact: &str, keyspace: &str) -> Outcome {
    let session = open(contact).await?;
    session.use_keyspace(keyspace, false).await?;
    let insert = session.prepare("INSERT INTO rows (k, c, v) VALUES (?, ?, ?)").await?;
    let select = session.prepare("SELECT * FROM rows WHERE k = ? AND c = ?").await?;
    let client = Client { session, insert, select };
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
