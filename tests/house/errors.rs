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

#[test]
fn every_code_has_a_paragraph_and_every_paragraph_a_code() {
    let failures = rollout::FailureCode::ALL.iter().map(|c| c.as_str());
    let spec = rollout::spec::DiagnosticCode::ALL.iter().map(|c| c.as_str());
    let api = scheduler::ApiCode::ALL.iter().map(|c| c.as_str());
    let start = scheduler::Error::CODES;
    let emitted: BTreeSet<String> = failures.chain(spec).chain(api).chain(start).map(str::to_owned).collect();
    let documented = documented();
    let missing: Vec<_> = emitted.difference(&documented).collect();
    let extra: Vec<_> = documented.difference(&emitted).collect();
    assert!(missing.is_empty() && extra.is_empty(), "no paragraph: {missing:#?}; no such code: {extra:#?}");
}
