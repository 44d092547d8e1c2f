//! What a call says about a process, checked and filled in from the step.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_wire::v1;

use super::error::Refusal;
use super::live::Live;

/// Of a command's shell text: half of what the kernel takes as one argument.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Arguments of a command.
const ARGV_MAX: usize = 256;

pub(super) fn check_text(field: &str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.contains('\0') {
        return Err(Refusal::bad(field, format!("1 to {TEXT_BYTES_MAX} bytes without NUL")));
    }
    Ok(())
}

pub(super) fn shell_argv(text: String) -> Result<Vec<String>, Refusal> {
    check_text("shell", &text)?;
    Ok(vec!["/bin/sh".to_owned(), "-c".to_owned(), text])
}

pub(super) fn checked_argv(argv: v1::Argv) -> Result<Vec<String>, Refusal> {
    if (1..=ARGV_MAX).contains(&argv.items.len()) && argv.items.first().is_some_and(|name| !name.is_empty()) {
        return Ok(argv.items);
    }
    Err(Refusal::bad("argv", format!("1 to {ARGV_MAX} arguments, the first of them a program")))
}

/// At most what the step has.
pub(super) fn timeout(live: &Live, asked: Duration) -> Result<Duration, Refusal> {
    let max = Duration::from_millis(live.step.timeout.0);
    if asked.is_zero() {
        return Err(Refusal::bad("timeout_ms", "0 is no time to run"));
    }
    Ok(asked.min(max))
}

/// Of the step and its image, and over that what the call says.
pub(super) fn env(live: &Live, more: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env = live.env.clone();
    env.extend(more);
    env
}

pub(super) fn cwd(live: &Live, asked: String) -> String {
    let workdir = live.step.workdir.trim_end_matches('/');
    match asked.as_str() {
        "" => live.step.workdir.clone(),
        path if path.starts_with('/') => asked,
        path => format!("{workdir}/{path}"),
    }
}

pub(super) fn user(live: &Live, asked: String) -> String {
    if asked.is_empty() { live.step.user.clone() } else { asked }
}
