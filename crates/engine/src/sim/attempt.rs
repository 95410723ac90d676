//! Runs a plan and returns a panic as an error.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::plan::Plan;
use super::run::run;
use super::state::Outcome;

thread_local! {
    /// Where a panic of this thread goes, while a run is tried.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a plan; what it panics with comes back as an error, without noise.
pub fn try_run(plan: &Plan) -> Result<Outcome, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let quiet = CAUGHT.with_borrow_mut(|caught| match caught {
                Some(message) => {
                    *message = info.to_string();
                    true
                }
                None => false,
            });
            if !quiet {
                loud(info);
            }
        }));
    });
    CAUGHT.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(|| run(plan, false)));
    let message = CAUGHT.take().unwrap_or_default();
    result.map_err(|_| message)
}
