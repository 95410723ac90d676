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
    answers: Mutex<[Option<Bytes>; 2]>,
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
        self.answers.lock()[slot(version)].clone()
    }

    fn cost(&self) -> usize {
        let answers: usize = self.answers.lock().iter().flatten().map(Bytes::len).sum();
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
#[derive(Default)]
pub struct PreparedStore {
    by_id: RwLock<HashMap<Bytes, Arc<Prepared>>>,
    order: Mutex<Order>,
}

#[derive(Default)]
struct Order {
    queue: VecDeque<Bytes>,
    bytes: usize,
}

impl PreparedStore {
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
        let answer = Bytes::copy_from_slice(answer);
        let known = self.get(id).filter(|known| known.text == text && known.keyspace.as_deref() == keyspace);
        if let Some(known) = known {
            known.answers.lock()[slot(version)] = Some(answer);
            return;
        }
        let mut answers = [None, None];
        answers[slot(version)] = Some(answer);
        let prepared = Arc::new(Prepared {
            id: Bytes::copy_from_slice(id),
            text: text.to_owned(),
            keyspace: keyspace.map(str::to_owned),
            names_keyspace,
            parsed: statement::parse(text),
            plan: Mutex::default(),
            answers: Mutex::new(answers),
            used: AtomicBool::new(true),
        });
        let mut order = self.order.lock();
        order.bytes += prepared.cost();
        order.queue.push_back(prepared.id.clone());
        if let Some(replaced) = self.by_id.write().insert(prepared.id.clone(), prepared) {
            order.bytes = order.bytes.saturating_sub(replaced.cost());
            if let Some(at) = order.queue.iter().position(|id| *id == replaced.id) {
                order.queue.remove(at);
            }
        }
        self.evict(&mut order);
    }

    /// Second chance: what was used since it last came by goes round once more.
    fn evict(&self, order: &mut Order) {
        while order.bytes > BUDGET && order.queue.len() > 1 {
            let Some(id) = order.queue.pop_front() else { return };
            let mut by_id = self.by_id.write();
            let Some(prepared) = by_id.get(&id) else { continue };
            if prepared.used.swap(false, Ordering::Relaxed) {
                order.queue.push_back(id);
            } else if let Some(gone) = by_id.remove(&id) {
                order.bytes = order.bytes.saturating_sub(gone.cost());
            }
        }
    }
}
