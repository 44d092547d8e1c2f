//! The command line. Arguments only: what a command does is in `commands`.

pub mod sandboxes;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use sandboxes::{Attach, CheckpointTake, Cp, Exec, Fork, Kill, Pause, Resume, SandboxCommand};

const AFTER_HELP: &str = "\
Data goes to standard output, talk to standard error.

Exit codes: 0 done; 1 the job failed, or any other failure; 2 wrong command line or spec;
3 no yard answers; 4 this host cannot do it; 130 interrupted. `exec` and `attach` end with the
code of the command, 128 and the signal if one killed it.";

/// Schedules batches of RL rollouts: expands jobs into groups and steps, runs every step in a
/// sandbox, hands back complete groups.
#[derive(Debug, Parser)]
#[command(name = "rollyard", version, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Which options are on the command line itself, and not in the environment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags {
    pub data_dir: bool,
    pub yard: bool,
}

/// # Errors
/// The line cannot be understood, or asks for help or the version.
pub fn parse(line: impl IntoIterator<Item = OsString>) -> Result<(Cli, Flags), clap::Error> {
    let matches = Cli::command().try_get_matches_from(line).map_err(with_place)?;
    let written = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
    let flags = Flags { data_dir: written("data_dir"), yard: written("yard") };
    Ok((Cli::from_arg_matches(&matches)?, flags))
}

/// Commands about sandboxes that stand beside `sandbox`, not below it.
const BESIDE_SANDBOX: [&str; 8] = ["exec", "attach", "cp", "fork", "pause", "resume", "kill", "checkpoint"];

