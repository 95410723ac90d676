//! Files that hold passwords: small, and for nobody but their owner.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The longest file that is read.
const MAX_BYTES: u64 = 64 * 1024;

/// Why such a file is not read. The text follows the file's name.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// The system does not give it.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// Others may read or change it.
    #[error("other users can read it (mode {0:03o}) and it holds a password: `chmod 600` it")]
    Exposed(u32),
    /// It holds something else.
    #[error("it is larger than {MAX_BYTES} bytes: shorten it")]
    TooLong,
}

/// Reads a file of at most 64 KiB that none but its owner may read.
///
/// # Errors
/// See [`PrivateFileError`].
pub fn read(path: &Path) -> Result<Vec<u8>, PrivateFileError> {
    let file = File::open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
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

#[cfg(test)]
mod tests {
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
}
