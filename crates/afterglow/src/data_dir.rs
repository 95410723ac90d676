//! The data directory, which only its owner may enter: what is cached are the database's rows.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
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
        io::ErrorKind::ReadOnlyFilesystem => "The file system is read-only: choose another with --data-dir",
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "Something else has that name: choose another with --data-dir"
        }
        io::ErrorKind::StorageFull => "The disk is full: make room, or choose another with --data-dir",
        _ => "Choose another with --data-dir",
    }
}

/// Makes the directory (mode 0700) when it is missing, and sees that one can write there. Returns its full path.
pub(crate) fn prepare(path: &Path) -> Result<PathBuf, DataDirError> {
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
    // Asked of the kernel rather than read from the mode: a read-only mount has fine modes.
    rustix::fs::access(&path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|e| failed(e.into()))?;
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
    fn a_file_of_that_name_is_said() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("file");
        fs::write(&path, "").unwrap();
        let message = prepare(&path).unwrap_err().to_string();
        assert!(message.contains("--data-dir") && message.contains("file"), "{message}");
    }
}