/// Says where a command is that was looked for below `sandbox`.
fn with_place(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::StyledStr(text)) => text.to_string(),
        _ => String::new(),
    };
    let (wanted, usage) = (text(ContextKind::InvalidSubcommand), text(ContextKind::Usage));
    if usage.contains("rollyard sandbox ") && BESIDE_SANDBOX.contains(&wanted.as_str()) {
        let tip = StyledStr::from(format!("use `rollyard {wanted}`"));
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// The help of the command that a line names as far as it goes: of `rollyard sandbox` that of `sandbox`.
pub fn help(line: impl IntoIterator<Item = OsString>) -> String {
    let mut whole = Cli::command();
    whole.build();
    let mut command = &whole;
    let mut line = line.into_iter();
    while let Some(word) = line.next() {
        let long = word.to_str().and_then(|word| word.strip_prefix("--"));
        let option = whole.get_arguments().find(|arg| long.is_some() && arg.get_long() == long);
        if option.is_some_and(|option| option.get_action().takes_values()) {
            line.next();
        }
        command = command.find_subcommand(word).unwrap_or(command);
    }
    command.clone().render_help().to_string()
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Where a yard of this machine keeps its state, its blobs and its socket
    ///
    /// Default: /var/lib/rollyard for root, else $XDG_DATA_HOME/rollyard or
    /// ~/.local/share/rollyard.
    #[arg(long, global = true, env = "ROLLYARD_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The yard to talk to: unix:/path/to/yard.sock or http://127.0.0.1:PORT
    ///
    /// Default: the socket in the data directory.
    #[arg(long, global = true, env = "ROLLYARD_YARD", value_name = "URL")]
    pub yard: Option<String>,
    /// How data is printed
    #[arg(long, global = true, value_enum, default_value_t = OutputFormat::Table, value_name = "FORMAT")]
    pub output: OutputFormat,
    /// Say more on standard error; twice: much more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// How log lines on standard error look
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Human, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people
    Table,
    /// One JSON document, ASCII only; of `logs` and `artifact` one JSON object a line. An error becomes one JSON
    /// object, the last line of standard error
    Json,
    /// The bare answer, one a line: ids; of a job its state; of `doctor` what does not work
    Quiet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Human,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a spec on this machine from start to end, with a yard of its own
    Run(Run),
    /// Serve a yard on this machine until Ctrl-C: scheduler and executor in one process
    Dev(Dev),
    /// Serve a scheduler
    Scheduler(Scheduler),
    /// Serve this machine as a node of a yard
    Executor(Executor),
    /// Hand a spec to a running yard
    Submit(Submit),
    /// Check a spec: every problem at once, nothing is run
    Check(Check),
    /// List jobs, or the rollouts of one job
    Ps(Ps),
    /// Show a job, or the steps of a rollout with their attempts
    Show(Show),
    /// Say why a job, a rollout or a step is where it is
    Explain(Explain),
    /// Print what a step wrote
    Logs(Logs),
    /// Write an output of a step to standard output
    Artifact(Artifact),
    /// Cancel a job
    Cancel(Cancel),
    /// Create a sandbox to drive by hand, and list what there is
    Sandbox {
        #[command(subcommand)]
        command: SandboxCommand,
    },
    /// Run a program in a sandbox, and end with its exit code
    Exec(Exec),
    /// Open a shell in a sandbox
    Attach(Attach),
    /// Copy a file or a directory into a sandbox, or out of one
    Cp(Cp),
    /// Make sandboxes that begin with the files another has now
    Fork(Fork),
    /// Stop a sandbox's processes and give back memory; the next call resumes it
    Pause(Pause),
    /// Let a paused sandbox go on
    Resume(Resume),
    /// End sandboxes that clients created
    Kill(Kill),
    /// Look at checkpoints, compare two, take one of a sandbox, or take one away
    Checkpoint {
        #[command(subcommand)]
        command: CheckpointCommand,
    },
    /// Remove checkpoints whose time is over and stored data that nobody needs
    Gc(Gc),
    /// Run failed rollouts again
    Retry(Retry),
    /// Copy sealed tables into files that other programs read
    Export(Export),
    /// What the yard runs again and again: specs with `schedule`
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Pull, import, build, list and remove images on this machine
    #[command(subcommand)]
    Image(Image),
    /// List the nodes of the yard
    Nodes,
    /// Say what this host can and cannot enforce
    Doctor,
    /// Print the reference of the command line as Markdown
    #[command(hide = true)]
    Reference,
}

#[derive(Debug, Args)]
pub struct Run {
    /// The spec, YAML or JSON; `-` reads standard input
    #[arg(required_unless_present = "harbor", conflicts_with = "harbor")]
    pub spec: Option<PathBuf>,
    #[command(flatten)]
    pub harbor: Harbor,
    /// Print the spec with every step, and run nothing
    #[arg(long)]
    pub print_spec: bool,
    /// Start over, even if a job of this spec is unfinished
    #[arg(long)]
    pub new: bool,
    /// Where the tables go, instead of `output.table`
    #[arg(long, value_name = "DIR")]
    pub table: Option<PathBuf>,
    /// Go on waiting when the job is held; the default is to stop and leave it to be resumed
    #[arg(long)]
    pub keep_going: bool,
    #[command(flatten)]
    pub blobs: Blobs,
    #[command(flatten)]
    pub capacity: Capacity,
}

/// A spec without a file.
#[derive(Debug, Args)]
#[command(next_help_heading = "Harbor tasks, without a spec")]
pub struct Harbor {
    /// Run the Harbor tasks in this directory
    #[arg(long, value_name = "DIR", requires = "agent")]
    pub harbor: Option<PathBuf>,
    /// What works on each task: a command for the shell, or `oracle` for the task's own solution
    #[arg(long, value_name = "CMD", requires = "harbor", conflicts_with = "spec")]
    pub agent: Option<String>,
    /// Rollouts of each task
    #[arg(long = "n", default_value_t = 1, requires = "harbor", conflicts_with = "spec", value_name = "N")]
    pub samples: u32,
    /// What every sandbox starts from, instead of each task's image
    #[arg(long, requires = "harbor", conflicts_with = "spec")]
    pub image: Option<String>,
    /// What to do with tasks that cannot run here
    #[arg(long, value_enum, default_value_t = OnUnsupported::Error, requires = "harbor", conflicts_with = "spec", value_name = "WHAT")]
    pub on_unsupported: OnUnsupported,
    /// A model for the agent; not available yet
    #[arg(long, requires = "harbor", conflicts_with = "spec", value_name = "URL")]
    pub model: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnUnsupported {
    /// Nothing runs
    Error,
    /// They are left out
    Skip,
}

#[derive(Debug, Args)]
pub struct Dev {
    /// Stop when standard input ends: a yard that a program started goes with it
    #[arg(long)]
    pub stop_at_eof: bool,
    #[command(flatten)]
    pub blobs: Blobs,
    #[command(flatten)]
    pub capacity: Capacity,
    #[command(flatten)]
    pub pressure: Pressure,
}

#[derive(Debug, Args)]
pub struct Scheduler {
    /// Listen here too: unix:/path or http://127.0.0.1:PORT. Loopback only until TLS exists
    #[arg(long, value_name = "URL")]
    pub listen: Vec<String>,
    #[command(flatten)]
    pub blobs: Blobs,
}

#[derive(Debug, Args)]
pub struct Executor {
    /// The scheduler to serve
    #[arg(long, value_name = "URL")]
    pub scheduler: String,
    /// The name of this node, unique in the yard
    #[arg(long)]
    pub name: String,
    #[command(flatten)]
    pub capacity: Capacity,
    #[command(flatten)]
    pub pressure: Pressure,
}

#[derive(Debug, Clone, Default, Args)]
pub struct Blobs {
    /// Where layers, outputs and logs are kept: file:///absolute/directory or s3://bucket/prefix
    ///
    /// Chosen once, with the first start on a data directory. A bucket is reached with AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL, here and where executors run.
    /// Default: blobs in the data directory.
    #[arg(long = "blobs", value_name = "URL")]
    pub url: Option<String>,
}

/// What the node offers. The default is what the machine has, less what it needs itself.
#[derive(Debug, Clone, Args)]
pub struct Capacity {
    /// Cores to offer, such as 2 or 1500m
    #[arg(long, value_parser = clap::value_parser!(rollout::MilliCpu))]
    pub cpu: Option<rollout::MilliCpu>,
    /// Memory to offer, such as 16Gi
    #[arg(long, value_parser = clap::value_parser!(rollout::Bytes))]
    pub memory: Option<rollout::Bytes>,
    /// Disk to offer for writable layers above 256Mi, such as 100Gi
    #[arg(long, value_parser = clap::value_parser!(rollout::Bytes))]
    pub disk: Option<rollout::Bytes>,
}

/// When the node is short of memory: then idle sandboxes go down before their own time.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "When memory is short")]
pub struct Pressure {
    /// Idle sandboxes are frozen or parked early from less than this available on, at least 512Mi [default: 1Gi]
    #[arg(long = "pressure-low", value_name = "SIZE", value_parser = clap::value_parser!(rollout::Bytes))]
    pub low: Option<rollout::Bytes>,
    /// And no longer from this much available on [default: half as much again as --pressure-low]
    #[arg(long = "pressure-ok", value_name = "SIZE", value_parser = clap::value_parser!(rollout::Bytes))]
    pub ok: Option<rollout::Bytes>,
    /// With less than --pressure-ok: also while tasks stall for memory so much of the time [default: 10]
    #[arg(long = "pressure-stall", value_name = "PERCENT", value_parser = clap::value_parser!(executor::config::StallShare))]
    pub stall: Option<executor::config::StallShare>,
    /// Sandboxes on their way down at once, 1 to 256 [default: 16]
    #[arg(long = "pressure-parks", value_name = "COUNT")]
    pub parks: Option<u32>,
}

#[derive(Debug, Args)]
pub struct Submit {
    /// The spec, YAML or JSON; `-` reads standard input
    pub spec: PathBuf,
    /// Print what would be run and stop
    #[arg(long)]
    pub dry_run: bool,
    /// Wait for the end and print the summary; of a schedule there is none
    #[arg(long, conflicts_with = "dry_run")]
    pub wait: bool,
    /// Go on with an unfinished job of the same spec, if there is one
    #[arg(long, conflicts_with = "dry_run")]
    pub resume: bool,
    /// Treat warnings as errors
    #[arg(long)]
    pub deny_warnings: bool,
    /// Where the tables go, instead of `output.table`
    #[arg(long, value_name = "DIR")]
    pub table: Option<PathBuf>,
    /// The same key gives the same job, however often it is sent [default: a fresh one]
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
pub struct Check {
    /// The spec, YAML or JSON; `-` reads standard input
    pub spec: PathBuf,
    /// Treat warnings as errors
    #[arg(long)]
    pub deny_warnings: bool,
}

#[derive(Debug, Args)]
pub struct Ps {
    /// List the rollouts of this job
    pub job: Option<String>,
    /// Jobs that are not finished only
    #[arg(long, conflicts_with = "job")]
    pub unfinished: bool,
    /// The most rows
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct Show {
    /// A job or a rollout
    pub id: String,
}

#[derive(Debug, Args)]
pub struct Explain {
    /// A job, a rollout (also as ROLLOUT@NODE), or ROLLOUT/STEP
    pub target: String,
}

#[derive(Debug, Args)]
pub struct Logs {
    /// ROLLOUT or ROLLOUT/STEP; without a step: the first that failed, else the last that started
    pub target: String,
    /// Go on until the step ends
    #[arg(short, long)]
    pub follow: bool,
    /// One stream only
    #[arg(long, value_enum)]
    pub stream: Option<Stream>,
    /// The attempt, from 0 [default: the last]
    #[arg(long)]
    pub attempt: Option<u32>,
    /// Write bytes as they are, even to a terminal
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Args)]
pub struct Artifact {
    /// ROLLOUT/STEP
    pub target: String,
    /// The output, as the spec names it; `rollyard show ROLLOUT` lists what there is
    pub name: String,
    /// The attempt, from 0 [default: the last that has the output]
    #[arg(long)]
    pub attempt: Option<u32>,
    /// Write bytes as they are, even to a terminal
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

#[derive(Debug, Args)]
pub struct Cancel {
    /// The job
    pub job: String,
    /// Kept with the job
    #[arg(long, default_value = "cancelled by the user")]
    pub reason: String,
}

#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// List the schedules
    Ls,
    /// Show a schedule with its next fire times
    Show(NamedSchedule),
    /// Let it fire
    Enable(NamedSchedule),
    /// Keep it from firing; its jobs go on
    Disable(NamedSchedule),
    /// Remove it; its jobs go on
    Rm(NamedSchedule),
    /// Do now what a fire time does, whether it is enabled or not
    Fire(FireSchedule),
}

#[derive(Debug, Args)]
pub struct NamedSchedule {
    /// Its name, or its id where several projects have one of that name
    pub schedule: String,
}

#[derive(Debug, Args)]
pub struct FireSchedule {
    /// Its name, or its id where several projects have one of that name
    pub schedule: String,
    /// The same key fires once, however often it is sent [default: a fresh one]
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List checkpoints: of the yard, of a job, or of a rollout
    Ls(CheckpointLs),
    /// Show what a checkpoint is made of, who started from it, and when it goes
    Show(CheckpointId),
    /// Say which paths differ between two checkpoints
    Diff(CheckpointDiff),
    /// Save the files of a sandbox while it runs
    Take(CheckpointTake),
    /// Take a checkpoint away before its time
    Rm(CheckpointId),
}

#[derive(Debug, Args)]
pub struct CheckpointLs {
    /// A job or a rollout
    #[arg(value_name = "JOB_OR_ROLLOUT")]
    pub of: Option<String>,
    /// Those that were removed, too
    #[arg(long)]
    pub all: bool,
    /// The most rows
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct CheckpointId {
    /// The checkpoint, as in the columns `ckpt_in` and `ckpt_out`
    pub id: String,
}

#[derive(Debug, Args)]
pub struct CheckpointDiff {
    /// The checkpoint before
    pub from: String,
    /// The checkpoint after
    pub to: String,
}

#[derive(Debug, Args)]
pub struct Gc {
    /// Remove nothing, say what would go
    #[arg(long)]
    pub dry_run: bool,
    /// How long ago data must have been stored that nobody names, such as 1h; shorter only while
    /// nobody submits [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = clap::value_parser!(rollout::Millis))]
    pub grace: Option<rollout::Millis>,
}

#[derive(Debug, Subcommand)]
pub enum Image {
    /// Pull an image of a registry, so that no step waits for it
    Pull(ImagePull),
    /// Take in an OCI layout or archive
    Import(ImageImport),
    /// Build a Dockerfile with buildah, podman or docker, the first that is installed
    Build(ImageBuild),
    /// List the images of this machine
    Ls,
    /// Remove an image that no sandbox uses
    Rm(ImageRm),
    /// Say what the images take on disk
    Du,
}

#[derive(Debug, Args)]
pub struct ImagePull {
    /// Such as debian:12 or registry.example/name@sha256:...
    pub reference: String,
}

#[derive(Debug, Args)]
pub struct ImageImport {
    /// A directory with an OCI layout, or a tar file of one; PATH:TAG or PATH@DIGEST where it holds several
    pub path: String,
    /// What it is called here [default: its tag, else the name of the file]
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
pub struct ImageBuild {
    /// The context of the build
    pub dir: PathBuf,
    /// The Dockerfile [default: Dockerfile in the context]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What it is called here [default: the name of the directory]
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
pub struct ImageRm {
    /// Name or digest, as `rollyard image ls` has them
    pub name: String,
}

#[derive(Debug, Args)]
pub struct Retry {
    /// A job, a group (JOB-gN) or a rollout (JOB-gN-sN)
    pub target: String,
    /// Also what failed for the task or the grader; a job that its breaker holds goes on
    #[arg(long)]
    pub all_failed: bool,
    /// Also what was cancelled; a job that was cancelled goes on
    #[arg(long)]
    pub cancelled: bool,
    /// The same key gives the same answer; the default is a new one
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
pub struct Export {
    /// The folder of a job, such as out/JOB, or one table in it; or a job of the yard: JOB or
    /// JOB/steps
    #[arg(value_name = "TABLE_OR_JOB")]
    pub source: String,
    /// What the copies are
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: ExportFormat,
    /// The folder of the copies, made if missing
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace copies that are there
    #[arg(long)]
    pub overwrite: bool,
    /// Only trajectories that a trainer may learn from, and what belongs to them
    #[arg(long)]
    pub trainable: bool,
    /// Only trajectories with a valid reward, and what belongs to them
    #[arg(long)]
    pub valid: bool,
    /// Only trajectories of this split, and what belongs to them
    #[arg(long, value_enum)]
    pub split: Option<Split>,
    /// Rows that a refill replaced, too
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// TABLE.parquet, compressed with zstd
    Parquet,
    /// TABLE.arrow, the Arrow file format
    IpcFile,
    /// TABLE.jsonl, one object a row
    Jsonl,
    /// TABLE/, a folder for `datasets.load_from_disk`
    Hf,
    /// Not available yet
    Atif,
    /// Not available yet
    Harbor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Split {
    Train,
    Eval,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_the_command_line_is_told_from_one_of_the_environment() {
        let flags = |line: &[&str]| parse(line.iter().map(OsString::from)).expect("parses").1;
        let given = Flags { data_dir: true, yard: false };
        assert_eq!(flags(&["rollyard", "ps", "--data-dir", "/d"]), given);
        assert_eq!(flags(&["rollyard", "--data-dir=/d", "ps"]), given);
        assert!(!flags(&["rollyard", "ps"]).data_dir);
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_may_follow_the_command() {
        let cli = Cli::try_parse_from(["rollyard", "ps", "--output", "json", "--yard", "unix:/y", "-vv"]);
        let global = cli.expect("parses").global;
        assert_eq!((global.output, global.verbose), (OutputFormat::Json, 2));
        assert_eq!(global.yard.as_deref(), Some("unix:/y"));
    }

    #[test]
    fn quantities_are_read_as_in_the_spec() {
        let line = [
            "rollyard",
            "executor",
            "--scheduler",
            "unix:/y",
            "--name",
            "a",
            "--cpu",
            "1500m",
            "--memory",
            "16Gi",
        ];
        let Command::Executor(executor) = Cli::try_parse_from(line).expect("parses").command else {
            panic!("another command");
        };
        assert_eq!(executor.capacity.cpu, Some(rollout::MilliCpu(1500)));
        assert_eq!(executor.capacity.memory, Some(rollout::Bytes(16 << 30)));
        assert_eq!(executor.capacity.disk, None);
    }

    #[test]
    fn marks_of_short_memory_are_read_and_wrong_ones_name_their_option() {
        let line = |more: &[&str]| {
            let line = ["rollyard", "executor", "--scheduler", "unix:/y", "--name", "a"];
            Cli::try_parse_from(line.iter().chain(more))
        };
        let all = [
            "--pressure-low",
            "2Gi",
            "--pressure-ok",
            "3Gi",
            "--pressure-stall",
            "12.5",
            "--pressure-parks",
            "4",
        ];
        let Command::Executor(executor) = line(&all).expect("parses").command else {
            panic!("another command");
        };
        let Pressure { low, ok, stall, parks } = executor.pressure;
        assert_eq!((low, ok), (Some(rollout::Bytes(2 << 30)), Some(rollout::Bytes(3 << 30))));
        assert_eq!((stall.map(|stall| stall.hundredths()), parks), (Some(1_250), Some(4)));
        for (option, value, why) in [
            ("--pressure-low", "2GB", "expected a whole number with k M G"),
            ("--pressure-ok", "-1", "unexpected argument"),
            ("--pressure-stall", "101", "expected a percentage from 0.01 to 100"),
            ("--pressure-parks", "many", "invalid digit"),
        ] {
            let refused = line(&[option, value]).expect_err(option).to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn what_follows_the_sandbox_is_the_command() {
        for line in [
            &["rollyard", "exec", "-it", "s@n", "--", "ls", "-l", "--output"][..],
            &["rollyard", "exec", "-it", "s@n", "ls", "-l", "--output"],
        ] {
            let Command::Exec(exec) = Cli::try_parse_from(line).expect("parses").command else {
                panic!("another command");
            };
            assert_eq!((exec.interactive, exec.tty, exec.sandbox.as_str()), (true, true, "s@n"));
            assert_eq!(exec.command, ["ls", "-l", "--output"]);
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            vec!["rollyard"],
            vec!["rollyard", "run"],
            vec!["rollyard", "submit", "a.yaml", "--dry-run", "--wait"],
            vec!["rollyard", "executor", "--name", "a"],
            vec!["rollyard", "ps", "j1", "--unfinished"],
            vec!["rollyard", "ps", "--limit", "0"],
            vec!["rollyard", "ps", "--output", "yaml"],
            vec!["rollyard", "dev", "--memory", "4GB"],
            vec!["rollyard", "logs", "r", "--stream", "both"],
            vec!["rollyard", "exec", "a"],
            vec!["rollyard", "kill"],
            vec!["rollyard", "kill", "a", "--selector", "k=v"],
            vec!["rollyard", "kill", "--selector", "k"],
            vec!["rollyard", "fork", "a", "-n", "65"],
            vec!["rollyard", "attach", "a", "--shell", "s", "--user", "u"],
            vec!["rollyard", "sandbox"],
            vec!["rollyard", "export", "out/j", "--format", "parquet"],
            vec!["rollyard", "export", "out/j", "--format", "csv", "--out", "d"],
        ] {
            assert!(Cli::try_parse_from(&line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn help_is_that_of_the_command_which_a_line_begins() {
        let usage = |line: &str| {
            let help = help(line.split_whitespace().map(OsString::from));
            help.lines().find(|line| line.starts_with("Usage: ")).unwrap_or_default().to_owned()
        };
        assert_eq!(usage(""), "Usage: rollyard [OPTIONS] <COMMAND>");
        assert_eq!(usage("sandbox --output json"), "Usage: rollyard sandbox [OPTIONS] <COMMAND>");
        assert_eq!(usage("--data-dir ps"), "Usage: rollyard [OPTIONS] <COMMAND>");
    }
}
