//! Our own user and password at the database, in a file of their own. They are never on a command
//! line or in the environment, where others see them.

use std::path::{Path, PathBuf};

use super::private::{self, PrivateFileError};

/// A user and a password.
#[derive(Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The user.
    pub username: String,
    /// The password.
    pub password: String,
}

/// Why there are none.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read, or by others too.
    #[error("the credentials in {0} cannot be used: {1}")]
    Unreadable(PathBuf, PrivateFileError),
    /// It does not say what it should. What it says is not repeated.
    #[error("{0} must have two lines: `username = \"...\"` and `password = \"...\"`")]
    Malformed(PathBuf),
}

/// Reads the file.
///
/// # Errors
/// See [`CredentialsError`].
pub fn read(path: &Path) -> Result<Credentials, CredentialsError> {
    let text = private::read(path)
        .map_err(|error| CredentialsError::Unreadable(path.to_owned(), error))?;
    let malformed = || CredentialsError::Malformed(path.to_owned());
    let text = str::from_utf8(&text).map_err(|_| malformed())?;
    toml::from_str(text).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn a_file_of_ones_own_with_user_and_password_is_read() {
        let (_dir, path) = file("username = \"afterglow\"\npassword = \"s=\\\"cret\"\n", 0o600);
        let read = read(&path).unwrap();
        assert_eq!((read.username.as_str(), read.password.as_str()), ("afterglow", "s=\"cret"));
    }

    #[test]
    fn anything_else_is_refused_without_telling_the_password() {
        for (text, mode, hint) in [
            ("username = \"a\"\npassword = \"hunter2\"", 0o640, "chmod 600"),
            ("username = \"a\"\npasword = \"hunter2\"", 0o600, "two lines"),
            ("hunter2", 0o600, "two lines"),
            (&format!("password = \"hunter2\" # {}", "x".repeat(65_536)), 0o600, "65536 bytes"),
        ] {
            let (_dir, path) = file(text, mode);
            let error = read(&path).err().unwrap().to_string();
            assert!(error.contains(hint) && !error.contains("hunter2"), "{error}");
        }
        assert!(
            read(Path::new("/nowhere/at/all"))
                .err()
                .unwrap()
                .to_string()
                .contains("cannot be read")
        );
    }
}
