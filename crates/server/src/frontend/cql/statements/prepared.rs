//! Statements that clients have prepared through us. Without them an EXECUTE cannot be understood.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use afterglow_cql::frame::Version;
use afterglow_cql::plan::{self, Plan, TableSchema};
use afterglow_cql::response::ResultBody;
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::{self, Statement};
use bytes::Bytes;
use foldhash::HashMap;
use md5::{Digest, Md5};
use parking_lot::{Mutex, RwLock};

use crate::frontend::cql::statements::plan_file::{PlanEntry, PlanFile};

/// Bytes that all statements together may take.
const BUDGET: usize = 64 * 1024 * 1024;
/// What an entry takes beyond its texts, roughly.
const OVERHEAD: usize = 512;
/// Bytes that the file may hold beyond twice what is remembered.
const FILE_SLACK: u64 = 1024 * 1024;
/// Of one statement so many keyspaces are looked at.
const MOST_KEYSPACES: usize = 64;
/// Ambiguous statements were told of, once in the process.
static AMBIGUOUS_TOLD: AtomicBool = AtomicBool::new(false);
/// How many protocol versions there are.
const VERSIONS: usize = Version::ALL.len();

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
    /// The id is the text's alone. See [`Prepared::other_keyspaces`].
    is_texts: bool,
    /// Other keyspaces in which the server has given this id for it.
    also: BTreeSet<String>,
    /// The plan, with the generation of the schema that it was made for. It is made when it is
    /// first needed: there may be many statements after a start.
    plan: Mutex<Option<(u64, Arc<Plan>)>>,
    /// What the plans of all statements of its store take.
    plan_bytes: Arc<AtomicUsize>,
    /// The server's newest RESULT Prepared in each version.
    answers: [Option<Arc<Answer>>; VERSIONS],
    /// The server has given other columns for it before: which of them a client before v5 knows,
    /// nobody can tell.
    drifted: bool,
    /// The generation of the schema in which the server last took the statement for prepared, in
    /// each version; 0 for none. Apart, because preparing again in one version renews the answer of
    /// that one only.
    confirmed: [AtomicU64; VERSIONS],
    /// The generation in which it was last prepared again because its columns were not those of the
    /// answer.
    renewed: AtomicU64,
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
    /// Keyspace of the table, and which values make up its partition key; where the server has said
    /// so.
    pub partition: Option<(Box<str>, Box<[u16]>)>,
    /// How many values it takes.
    binds: usize,
}

impl Answer {
    fn new(version: Version, message: &[u8]) -> Option<Answer> {
        let whole = Bytes::copy_from_slice(message);
        let Ok(ResultBody::Prepared(prepared)) = ResultBody::parse(version, &whole) else {
            return None;
        };
        let metadata = whole.slice_ref(prepared.result.raw);
        let metadata_id = prepared.result_metadata_id.map(|id| whole.slice_ref(id));
        let names = prepared.result.columns.iter().map(|column| column.name.to_owned()).collect();
        let binds = prepared.bound.len();
        let indexes: Box<[u16]> = prepared.pk_indexes().collect();
        let keyspace = prepared.bound.iter().next().map(|column| Box::from(column.keyspace));
        let partition =
            keyspace.filter(|_| !indexes.is_empty()).map(|keyspace| (keyspace, indexes));
        Some(Answer { message: whole.clone(), metadata, metadata_id, names, partition, binds })
    }
}

/// What a server answered to a PREPARE.
#[derive(Clone, Copy)]
pub struct PrepareResult<'a> {
    /// The version of the connection.
    pub version: Version,
    /// The server's id.
    pub id: &'a [u8],
    /// The text.
    pub text: &'a str,
    /// The keyspace in which it was prepared.
    pub keyspace: Option<&'a str>,
    /// Whether the request named the keyspace, not the session.
    pub names_keyspace: bool,
    /// The message of its RESULT.
    pub message: &'a [u8],
    /// Generation of the schema before it was asked.
    pub generation: u64,
}

