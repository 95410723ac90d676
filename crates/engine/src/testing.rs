//! Help for this crate's unit tests.

use std::path::{Path, PathBuf};

/// A folder of its own, removed with everything in it at the end.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// Creates one in the system's folder for temporary files.
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("afterglow-test-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).expect("a folder for temporary files");
        Self(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A test that failed half way may leave anything; what cannot be removed is left behind.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
