//! A whole yard: a scheduler and an executor in processes of their own, on one home directory, and the
//! calls of a client over the scheduler's socket.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use executor::census;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rollout_wire::v1;
use rollout_wire::v1::jobs_client::JobsClient;
use rollout_wire::v1::sandboxes_client::SandboxesClient;
use serde_json::Value;
use tonic::transport::{Channel, Endpoint};

use crate::rollout::built;

/// A hang guard.
const LISTEN_WAIT: Duration = Duration::from_secs(120);
/// A hang guard: the end of thousands of sandboxes is in it.
const END_WAIT: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(10);
const NODE: &str = "n1";

/// Ended when it is dropped.
#[derive(Debug)]
pub struct Yard {
    program: PathBuf,
    home: PathBuf,
    /// Further arguments of the executor.
    executor_args: Vec<String>,
    scheduler: Option<Child>,
    executor: Option<Child>,
}

impl Yard {
    /// Starts both on a new directory, and waits until the node is attached.
    pub fn start(home: &Path, executor_args: &[&str]) -> Result<Self> {
        fs::create_dir_all(home)?;
        let mut yard = Self {
            program: built()?,
            // The mark of an executor is of the path without links.
            home: home.canonicalize()?,
            executor_args: executor_args.iter().map(|&arg| arg.to_owned()).collect(),
            scheduler: None,
            executor: None,
        };
        yard.start_scheduler()?;
        yard.start_executor()?;
        Ok(yard)
    }

    pub fn start_scheduler(&mut self) -> Result<()> {
        let socket = self.socket();
        self.scheduler =
            Some(self.part("scheduler", "yard").args(["scheduler", "--listen", &socket]).spawn()?);
        // Of one that was killed the file is still there.
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(self.home.join("s")).is_err() {
            ensure!(begun.elapsed() < LISTEN_WAIT, "the scheduler does not listen: {}", self.logs());
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    pub fn start_executor(&mut self) -> Result<()> {
        let socket = self.socket();
        let mut command = self.part("executor", "node");
        command.args(["executor", "--name", NODE, "--scheduler", &socket]).args(&self.executor_args);
        self.executor = Some(command.spawn()?);
        Ok(())
    }

    pub fn socket(&self) -> String {
        format!("unix:{}", self.home.join("s").display())
    }

    /// Of the executor's sandboxes: what carries its mark is found by it.
    pub fn sandboxes_dir(&self) -> PathBuf {
        self.home.join("node/node/sandboxes")
    }

    pub fn scheduler_pid(&self) -> Option<u32> {
        self.scheduler.as_ref().map(Child::id)
    }

    pub fn executor_pid(&self) -> Option<u32> {
        self.executor.as_ref().map(Child::id)
    }

    /// Whether the executor still runs; one that ended is reaped.
    pub fn executor_runs(&mut self) -> Result<bool> {
        let Some(executor) = &mut self.executor else { return Ok(false) };
        Ok(executor.try_wait()?.is_none())
    }

    /// SIGKILL, and waits for its end.
    pub fn kill_scheduler(&mut self) -> Result<()> {
        killed(self.scheduler.take())
    }

    /// SIGKILL, and waits for its end.
    pub fn kill_executor(&mut self) -> Result<()> {
        killed(self.executor.take())
    }

    /// The broker and the keepers of this executor, by name: they are known by the name they start
    /// with and by the lock of its data directory, which they hold.
    pub fn helpers(&self) -> Result<Vec<(String, u32)>> {
        let lock = self.sandboxes_dir().join("lock");
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let name = String::from_utf8_lossy(line.split(|byte| *byte == 0).next().unwrap_or_default());
            let Some(name) = name.strip_prefix("rollyard-") else { continue };
            let descriptors = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
            if descriptors.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|open| open == lock) {
                found.push((name.to_owned(), pid));
            }
        }
        Ok(found)
    }