impl Prepared {
    fn new(
        told: &PrepareResult<'_>,
        answer: Answer,
        known: Option<&Prepared>,
        plan_bytes: Arc<AtomicUsize>,
    ) -> Prepared {
        // A text with a qualified name has one id in all keyspaces, and clients of all versions may
        // have it.
        let (mut answers, confirmed) = match known {
            Some(known) => (
                known.answers.clone(),
                known.confirmed.each_ref().map(|of| of.load(Ordering::Acquire).into()),
            ),
            None => Default::default(),
        };
        let drifted = known.is_some_and(|known| {
            // Versions write some types in different ways.
            let differs = |(at, then): (usize, &Option<Arc<Answer>>)| match then {
                Some(then) if at == slot(told.version) => then.metadata != answer.metadata,
                Some(then) => then.names != answer.names,
                None => false,
            };
            known.drifted || known.answers.iter().enumerate().any(differs)
        });
        answers[slot(told.version)] = Some(Arc::new(answer));
        let prepared = Prepared {
            id: Bytes::copy_from_slice(told.id),
            text: told.text.to_owned(),
            keyspace: told.keyspace.map(str::to_owned),
            names_keyspace: told.names_keyspace,
            is_texts: Md5::digest(told.text)[..] == *told.id,
            also: others_told(told, known),
            plan: Mutex::default(),
            plan_bytes,
            answers,
            drifted,
            confirmed,
            renewed: known.map_or(0, |known| known.renewed.load(Ordering::Acquire)).into(),
            // Only being asked for counts, or one sweep would find all equal and begin with the
            // oldest.
            used: AtomicBool::new(false),
        };
        prepared.confirm(told.version, told.generation);
        prepared
    }

    /// The plan for that schema, and whether it was made just now.
    fn plan(&self, schema: &Schema) -> (Arc<Plan>, bool) {
        let mut plan = self.plan.lock();
        match &*plan {
            Some((generation, plan)) if *generation == schema.generation => (plan.clone(), false),
            _ => {
                let made = Arc::new(self.analysed(schema));
                self.plan_bytes.fetch_add(made.weight(), Ordering::Relaxed);
                self.discount(plan.replace((schema.generation, made.clone())));
                (made, true)
            }
        }
    }

    /// The text is read anew for each schema: its tree would take several times the plan.
    fn analysed(&self, schema: &Schema) -> Plan {
        let mut parsed = statement::parse(&self.text);
        self.answers.iter().flatten().for_each(|answer| parsed.expect_binds(answer.binds));
        let ours = self.keyspace.as_deref();
        let others = self.other_keyspaces(&parsed.statement, schema);
        let of = |keyspace| plan::analyse(&parsed, schema, keyspace);
        match of(if others.is_empty() { ours } else { None }) {
            // With too many it may touch everything.
            Plan::Write(_) if !others.is_empty() && others.len() <= MOST_KEYSPACES => {
                let all = others.into_iter().map(Some).map(of);
                all.fold(of(ours), |plan, other| match (plan, other) {
                    (Plan::Write(plan), Plan::Write(other)) => Plan::Write(plan.or(other)),
                    (plan, _) => plan,
                })
            }
            plan => plan,
        }
    }

