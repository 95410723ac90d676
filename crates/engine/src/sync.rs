//! Locks and atomics. With `--cfg loom` or `--cfg shuttle` they are those of the model checker,
//! which then schedules the threads. So the models run the real code.

#[cfg(not(any(loom, shuttle)))]
pub use parking_lot::{Mutex, MutexGuard, RwLock};
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::atomic;

#[cfg(any(loom, shuttle))]
pub use model::{Mutex, MutexGuard, RwLock, atomic};

/// Gives a lock to whoever waits for it. Otherwise a thread that takes it again at once may have it
/// before them.
pub fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
    #[cfg(not(any(loom, shuttle)))]
    MutexGuard::unlock_fair(guard);
    #[cfg(any(loom, shuttle))]
    drop(guard);
}

/// The checkers' locks, with the interface of those above: nothing in a model panics with a lock
/// held.
#[cfg(any(loom, shuttle))]
mod model {
    #[cfg(loom)]
    use loom::sync as checker;
    #[cfg(shuttle)]
    use shuttle::sync as checker;

    pub use checker::{MutexGuard, RwLockReadGuard, RwLockWriteGuard, atomic};

    /// A mutex without poison.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(checker::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(checker::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("nobody panics with a lock held")
        }
    }

    /// A read-write lock without poison.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(checker::RwLock<T>);

    impl<T> RwLock<T> {
        pub fn new(value: T) -> Self {
            Self(checker::RwLock::new(value))
        }

        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("nobody panics with a lock held")
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("nobody panics with a lock held")
        }
    }
}
