//! Logins: credentials that the database has accepted. They are used again for the connections that
//! clients share.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::message::AuthResponse;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::config::credentials;
use crate::frontend::cql::cluster::error::ConnectError;
use crate::frontend::cql::refusals::LastRefusal;

/// Credentials that the database has just accepted are not checked again for so long: what it keeps
/// them for itself by default (`credentials_validity`).
const ACCEPTED_FOR: Duration = Duration::from_secs(2);

/// A SASL PLAIN token and the user it names. Kept in memory, shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user; none where nobody can say who that is.
    pub user: Option<Box<str>>,
    /// What goes into AUTH_RESPONSE.
    pub token: Bytes,
}

impl Login {
    /// The user of a token, as the database reads it: `authorisation id, 0, user, 0, password`,
    /// from its end. Any other token names nobody: should the database accept it, nobody can say
    /// whose connections it may share. Nor does one that asks to be let in as another user:
    /// databases differ in whether it is that user then.
    pub fn of_token(token: &[u8]) -> Self {
        let mut parts = token.rsplitn(4, |byte| *byte == 0);
        let (_password, user) = (parts.next(), parts.next());
        let named = match (parts.next(), parts.next()) {
            (Some(to_be), None) if to_be.is_empty() || user == Some(to_be) => {
                user.and_then(|user| std::str::from_utf8(user).ok()).filter(|user| !user.is_empty())
            }
            _ => None,
        };
        Self { user: named.map(Box::from), token: Bytes::copy_from_slice(token) }
    }

    /// Our own, as a file has it.
    ///
    /// # Errors
    /// [`ConnectError::Credentials`].
    pub fn of_file(file: &Path) -> Result<Self, ConnectError> {
        let read = credentials::read(file)
            .map_err(|error| ConnectError::Credentials(error.to_string().into()))?;
        let token = AuthResponse::plain(&read.username, &read.password).into();
        Ok(Self { user: Some(read.username.into()), token })
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

    fn was_accepted(&self, now: Instant, within: Duration) -> bool {
        now.saturating_duration_since(self.accepted.read().1) < within
    }
}

/// The users that have logged in, by name, until nobody has had them for a while.
#[derive(Default)]
pub struct Users(Mutex<UsersByName>);

#[derive(Default)]
struct UsersByName {
    /// Each with when it was first seen that nobody has it, if nobody does.
    users: HashMap<Box<str>, (Arc<User>, Option<Instant>)>,
    /// How many there have been: one that was forgotten leaves his number to nobody.
    numbered: u32,
}

impl Users {
    /// The user, if the database has accepted these very credentials a moment ago.
    pub fn accepted(&self, login: &Login) -> Option<Arc<User>> {
        let user = self.0.lock().users.get(login.user.as_ref()?)?.0.clone();
        let fresh = {
            let accepted = user.accepted.read();
            accepted.0 == *login && accepted.1.elapsed() < ACCEPTED_FOR
        };
        fresh.then_some(user)
    }

    /// The number of the user whose credentials these were when the database last accepted any,
    /// however long ago.
    pub fn known(&self, login: &Login) -> Option<u32> {
        let known = self.0.lock();
        let (user, _) = known.users.get(login.user.as_ref()?)?;
        let same = user.accepted.read().0 == *login;
        same.then_some(user.id)
    }

    /// The database accepted the password of the user of that name; it was asked at `asked`.
    pub fn accept(&self, name: &str, login: &Login, asked: Instant) -> Arc<User> {
        let mut known = self.0.lock();
        let UsersByName { users, numbered } = &mut *known;
        let (user, idle) = users.entry(name.into()).or_insert_with(|| {
            *numbered += 1;
            let accepted = RwLock::new((login.clone(), asked));
            (Arc::new(User { id: *numbered, refused: Arc::default(), accepted }), None)
        });
        *user.accepted.write() = (login.clone(), asked);
        *idle = None;
        user.clone()
    }

