//! Traps: what goes wrong at the very moment at which a process does something.

use super::plot::{Deed, Fault, MS, Snare, Trap};
use super::world::World;
use crate::config::Time;
use crate::io::Action;
use crate::message::Message;

/// What happens to one action.
#[derive(Debug, Default, Clone)]
pub struct Sprung {
    pub late: Time,
    pub lost: bool,
    pub again: Option<Time>,
    pub then: Vec<Fault>,
}

/// How long a trap waits.
const WAITS: Time = 3_000 * MS;

impl Deed {
    /// What an action is.
    pub fn of(action: &Action) -> Option<Self> {
        Some(match action {
            Action::Send { envelope, .. } => match envelope.message {
                Message::Begin { .. } => Self::Begin,
                Message::Grant { .. } => Self::Grant,
                Message::Drop { .. } => Self::Drop,
                Message::Dropped { .. } => Self::Dropped,
                Message::End { .. } => Self::End,
                Message::Get { .. } => Self::Get,
                Message::Found { .. } => Self::Found,
                Message::Pull { .. } => Self::Pull,
                Message::Pulled { .. } => Self::Pulled,
                Message::HandoverWanted { .. } => Self::HandoverWanted,
                Message::Handover { .. } => Self::Handover,
                Message::Ping { .. } => Self::Ping,
                Message::Pong { .. } => Self::Pong,
                Message::MapIs(_) => Self::MapIs,
                _ => return None,
            },
            Action::ReadMap { .. } => Self::ReadMap,
            Action::Transact { .. } => Self::Transact,
            Action::ReadRow { .. } => Self::ReadRow,
            Action::SendWrite { .. } => Self::SendWrite,
            Action::Acknowledge { .. } => Self::Acknowledge,
            Action::Answer { .. } | Action::Fail { .. } => return None,
        })
    }
}

impl World {
    pub fn set_trap(&mut self, node: usize, deed: Deed, snare: Snare) {
        let until = self.now + WAITS;
        self.traps.push(Trap { node, deed, snare, until });
    }

    /// Springs the traps that wait for this action of a process.
    pub fn spring(&mut self, at: usize, action: &Action) -> Sprung {
        let mut sprung = Sprung::default();
        if self.traps.is_empty() || !self.unreliable() {
            return sprung;
        }
        let now = self.now;
        self.traps.retain(|trap| trap.until > now);
        let Some(deed) = Deed::of(action) else { return sprung };
        while let Some(trap) = self.traps.iter().position(|t| t.node == at && t.deed == deed) {
            let trap = self.traps.remove(trap);
            self.say(|| format!("TRAP {trap:?}"));
            match trap.snare {
                Snare::Late(time) => sprung.late += time,
                Snare::Lose => sprung.lost = true,
                Snare::Again(time) => sprung.again = Some(time),
                Snare::First(fault) => self.happens(*fault),
                Snare::Then(fault) => sprung.then.push(*fault),
            }
        }
        sprung
    }
}
