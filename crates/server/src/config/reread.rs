//! Whether a file can be read again while serving.

use std::path::Path;

/// A start may read a pipe, as a shell's `<(command)` makes one. Reading it again could block for
/// ever, and has nothing to give.
///
/// # Errors
/// Says why not, without the path.
pub fn check_rereadable(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        true => Ok(()),
        false => Err("only a regular file can be read again, and this is none".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_a_regular_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (file, pipe) = (dir.path().join("file"), dir.path().join("pipe"));
        std::fs::write(&file, "").unwrap();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(check_rereadable(&file), Ok(()));
        let error = check_rereadable(&pipe).unwrap_err();
        assert!(error.contains("only a regular file"), "{error}");
        std::fs::remove_file(&file).unwrap();
        assert!(check_rereadable(&file).unwrap_err().contains("No such file"));
    }
}