    /// The numbers of those whom the database has accepted within this time.
    pub fn recent(&self, now: Instant, within: Duration) -> HashSet<u32> {
        let known = self.0.lock();
        let recent = known.users.values().filter(|(user, _)| user.was_accepted(now, within));
        recent.map(|(user, _)| user.id).collect()
    }

    /// Forgets those whom nobody has had for so long.
    pub fn forget_idle(&self, now: Instant, after: Duration) {
        self.0.lock().users.retain(|_, (user, idle)| {
            if Arc::strong_count(user) > 1 || user.was_accepted(now, after) {
                *idle = None;
                return true;
            }
            now.saturating_duration_since(*idle.get_or_insert(now)) < after
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(users: &Users, login: &Login, asked: Instant) -> Arc<User> {
        users.accept(login.user.as_ref().unwrap(), login, asked)
    }

    #[test]
    fn only_plain_tokens_name_a_user() {
        let named = |token: &[u8]| Login::of_token(token).user.map(String::from);
        assert_eq!(named(b"\0bob\0secret").as_deref(), Some("bob"));
        assert_eq!(named(b"bob\0bob\0secret").as_deref(), Some("bob"));
        // Some releases read these from the end, and would accept Eve's password.
        let of_four_parts = b"x\0bob\0eve\0hers";
        let strange = [&b""[..], b"bob", b"as\0bob\0secret", b"\0bob", b"\0\0secret", b"\0\xff\0x"];
        for token in strange.into_iter().chain([&of_four_parts[..]]) {
            assert_eq!(named(token), None, "{token:?}");
        }
    }

    #[test]
    fn what_was_accepted_counts_for_a_moment_and_only_for_the_same_password() {
        let users = Users::default();
        let login = |token: &[u8]| Login::of_token(token);
        let (good, bad) = (login(b"\0bob\0secret"), login(b"\0bob\0guess"));
        assert!(users.accepted(&good).is_none());
        let bob = accept(&users, &good, Instant::now());
        assert!(users.accepted(&good).is_some_and(|user| user.id == bob.id));
        assert!(users.accepted(&bad).is_none());
        assert_ne!(accept(&users, &login(b"\0eve\0x"), Instant::now()).id, bob.id);
        let long_ago = Instant::now().checked_sub(ACCEPTED_FOR).unwrap();
        assert_eq!(accept(&users, &good, long_ago).id, bob.id);
        assert!(users.accepted(&good).is_none());
    }

    #[test]
    fn a_user_whom_nobody_has_is_forgotten_and_leaves_his_number_to_nobody() {
        let (users, start) = (Users::default(), Instant::now());
        let login = |name: &str| Login::of_token(format!("\0{name}\0secret").as_bytes());
        let minute = Duration::from_secs(60);
        let after = |minutes: u32| start + minutes * minute;
        let alice = accept(&users, &login("alice"), start);
        let bobs = accept(&users, &login("bob"), start).id;
        assert_eq!(users.recent(after(1) - Duration::from_secs(1), minute).len(), 2);
        assert!(users.recent(after(1), minute).is_empty());
        // Seen to have nobody from the first minute on.
        (1..=2).for_each(|minutes| users.forget_idle(after(minutes), minute));
        assert_eq!(users.known(&login("alice")), Some(alice.id), "a client has her");
        assert_eq!(users.known(&login("bob")), None);
        let carol = accept(&users, &login("carol"), after(2));
        let bob = accept(&users, &login("bob"), after(2));
        let ids = [alice.id, bobs, carol.id, bob.id];
        assert_eq!(HashSet::from(ids).len(), 4, "{ids:?}");
        // A login in between is a sign of life, though no client has stayed.
        drop((bob, carol));
        users.forget_idle(after(3), minute);
        accept(&users, &login("bob"), after(3));
        users.forget_idle(after(4) - Duration::from_secs(1), minute);
        users.forget_idle(after(4), minute);
        assert!(users.known(&login("bob")).is_some());
        assert_eq!(users.known(&login("carol")), None);
    }
}