    /// Other keyspaces than ours that the server may mean by it, as they have a table of its.
    ///
    /// While a node of before 3.0.26, 3.11.12 or 4.0.2 is in the cluster, Cassandra gives a text
    /// one id in all keyspaces, also where tables are named without theirs (`QueryProcessor`,
    /// `prepare`; CASSANDRA-15252). Each node then runs it in the keyspace in which that node was
    /// last asked to prepare it, and clients of several have that id. So its reads pass through,
    /// and its writes touch such a table in each keyspace.
    fn other_keyspaces<'s>(
        &'s self,
        statement: &Statement,
        schema: &'s Schema,
    ) -> BTreeSet<&'s str> {
        let names: Vec<&str> = statement.unqualified_tables().collect();
        if !self.is_texts || names.is_empty() {
            return BTreeSet::new();
        }
        let is_other = |table: &&Arc<TableSchema>| {
            let has_name = || names.contains(&&*table.name);
            !table.system && self.keyspace.as_deref() != Some(&*table.keyspace) && has_name()
        };
        // A keyspace may be so new that the schema lacks its table.
        let told = self.also.iter().map(String::as_str);
        let others: BTreeSet<&str> =
            schema.tables().filter(is_other).map(|table| &*table.keyspace).chain(told).collect();
        if !others.is_empty() && !AMBIGUOUS_TOLD.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                statement = self.text,
                "the database gives a statement one id in several keyspaces that have its table, as it does while nodes of releases before 3.0.26, 3.11.12 or 4.0.2 are in the cluster: such reads pass through and such writes touch all of these tables; name the keyspace in the statement, or upgrade all nodes and restart the clients"
            );
        }
        others
    }

    /// It has this plan no more.
    fn discount(&self, plan: Option<(u64, Arc<Plan>)>) {
        if let Some((_, plan)) = plan {
            self.plan_bytes.fetch_sub(plan.weight(), Ordering::Relaxed);
        }
    }

    /// Whether the server means by it whichever keyspace it was last asked to prepare it in. Only
    /// its client knows which that is to be.
    pub fn is_shared(&self) -> bool {
        !self.also.is_empty()
    }

    /// Lets go of its plan. Whoever still has the statement makes another if need be.
    fn forget_plan(&self) {
        let plan = self.plan.lock().take();
        self.discount(plan);
    }

    /// The server's newest RESULT Prepared in that version.
    pub fn answer(&self, version: Version) -> Option<&Arc<Answer>> {
        self.answers[slot(version)].as_ref()
    }

    /// Whether clients of that version may know other columns than [`Prepared::answer`] has, and
    /// cannot tell. They must not be answered without metadata then, even if they ask for that.
    /// From v5 on a request says which columns its client knows.
    pub fn is_drifted(&self, version: Version) -> bool {
        self.drifted && version < Version::V5
    }

    /// Whether the server is known to take it for prepared in this generation of the schema. Only
    /// then do the columns that clients know fit the plan. After a schema change the server may
    /// need it prepared again, and says so at EXECUTE.
    pub fn is_confirmed(&self, version: Version, generation: u64) -> bool {
        self.confirmed[slot(version)].load(Ordering::Acquire) == generation
    }

    /// The server executed it; `generation` is of the schema before it was asked.
    pub fn confirm(&self, version: Version, generation: u64) {
        self.confirmed[slot(version)].store(generation, Ordering::Release);
    }

    /// Whether it has not been renewed in this generation of the schema yet; says so once.
    pub fn may_renew(&self, generation: u64) -> bool {
        self.renewed.swap(generation, Ordering::AcqRel) != generation
    }

    fn cost(&self) -> usize {
        let answers: usize = self.answers.iter().flatten().map(|answer| answer.message.len()).sum();
        // The file has it once for each of the others.
        let other = |keyspace: &String| keyspace.len() + OVERHEAD + self.text.len() + answers;
        let others: usize = self.also.iter().map(other).sum();
        // The text is there once, and again in the literals and names of the plan, which is counted
        // when it is made.
        OVERHEAD + 2 * self.text.len() + answers + others
    }

    /// What is saved of it: for each keyspace in which the server has given this id, the last one
    /// at the end. Whoever reads them in this order knows all.
    fn entries(&self, version: Version) -> impl Iterator<Item = PlanEntry> {
        let others = self.also.iter().cloned().map(Some);
        others.chain([self.keyspace.clone()]).filter_map(move |of| self.entry(version, of))
    }

    fn entry(&self, version: Version, keyspace: Option<String>) -> Option<PlanEntry> {
        Some(PlanEntry {
            version,
            id: self.id.to_vec(),
            text: self.text.clone(),
            keyspace,
            names_keyspace: self.names_keyspace,
            drifted: self.drifted,
            message: self.answer(version)?.message.to_vec(),
        })
    }
}

