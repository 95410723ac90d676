//! Files that hold passwords or keys: small, and readable only by their owner, or by root and one
//! of our groups. So Kubernetes gives a secret to a process that is not root.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{getegid, geteuid, getgroups};

/// The longest file that is read.
const MAX_BYTES: u64 = 64 * 1024;

/// Why such a file is not read. The text follows the file's name.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// The system does not give it.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// Others may read or change it.
    #[error("other users can read it (mode {0:03o}) and it holds a secret: `chmod 600` it")]
    Exposed(u32),
    /// It holds something else.
    #[error("it is larger than {MAX_BYTES} bytes: shorten it")]
    TooLong,
}

/// Reads a file of at most 64 KiB that none but its owner may read. One of root's may have mode
/// 0440 if this process is not root's and of the file's group.
///
/// # Errors
/// See [`PrivateFileError`].
pub fn read(path: &Path) -> Result<Vec<u8>, PrivateFileError> {
    let file = File::open(path)?;
    let about = file.metadata()?;
    let mode = about.mode() & 0o777;
    let others = forbidden(about.uid(), is_ours(about.gid()), geteuid().is_root());
    if mode & others != 0 {
        return Err(PrivateFileError::Exposed(mode));
    }
    let mut text = Vec::new();
    // One byte more tells a longer file from one that just fits.
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(PrivateFileError::TooLong);
    }
    Ok(text)
}

/// The bits of a mode that no such file may have, for a reader of the file's group or not.
fn forbidden(owner: u32, of_its_group: bool, is_root: bool) -> u32 {
    if owner == 0 && of_its_group && !is_root { 0o037 } else { 0o077 }
}

/// Whether this process is of that group.
fn is_ours(group: u32) -> bool {
    let more = getgroups().unwrap_or_default();
    getegid().as_raw() == group || more.iter().any(|gid| gid.as_raw() == group)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_read_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        for (length, mode, why) in [
            (0, 0o600, None),
            (65_536, 0o400, None),
            (65_537, 0o600, Some("larger than 65536 bytes")),
            (10, 0o604, Some("mode 604")),
            (10, 0o660, Some("chmod 600")),
        ] {
            std::fs::write(&path, vec![b'x'; length]).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            match (read(&path), why) {
                (Ok(text), None) => assert_eq!(text.len(), length),
                (Err(error), Some(why)) => assert!(error.to_string().contains(why), "{error}"),
                (other, why) => panic!("{other:?} is not {why:?}"),
            }
            std::fs::remove_file(&path).unwrap();
        }
        assert!(read(&path).unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    fn a_group_may_read_only_what_is_of_root_and_of_a_group_of_a_reader_who_is_not() {
        for (owner, of_its_group, is_root, good) in [
            (0, true, false, [0o400, 0o440, 0o640].as_slice()),
            (0, false, false, &[0o400]),
            (0, true, true, &[0o400]),
            (1000, true, false, &[0o400]),
        ] {
            for mode in [0o400, 0o440, 0o640, 0o460, 0o444] {
                let taken = mode & forbidden(owner, of_its_group, is_root) == 0;
                assert_eq!(taken, good.contains(&mode), "{owner} {of_its_group} {mode:o}");
            }
        }
        assert!(is_ours(getegid().as_raw()) && !is_ours(54_321));
    }
}
