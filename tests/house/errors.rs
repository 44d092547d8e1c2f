//! Every code the program can emit has a paragraph in docs/errors.md, and only those.

use std::collections::BTreeSet;

fn documented() -> BTreeSet<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors.md");
    let text = std::fs::read_to_string(path).expect("docs/errors.md");
    let mut codes = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(code) = line.strip_prefix("### `").and_then(|rest| rest.strip_suffix('`')) {
            let paragraph = lines.peek().is_some_and(|next| next.len() > 20);
            assert!(paragraph, "`{code}` has a heading and no paragraph");
            assert!(codes.insert(code.to_owned()), "`{code}` is there twice");
        }
    }
    codes
}

/// Codes a binary crate writes as literals after `mark`: it has no library to ask.
fn written_in(file: &str, mark: &str) -> BTreeSet<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let codes: BTreeSet<String> = text
        .split(mark)
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .filter(|code| code.contains('_') || code.chars().all(|c| c.is_ascii_lowercase()))
        .filter(|code| !code.is_empty() && code.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        .map(str::to_owned)
        .collect();
    assert!(!codes.is_empty(), "{file}: no code after `{mark}`: the test looks for the wrong thing");
    codes
}

#[test]
fn every_code_has_a_paragraph_and_every_paragraph_a_code() {
    let failures = rollout::FailureCode::ALL.iter().map(|c| c.as_str());
    let spec = rollout::spec::DiagnosticCode::ALL.iter().map(|c| c.as_str());
    let api = scheduler::ApiCode::ALL.iter().map(|c| c.as_str());
    let start = scheduler::Error::CODES;
    let closes = scheduler::CloseCode::ALL.iter().map(|c| c.as_str());
    let holds = scheduler_core::HoldCode::ALL.iter().map(|c| c.as_str());
    let sandboxes = executor::SandboxCode::ALL.iter().map(|c| c.as_str());
    let all = failures.chain(spec).chain(api).chain(start).chain(closes).chain(holds).chain(sandboxes);
    let mut emitted: BTreeSet<String> = all.map(str::to_owned).collect();
    emitted.extend(datasets::export::Error::CODES.map(str::to_owned));
    emitted.extend(written_in("rollout/cli/src/error.rs", "=> \""));
    for file in ["yard.rs", "main.rs", "interrupt.rs"] {
        emitted.extend(written_in(&format!("rollout/cli/src/{file}"), "code: \""));
    }
    emitted.extend(written_in("rollout/cli/src/yard.rs", "=> (\""));
    for name in ["COMMAND_FAILED", "STILL_RUNNING"] {
        emitted.extend(written_in("datasets/python/src/rollyard/errors.py", &format!("{name} = \"")));
    }

    let documented = documented();
    let missing: Vec<_> = emitted.difference(&documented).collect();
    let extra: Vec<_> = documented.difference(&emitted).collect();
    assert!(missing.is_empty() && extra.is_empty(), "no paragraph: {missing:#?}; no such code: {extra:#?}");
}
