//! What a step's process finds: its argv and its whole environment.

use std::collections::BTreeMap;

use rollout::plan::{ResolvedCommand, ResolvedStep};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn argv(command: &ResolvedCommand) -> Vec<String> {
    match command {
        // At most 64 KiB by the spec, half of what the kernel takes as one argument.
        ResolvedCommand::Shell(text) => ["/bin/sh", "-e", "-c", text].map(str::to_owned).to_vec(),
        ResolvedCommand::Argv(argv) => argv.clone(),
    }
}

/// What follows from the step's user, whatever the image says of its own.
const OF_THE_USER: [&str; 2] = ["HOME", "USER"];

/// Defaults, then what the image brings, then what the step says. Home is a directory that surely
/// exists and belongs to the user.
pub(super) fn env(step: &ResolvedStep, image_env: &[(String, String)]) -> BTreeMap<String, String> {
    let is_root = matches!(step.user.as_str(), "root" | "0");
    let home = if is_root { "/root" } else { &step.workdir };
    let defaults = [("PATH", PATH), ("HOME", home), ("USER", &step.user), ("LANG", "C.UTF-8")];
    let mut env: BTreeMap<_, _> =
        defaults.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    env.extend(image_env.iter().filter(|(name, _)| !OF_THE_USER.contains(&name.as_str())).cloned());
    env.extend(step.env.clone());
    env
}
