//! A mistake in a configuration, with its place.

use std::{fmt, ops::Range, path::Path};

/// Where a setting was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingPlace {
    /// Nowhere: it has its default.
    Default,
    /// In the file.
    File(FilePlace),
    /// In this environment variable.
    Variable(String),
    /// Behind this flag (its name without dashes).
    Flag(String),
}

/// A stretch of the configuration file. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlace {
    /// The file as it was named.
    pub file: String,
    /// Its line.
    pub line: usize,
    /// The column it starts at.
    pub column: usize,
    /// The whole line.
    pub text: String,
    /// How many characters of it are meant; at least one.
    pub width: usize,
}

impl FilePlace {
    /// Finds the line and column of a range of bytes.
    pub fn new(file: &Path, content: &str, range: Range<usize>) -> Self {
        // Errors at the end of the file may point past it, and never into a character; be safe
        // against both.
        let floor = |mut at: usize| {
            at = at.min(content.len());
            while !content.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let (start, end) = (floor(range.start), floor(range.end.max(range.start)));
        let line_start = content[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let text = content[line_start..].lines().next().unwrap_or_default();
        let column = content[line_start..start].chars().count();
        let width = content[start..end].lines().next().unwrap_or_default().chars().count();
        FilePlace {
            file: file.display().to_string(),
            line: content[..line_start].matches('\n').count() + 1,
            column: column + 1,
            text: text.to_string(),
            width: width.max(1),
        }
    }
}

impl fmt::Display for SettingPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingPlace::Default => f.write_str("default"),
            SettingPlace::File(at) => write!(f, "{}:{}:{}", at.file, at.line, at.column),
            SettingPlace::Variable(name) => f.write_str(name),
            SettingPlace::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub place: SettingPlace,
    /// What, and what to do about it.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            SettingPlace::Default => f.write_str(&self.message),
            SettingPlace::File(at) => {
                let number = at.line.to_string();
                let gutter = " ".repeat(number.len());
                // Tabs are kept, so that the marks stand below what they mean whatever the width of
                // a tab.
                let blank = |c: char| if c == '\t' { '\t' } else { ' ' };
                let indent: String = at.text.chars().take(at.column - 1).map(blank).collect();
                writeln!(f, "{}: {}", self.place, self.message)?;
                writeln!(f, " {number} | {}", at.text)?;
                write!(f, " {gutter} | {indent}{}", "^".repeat(at.width))
            }
            SettingPlace::Variable(_) | SettingPlace::Flag(_) => {
                write!(f, "{}: {}", self.place, self.message)
            }
        }
    }
}

/// Everything that is wrong, at least one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "error: {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_and_the_marks_stand_below() {
        let content = "# é\nkey\t= \"ü4G\"\n";
        let at = content.find("\"ü").unwrap();
        let place = FilePlace::new(Path::new("a.toml"), content, at..at + 6);
        assert_eq!((place.line, place.column, place.width), (2, 7, 5));
        let fault = Fault { place: SettingPlace::File(place), message: "no".into() };
        assert_eq!(fault.to_string(), "a.toml:2:7: no\n 2 | key\t= \"ü4G\"\n   |    \t  ^^^^^");
    }

    #[test]
    fn a_place_past_the_end_is_the_end() {
        let place = FilePlace::new(Path::new("a.toml"), "x", 7..9);
        assert_eq!((place.line, place.column, place.width), (1, 2, 1));
        let place = FilePlace::new(Path::new("a.toml"), "", 0..0);
        assert_eq!((place.line, place.column, place.width), (1, 1, 1));
    }
}
