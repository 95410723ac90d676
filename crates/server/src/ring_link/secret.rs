//! The secret that all members of a ring share, and how it is changed while they run: a member may
//! know several. It shows the first when it dials, and accepts any of them from who dials it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use ring_crypto::hkdf;

use crate::config::private::{self, PrivateFileError};

/// Shortest secret.
const MIN_BYTES: usize = 32;
/// RFC 5869, section 3.1: any fixed value. It keeps our keys apart from those of other programs
/// that have the same secret.
const SALT: &[u8] = b"afterglow ring link 1";

/// Most secrets of one file: each may be tried at a connection of anybody.
const MOST: usize = 4;

/// A secret from which keys are made. It cannot be shown.
#[derive(Clone)]
pub struct Secret(hkdf::Prk);

/// The secrets that a member knows now, at least one. Clones share them.
#[derive(Clone, Debug)]
pub struct Secrets(Arc<RwLock<Arc<[Secret]>>>);

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read, or by others too.
    #[error("the ring's secret in {0} cannot be used: {1}")]
    Unreadable(PathBuf, PrivateFileError),
    /// It can be guessed.
    #[error(
        "the ring's secret in {0} has {1} bytes and needs {MIN_BYTES}: make one with `head -c 32 /dev/urandom | base64`"
    )]
    Short(PathBuf, usize),
    /// More than a change of the secret needs.
    #[error("{0} has {1} lines, each a secret, and may have {MOST}: take old ones out")]
    Many(PathBuf, usize),
}

impl Secrets {
    /// Reads a file that only its owner may read: each line is a secret, the first is shown to
    /// others.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let text =
            private::read(path).map_err(|error| SecretError::Unreadable(path.to_owned(), error))?;
        let lines = text.split(|byte| *byte == b'\n');
        let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let lines: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).collect();
        let short = lines.iter().map(|line| line.len()).find(|bytes| *bytes < MIN_BYTES);
        match (lines.len(), short) {
            (0, _) => Err(SecretError::Short(path.to_owned(), 0)),
            (_, Some(bytes)) => Err(SecretError::Short(path.to_owned(), bytes)),
            (count, None) if count > MOST => Err(SecretError::Many(path.to_owned(), count)),
            _ => Ok(Self::of(lines.into_iter().map(Secret::of))),
        }
    }

    /// These, of which the first is shown to others.
    ///
    /// # Panics
    /// Without any.
    pub fn of(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let secrets: Arc<[Secret]> = secrets.into_iter().collect();
        assert!(!secrets.is_empty(), "a ring has a secret");
        Self(Arc::new(RwLock::new(secrets)))
    }

    /// For links that begin from now on, here and in all clones; others live on.
    pub fn replace(&self, by: &Secrets) {
        let by = by.all();
        *self.0.write() = by;
    }

    /// Those of now.
    pub(super) fn all(&self) -> Arc<[Secret]> {
        self.0.read().clone()
    }
}

impl Secret {
    /// These bytes. Whoever can guess them can be a member.
    pub fn of(bytes: &[u8]) -> Self {
        Self(hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(bytes))
    }

    pub(super) fn prk(&self) -> &hkdf::Prk {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn read(bytes: &[u8], mode: u32) -> Result<Arc<[Secret]>, SecretError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        Secrets::read(&path).map(|secrets| secrets.all())
    }

    fn key(secret: &Secret) -> Vec<u8> {
        let mut key = vec![0; 32];
        let okm = secret.prk().expand(&[b"test"], hkdf::HKDF_SHA256).unwrap();
        okm.fill(&mut key).unwrap();
        key
    }

    #[test]
    fn each_line_is_a_secret_and_its_end_no_part_of_it() {
        let bare = key(&read(&[b'x'; 32], 0o600).unwrap()[0]);
        for (end, same) in [("\n", true), ("\r\n", true), ("\n\n", true), (" ", false)] {
            let text = [&[b'x'; 32], end.as_bytes()].concat();
            let [only] = &read(&text, 0o400).unwrap()[..] else { panic!("{end:?}") };
            assert_eq!(key(only) == bare, same, "{end:?}");
        }
        let two = [&[b'y'; 32], &b"\n\n"[..], &[b'x'; 32], b"\n"].concat();
        let [first, second] = &read(&two, 0o600).unwrap()[..] else { panic!("two lines") };
        assert!(key(first) != bare && key(second) == bare);
        let five = [&[b'x'; 32], &b"\n"[..]].concat().repeat(5);
        assert!(read(&five, 0o600).unwrap_err().to_string().contains("has 5 lines"));
    }

    #[test]
    fn clones_hear_of_others() {
        let secrets = Secrets::of([Secret::of(b"one")]);
        let clone = secrets.clone();
        secrets.replace(&Secrets::of([Secret::of(b"two"), Secret::of(b"one")]));
        assert_eq!(clone.all().len(), 2);
    }

    #[test]
    fn what_others_can_read_or_guess_is_refused_without_telling_it() {
        for (bytes, mode, why) in [
            (&b"hunter2"[..], 0o600, "has 7 bytes and needs 32: make one with"),
            (b"hunter2hunter2hunter2hunter2123\n", 0o600, "has 31 bytes"),
            (b"", 0o600, "has 0 bytes"),
            (b"hunter2hunter2hunter2hunter2hunter2", 0o640, "chmod 600"),
        ] {
            let error = read(bytes, mode).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("hunter2"), "{error}");
        }
        let error = Secrets::read(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
        assert_eq!(format!("{:?}", read(&[7; 32], 0o600).unwrap()), "[Secret(..)]");
    }
}
