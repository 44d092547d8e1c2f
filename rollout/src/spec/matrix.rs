//! `matrix`: one job per combination of values. A document with several combinations stands for as
//! many documents with one; each of those is a job.

use std::collections::BTreeMap;

use super::canonical;
use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink, listed, quoted};
use super::tables::MATRIX_CELLS_MAX;
use super::tree::{Entry, Node, Span, Value, child_path, item_path};
use super::unquoted;
use super::view::View;
use crate::plan::MatrixPlan;

/// The longest name of a cell, in characters; longer ones end in a number.
const NAME_CHARS_MAX: usize = 120;

/// One combination, as a job of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    pub values: BTreeMap<String, String>,
    /// Of a folder; unique among the cells.
    pub name: String,
    /// The spec of this cell alone, as JSON.
    pub document: String,
}

/// The cells of a document; none if it has no matrix.
pub fn cells(text: &str) -> Option<Vec<Cell>> {
    let root = unquoted::read(text).root?;
    let combinations = combinations(&root)?;
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let cell = |values: BTreeMap<String, String>| {
        let mut name = name(&values);
        let count = taken.entry(name.clone()).or_insert(0);
        *count += 1;
        if *count > 1 {
            name = format!("{name}-{count}");
        }
        let document = canonical::json(&alone(&root, &values));
        Cell { values, name, document }
    };
    Some(combinations.into_iter().map(cell).collect())
}

/// A part of a path that says which cell it is.
fn name(values: &BTreeMap<String, String>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let pairs: Vec<String> = values
        .iter()
        .map(|(key, value)| format!("{key}={}", value.chars().map(plain).collect::<String>()))
        .collect();
    pairs.join(",").chars().take(NAME_CHARS_MAX).collect()
}

/// The document with these values only.
fn alone(root: &Node, values: &BTreeMap<String, String>) -> Node {
    let span = Span::default();
    let list = |value: &String| Value::List(vec![Node { span, value: text(value) }]);
    let map = values.iter().map(|(key, value)| Entry {
        key: key.clone(),
        key_span: span,
        value: Node { span, value: list(value) },
    });
    let values = Node { span, value: Value::Map(map.collect()) };
    let entry = Entry { key: "values".to_owned(), key_span: span, value: values };
    let matrix = Node { span, value: Value::Map(vec![entry]) };
    let mut root = root.clone();
    if let Value::Map(entries) = &mut root.value
        && let Some(found) = entries.iter_mut().find(|entry| entry.key == "matrix")
    {
        found.value = matrix;
    }
    root
}

fn text(text: &str) -> Value {
    Value::Scalar { text: text.to_owned(), plain: false }
}

/// The product of the values in the order of their keys, less what is excluded. None if there is
/// no matrix, or more than [`MATRIX_CELLS_MAX`] combinations.
fn combinations(root: &Node) -> Option<Vec<BTreeMap<String, String>>> {
    let matrix = root.get("matrix")?;
    let values = matrix.get("values")?;
    count(values).filter(|count| *count <= MATRIX_CELLS_MAX)?;
    let mut cells = vec![BTreeMap::new()];
    for Entry { key, value, .. } in values.entries() {
        let texts: Vec<&str> = value.items().iter().map(Node::text).collect::<Option<_>>()?;
        let with = |cell: &BTreeMap<String, String>, text: &str| {
            let mut cell = cell.clone();
            cell.insert(key.clone(), text.to_owned());
            cell
        };
        cells = cells
            .iter()
            .flat_map(|cell| texts.iter().map(|text| with(cell, text)).collect::<Vec<_>>())
            .collect();
    }
    let excluded = matrix.get("exclude").map(Node::items).unwrap_or_default();
    cells.retain(|cell| {
        !excluded.iter().any(|exclude| {
            let mut entries = exclude.entries().iter();
            entries.all(|entry| cell.get(&entry.key).map(String::as_str) == entry.value.text())
        })
    });
    Some(cells)
}

fn count(values: &Node) -> Option<usize> {
    values.entries().iter().try_fold(1usize, |cells, entry| cells.checked_mul(entry.value.items().len()))
}

