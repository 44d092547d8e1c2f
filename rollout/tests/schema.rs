//! The committed JSON Schema and the reference for people against the tables of the checker.
#![allow(clippy::disallowed_methods, reason = "the tests read committed files; the crate reads none")]

use std::path::Path;

use serde_json::Value;

fn docs() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// `UPDATE_GOLDEN=1` writes the file.
#[test]
fn the_committed_schema_is_what_the_tables_say() {
    let path = docs().join("schema/rollyard-v1.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&rollout::spec::schema()).unwrap());
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "docs/schema/rollyard-v1.json is stale: run with UPDATE_GOLDEN=1 and read the difference"
    );
}

#[test]
fn the_reference_names_every_field_and_every_choice() {
    let reference = std::fs::read_to_string(docs().join("job-spec.md")).unwrap();
    let schema = rollout::spec::schema();
    let mut missing = Vec::new();
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        for (field, property) in definition["properties"].as_object().unwrap() {
            let choices = property["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
            for word in std::iter::once(field.as_str()).chain(choices) {
                if !reference.contains(&format!("`{word}`")) {
                    missing.push(format!("{name}.{field}: {word}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "docs/job-spec.md does not name {missing:?}");
}

/// The examples of the reference are specs that work.
#[test]
fn the_examples_of_the_reference_are_valid() {
    let reference = std::fs::read_to_string(docs().join("job-spec.md")).unwrap();
    let blocks: Vec<&str> =
        reference.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let jobs: Vec<&&str> = blocks.iter().filter(|block| block.starts_with("apiVersion")).collect();
    assert!(jobs.len() >= 2);
    for text in jobs {
        let checked = rollout::spec::check(text, "docs/job-spec.md");
        assert!(checked.plan.is_some() && checked.diagnostics.is_empty(), "{}", checked.render(text));
    }
}