/// In which keyspaces but this one the server has given the id for the text, where it names tables
/// without theirs. No more are kept than tell that there are too many.
fn others_told(told: &PrepareResult<'_>, known: Option<&Prepared>) -> BTreeSet<String> {
    let Some(known) = known else { return BTreeSet::new() };
    let is_other = told.keyspace != known.keyspace.as_deref();
    let matters = || statement::parse(told.text).statement.unqualified_tables().next().is_some();
    if known.also.is_empty() && !(is_other && known.is_texts && matters()) {
        return BTreeSet::new();
    }
    let before = known.also.iter().chain(&known.keyspace);
    let others = before.filter(|keyspace| told.keyspace != Some(keyspace.as_str()));
    others.take(MOST_KEYSPACES + 1).cloned().collect()
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.forget_plan();
    }
}

fn slot(version: Version) -> usize {
    Version::ALL.iter().position(|of| *of == version).expect("all versions are in the list")
}

/// All prepared statements, shared by the reactors. Bounded by bytes: those not used for long are
/// forgotten, and their clients are asked to prepare again. With a file they are known again after
/// a restart.
pub struct PreparedStore {
    budget: usize,
    by_id: RwLock<HashMap<Bytes, Arc<Prepared>>>,
    order: Mutex<Order>,
    /// What the plans take that were made so far, beside what `order` counts.
    plan_bytes: Arc<AtomicUsize>,
    file: Mutex<Saved>,
    forgotten: AtomicU64,
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

/// The file, where there is one that works.
#[derive(Default)]
struct Saved {
    file: Option<PlanFile>,
    /// What was appended since a new file was begun to be written; `None` while none is.
    meanwhile: Option<Vec<PlanEntry>>,
}

impl PreparedStore {
    /// A store that takes about so many bytes, and forgets all with the process.
    pub fn with_budget(budget: usize) -> Self {
        Self {
            budget,
            by_id: RwLock::default(),
            order: Mutex::default(),
            plan_bytes: Arc::default(),
            file: Mutex::default(),
            forgotten: AtomicU64::default(),
        }
    }

    /// A store that keeps its statements in that file. A file that cannot be used costs its
    /// statements a round trip, and is said.
    pub fn open(path: &Path) -> Self {
        let store = Self::default();
        match PlanFile::open(path) {
            Ok((file, entries)) => {
                entries.into_iter().for_each(|entry| store.recall(entry));
                store.file.lock().file = Some(file);
            }
            Err(error) => warn_unsaved(path, &error),
        }
        store
    }

    /// The statement of an id.
    pub fn get(&self, id: &[u8]) -> Option<Arc<Prepared>> {
        let prepared = self.by_id.read().get(id).cloned()?;
        if !prepared.used.load(Ordering::Relaxed) {
            prepared.used.store(true, Ordering::Relaxed);
        }
        Some(prepared)
    }

    /// How many statements are remembered, and about how many bytes they take.
    pub fn size(&self) -> (usize, usize) {
        let order = self.order.lock();
        (order.queue.len(), self.bytes(&order))
    }

    fn bytes(&self, order: &Order) -> usize {
        order.bytes + self.plan_bytes.load(Ordering::Relaxed)
    }

    /// The plan of one of its statements for that schema. Others are forgotten if a new plan is too
    /// much.
    pub fn plan(&self, prepared: &Prepared, schema: &Schema) -> Arc<Plan> {
        let (plan, is_new) = prepared.plan(schema);
        if is_new {
            self.evict(&mut self.order.lock(), 1);
        }
        plan
    }

    /// How many statements were forgotten to stay within the budget.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Remembers what the server answered to a PREPARE, also beyond the end of this process. `None`
    /// if that is no RESULT Prepared.
    pub fn remember(self: &Arc<Self>, told: &PrepareResult<'_>) -> Option<Arc<Prepared>> {
        let (prepared, changed) = self.insert(told, false)?;
        if changed && let Some(entry) = prepared.entry(told.version, prepared.keyspace.clone()) {
            self.save(entry);
        }
        Some(prepared)
    }

    fn recall(&self, entry: PlanEntry) {
        self.insert(
            &PrepareResult {
                version: entry.version,
                id: &entry.id,
                text: &entry.text,
                keyspace: entry.keyspace.as_deref(),
                names_keyspace: entry.names_keyspace,
                message: &entry.message,
                // No snapshot of the schema has this number.
                generation: 0,
            },
            entry.drifted,
        );
    }

