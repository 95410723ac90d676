//! Notifies a service manager such as systemd: ready, reloading, stopping, and that the reactors
//! run.
//!
//! `notify` speaks systemd's protocol (sd_notify(3)): one datagram with `NAME=value` lines to the
//! socket that `NOTIFY_SOCKET` names. `watchdog` pings it while every reactor runs its tasks.
//! Without such a socket nothing is sent.

mod notify;
mod watchdog;

pub use notify::{Notifier, NotifyError};
pub use watchdog::Watchdog;
