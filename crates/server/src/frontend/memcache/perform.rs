//! Carries requests out: at once if memory has the answer, in a task of its own if flash has to be
//! read. Answers leave in order either way.

use std::io;
use std::rc::Rc;

use afterglow_engine::{Ack, Resized};
use afterglow_memcache::{
    Action, Dump, Mode, Operation, Outcome, Reply, Request, Store as Storing, Topics,
};

use super::dump::{Running, Step};
use super::flush::Flushed;
use super::metering::slow;
use super::reactor_state::MemcacheReactorState;
use super::session::{MemcacheSession, Performed};
use super::version::version;
use super::{certificates, stats};
use crate::metrics::Path;

impl MemcacheSession {
    /// Carries a request out.
    pub fn perform(&mut self, request: Request<'_>) -> Performed {
        if !self.answers.has_room(0) {
            return Performed::Blocked;
        }
        match request {
            Request::Retrieve { keys, get, reply } => return self.retrieve(keys, get, &reply),
            Request::Operation(operation) => return self.operation(operation),
            Request::TooLarge { key, mode, remove, reply } => {
                return self.too_large(&key, (mode, remove), reply);
            }
            Request::Answer { bytes, close } => {
                self.answers.push(|out| out.extend_from_slice(&bytes));
                self.at_once.add(Path::Local);
                if close {
                    return Performed::Close;
                }
            }
            Request::Stats { argument, reply } => {
                let performed = stats::answer(self, argument, &reply);
                if matches!(performed, Performed::Done) {
                    self.at_once.add(Path::Local);
                }
                return performed;
            }
            Request::Dump(dump) => {
                let performed = self.dump(dump);
                if matches!(performed, Performed::Done) {
                    self.at_once.add(Path::Local);
                }
                return performed;
            }
            Request::Watch(topics) => return self.watch(topics),
            Request::Flush { reply, .. } if !self.reactor_state.front_end.config.flush_enabled => {
                self.reactor_state.counts.cmd_flush.inc();
                self.answers.push(|out| reply.no_flush(out));
            }
            Request::Flush { delay: Some(delay), reply } => return self.flush(delay, &reply),
            Request::Flush { delay: None, reply } => {
                self.reactor_state.counts.cmd_flush.inc();
                self.answers.push(|out| reply.bad_expiry(out));
            }
            Request::Version(reply) => self.answers.push(|out| reply.version(&version(), out)),
            Request::Authenticate { user, password, reply } => {
                if self.authenticate(user, password, &reply) {
                    self.at_once.add(Path::Local);
                    return Performed::Authenticated;
                }
            }
            Request::MemoryLimit { megabytes, quiet } => {
                return self.limit_memory(megabytes, quiet);
            }
            Request::Verbosity { level, quiet } => {
                self.reactor_state.front_end.limits.set_verbosity(level);
                self.answers.push(|out| Reply::Text { quiet }.done(out));
            }
            Request::RefreshCertificates => {
                let line =
                    certificates::refresh(self.reactor_state.front_end.config.tls.as_deref());
                self.answers.push(|out| out.extend_from_slice(line.as_bytes()));
            }
        }
        self.at_once.add(Path::Local);
        Performed::Done
    }

    /// Answers a client that says who it is; whether that is so.
    fn authenticate(&self, user: &[u8], password: &[u8], reply: &Reply<'_>) -> bool {
        let users = self.reactor_state.front_end.users.read();
        let accepted = users.as_ref().is_some_and(|users| users.knows(user, password));
        self.reactor_state.counts.auth_cmds.inc();
        if !accepted {
            self.reactor_state.counts.auth_errors.inc();
        }
        self.answers.push(|out| reply.authenticated(accepted, out));
        accepted
    }

    /// Begins a dump, or goes on with it.
    fn dump(&mut self, dump: Dump) -> Performed {
        // What is before it is answered first, and its own pieces come one after the other.
        if !self.answers.is_complete() {
            return Performed::Blocked;
        }
        if self.dump.is_none() {
            match Running::begin(&self.reactor_state.front_end, dump) {
                Ok(running) => self.dump = Some(running),
                Err(answer) => {
                    self.answers.push(|out| out.extend_from_slice(answer));
                    return Performed::Done;
                }
            }
        }
        let step = self.dump.as_ref().expect("begun above").advance(&self.answers);
        if step != Step::Waits {
            self.dump = None;
        }
        match step {
            Step::Waits => Performed::Blocked,
            Step::Over => Performed::Done,
            Step::Torn => Performed::Close,
        }
    }

    /// Has the connection be told of `topics` and asked for nothing more.
    fn watch(&mut self, topics: Topics) -> Performed {
        if !self.answers.is_complete() {
            return Performed::Blocked;
        }
        let front_end = &self.reactor_state.front_end;
        let refused = if !front_end.config.watch_enabled {
            "CLIENT_ERROR watch commands not allowed\r\n"
        } else if !self.answers.is_empty() {
            "ERROR cannot pipeline other commands before watch\r\n"
        } else if let Some(watching) = front_end.watchers.join(topics) {
            self.answers.push(|out| out.extend_from_slice(b"OK\r\n"));
            return Performed::Watch(watching);
        } else {
            "WATCHER_TOO_MANY log watcher limit reached\r\n"
        };
        self.answers.push(|out| out.extend_from_slice(refused.as_bytes()));
        Performed::Done
    }

