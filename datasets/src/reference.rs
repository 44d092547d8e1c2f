//! The column lists of docs/tables.md, from the columns themselves.

use crate::schema::{Column, Table};

/// A Markdown table of the columns of `table`.
pub fn columns_markdown(table: Table) -> String {
    let mut text = String::from("| column | type | null | meaning |\n|---|---|---|---|\n");
    for column in table.columns() {
        let Column { name, kind, nullable, values, doc } = column;
        let null = if *nullable { "yes" } else { "no" };
        let values = if values.is_empty() { String::new() } else { format!(": {}", values.join(", ")) };
        let kind = kind.shown().replace('<', "\\<");
        text.push_str(&format!("| {name} | {kind} | {null} | {doc}{values} |\n"));
    }
    text
}

/// `document` with every generated section replaced: the text between
/// `<!-- columns of TABLE -->` and the next `<!-- end -->`.
pub fn with_columns(document: &str) -> String {
    let mut text = document.to_owned();
    for table in Table::ALL {
        let begin = format!("<!-- columns of {table} -->\n");
        let Some(start) = text.find(&begin).map(|at| at + begin.len()) else { continue };
        let Some(end) = text[start..].find("<!-- end -->").map(|at| start + at) else { continue };
        text.replace_range(start..end, &columns_markdown(table));
    }
    text
}
