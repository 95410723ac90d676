//! Logins: credentials that the database has accepted. They are used again for the connections that
//! clients share.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::message::AuthResponse;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::config::credentials;
use crate::frontend::cql::cluster::error::ConnectError;
use crate::frontend::cql::hex::hex;
use crate::frontend::cql::refusals::LastRefusal;

/// Credentials that the database has just accepted are not checked again for so long: what it keeps
/// them for itself by default (`credentials_validity`).
const ACCEPTED_FOR: Duration = Duration::from_secs(2);

/// A SASL PLAIN token and the user it names. Kept in memory, shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: Box<str>,
    /// What goes into AUTH_RESPONSE.
    pub token: Bytes,
}

impl Login {
    /// The user of a token, as the database reads it: `authorisation id, 0, user, 0, password`,
    /// from its end. Any other token is its own user: should the database accept it, nobody can say
    /// whose connections it may share. So is one that asks to be let in as another user: databases
    /// differ in whether it is that user then.
    pub fn of_token(token: &[u8]) -> Self {
        let mut parts = token.rsplitn(4, |byte| *byte == 0);
        let (_password, user) = (parts.next(), parts.next());
        let named = match (parts.next(), parts.next()) {
            (Some(to_be), None) if to_be.is_empty() || user == Some(to_be) => {
                user.and_then(|user| std::str::from_utf8(user).ok()).filter(|user| !user.is_empty())
            }
            _ => None,
        };
        let user = named.map_or_else(|| format!("\0{}", hex(token)).into(), Box::from);
        Self { user, token: Bytes::copy_from_slice(token) }
    }

    /// Our own, as a file has it.
    ///
    /// # Errors
    /// [`ConnectError::Credentials`].
    pub fn of_file(file: &Path) -> Result<Self, ConnectError> {
        let read = credentials::read(file)
            .map_err(|error| ConnectError::Credentials(error.to_string().into()))?;
        let token = AuthResponse::plain(&read.username, &read.password).into();
        Ok(Self { user: read.username.into(), token })
    }
}

/// A user that the database knows.
pub struct User {
    /// Tells users apart; names may come again with other rights, but that is the database's
    /// business.
    pub id: u32,
    /// The statements over whole tables that the database has refused to it.
    pub refused: Arc<LastRefusal>,
    accepted: RwLock<(Login, Instant)>,
}

impl User {
    /// What the database accepted last.
    pub fn login(&self) -> Login {
        self.accepted.read().0.clone()
    }
}

/// Every user that has logged in, by name.
#[derive(Default)]
pub struct Users(Mutex<HashMap<Box<str>, Arc<User>>>);

impl Users {
    /// The user, if the database has accepted these very credentials a moment ago.
    pub fn accepted(&self, login: &Login) -> Option<Arc<User>> {
        let user = self.0.lock().get(&login.user).cloned()?;
        let fresh = {
            let accepted = user.accepted.read();
            accepted.0 == *login && accepted.1.elapsed() < ACCEPTED_FOR
        };
        fresh.then_some(user)
    }

    /// The number of the user whose credentials these were when the database last accepted any,
    /// however long ago.
    pub fn known(&self, login: &Login) -> Option<u32> {
        let users = self.0.lock();
        let user = users.get(&login.user)?;
        let same = user.accepted.read().0 == *login;
        same.then_some(user.id)
    }

    /// The database accepted them; it was asked at `asked`.
    pub fn accept(&self, login: &Login, asked: Instant) -> Arc<User> {
        let mut users = self.0.lock();
        let id = users.len() as u32 + 1;
        let user = users.entry(login.user.clone()).or_insert_with(|| {
            let accepted = RwLock::new((login.clone(), asked));
            Arc::new(User { id, refused: Arc::default(), accepted })
        });
        *user.accepted.write() = (login.clone(), asked);
        user.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_tokens_name_a_user() {
        let named = |token: &[u8]| Login::of_token(token).user.to_string();
        assert_eq!(named(b"\0bob\0secret"), "bob");
        assert_eq!(named(b"bob\0bob\0secret"), "bob");
        let strange = [&b""[..], b"bob", b"as\0bob\0secret", b"\0bob", b"\0\0secret", b"\0\xff\0x"];
        for token in strange {
            assert!(named(token).starts_with('\0'), "{token:?}");
            assert_eq!(
                strange.iter().filter(|other| named(other) == named(token)).count(),
                1,
                "{token:?}"
            );
        }
    }

    #[test]
    fn nobody_passes_for_another_user_with_a_token_of_too_many_parts() {
        // Some releases read these from the end, and would accept Eve's password.
        let eve = Login::of_token(b"x\0bob\0eve\0hers");
        assert!(eve.user.starts_with('\0'));
        let users = Users::default();
        let bob = users.accept(&Login::of_token(b"\0bob\0secret"), Instant::now());
        assert_ne!(users.accept(&eve, Instant::now()).id, bob.id);
    }

    #[test]
    fn what_was_accepted_counts_for_a_moment_and_only_for_the_same_password() {
        let users = Users::default();
        let login = |token: &[u8]| Login::of_token(token);
        let (good, bad) = (login(b"\0bob\0secret"), login(b"\0bob\0guess"));
        assert!(users.accepted(&good).is_none());
        let bob = users.accept(&good, Instant::now());
        assert!(users.accepted(&good).is_some_and(|user| user.id == bob.id));
        assert!(users.accepted(&bad).is_none());
        assert_ne!(users.accept(&login(b"\0eve\0x"), Instant::now()).id, bob.id);
        let long_ago = Instant::now().checked_sub(ACCEPTED_FOR).unwrap();
        assert_eq!(users.accept(&good, long_ago).id, bob.id);
        assert!(users.accepted(&good).is_none());
    }
}