/// Checks the matrix; the plan of its first cell.
pub(crate) fn read(job: &View<'_>, sink: &mut Sink) -> Option<MatrixPlan> {
    let matrix = job.object("matrix")?;
    let values = matrix.find("values")?;
    let total = count(values.node).unwrap_or(usize::MAX);
    if total > MATRIX_CELLS_MAX {
        let message = format!("the matrix has {total} combinations; the limit is {MATRIX_CELLS_MAX}");
        sink.push(Diagnostic::error(Code::TooLarge, values.key_span, &values.path, message));
        return None;
    }
    for entry in values.node.entries() {
        let items = entry.value.items();
        let path = child_path(&values.path, &entry.key);
        for (index, item) in items.iter().enumerate() {
            if items[..index].iter().any(|other| other.text() == item.text()) {
                let message = format!("the value {} is there twice", quoted(item.text().unwrap_or_default()));
                let path = item_path(&path, index);
                sink.push(
                    Diagnostic::error(Code::BadValue, item.span, &path, message).expected("each value once"),
                );
            }
        }
    }
    check_excluded(&matrix, values.node, sink);
    let cells = combinations(job.node)?;
    let Some(first) = cells.first() else {
        let message = "`exclude` leaves no combination";
        let found = matrix.find("exclude")?;
        sink.push(Diagnostic::error(Code::BadRelation, found.key_span, &found.path, message));
        return None;
    };
    let max_parallel = matrix.text("max_parallel").and_then(|text| text.parse().ok());
    let fail_fast = matrix.text("fail_fast") == Some("true");
    Some(MatrixPlan { values: first.clone(), cells: cells.len(), max_parallel, fail_fast })
}

/// What is excluded names keys and values of the matrix.
fn check_excluded(matrix: &View<'_>, values: &Node, sink: &mut Sink) {
    let Some(found) = matrix.find("exclude") else { return };
    for (index, exclude) in found.node.items().iter().enumerate() {
        let path = item_path(&found.path, index);
        for entry in exclude.entries() {
            let path = child_path(&path, &entry.key);
            let keys = || values.entries().iter().map(|entry| entry.key.as_str());
            let Some(known) = values.get(&entry.key) else {
                let message = format!("the matrix has no key {}", quoted(&entry.key));
                let fault = Diagnostic::error(Code::UnknownName, entry.key_span, &path, message);
                sink.push(fault.expected(format!("one of {}", listed(keys()))).nearest(&entry.key, keys()));
                continue;
            };
            let texts = || known.items().iter().filter_map(Node::text);
            let text = entry.value.text().unwrap_or_default();
            if !texts().any(|known| known == text) {
                let message = format!("{} is no value of {}", quoted(text), quoted(&entry.key));
                let fault = Diagnostic::error(Code::UnknownName, entry.value.span, &path, message);
                sink.push(fault.expected(format!("one of {}", listed(texts()))).nearest(text, texts()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::check;

    const SPEC: &str = "apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\n\
        tasks: {from: {inline: [{n: 1.10}]}}\ndefaults: {image: host, env: {A: \"${matrix.agent}\", N: 1.10}}\n\
        steps:\n  - {name: g, from: image, run: \"true\", grader: {exit: {0: 1}}}\n\
        matrix: {values: {agent: [a/b, a b, \"1\"], seed: [1, 2]}, exclude: [{agent: \"1\", seed: 2}]}\n";

    #[test]
    fn each_combination_is_a_document_of_its_own() {
        let cells = cells(SPEC).unwrap();
        let names: Vec<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "agent=a_b,seed=1",
                "agent=a_b,seed=2",
                "agent=a_b,seed=1-2",
                "agent=a_b,seed=2-2",
                "agent=1,seed=1"
            ]
        );
        let whole = check(SPEC, "x").plan.unwrap();
        assert_eq!(whole.matrix.as_ref().map(|matrix| matrix.cells), Some(5));
        for cell in &cells {
            let checked = check(&cell.document, "cell");
            let plan = checked.plan.clone().unwrap_or_else(|| panic!("{}", checked.render(&cell.document)));
            assert_eq!(
                plan.matrix.as_ref().map(|matrix| (matrix.cells, &matrix.values)),
                Some((1, &cell.values))
            );
            assert_eq!((&plan.steps, &plan.tasks), (&whole.steps, &whole.tasks));
        }
        let hashes: std::collections::BTreeSet<String> =
            cells.iter().map(|cell| check(&cell.document, "x").plan.unwrap().spec_hash).collect();
        assert_eq!(hashes.len(), cells.len());
    }

    #[test]
    fn no_matrix_is_no_cells() {
        assert_eq!(cells("name: x"), None);
        assert_eq!(cells("matrix: {}"), None);
    }
}