    /// What no longer fits goes to flash first, so this is not for a thread that others wait for.
    fn limit_memory(&self, megabytes: u32, quiet: bool) -> Performed {
        // Another one may be in flight; this one comes after it.
        if !self.answers.is_complete() {
            return Performed::Blocked;
        }
        // No object has this key.
        let slot = self.answers.reserve(&[], true, 0);
        let (reactor_state, received) = (self.reactor_state.clone(), self.received);
        compio::runtime::spawn(async move {
            let turn = reactor_state.blocking.take().await;
            let front_end = reactor_state.front_end.clone();
            let limit = move || {
                let wanted = u64::from(megabytes) << 20;
                let opened = front_end.config.limits.memory;
                let by = wanted as i64 - opened as i64;
                wanted <= front_end.limits.memory()
                    && front_end.cache.resize_dram(by, &|| true) == Resized::Done
            };
            let answer: &[u8] = match compio::runtime::spawn_blocking(limit).await {
                _ if quiet => b"",
                Ok(true) => b"OK\r\n",
                _ => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
            };
            drop(turn);
            slot.answer(|out| out.extend_from_slice(answer));
            reactor_state
                .metrics
                .took(Path::Local, received.elapsed(), || slow("cache_memlimit", b""));
        })
        .detach();
        Performed::Done
    }

    /// Drops everything if that is due. Later requests see none of it.
    pub fn flush_if_due(&self) {
        if let Some(flushed) = self.store().flush_if_due() {
            let reactor_state = self.reactor_state.clone();
            compio::runtime::spawn(flush_to_disk(reactor_state, Ok(flushed))).detach();
        }
    }

    fn flush(&mut self, delay: i64, reply: &Reply<'_>) -> Performed {
        if !self.answers.is_complete() {
            return Performed::Blocked;
        }
        if let Some(backpressure) = self.store().objects.backpressure() {
            return Performed::Full(backpressure);
        }
        self.reactor_state.counts.cmd_flush.inc();
        let flushed = self.store().flush(delay);
        // No object has this key.
        let slot = self.answers.reserve(&[], true, 0);
        let (reactor_state, reply) = (self.reactor_state.clone(), reply.clone().into_owned());
        let received = self.received;
        compio::runtime::spawn(async move {
            let outcome = flush_to_disk(reactor_state.clone(), flushed).await;
            slot.answer(|out| match outcome {
                Ok(()) => reply.done(out),
                Err(error) => {
                    tracing::error!(%error, "a flush_all cannot be scheduled");
                    reply.outcome(&[], &Outcome::Failed, None, 0, out);
                }
            });
            reactor_state.metrics.took(Path::Write, received.elapsed(), || slow("flush_all", b""));
        })
        .detach();
        Performed::Done
    }

    /// Counts an operation that came as a meta command.
    pub(super) fn count_meta(&self, reply: &Reply<'_>) {
        if matches!(reply, Reply::Meta(_)) {
            self.reactor_state.counts.cmd_meta.inc();
        }
    }

    pub(super) fn operation(&mut self, operation: Operation<'_>) -> Performed {
        let is_meta = matches!(operation.reply, Reply::Meta(_));
        let performed = match &operation.action {
            Action::Get(get) if get.is_plain() => self.get(&operation.key, *get, &operation.reply),
            Action::Store(Storing { mode: Mode::Set, .. }) => self.set(&operation),
            Action::Store(_) | Action::Get(_) | Action::Delete(_) | Action::Arithmetic(_) => {
                self.modify(operation)
            }
        };
        // What has to wait comes again.
        if is_meta && matches!(performed, Performed::Done) {
            self.reactor_state.counts.cmd_meta.inc();
        }
        performed
    }
}

/// Waits until a flush, or the second in which there is to be one, is where it survives what the
/// namespace's durability says.
async fn flush_to_disk(
    reactor_state: Rc<MemcacheReactorState>,
    flushed: Result<Flushed<Ack<u64>>, u64>,
) -> io::Result<()> {
    let due = match flushed {
        Ok(Flushed { outcome, scheduled }) => {
            if let Ack::Later(pending) = outcome {
                pending.await;
            }
            if !scheduled {
                return Ok(());
            }
            None
        }
        Err(due) => Some(due),
    };
    let _turn = reactor_state.blocking.take().await;
    let front_end = reactor_state.front_end.clone();
    // The file is a matter of the disk: not on this thread, which has others to serve.
    let change = move || {
        let schedule = front_end.store.schedule();
        match due {
            Some(due) => schedule.schedule(due),
            None => {
                schedule.forget();
                Ok(())
            }
        }
    };
    compio::runtime::spawn_blocking(change).await?
}
