//! The arguments of commands about sandboxes.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rollout::Millis;

/// `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub key: String,
    pub value: String,
}

fn pair(text: &str) -> Result<Pair, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Pair { key: key.to_owned(), value: value.to_owned() }),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Create a sandbox and wait until it is ready; it ends by `kill` or by its deadlines
    Create(Box<SandboxCreate>),
    /// List the sandboxes that clients created
    Ls(SandboxLs),
    /// Show a sandbox
    Show(SandboxId),
}

#[derive(Debug, Args)]
pub struct SandboxCreate {
    /// What it starts from, as in a spec: host, dir:/path or an image
    #[arg(long, default_value = "host")]
    pub image: String,
    /// Begin with the files of this checkpoint, over that checkpoint's image
    #[arg(long, value_name = "CHECKPOINT")]
    pub checkpoint: Option<String>,
    /// CPU to reserve [default: 500m]
    #[arg(long)]
    pub cpu: Option<String>,
    /// Memory to reserve, beside that of a disk limit up to 256Mi [default: 512Mi]
    #[arg(long)]
    pub memory: Option<String>,
    /// The most CPU [default: 2]
    #[arg(long, value_name = "CPU")]
    pub limit_cpu: Option<String>,
    /// The most memory [default: 2Gi]
    #[arg(long, value_name = "MEMORY")]
    pub limit_memory: Option<String>,
    /// The most its writable layer may have [default: 256Mi]
    #[arg(long, value_name = "DISK")]
    pub limit_disk: Option<String>,
    /// The most processes [default: 1024]
    #[arg(long, value_name = "N")]
    pub limit_pids: Option<u32>,
    /// A label to find it by
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<Pair>,
    /// A variable of its environment
    #[arg(short, long = "env", value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<Pair>,
    /// Who its commands run as
    #[arg(short, long)]
    pub user: Option<String>,
    /// Where its commands start
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Without a call for so long it ends [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = clap::value_parser!(Millis))]
    pub idle_timeout: Option<Millis>,
    /// So long after it was ready it ends, paused or not [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = clap::value_parser!(Millis))]
    pub timeout: Option<Millis>,
    /// How long it may wait for room and become ready [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = clap::value_parser!(Millis))]
    pub start_timeout: Option<Millis>,
    /// Down the idle ladder after so long without a call
    #[arg(long, value_name = "DURATION", value_parser = clap::value_parser!(Millis))]
    pub park_after: Option<Millis>,
    /// How far down: `freeze` stops its processes, `checkpoint` saves it and ends it on its node until the
    /// next call [default: freeze]
    #[arg(long, value_name = "MODE", value_parser = ["freeze", "checkpoint"])]
    pub idle_mode: Option<String>,
    /// The same key gives the same sandbox, however often it is sent [default: a fresh one]
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