    /// The statement as it is remembered now, and whether that is anything new.
    fn insert(&self, told: &PrepareResult<'_>, drifted: bool) -> Option<(Arc<Prepared>, bool)> {
        let answer = Answer::new(told.version, told.message)?;
        let mut order = self.order.lock();
        let known = self.by_id.read().get(told.id).cloned().filter(|known| known.text == told.text);
        let mut prepared = Prepared::new(told, answer, known.as_deref(), self.plan_bytes.clone());
        prepared.drifted |= drifted;
        let changed = known.is_none_or(|known| {
            let then = known.answer(told.version);
            then.is_none_or(|then| then.message != told.message)
                || (known.drifted, known.names_keyspace)
                    != (prepared.drifted, prepared.names_keyspace)
                // Of several, the file knows each: which came last does not matter.
                || known.keyspace.as_deref() != told.keyspace
                    && told.keyspace.is_none_or(|keyspace| !known.also.contains(keyspace))
        });
        let prepared = Arc::new(prepared);
        order.bytes += prepared.cost();
        let replaced = self.by_id.write().insert(prepared.id.clone(), prepared.clone());
        match replaced {
            // It keeps its place in the queue.
            Some(replaced) => {
                order.bytes -= replaced.cost();
                replaced.forget_plan();
            }
            // It joins the queue once there is room: its client is about to use it.
            None => {
                self.evict(&mut order, 0);
                order.queue.push_back(prepared.id.clone());
                return Some((prepared, changed));
            }
        }
        self.evict(&mut order, 1);
        Some((prepared, changed))
    }

    /// Second chance: what was used since it last came by goes round once more. `least` of those in
    /// the queue stay.
    fn evict(&self, order: &mut Order, least: usize) {
        while self.bytes(order) > self.budget && order.queue.len() > least {
            let Some(id) = order.queue.pop_front() else { return };
            let mut by_id = self.by_id.write();
            let Some(prepared) = by_id.get(&id) else { continue };
            if prepared.used.swap(false, Ordering::Relaxed) {
                order.queue.push_back(id);
            } else if let Some(gone) = by_id.remove(&id) {
                order.bytes -= gone.cost();
                gone.forget_plan();
                self.forgotten.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Appends to the file; where that has grown too much a thread writes a new one.
    fn save(self: &Arc<Self>, entry: PlanEntry) {
        let remembered = self.size().1 as u64;
        let mut saved = self.file.lock();
        let Some(file) = &mut saved.file else { return };
        if let Err(error) = file.append(&entry) {
            warn_unsaved(file.path(), &error);
            saved.file = None;
            return;
        }
        let grown = file.len() > 2 * remembered + FILE_SLACK;
        match &mut saved.meanwhile {
            Some(meanwhile) => meanwhile.push(entry),
            None if grown => {
                saved.meanwhile = Some(Vec::new());
                let store = self.clone();
                std::thread::spawn(move || store.write_anew());
            }
            None => {}
        }
    }

    /// Writes a file of what is remembered now and puts it in the old one's place, with what came
    /// meanwhile.
    fn write_anew(&self) {
        let path = self.file.lock().file.as_ref().map(|file| file.path().to_owned());
        let Some(path) = path else { return };
        let all: Vec<Arc<Prepared>> = self.by_id.read().values().cloned().collect();
        let entries = all
            .iter()
            .flat_map(|prepared| Version::ALL.iter().flat_map(|of| prepared.entries(*of)));
        let written = PlanFile::beside(&path, entries);
        let mut saved = self.file.lock();
        let meanwhile = saved.meanwhile.take().unwrap_or_default();
        let written = written.and_then(|mut file| {
            meanwhile.iter().try_for_each(|entry| file.append(entry))?;
            file.publish(&path)?;
            Ok(file)
        });
        match written {
            Ok(file) => saved.file = Some(file),
            Err(error) => {
                warn_unsaved(&path, &error);
                saved.file = None;
            }
        }
    }
}

fn warn_unsaved(path: &Path, error: &std::io::Error) {
    let path = path.display();
    tracing::warn!(%path, %error, "prepared statements cannot be saved: after a restart clients are asked to prepare again");
}

#[cfg(test)]
mod tests;