    /// SIGKILL. False: there is none now.
    pub fn kill_broker(&self) -> Result<bool> {
        let helpers = self.helpers()?;
        let Some((_, pid)) = helpers.iter().find(|(name, _)| name == "broker") else { return Ok(false) };
        Ok(kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).is_ok())
    }

    /// One of the two. It ends in order when this process ends, however that comes about; so it is started
    /// by the main thread, whose end is that of the process.
    fn part(&self, name: &str, data_dir: &str) -> Command {
        let mut command = self.command(data_dir);
        let log = File::options().create(true).append(true).open(self.home.join(format!("{name}.log")));
        command.stdout(Stdio::null()).stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
        // SAFETY: one system call, between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?));
        }
        command
    }

    fn command(&self, data_dir: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--data-dir").arg(self.home.join(data_dir)).stdin(Stdio::null()).current_dir(&self.home);
        command
    }

    /// The last lines that the parts wrote.
    pub fn logs(&self) -> String {
        let last = |name: &str| {
            let text = fs::read_to_string(self.home.join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(5)..].join("\n")
        };
        format!("scheduler: {}\nexecutor: {}", last("scheduler"), last("executor"))
    }

    /// Runs a command of the program as a client of this yard.
    pub fn run(&self, args: &[&str]) -> Result<Output> {
        let mut command = self.command("yard");
        Ok(command.args(["--yard", &self.socket(), "--output", "json"]).args(args).output()?)
    }

    /// What a command of the program prints.
    pub fn told(&self, args: &[&str]) -> Result<Value> {
        let output = self.run(args)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{args:?}: {}, {said}", output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Submits a job under a key; asked again, it is the same job.
    pub fn submit(&self, name: &str, spec: &str) -> Result<String> {
        let file = self.home.join(format!("{name}.yaml"));
        fs::write(&file, spec)?;
        let (file, tables) = (file.display().to_string(), self.tables(name).display().to_string());
        let told = self.told(&["submit", &file, "--idempotency-key", name, "--table", &tables])?;
        Ok(told["job"]["id"].as_str().context("the job has an id")?.to_owned())
    }

    pub fn tables(&self, name: &str) -> PathBuf {
        self.home.join(format!("tables-{name}"))
    }

    /// The rows of one table of a job that has ended.
    pub fn rows(&self, name: &str, table: &str) -> Result<Vec<Value>> {
        let job = fs::read_dir(self.tables(name))?.next().context("a table")??.path();
        let copies = self.home.join(format!("copies-{name}-{table}"));
        let mut export = self.command("yard");
        export.arg("export").arg(job.join(table)).args(["--format", "jsonl", "--out"]).arg(&copies);
        let output = export.output()?;
        ensure!(output.status.success(), "export: {}", String::from_utf8_lossy(&output.stderr));
        let text = fs::read_to_string(copies.join(format!("{table}.jsonl")))?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Ends both in order, and waits for all that belongs to them.
    pub fn stop(&mut self) -> Result<()> {
        for process in [self.executor.take(), self.scheduler.take()] {
            ended(process)?;
        }
        let begun = Instant::now();
        while !self.helpers()?.is_empty() {
            ensure!(begun.elapsed() < END_WAIT, "the broker or a keeper does not end: {:?}", self.helpers());
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// What is left of sandboxes once it is stopped, one thing a line: processes, control groups, loop
    /// devices, files, mounts. A network namespace without a name ends with the processes that hold it.
    pub fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let census = census::take(&self.sandboxes_dir())?;
        left.extend(census.cgroups.iter().chain(&census.ahead.cgroups).map(|one| format!("cgroup {one}")));
        left.extend(census.processes.iter().map(|pid| format!("process {pid} of a sandbox")));
        left.extend(census.loops.iter().chain(&census.ahead.loops).map(|one| format!("loop device {one}")));
        let files = census.files.iter().chain(&census.ahead.files).chain(&census.staged);
        left.extend(files.map(|path| format!("file {}", path.display())));
        let attempts = fs::read_dir(self.home.join("node/node/attempts")).into_iter().flatten().flatten();
        left.extend(attempts.map(|entry| format!("file {}", entry.path().display())));
        let home = self.home.display().to_string();
        for point in fs::read_to_string("/proc/self/mounts")?.lines() {
            if point.split(' ').any(|field| field.starts_with(&home)) {
                left.push(format!("mount {point}"));
            }
        }
        left.extend(self.helpers()?.into_iter().map(|(name, pid)| format!("process {pid}, {name}")));
        for entry in fs::read_dir("/proc")?.flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).split('\0').any(|word| word.starts_with(&home)) {
                left.push(format!("process {}", entry.path().display()));
            }
        }
        Ok(left)
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        // What fails here has failed before, and was told.
        let _ = self.stop();
    }
}

