//! Reasons and outcomes, as the metrics count them.

use afterglow_rowcache::gate::Bypass;
use afterglow_rowcache::install::Installed;
use afterglow_rowcache::serve::{NotCached, NotServed, Unfit};
use afterglow_rowcache::unit::NoFill;
use afterglow_rowcache::write_in_flight::InDoubt;

use super::fill::FillFailure;
use crate::metrics::{FillOutcome, MissReason, PassReason, QuarantineReason, Tier};

impl From<Unfit> for PassReason {
    fn from(reason: Unfit) -> PassReason {
        match reason {
            Unfit::Paging => PassReason::Paging,
            Unfit::Option => PassReason::Option,
        }
    }
}

impl From<NotCached> for PassReason {
    fn from(reason: NotCached) -> PassReason {
        match reason {
            NotCached::Suspended => PassReason::Suspended,
            NotCached::PolicyOff => PassReason::PolicyOff,
            NotCached::NoLease => PassReason::NoLease,
            NotCached::NotOwner => PassReason::NotOwner,
            NotCached::Disagreement => PassReason::RingSettings,
        }
    }
}

impl From<NotServed> for MissReason {
    fn from(reason: NotServed) -> MissReason {
        match reason {
            NotServed::Corrupt => MissReason::Corrupt,
            NotServed::Expired => MissReason::Expired,
            NotServed::Unusable => MissReason::Unusable,
        }
    }
}

impl From<Installed> for FillOutcome {
    fn from(installed: Installed) -> FillOutcome {
        match installed {
            Installed::Row => FillOutcome::Installed,
            Installed::Absent => FillOutcome::InstalledAbsent,
            Installed::Overtaken => FillOutcome::Overtaken,
            Installed::Uncacheable => FillOutcome::Uncacheable,
            Installed::Refused => FillOutcome::Refused,
            Installed::TooLarge => FillOutcome::TooLarge,
        }
    }
}

impl From<FillFailure> for FillOutcome {
    fn from(failure: FillFailure) -> FillOutcome {
        match failure {
            FillFailure::Failed | FillFailure::OtherTypes => FillOutcome::Failed,
            FillFailure::Uncacheable => FillOutcome::Uncacheable,
            FillFailure::TooLarge => FillOutcome::TooLarge,
            FillFailure::Late => FillOutcome::Late,
        }
    }
}

impl From<NoFill> for MissReason {
    fn from(reason: NoFill) -> MissReason {
        match reason {
            NoFill::TooLarge => MissReason::TooLarge,
            NoFill::Churn => MissReason::Churn,
        }
    }
}

impl From<InDoubt> for QuarantineReason {
    fn from(reason: InDoubt) -> QuarantineReason {
        match reason {
            InDoubt::WriteTimeout => QuarantineReason::WriteTimeout,
            InDoubt::WriteFailure => QuarantineReason::WriteFailure,
            InDoubt::ServerError => QuarantineReason::ServerError,
            InDoubt::ConnectionLost => QuarantineReason::ConnectionLost,
        }
    }
}

impl From<Bypass> for MissReason {
    fn from(bypass: Bypass) -> MissReason {
        match bypass {
            Bypass::WriteInFlight => MissReason::WriteInFlight,
            Bypass::Quarantined => MissReason::Quarantined,
            Bypass::TooLarge => MissReason::TooLarge,
        }
    }
}

impl From<afterglow_engine::MissReason> for MissReason {
    fn from(reason: afterglow_engine::MissReason) -> MissReason {
        use afterglow_engine::MissReason as Engine;
        match reason {
            Engine::Absent => MissReason::Absent,
            Engine::Loading => MissReason::Loading,
            Engine::Expired => MissReason::Expired,
            Engine::Killed => MissReason::Killed,
            Engine::Superseded => MissReason::Superseded,
            Engine::Collision => MissReason::Collision,
            Engine::Corrupt => MissReason::Corrupt,
            Engine::Device => MissReason::Device,
            Engine::Moved => MissReason::Moved,
            Engine::Abandoned => MissReason::Abandoned,
            Engine::Busy => MissReason::Busy,
        }
    }
}

impl From<afterglow_engine::Tier> for Tier {
    fn from(tier: afterglow_engine::Tier) -> Tier {
        match tier {
            afterglow_engine::Tier::Dram => Tier::Dram,
            afterglow_engine::Tier::Buffer => Tier::Buffer,
            afterglow_engine::Tier::Flash => Tier::Flash,
        }
    }
}
