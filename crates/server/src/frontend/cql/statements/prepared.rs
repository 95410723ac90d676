//! Statements that clients have prepared through us. Without them an EXECUTE cannot be understood.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use afterglow_cql::frame::Version;
use afterglow_cql::plan::{self, Plan};
use afterglow_cql::response::ResultBody;
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::{self, Parsed};
use bytes::Bytes;
use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};

use crate::frontend::cql::statements::plan_file::{PlanEntry, PlanFile};

/// Bytes that all statements together may take.
const BUDGET: usize = 64 * 1024 * 1024;
/// What an entry takes beyond its texts, roughly.
const OVERHEAD: usize = 512;
/// Bytes that the file may hold beyond twice what is remembered.
const FILE_SLACK: u64 = 1024 * 1024;
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
    /// The text, understood when it is first needed: there may be many after a start.
    parsed: OnceLock<Parsed>,
    /// The plan, with the generation of the schema that it was made for.
    plan: Mutex<Option<(u64, Arc<Plan>)>>,
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
    fn new(told: &PrepareResult<'_>, answer: Answer, known: Option<&Prepared>) -> Prepared {
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
            parsed: OnceLock::new(),
            plan: Mutex::default(),
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

    /// The plan for that schema.
    pub fn plan(&self, schema: &Schema) -> Arc<Plan> {
        let mut plan = self.plan.lock();
        match &*plan {
            Some((generation, plan)) if *generation == schema.generation => plan.clone(),
            _ => {
                let made = Arc::new(plan::analyse(self.parsed(), schema, self.keyspace.as_deref()));
                *plan = Some((schema.generation, made.clone()));
                made
            }
        }
    }

    fn parsed(&self) -> &Parsed {
        self.parsed.get_or_init(|| {
            let mut parsed = statement::parse(&self.text);
            self.answers.iter().flatten().for_each(|answer| parsed.expect_binds(answer.binds));
            parsed
        })
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
        // The tree of a text is several times its size.
        OVERHEAD + 4 * self.text.len() + answers
    }

    fn entry(&self, version: Version) -> Option<PlanEntry> {
        Some(PlanEntry {
            version,
            id: self.id.to_vec(),
            text: self.text.clone(),
            keyspace: self.keyspace.clone(),
            names_keyspace: self.names_keyspace,
            drifted: self.drifted,
            message: self.answer(version)?.message.to_vec(),
        })
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
        (order.queue.len(), order.bytes)
    }

    /// How many statements were forgotten to stay within the budget.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Remembers what the server answered to a PREPARE, also beyond the end of this process. `None`
    /// if that is no RESULT Prepared.
    pub fn remember(self: &Arc<Self>, told: &PrepareResult<'_>) -> Option<Arc<Prepared>> {
        let (prepared, changed) = self.insert(told, false)?;
        if changed && let Some(entry) = prepared.entry(told.version) {
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
        let mut prepared = Prepared::new(told, answer, known.as_deref());
        prepared.drifted |= drifted;
        let changed = known.is_none_or(|known| {
            let then = known.answer(told.version);
            then.is_none_or(|then| then.message != told.message)
                || (known.drifted, known.names_keyspace)
                    != (prepared.drifted, prepared.names_keyspace)
                || known.keyspace.as_deref() != told.keyspace
        });
        let prepared = Arc::new(prepared);
        order.bytes += prepared.cost();
        let replaced = self.by_id.write().insert(prepared.id.clone(), prepared.clone());
        match replaced {
            // It keeps its place in the queue.
            Some(replaced) => order.bytes -= replaced.cost(),
            None => order.queue.push_back(prepared.id.clone()),
        }
        self.evict(&mut order);
        Some((prepared, changed))
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
            .flat_map(|prepared| Version::ALL.iter().filter_map(|of| prepared.entry(*of)));
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
mod tests {
    use afterglow_cql::response::{ColumnSpec, MetadataOut, encode_prepared};

    use super::*;

    /// Remembers `SELECT id FROM ks.t`, whose one column is called `id` as well.
    fn remember(store: &Arc<PreparedStore>, id: &str, version: Version) {
        remember_columns(store, id, version, id);
    }

    fn remember_columns(store: &Arc<PreparedStore>, id: &str, version: Version, column: &str) {
        let told = PrepareResult {
            version,
            id: id.as_bytes(),
            text: &format!("SELECT {id} FROM ks.t"),
            keyspace: Some("ks"),
            names_keyspace: false,
            message: &answer_with(id, version, column),
            generation: 7,
        };
        assert!(store.remember(&told).is_some());
    }

    fn answer(id: &str, version: Version) -> Vec<u8> {
        answer_with(id, version, id)
    }

    /// Of a duration, which is a class before v5.
    fn answer_with(id: &str, version: Version, column: &str) -> Vec<u8> {
        let mut type_bytes = vec![0, 0x15];
        if version < Version::V5 {
            let class = b"org.apache.cassandra.db.marshal.DurationType";
            type_bytes = vec![0, 0, 0, class.len() as u8];
            type_bytes.extend_from_slice(class);
        }
        let column =
            ColumnSpec { keyspace: "ks", table: "t", name: column, type_bytes: &type_bytes };
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
        let store = Arc::new(PreparedStore::with_budget(100 * 1024));
        remember(&store, "hot", Version::V4);
        for n in 0..10_000 {
            remember(&store, &format!("cold{n}"), Version::V4);
            assert!(
                store.get(b"hot").is_some(),
                "forgotten although it was used before number {n}"
            );
        }
        assert!(store.get(b"cold0").is_none());
        let kept = store.by_id.read().len();
        assert!(kept * OVERHEAD <= 100 * 1024, "{kept} statements are over the budget");
        assert_eq!(kept, store.size().0);
        assert_eq!(store.forgotten() as usize, 10_001 - kept);
    }

    #[test]
    fn both_versions_answers_are_kept_and_counted_once() {
        let store = Arc::new(PreparedStore::default());
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
        assert_ne!(five.metadata, four.metadata, "a duration is written in two ways");
        assert!(!prepared.is_drifted(Version::V4), "and is the same column all the same");
        assert_eq!(store.order.lock().bytes, alone + five.message.len());
    }

    #[test]
    fn a_statement_is_confirmed_for_one_generation_of_the_schema() {
        let store = Arc::new(PreparedStore::default());
        remember(&store, "id", Version::V4);
        let prepared = store.get(b"id").unwrap();
        let confirmed =
            |version| [7, 8].map(|generation| prepared.is_confirmed(version, generation));
        assert_eq!(confirmed(Version::V4), [true, false]);
        assert_eq!(confirmed(Version::V5), [false, false]);
        prepared.confirm(Version::V4, 8);
        assert_eq!(confirmed(Version::V4), [false, true]);
        // Prepared again in the other version: what clients of this one know may be older than
        // that.
        remember(&store, "id", Version::V5);
        let prepared = store.get(b"id").unwrap();
        assert!(prepared.is_confirmed(Version::V4, 8) && prepared.is_confirmed(Version::V5, 7));
        assert!(!prepared.is_confirmed(Version::V4, 7) && !prepared.is_confirmed(Version::V5, 8));
    }

    #[test]
    fn other_columns_are_told_once_and_for_all_versions() {
        let store = Arc::new(PreparedStore::default());
        remember(&store, "id", Version::V4);
        remember(&store, "id", Version::V5);
        assert!(!store.get(b"id").unwrap().is_drifted(Version::V4));
        remember_columns(&store, "id", Version::V5, "other");
        remember_columns(&store, "id", Version::V5, "other");
        let prepared = store.get(b"id").unwrap();
        assert!(prepared.is_drifted(Version::V4), "what clients of v4 know is of before");
        assert!(!prepared.is_drifted(Version::V5), "their requests say what they know");
        assert!(prepared.may_renew(3) && !prepared.may_renew(3) && prepared.may_renew(4));
    }

    #[test]
    fn a_restart_knows_every_statement_but_trusts_no_schema() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plans");
        let store = Arc::new(PreparedStore::open(&path));
        remember(&store, "a", Version::V4);
        remember(&store, "b", Version::V4);
        remember(&store, "b", Version::V5);
        remember_columns(&store, "b", Version::V5, "other");
        let grown = std::fs::metadata(&path).unwrap().len();
        remember_columns(&store, "b", Version::V5, "other");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), grown, "nothing new, nothing written");
        let again = PreparedStore::open(&path);
        let (a, b) = (again.get(b"a").unwrap(), again.get(b"b").unwrap());
        assert_eq!((&*a.text, a.keyspace.as_deref()), ("SELECT a FROM ks.t", Some("ks")));
        assert_eq!(a.answer(Version::V4).unwrap().message, answer("a", Version::V4));
        assert!(
            a.answer(Version::V5).is_none()
                && !a.is_drifted(Version::V4)
                && b.is_drifted(Version::V4)
        );
        assert_eq!(b.answer(Version::V5).unwrap().names, ["other"]);
        assert!((1..10).all(|generation| !b.is_confirmed(Version::V5, generation)));
    }

    #[test]
    fn the_file_stays_within_its_bound_and_loses_nothing_that_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plans");
        let store = Arc::new(PreparedStore { budget: 256 * 1024, ..PreparedStore::open(&path) });
        let limit = 2 * 256 * 1024 + FILE_SLACK;
        let column = |n: usize| format!("{n:0>2000}");
        for n in 0..2_000 {
            remember_columns(&store, &format!("id{n}"), Version::V5, &column(n));
            while store.file.lock().meanwhile.is_some() {
                std::thread::yield_now();
            }
            assert!(std::fs::metadata(&path).unwrap().len() < limit + 4_096, "after {n}");
        }
        let again = PreparedStore::open(&path);
        for id in store.by_id.read().keys() {
            assert!(again.get(id).is_some(), "{id:?} is lost");
        }
    }
}
