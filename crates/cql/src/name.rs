//! Names of keyspaces, tables and columns in the text of a statement.

/// A name in double quotes: never folded, never a keyword.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
