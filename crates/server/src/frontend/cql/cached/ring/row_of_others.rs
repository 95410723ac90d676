//! The keeper's view of the lease's row of instances without a ring: who has it, and what is told
//! of that.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use uuid::Uuid;

use super::database::{Database, LeaseRowAnswer};
use super::lasting::Lasting;
use super::lease_row::{LeaseRowState, is_ring};
use super::source::now;
use crate::frontend::cql::cached::own_query::{NoResult, lacks_nodes, remedy};

/// Pause between attempts to take the lease's row.
const RETRY: Duration = Duration::from_millis(500);
/// The longest pause, where the database refuses.
const LONGEST_RETRY: Duration = Duration::from_secs(4);

/// How the lease's row of instances without a ring stands.
#[derive(Default)]
pub struct RowOfOthers {
    /// Who has it, as far as that is known.
    pub state: Cell<Option<LeaseRowState>>,
    /// Grows when what was known is forgotten, and with it an answer that is on its way.
    pub life: Cell<u64>,
    /// Of which holder was last told.
    told: Cell<Option<Uuid>>,
    /// An attempt is under way.
    pub asking: Cell<bool>,
    /// No attempt before this.
    pub at: Cell<u64>,
    /// Between two attempts: longer with each that the database refuses.
    pause: Cell<u64>,
    /// The database refuses to say who has it.
    refusal: Lasting,
    /// Why it refuses and what to do, once that was told.
    refused: RefCell<Option<String>>,
    /// Who else has it and what to do, once that was told.
    holder: RefCell<Option<String>>,
}

impl RowOfOthers {
    /// Tries to take it, in that life; see [`RowOfOthers::answered`].
    pub async fn ask(&self, database: &Database, life: u64, (hold, again): (Duration, u64)) {
        let answer = database.take_lease_row(hold).await;
        let other = self.learn(life, answer, again);
        // What it means is done before it is told: the name is the database's to say.
        if let Some(other) = other {
            let text = who_holds(other, database).await;
            tracing::warn!(%other, "{text}");
            if self.life.get() == life && self.told.get() == Some(other) {
                self.holder.replace(Some(text));
            }
        }
    }

    /// Why the ring has not got it, with what to do, as far as that was told.
    pub fn trouble(&self) -> Option<String> {
        self.refused.borrow().clone().or_else(|| self.holder.borrow().clone())
    }

    /// Nobody needs it any more, so what was known of it is forgotten.
    pub fn forget(&self) {
        self.state.set(None);
        self.life.set(self.life.get() + 1);
        self.at.set(0);
        self.told.set(None);
        self.holder.take();
        self.refused.take();
        self.refusal.over();
    }

    /// Takes an answer; gives back of whom is to be told.
    fn learn(&self, life: u64, answer: LeaseRowAnswer, again: u64) -> Option<Uuid> {
        let other = match answer.state {
            Some(LeaseRowState::HeldBy(other)) => Some(other),
            _ => None,
        };
        self.answered(life, answer, again);
        self.asking.set(false);
        other.filter(|other| self.told.replace(Some(*other)) != Some(*other))
    }

    /// An attempt has ended that began in that life. `again`: microseconds until the row is looked
    /// at while it is the ring's.
    fn answered(&self, life: u64, answer: LeaseRowAnswer, again: u64) {
        let LeaseRowAnswer { state, refused } = answer;
        if let Some(LeaseRowState::Ours { .. }) = state {
            self.told.set(None);
            self.holder.take();
        }
        // What is the ring's stays so while nobody answers: another data centre may be away.
        let is_ours = || matches!(self.state.get(), Some(LeaseRowState::Ours { .. }));
        if self.life.get() == life && (state.is_some() || !is_ours()) {
            self.state.set(state);
        }
        // A majority of all replicas may refuse what those near us know: it is the ring's.
        self.refused(refused.filter(|_| !is_ours()));
        self.at.set(now() + if is_ours() { again } else { self.pause.get() });
    }

    /// An attempt has ended. `why`: the database refuses it.
    fn refused(&self, why: Option<NoResult>) {
        let passes = why.as_ref().and_then(|why| why.code).is_some_and(lacks_nodes);
        let longer = why.is_some() && !passes;
        let pause = if longer { 2 * self.pause.get() } else { 0 };
        self.pause.set(pause.clamp(RETRY.as_micros() as u64, LONGEST_RETRY.as_micros() as u64));
        let Some(why) = why else {
            self.refusal.over();
            self.refused.take();
            return;
        };
        if self.refusal.refused(!passes, now()) {
            let text = format!(
                "the ring cannot take the lease, so reads of `exclusive` tables pass through and writes may be refused: {why}; it is tried again within some seconds. {}",
                remedy(why.code)
            );
            tracing::error!("{text}");
            self.refused.replace(Some(text));
        }
    }
}

/// Who else caches, and what to do about it.
async fn who_holds(other: Uuid, database: &Database) -> String {
    if !is_ring(other) {
        return "an instance without this ring holds the lease: reads of `exclusive` tables pass through and writes are refused until it has ended; stop it".to_owned();
    }
    let name = match database.ring_of(other).await {
        Some(ring) => format!("the ring `{}` of data centre {}", ring.name, ring.data_center),
        None => "another ring".to_owned(),
    };
    format!(
        "{name} holds the lease: here reads of `exclusive` tables pass through and writes are refused; give all tables `max-staleness` here, or move their home to this ring, see \"Several data centres\" in docs/guide/ring.md"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_database_refuses_is_tried_again_ever_later_and_then_soon() {
        let row = RowOfOthers::default();
        let pause = |why: Option<&str>| {
            row.refused(why.map(NoResult::from));
            Duration::from_micros(row.pause.get())
        };
        assert_eq!(pause(None), RETRY, "nobody has answered");
        let pauses = [(); 5].map(|()| pause(Some("no permission")));
        assert_eq!(pauses.map(|pause| pause.as_millis()), [1_000, 2_000, 4_000, 4_000, 4_000]);
        assert!(row.trouble().is_some_and(|why| why.contains("no permission")));
        assert_eq!(pause(None), RETRY);
        assert_eq!(row.trouble(), None, "it refuses no more");
    }

    /// Its name is asked of a database that may answer late.
    #[test]
    fn another_holder_of_the_row_is_known_before_its_name_is() {
        let row = RowOfOthers::default();
        let other = Uuid::from_u128(7);
        let state = Some(LeaseRowState::HeldBy(other));
        let learn = || row.learn(0, LeaseRowAnswer { state, refused: None }, 0);
        assert_eq!(learn(), Some(other), "it is to be told");
        assert!(matches!(row.state.get(), Some(LeaseRowState::HeldBy(_))));
        assert_eq!(learn(), None, "once");
    }

    /// Another data centre is away, so no majority can be asked; the replicas near us know the row.
    #[test]
    fn a_refusal_is_no_trouble_where_the_row_is_known_as_the_ring_s() {
        let row = RowOfOthers::default();
        let answered = |state| {
            let refused = Some(NoResult::from("no permission"));
            row.answered(0, LeaseRowAnswer { state, refused }, 0);
            row.refusal.is_told()
        };
        let ours = LeaseRowState::Ours { unsettled: false, epoch: 1, is_new: false, taken: 1 };
        assert!(answered(None), "nothing is known of the row");
        assert!(!answered(Some(ours)));
        assert!(!answered(None), "it stays the ring's");
    }
}
