//! Every file of `spec_errors/` against the text a user gets for it.
#![allow(clippy::disallowed_methods, reason = "the tests read their cases; the crate reads no files")]

use std::path::Path;

use rollout::spec::{self, DiagnosticCode, Severity};

/// `UPDATE_GOLDEN=1` writes what the checker says now; read the difference before committing it.
fn updating() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1")
}

/// Name, golden text, text now; `update` writes the golden text first.
fn cases(update: bool) -> Vec<(String, String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spec_errors");
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let golden = path.with_extension("txt");
            let source = std::fs::read_to_string(&path).unwrap();
            let actual = spec::check(&source, &format!("{name}.yaml")).render(&source);
            if update {
                std::fs::write(&golden, &actual).unwrap();
            }
            let expected = std::fs::read_to_string(&golden).unwrap_or_default();
            cases.push((name, expected, actual));
        }
    }
    cases.sort();
    cases
}

/// Lines that differ, as `-expected` and `+actual`.
fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), actual.lines().collect());
    let same = expected.iter().zip(&actual).take_while(|(a, b)| a == b).count();
    let removed = expected[same..].iter().map(|line| format!("-{line}\n"));
    let added = actual[same..].iter().map(|line| format!("+{line}\n"));
    format!("from line {}:\n{}{}", same + 1, removed.collect::<String>(), added.collect::<String>())
}

#[test]
fn every_faulty_spec_is_explained_as_written_down() {
    let cases = cases(updating());
    assert!(cases.len() >= 45, "only {} cases were found", cases.len());
    let wrong: Vec<String> = cases
        .iter()
        .filter(|(_, expected, actual)| expected != actual)
        .map(|(name, expected, actual)| format!("{name}.txt {}", difference(expected, actual)))
        .collect();
    assert!(wrong.is_empty(), "{} of {} differ\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn what_is_printed_never_holds_more_than_printable_ascii() {
    for (name, _, actual) in cases(false) {
        let bad = actual.chars().find(|&c| c != '\n' && c != ' ' && !c.is_ascii_graphic());
        assert_eq!(bad, None, "{name}");
    }
}

#[test]
fn every_code_has_a_case() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spec_errors");
    let mut seen = std::collections::BTreeSet::new();
    for (name, ..) in cases(false) {
        let source = std::fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap();
        let checked = spec::check(&source, "x");
        let errors = checked.diagnostics.iter().any(|d| d.severity == Severity::Error);
        assert_eq!(checked.plan.is_none(), errors, "{name}: a plan exactly if there is no error");
        assert!(!checked.diagnostics.is_empty(), "{name}");
        seen.extend(checked.diagnostics.iter().map(|diagnostic| diagnostic.code));
    }
    // Those of directories of tasks: `datasets/tests/harbor.rs` has their cases.
    let of_spec = |code: &&DiagnosticCode| !matches!(code.as_str(), name if name.starts_with("harbor_") || name == "network_public");
    let missing: Vec<_> =
        DiagnosticCode::ALL.iter().filter(of_spec).filter(|code| !seen.contains(code)).collect();
    assert!(missing.is_empty(), "no case shows {missing:?}");
}
