//! Users whom no client has any more: after a while their connections end. Otherwise each user who
//! ever logged in would keep some for ever, on every reactor and to every node.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Since when users have connections on a reactor, and nobody who needs them.
#[derive(Default)]
pub struct IdleUsers(HashMap<u32, Instant>);

impl IdleUsers {
    /// Those of the users with connections whom nobody has needed for so long. `needed`: whom
    /// somebody needs now.
    pub fn over(
        &mut self,
        connected: &HashSet<u32>,
        needed: &HashSet<u32>,
        now: Instant,
        after: Duration,
    ) -> HashSet<u32> {
        self.0.retain(|user, _| connected.contains(user) && !needed.contains(user));
        let idle = connected.difference(needed).copied();
        idle.filter(|user| {
            let since = *self.0.entry(*user).or_insert(now);
            now.saturating_duration_since(since) >= after
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u32; 0] = [];

    #[test]
    fn a_user_is_over_once_nobody_has_needed_him_for_that_long() {
        let (mut idle, start) = (IdleUsers::default(), Instant::now());
        let after = Duration::from_secs(60);
        let mut look = |connected: &[u32], needed: &[u32], second| {
            let set = |users: &[u32]| users.iter().copied().collect();
            let now = start + Duration::from_secs(second);
            let mut over: Vec<_> =
                idle.over(&set(connected), &set(needed), now, after).into_iter().collect();
            over.sort_unstable();
            over
        };
        assert_eq!(look(&[1, 2], &[1], 0), NONE);
        assert_eq!(look(&[1, 2], &[1], 59), NONE);
        assert_eq!(look(&[1, 2], &[1], 60), [2]);
        assert_eq!(look(&[1], &[], 61), NONE, "it counts from when the last client was seen");
        assert_eq!(look(&[1, 2], &[1], 62), NONE, "he came again, and all begins anew");
        assert_eq!(look(&[1, 2], &[1, 2], 100), NONE, "somebody needs him");
        assert_eq!(look(&[1, 2], &[], 159), NONE);
        assert_eq!(look(&[1, 2], &[], 219), [1, 2]);
    }
}