fn killed(process: Option<Child>) -> Result<()> {
    let Some(mut process) = process else { return Ok(()) };
    process.kill()?;
    process.wait()?;
    Ok(())
}

fn ended(process: Option<Child>) -> Result<()> {
    let Some(mut process) = process else { return Ok(()) };
    if process.try_wait()?.is_none() {
        kill(Pid::from_raw(process.id().cast_signed()), Signal::SIGTERM)?;
    }
    let begun = Instant::now();
    while process.try_wait()?.is_none() {
        if begun.elapsed() > END_WAIT {
            process.kill()?;
            process.wait()?;
            bail!("process {} did not end in order", process.id());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// A connection that is made when it is needed, and again when it broke.
#[derive(Debug, Clone)]
pub struct Client {
    pub sandboxes: SandboxesClient<Channel>,
    pub jobs: JobsClient<Channel>,
}

impl Client {
    /// Call it within a runtime.
    pub fn new(socket: &str) -> Result<Self> {
        let channel = Endpoint::from_shared(socket.to_owned())?.connect_lazy();
        Ok(Self { sandboxes: SandboxesClient::new(channel.clone()), jobs: JobsClient::new(channel) })
    }

    /// Waits until the node is there.
    pub async fn attached(&self) -> Result<v1::Node> {
        let begun = Instant::now();
        loop {
            let reply = self.jobs.clone().list_nodes(v1::ListNodesRequest {}).await;
            let nodes = reply.map(|reply| reply.into_inner().nodes).unwrap_or_default();
            if let Some(node) = nodes.into_iter().find(|node| node.name == NODE && node.state == "attached") {
                return Ok(node);
            }
            ensure!(begun.elapsed() < LISTEN_WAIT, "the node is not attached");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A sandbox, ready.
    pub async fn create(&self, request: v1::CreateSandboxRequest) -> Result<v1::Sandbox> {
        Ok(self.sandboxes.clone().create(request).await?.into_inner())
    }

    /// One recorded action, which must be done with this exit code.
    pub async fn act(&self, request: v1::ActRequest, exit_code: i32) -> Result<v1::ActReply> {
        let reply = self.sandboxes.clone().act(request).await?.into_inner();
        let result = reply.result.clone().unwrap_or_default();
        let is_right = reply.state == "done" && result.code.is_empty() && result.exit_code == Some(exit_code);
        ensure!(is_right, "an action: {reply:?}");
        Ok(reply)
    }
}

/// A sandbox of `image`, hardly anything of which is reserved, and which stays.
pub fn small(key: &str, image: &Path) -> v1::CreateSandboxRequest {
    v1::CreateSandboxRequest {
        idempotency_key: key.to_owned(),
        image: format!("dir:{}", image.display()),
        request_cpu: "1m".to_owned(),
        request_memory: "1Mi".to_owned(),
        limit_cpu: "1".to_owned(),
        limit_memory: "64Mi".to_owned(),
        limit_disk: "8Mi".to_owned(),
        limit_pids: Some(64),
        idle_timeout_ms: Some(STAYS_MS),
        timeout_ms: Some(STAYS_MS),
        start_timeout_ms: Some(STAYS_MS),
        park_after_ms: Some(STAYS_MS),
        ..v1::CreateSandboxRequest::default()
    }
}
/// Four hours.
const STAYS_MS: u64 = 4 * 3_600_000;

/// An action that runs a program.
pub fn program(sandbox: &str, claim: &str, action_id: &str, argv: &[&str]) -> v1::ActRequest {
    let argv = v1::Argv { items: argv.iter().map(|&word| word.to_owned()).collect() };
    run(sandbox, claim, action_id, v1::run_command::Command::Argv(argv))
}

/// An action that runs a line of shell.
pub fn shell(sandbox: &str, action_id: &str, text: &str) -> v1::ActRequest {
    run(sandbox, "", action_id, v1::run_command::Command::Shell(text.to_owned()))
}

fn run(sandbox: &str, claim: &str, action_id: &str, command: v1::run_command::Command) -> v1::ActRequest {
    let command = v1::RunCommand { command: Some(command), ..v1::RunCommand::default() };
    v1::ActRequest {
        sandbox: sandbox.to_owned(),
        claim: claim.to_owned(),
        action_id: action_id.to_owned(),
        payload: Some(v1::act_request::Payload::Run(command)),
    }
}
