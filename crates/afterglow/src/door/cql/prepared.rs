//! Statements that clients have prepared through us: without them an EXECUTE says nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use afterglow_cql::frame::Version;
use afterglow_cql::plan::{self, Plan};
use afterglow_cql::response::ResultBody;
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
    answers: [Option<Arc<Answer>>; Version::ALL.len()],
    /// The generation of the schema in which the server last took the statement for prepared, in each version; 0 for none. Apart,
    /// because preparing again in one version renews the answer of that one only.
    confirmed: [AtomicU64; Version::ALL.len()],
    used: AtomicBool,
}

/// A RESULT Prepared, taken apart as far as answers to EXECUTE need it.
pub struct Answer {
    /// The whole message.
    pub message: Bytes,
    /// The result's metadata, verbatim.
    pub metadata: Bytes,
    /// Its id (v5).
    pub metadata_id: Option<Bytes>,
    /// Names of the result's columns.
    pub names: Vec<String>,
    /// How many values it takes.
    binds: usize,
}

impl Answer {
    fn new(version: Version, message: &[u8]) -> Option<Answer> {
        let whole = Bytes::copy_from_slice(message);
        let Ok(ResultBody::Prepared(prepared)) = ResultBody::parse(version, &whole) else { return None };
        let metadata = whole.slice_ref(prepared.result.raw);
        let metadata_id = prepared.result_metadata_id.map(|id| whole.slice_ref(id));
        let names = prepared.result.columns.iter().map(|column| column.name.to_owned()).collect();
        let binds = prepared.bound.len();
        Some(Answer { message: whole.clone(), metadata, metadata_id, names, binds })
    }
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

    /// The RESULT Prepared that clients of that version have.
    pub fn answer(&self, version: Version) -> Option<Arc<Answer>> {
        self.answers[slot(version)].clone()
    }

    /// Whether the server is known to take it for prepared in this generation of the schema. Only then do the columns that
    /// clients know fit the plan: after a change the server may want it prepared again, and says so when it is executed.
    pub fn is_confirmed(&self, version: Version, generation: u64) -> bool {
        self.confirmed[slot(version)].load(Ordering::Acquire) == generation
    }

    /// The server executed it; `generation` is of the schema before it was asked.
    pub fn confirm(&self, version: Version, generation: u64) {
        self.confirmed[slot(version)].store(generation, Ordering::Release);
    }

    fn cost(&self) -> usize {
        let answers: usize = self.answers.iter().flatten().map(|answer| answer.message.len()).sum();
        // The tree of a text is several times its size.
        OVERHEAD + 4 * self.text.len() + answers
    }
}

fn slot(version: Version) -> usize {
    match version {
        Version::V3 => 0,
        Version::V4 => 1,
        Version::V5 => 2,
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

    /// Remembers what the server answered to a PREPARE; `answer` is the message of its RESULT, `generation` of the schema before
    /// it was asked.
    #[allow(clippy::too_many_arguments)]
    pub fn remember(
        &self,
        version: Version,
        id: &[u8],
        text: &str,
        keyspace: Option<&str>,
        names_keyspace: bool,
        answer: &[u8],
        generation: u64,
    ) {
        let Some(answer) = Answer::new(version, answer) else { return };
        let mut parsed = statement::parse(text);
        parsed.expect_binds(answer.binds);
        let mut order = self.order.lock();
        let known = self.by_id.read().get(id).cloned().filter(|known| known.text == text);
        // A text with a qualified name has one id in all keyspaces, and clients of both versions may have it.
        let (mut answers, confirmed) = match &known {
            Some(known) => (
                known.answers.clone(),
                known.confirmed.each_ref().map(|of| of.load(Ordering::Acquire).into()),
            ),
            None => Default::default(),
        };
        answers[slot(version)] = Some(Arc::new(answer));
        let prepared = Arc::new(Prepared {
            id: Bytes::copy_from_slice(id),
            text: text.to_owned(),
            keyspace: keyspace.map(str::to_owned),
            names_keyspace,
            parsed,
            plan: Mutex::default(),
            answers,
            confirmed,
            // Only being asked for counts, or one sweep would find all equal and begin with the oldest.
            used: AtomicBool::new(false),
        });
        prepared.confirm(version, generation);
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
    use afterglow_cql::response::{ColumnSpec, MetadataOut, encode_prepared};

    use super::*;

    /// Remembers `SELECT id FROM ks.t`, whose one column is called `id` as well.
    fn remember(store: &PreparedStore, id: &str, version: Version) {
        let answer = answer(id, version);
        store.remember(
            version,
            id.as_bytes(),
            &format!("SELECT {id} FROM ks.t"),
            Some("ks"),
            false,
            &answer,
            7,
        );
    }

    fn answer(id: &str, version: Version) -> Vec<u8> {
        let column = ColumnSpec { keyspace: "ks", table: "t", name: id, type_bytes: &[0, 9] };
        let metadata_id = (version >= Version::V5).then_some(&b"metadata"[..]);
        let mut out = Vec::new();
        encode_prepared(
            version,
            id.as_bytes(),
            metadata_id,
            &[],
            &[],
            &MetadataOut::of_table(&[column]),
            &mut out,
        );
        out
    }

    #[test]
    fn what_is_used_outlives_what_is_not_within_the_budget() {
        let store = PreparedStore::with_budget(100 * 1024);
        remember(&store, "hot", Version::V4);
        for n in 0..10_000 {
            remember(&store, &format!("cold{n}"), Version::V4);
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
        remember(&store, "id", Version::V4);
        let alone = store.order.lock().bytes;
        for _ in 0..3 {
            remember(&store, "id", Version::V5);
        }
        let prepared = store.get(b"id").unwrap();
        let four = prepared.answer(Version::V4).unwrap();
        assert_eq!((&four.message[..], &four.metadata_id), (&answer("id", Version::V4)[..], &None));
        assert_eq!(four.names, ["id"]);
        let five = prepared.answer(Version::V5).unwrap();
        assert_eq!(five.metadata_id.as_deref(), Some(&b"metadata"[..]));
        assert_eq!(five.metadata, four.metadata);
        assert_eq!(store.order.lock().bytes, alone + five.message.len());
    }

    #[test]
    fn a_statement_is_confirmed_for_one_generation_of_the_schema() {
        let store = PreparedStore::default();
        remember(&store, "id", Version::V4);
        let prepared = store.get(b"id").unwrap();
        let confirmed = |version| [7, 8].map(|generation| prepared.is_confirmed(version, generation));
        assert_eq!(confirmed(Version::V4), [true, false]);
        assert_eq!(confirmed(Version::V5), [false, false]);
        prepared.confirm(Version::V4, 8);
        assert_eq!(confirmed(Version::V4), [false, true]);
        // Prepared again in the other version: what clients of this one know may be older than that.
        remember(&store, "id", Version::V5);
        let prepared = store.get(b"id").unwrap();
        assert!(prepared.is_confirmed(Version::V4, 8) && prepared.is_confirmed(Version::V5, 7));
        assert!(!prepared.is_confirmed(Version::V4, 7) && !prepared.is_confirmed(Version::V5, 8));
    }
}
