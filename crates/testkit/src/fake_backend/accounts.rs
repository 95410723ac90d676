//! Who may log in, and read what.

use std::collections::{HashMap, HashSet};

use super::refusal::Refusal;
use afterglow_cql::error::ErrorCode;

/// Users by name. Without any, nobody is asked who they are.
#[derive(Default)]
pub struct Accounts(HashMap<String, KnownUser>);

#[derive(Default)]
struct KnownUser {
    password: String,
    /// Tables as `keyspace.table`.
    readable: HashSet<String>,
    logins: u64,
    connections: u64,
    most_connections: u64,
}

impl Accounts {
    /// Whether anybody is asked.
    pub fn ask(&self) -> bool {
        !self.0.is_empty()
    }

    /// Adds a user, or changes the password.
    pub fn set(&mut self, user: &str, password: &str) {
        self.0.entry(user.to_owned()).or_default().password = password.to_owned();
    }

    /// Lets a user read a table, or no longer.
    pub fn grant(&mut self, user: &str, table: &str, may: bool) {
        let Some(account) = self.0.get_mut(user) else { return };
        if may {
            account.readable.insert(table.to_owned());
        } else {
            account.readable.remove(table);
        }
    }

    /// Checks a SASL PLAIN token; the user counts as connected until [`Accounts::leave`].
    pub fn log_in(&mut self, token: &[u8]) -> Result<String, Refusal> {
        let mut parts = token.splitn(3, |byte| *byte == 0).skip(1);
        let text =
            |part: Option<&[u8]>| String::from_utf8_lossy(part.unwrap_or_default()).into_owned();
        let (user, password) = (text(parts.next()), text(parts.next()));
        match self.0.get_mut(&user).filter(|account| account.password == password) {
            Some(account) => {
                account.logins += 1;
                account.connections += 1;
                account.most_connections = account.most_connections.max(account.connections);
                Ok(user)
            }
            None => Err(Refusal {
                code: ErrorCode::BadCredentials,
                message: format!("Provided username {user} and/or password are incorrect"),
            }),
        }
    }

    /// A connection of the user has ended.
    pub fn leave(&mut self, user: &str) {
        if let Some(account) = self.0.get_mut(user) {
            account.connections -= 1;
        }
    }

    /// Logins of a user so far, and how many connections it had at once at most.
    pub fn seen(&self, user: &str) -> (u64, u64) {
        self.0.get(user).map_or((0, 0), |account| (account.logins, account.most_connections))
    }

    /// Whether a user may read a table.
    pub fn check(&self, user: &str, table: &str) -> Result<(), Refusal> {
        if self.0.get(user).is_some_and(|account| account.readable.contains(table)) {
            return Ok(());
        }
        let message = format!(
            "User {user} has no SELECT permission on <table {table}> or any of its parents"
        );
        Err(Refusal { code: ErrorCode::Unauthorized, message })
    }
}
