//! What cargo says of this workspace.

use std::process::Command;

use serde_json::Value;

/// The JSON that `cargo ARGS` prints at the top of the workspace; `toolchain` sets variables of that one run.
pub fn json(args: &[&str], toolchain: &[(&str, &str)]) -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let run = Command::new(cargo)
        .args(args)
        .envs(toolchain.iter().copied())
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo runs");
    assert!(run.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).expect("cargo prints JSON")
}

/// The crates of the workspace.
pub fn packages() -> Vec<Value> {
    let metadata = json(&["metadata", "--locked", "--no-deps", "--format-version", "1"], &[]);
    metadata["packages"].as_array().expect("packages").clone()
}

/// A field that is text.
pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no text `{field}` in {value}"))
}