/// The long options of `sandbox create`, without the dashes.
#[cfg(test)]
pub fn create_options() -> Vec<String> {
    let command = SandboxCreate::augment_args(clap::Command::new("create"));
    command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

#[derive(Debug, Args)]
pub struct SandboxLs {
    /// Those that have all of these labels only
    #[arg(short = 'l', long, value_name = "KEY=VALUE,...", value_delimiter = ',', value_parser = pair)]
    pub selector: Vec<Pair>,
    /// Those that have ended, too
    #[arg(long)]
    pub all: bool,
    /// The most rows
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct SandboxId {
    /// The sandbox, as `rollyard sandbox ls` has it: ROLLOUT@NODE, or ROLLOUT
    pub sandbox: String,
}

#[derive(Debug, Args)]
pub struct Exec {
    /// The sandbox, as `rollyard sandbox ls` has it
    pub sandbox: String,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Pass standard input on
    #[arg(short, long)]
    pub interactive: bool,
    /// Give it a terminal, of the size of this one
    #[arg(short, long)]
    pub tty: bool,
    /// A variable of its environment
    #[arg(short, long = "env", value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<Pair>,
    /// Who it runs as
    #[arg(short, long)]
    pub user: Option<String>,
    /// Where it starts
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Its whole tree is killed then [default: the timeout of the step]
    #[arg(long, value_name = "DURATION", value_parser = clap::value_parser!(Millis))]
    pub timeout: Option<Millis>,
    /// It goes on when this command is interrupted, which shows its output until then
    #[arg(long)]
    pub detach: bool,
    /// Write bytes as they are, even to a terminal
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Args)]
pub struct Attach {
    /// The sandbox, as `rollyard sandbox ls` has it
    pub sandbox: String,
    /// Feed the persistent shell of this name line by line, each a command of its own that is whole: its
    /// environment, directory and functions stay when this command ends, `$?` does not stay from one line to the
    /// next, and every line is recorded
    #[arg(long, value_name = "NAME")]
    pub shell: Option<String>,
    /// Of each line: the shell and what it runs are killed then [default: 1m]
    #[arg(long, value_name = "DURATION", requires = "shell", value_parser = clap::value_parser!(Millis))]
    pub timeout: Option<Millis>,
    /// Who the shell runs as
    #[arg(short, long, conflicts_with = "shell")]
    pub user: Option<String>,
    /// Where the shell starts
    #[arg(short, long, value_name = "DIR", conflicts_with = "shell")]
    pub workdir: Option<String>,
}

#[derive(Debug, Args)]
pub struct Cp {
    /// A file or directory: PATH of this machine, or SANDBOX:PATH
    pub from: String,
    /// Where to; a directory that is there gets a copy below it
    pub to: String,
    /// The most bytes to copy
    #[arg(long, default_value = "16Gi", value_name = "SIZE", value_parser = clap::value_parser!(rollout::Bytes))]
    pub max_bytes: rollout::Bytes,
}

#[derive(Debug, Args)]
pub struct Fork {
    /// The sandbox, as `rollyard sandbox ls` has it
    pub sandbox: String,
    /// How many
    #[arg(short = 'n', long = "count", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub count: u32,
    /// A label of each
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<Pair>,
    /// The same key gives the same sandboxes, however often it is sent [default: a fresh one]
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
pub struct Pause {
    /// The sandbox, as `rollyard sandbox ls` has it
    pub sandbox: String,
    /// Only if its lifecycle is at this version
    #[arg(long, value_name = "VERSION")]
    pub version: Option<u64>,
    /// All the way: its files are saved, its processes end and its node is free of it; the next call brings
    /// it back, here or on another node
    #[arg(long)]
    pub park: bool,
}

#[derive(Debug, Args)]
pub struct Resume {
    /// The sandbox, as `rollyard sandbox ls` has it
    pub sandbox: String,
    /// Only if its lifecycle is at this version
    #[arg(long, value_name = "VERSION")]
    pub version: Option<u64>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "rollyard kill [OPTIONS] SANDBOX...\n       rollyard kill [OPTIONS] -l KEY=VALUE,..."
)]
pub struct Kill {
    /// Sandboxes, as `rollyard sandbox ls` has them
    #[arg(required_unless_present = "selector", conflicts_with = "selector", value_name = "SANDBOX")]
    pub sandboxes: Vec<String>,
    /// All that have all of these labels
    #[arg(short = 'l', long, value_name = "KEY=VALUE,...", value_delimiter = ',', value_parser = pair)]
    pub selector: Vec<Pair>,
    /// Kept with the sandbox
    #[arg(long, default_value = "killed by the user")]
    pub reason: String,
}

/// Of `checkpoint take`.
#[derive(Debug, Args)]
pub struct CheckpointTake {
    /// The sandbox, as `rollyard sandbox ls` has it
    pub sandbox: String,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Here(PathBuf),
    In { sandbox: String, path: String },
}

impl Place {
    /// `SANDBOX:PATH`, unless a slash or a leading dot says that it is a path of this machine.
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((sandbox, path))
                if !sandbox.is_empty() && !sandbox.contains('/') && !sandbox.starts_with('.') =>
            {
                Self::In { sandbox: sandbox.to_owned(), path: path.to_owned() }
            }
            _ => Self::Here(PathBuf::from(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_of_this_machine_unless_a_sandbox_stands_before_a_colon() {
        let here = |text: &str| assert_eq!(Place::parse(text), Place::Here(text.into()), "{text}");
        here("a/b");
        here("./a:b");
        here("/a:b");
        here(".a:b");
        here("a");
        here(":b");
        let remote = Place::In { sandbox: "j0-g0-s0@n".into(), path: "/a:b".into() };
        assert_eq!(Place::parse("j0-g0-s0@n:/a:b"), remote);
    }

    #[test]
    fn a_pair_has_a_key() {
        assert_eq!(pair("a=b=c"), Ok(Pair { key: "a".into(), value: "b=c".into() }));
        assert_eq!(pair("a="), Ok(Pair { key: "a".into(), value: String::new() }));
        assert!(pair("=b").is_err() && pair("ab").is_err());
    }

    #[test]
    fn the_defaults_that_help_tells_are_those_of_steps() {
        let command = SandboxCreate::augment_args(clap::Command::new("create"));
        let told = |long: &str| {
            let option = command.get_arguments().find(|arg| arg.get_long() == Some(long)).expect(long);
            let help = option.get_help().expect("help").to_string();
            let (_, default) = help.split_once("[default: ").expect("a default");
            default.trim_end_matches(']').to_owned()
        };
        let steps = rollout::Resources::default();
        for (long, default) in [
            ("cpu", steps.request.cpu.to_string()),
            ("memory", steps.request.memory.to_string()),
            ("limit-cpu", steps.limit.cpu.to_string()),
            ("limit-memory", steps.limit.memory.to_string()),
            ("limit-disk", steps.limit.disk.to_string()),
            ("limit-pids", steps.limit.pids.to_string()),
        ] {
            assert_eq!(told(long), default, "--{long}");
        }
    }
}
