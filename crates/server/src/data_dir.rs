//! The data directory. Only its owner may enter it, because it holds rows of the database.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The data directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use data directory {}: {source}. {}", .path.display(), hint(.source))]
pub struct DataDirError {
    path: PathBuf,
    source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "Give this user the right to write there, or choose another with --data-dir"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "The file system is read-only: choose another with --data-dir"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "Something else has that name: choose another with --data-dir"
        }
        io::ErrorKind::StorageFull => {
            "The disk is full: make room, or choose another with --data-dir"
        }
        _ => "Choose another with --data-dir",
    }
}

/// A directory that can be used. What was made for it is removed again, unless it is kept.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    /// Directories that were missing, the innermost first.
    made: Vec<PathBuf>,
}

impl DataDir {
    /// Makes the directory (mode 0700) when it is missing, and sees that files can be made there.
    pub(crate) fn prepare(path: &Path) -> Result<DataDir, DataDirError> {
        let missing = path.ancestors().filter(|path| !path.as_os_str().is_empty());
        let missing = missing.take_while(|path| !path.exists()).map(Path::to_path_buf).collect();
        let mut dir = DataDir { path: path.to_path_buf(), made: missing };
        // Dropped on failure, with what was made until then.
        dir.path = prepare(path)?;
        Ok(dir)
    }

    /// Its full path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its full path; what was made stays.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.made.clear();
        std::mem::take(&mut self.path)
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        for made in &self.made {
            // Somebody else may have put something there; that stays.
            let _ = fs::remove_dir(made);
        }
    }
}

fn prepare(path: &Path) -> Result<PathBuf, DataDirError> {
    let failed = |source| DataDirError { path: path.to_path_buf(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let path = path.canonicalize().map_err(failed)?;
    let mode = fs::metadata(&path).map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(
            "other users may enter {} (mode {:o}); its files are for its owner only, `chmod 700` hides their names too",
            path.display(),
            mode & 0o7777
        );
    }
    // Tried rather than asked: there are file systems whose directories have fine modes and take no
    // file.
    let probe = path.join(format!(".probe-{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(&probe).map_err(failed)?;
    fs::remove_file(&probe).map_err(failed)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_for_its_owner_only() {
        let parent = tempfile::tempdir().unwrap();
        let path = prepare(&parent.path().join("a/b")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(prepare(&path).unwrap(), path, "an existing one is taken as it is");
    }

    #[test]
    fn what_is_made_for_a_look_is_removed_again() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        drop(DataDir::prepare(&path).unwrap());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        let kept = DataDir::prepare(&path).unwrap().keep();
        drop(DataDir::prepare(&path).unwrap());
        assert!(kept.is_dir(), "what was there before stays");
        assert_eq!(fs::read_dir(kept).unwrap().count(), 0, "a probe was left");
        assert!(DataDir::prepare(Path::new("/proc/nothing")).is_err());
    }

    #[test]
    fn a_file_of_that_name_is_said() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("file");
        fs::write(&path, "").unwrap();
        let message = prepare(&path).unwrap_err().to_string();
        assert!(message.contains("--data-dir") && message.contains("file"), "{message}");
    }
}
