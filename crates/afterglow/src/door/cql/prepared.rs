//! Statements that clients have prepared through us: without them an EXECUTE says nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use afterglow_cql::frame::Version;
use afterglow_cql::plan::{self, Plan};
use afterglow_cql::statement::{self, Parsed};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::schema::Schema;

/// Bytes that all statements together may take.
const BUDGET: usize = 64 * 1024 * 1024;
/// What an entry takes beyond its texts, roughly.
const OVERHEAD: usize = 512;

/// A prepared statement.
pub struct Prepared {
    /// The server's id.
    pub id: Bytes,
    /// Its text.
    pub text: String,
    /// The keyspace in which it was prepared.
    pub keyspace: Option<String>,
    /// Whether the keyspace was named by the request (v5), not by the session.
    pub names_keyspace: bool,
    /// The text, understood.
    pub parsed: Parsed,
    /// The plan, with the generation of the schema that it was made for.
    plan: Mutex<Option<(u64, Arc<Plan>)>>,
    /// The server's RESULT Prepared in each version, as clients have it.
    answers: [Option<Bytes>; 2],
    used: AtomicBool,
}

impl Prepared {
    /// The plan for that schema.
    pub fn plan(&self, schema: &Schema) -> Arc<Plan> {
        let mut plan = self.plan.lock();
        match &*plan {
            Some((generation, plan)) if *generation == schema.generation => plan.clone(),
            _ => {
                let made = Arc::new(plan::analyse(&self.parsed, schema, self.keyspace.as_deref()));
                *plan = Some((schema.generation, made.clone()));
                made
            }
        }
    }

    /// The RESULT Prepared (without what precedes the message) that clients of that version have.
    pub fn answer(&self, version: Version) -> Option<Bytes> {
        self.answers[slot(version)].clone()
    }

    fn cost(&self) -> usize {
        let answers: usize = self.answers.iter().flatten().map(Bytes::len).sum();
        // The tree of a text is several times its size.
        OVERHEAD + 4 * self.text.len() + answers
    }
}

fn slot(version: Version) -> usize {
    match version {
        Version::V4 => 0,
        Version::V5 => 1,
    }
}

/// All prepared statements, shared by the reactors. Bounded by bytes: those not used for long are forgotten, and their clients are
/// asked to prepare again.
pub struct PreparedStore {
    budget: usize,
    by_id: RwLock<HashMap<Bytes, Arc<Prepared>>>,
    order: Mutex<Order>,
}

impl Default for PreparedStore {
    fn default() -> Self {
        Self::with_budget(BUDGET)
    }
}

#[derive(Default)]
struct Order {
    queue: VecDeque<Bytes>,
    bytes: usize,
}

impl PreparedStore {
    /// A store that takes about so many bytes.
    pub fn with_budget(budget: usize) -> Self {
        Self { budget, by_id: RwLock::default(), order: Mutex::default() }
    }

    /// The statement of an id.
    pub fn get(&self, id: &[u8]) -> Option<Arc<Prepared>> {
        let prepared = self.by_id.read().get(id).cloned()?;
        if !prepared.used.load(Ordering::Relaxed) {
            prepared.used.store(true, Ordering::Relaxed);
        }
        Some(prepared)
    }

    /// Remembers what the server answered to a PREPARE; `answer` is the message of its RESULT.
    pub fn remember(
        &self,
        version: Version,
        id: &[u8],
        text: &str,
        keyspace: Option<&str>,
        names_keyspace: bool,
        answer: &[u8],
    ) {
        let mut order = self.order.lock();
        let known = self.by_id.read().get(id).cloned().filter(|known| known.text == text);
        // A text with a qualified name has one id in all keyspaces, and clients of both versions may have it.
        let mut answers = known.map(|known| known.answers.clone()).unwrap_or_default();
        answers[slot(version)] = Some(Bytes::copy_from_slice(answer));
        let prepared = Arc::new(Prepared {
            id: Bytes::copy_from_slice(id),
            text: text.to_owned(),
            keyspace: keyspace.map(str::to_owned),
            names_keyspace,
            parsed: statement::parse(text),
            plan: Mutex::default(),
            answers,
            // Only being asked for counts, or one sweep would find all equal and begin with the oldest.
            used: AtomicBool::new(false),
        });
        order.bytes += prepared.cost();
        let replaced = self.by_id.write().insert(prepared.id.clone(), prepared.clone());
        match replaced {
            // It keeps its place in the queue.
            Some(replaced) => order.bytes -= replaced.cost(),
            None => order.queue.push_back(prepared.id.clone()),
        }
        self.evict(&mut order);
    }

    /// Second chance: what was used since it last came by goes round once more.
    fn evict(&self, order: &mut Order) {
        while order.bytes > self.budget && order.queue.len() > 1 {
            let Some(id) = order.queue.pop_front() else { return };
            let mut by_id = self.by_id.write();
            let Some(prepared) = by_id.get(&id) else { continue };
            if prepared.used.swap(false, Ordering::Relaxed) {
                order.queue.push_back(id);
            } else if let Some(gone) = by_id.remove(&id) {
                order.bytes -= gone.cost();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remember(store: &PreparedStore, id: &str, version: Version, answer: &[u8]) {
        store.remember(version, id.as_bytes(), &format!("SELECT {id} FROM ks.t"), Some("ks"), false, answer);
    }

    #[test]
    fn what_is_used_outlives_what_is_not_within_the_budget() {
        let store = PreparedStore::with_budget(100 * 1024);
        remember(&store, "hot", Version::V4, b"hot");
        for n in 0..10_000 {
            remember(&store, &format!("cold{n}"), Version::V4, b"cold");
            assert!(store.get(b"hot").is_some(), "forgotten although it was used before number {n}");
        }
        assert!(store.get(b"cold0").is_none());
        let kept = store.by_id.read().len();
        assert!(kept * OVERHEAD <= 100 * 1024, "{kept} statements are over the budget");
        assert_eq!(kept, store.order.lock().queue.len());
    }

    #[test]
    fn both_versions_answers_are_kept_and_counted_once() {
        let store = PreparedStore::default();
        remember(&store, "id", Version::V4, b"four");
        let alone = store.order.lock().bytes;
        for _ in 0..3 {
            remember(&store, "id", Version::V5, b"five!");
        }
        let prepared = store.get(b"id").unwrap();
        assert_eq!(prepared.answer(Version::V4).as_deref(), Some(&b"four"[..]));
        assert_eq!(prepared.answer(Version::V5).as_deref(), Some(&b"five!"[..]));
        assert_eq!(store.order.lock().bytes, alone + 5);
    }
}
