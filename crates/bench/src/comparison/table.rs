//! A table as aligned text, as Markdown and as HTML.

use std::fmt::Write;

/// Cells by row; the first column is left-aligned, the others right.
#[derive(Clone, Debug)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these titles.
    pub fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|h| (*h).to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row; it should have as many cells as there are titles.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Columns set apart by two blanks, a line under the titles.
    pub fn text(&self) -> String {
        let widths = self.widths();
        let mut out = self.line(&self.head, &widths, "", "  ", "");
        let total: usize = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
        let _ = writeln!(out, "{}", "-".repeat(total));
        for row in &self.rows {
            out += &self.line(row, &widths, "", "  ", "");
        }
        out
    }

    /// A Markdown table whose source is aligned too.
    pub fn markdown(&self) -> String {
        let widths = self.widths();
        let mut out = self.line(&self.head, &widths, "| ", " | ", " |");
        let rules: Vec<String> = widths
            .iter()
            .enumerate()
            .map(|(i, w)| if i == 0 { "-".repeat(*w) } else { format!("{}:", "-".repeat(w - 1)) })
            .collect();
        out += &self.line(&rules, &widths, "| ", " | ", " |");
        for row in &self.rows {
            out += &self.line(row, &widths, "| ", " | ", " |");
        }
        out
    }

    /// A `<table>`.
    pub fn html(&self) -> String {
        let cells = |row: &[String], tag: &str| -> String {
            row.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect()
        };
        let mut out = format!("<table><thead><tr>{}</tr></thead><tbody>", cells(&self.head, "th"));
        for row in &self.rows {
            let _ = write!(out, "<tr>{}</tr>", cells(row, "td"));
        }
        out + "</tbody></table>"
    }

    fn widths(&self) -> Vec<usize> {
        let width = |i: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(i)).chain([&self.head[i]]);
            // At least two, so that Markdown's rule has room for its colon.
            cells.map(|c| c.chars().count()).max().unwrap_or(0).max(2)
        };
        (0..self.head.len()).map(width).collect()
    }

    fn line(
        &self,
        cells: &[String],
        widths: &[usize],
        start: &str,
        between: &str,
        end: &str,
    ) -> String {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .enumerate()
            .map(
                |(i, (cell, width))| {
                    if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        let line = format!("{start}{}{end}", padded.join(between));
        format!("{}\n", line.trim_end())
    }
}

/// Text for HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["", "op/s"]);
        table.row(vec!["direct".into(), "9".into()]);
        table.row(vec!["<b>".into(), "12,345".into()]);
        table
    }

    #[test]
    fn text_and_markdown_are_aligned() {
        assert_eq!(
            table().text(),
            "          op/s\n--------------\ndirect       9\n<b>     12,345\n"
        );
        let markdown =
            "|        |   op/s |\n| ------ | -----: |\n| direct |      9 |\n| <b>    | 12,345 |\n";
        assert_eq!(table().markdown(), markdown);
    }

    #[test]
    fn html_is_escaped() {
        assert!(table().html().contains("<td>&lt;b&gt;</td>"));
    }
}
