//! A backend of its own for each case, a fresh sandbox after it, and two equal censuses around it.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use executor::sandbox::container::{Container, ContainerConfig};
use executor::sandbox::{
    Backend, CreateError, Exit, FileSource, Process, Sandbox, SandboxSpec, Spawn, SpawnError,
};
use libtest_mimic::Failed;
use rollout::Bytes;
use rollout::quantity::{Limit, Resources};
use tests::census::Census;

use crate::skips::{self, Skip};

pub type Done = Result<(), Skip>;
pub type Case = for<'a> fn(&'a Lab) -> Pin<Box<dyn Future<Output = Done> + 'a>>;

/// Far above what any case needs.
pub const HANG_GUARD: Duration = Duration::from_secs(240);
/// How long something that ends in the background may take: a hang guard.
const SETTLE: Duration = Duration::from_secs(60);
const SETTLE_PAUSE: Duration = Duration::from_millis(5);

/// A table of cases from async functions: the case's number goes before the name.
#[macro_export]
macro_rules! cases {
    ($($number:literal $name:ident),* $(,)?) => {
        pub const CASES: &[(&str, $crate::lab::Case)] =
            &[$((concat!("case_", $number, "_", stringify!($name)), |lab| Box::pin($name(lab)))),*];
    };
}

#[derive(Debug)]
pub struct Lab {
    pub dir: PathBuf,
    pub data_dir: PathBuf,
    pub backend: Container,
    next: AtomicU32,
}

/// A sandbox and its name.
#[derive(Debug)]
pub struct Held {
    pub id: String,
    pub sandbox: Box<dyn Sandbox>,
}

impl Deref for Held {
    type Target = dyn Sandbox;
    fn deref(&self) -> &Self::Target {
        &*self.sandbox
    }
}

impl Held {
    pub async fn end(self) {
        self.sandbox.destroy().await.expect("nothing is left of it");
    }
}

pub fn run(name: &str, case: Case) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let dir = tempfile::tempdir()?;
    let top = dir.path().canonicalize()?;
    let done = runtime.block_on(async {
        let data_dir = top.join("data");
        let backend = Container::start(&ContainerConfig { data_dir: data_dir.clone() })?;
        let lab = Lab { dir: top, data_dir, backend, next: AtomicU32::new(0) };
        // What is made once and kept is made here.
        lab.serves().await;
        let before = before(name, &lab.data_dir).await?;
        let done = tokio::time::timeout(HANG_GUARD, case(&lab)).await;
        let done = done.map_err(|_| Failed::from(format!("{name}: it hangs")))?;
        settled(name, &before, &lab.data_dir).await?;
        lab.serves().await;
        settled(name, &before, &lab.data_dir).await?;
        let Lab { data_dir, backend, .. } = lab;
        drop(backend);
        nothing_left(name, &data_dir).await?;
        executor::census::remove_parents(&data_dir)?;
        Ok::<_, Failed>(done)
    })?;
    drop(runtime);
    dir.close()?;
    match done {
        Ok(()) => Ok(()),
        Err(skip) => skips::judge(name, &skip),
    }
}

/// The census to compare with, once what is made ahead of sandboxes is there.
pub async fn before(name: &str, data_dir: &Path) -> Result<Census, Failed> {
    loop {
        ahead(name).await?;
        let census = Census::take(data_dir)?;
        if !census.is_of_a_maker_at_work() {
            return Ok(census);
        }
    }
}

/// Waits until what is made ahead of sandboxes is there.
async fn ahead(name: &str) -> Result<(), Failed> {
    let deadline = Instant::now() + SETTLE;
    while !tests::census::is_ahead_of_sandboxes() {
        if Instant::now() > deadline {
            return Err(Failed::from(format!("{name}: the pools do not fill up")));
        }
        tokio::time::sleep(SETTLE_PAUSE).await;
    }
    Ok(())
}

/// Waits until the census is as before.
pub async fn settled(name: &str, before: &Census, data_dir: &Path) -> Result<(), Failed> {
    let deadline = Instant::now() + SETTLE;
    loop {
        match before.difference(&Census::take(data_dir)?) {
            None => return Ok(()),
            Some(difference) if Instant::now() > deadline => {
                return Err(Failed::from(format!("{name}: the census differs:\n{difference}")));
            }
            Some(_) => tokio::time::sleep(SETTLE_PAUSE).await,
        }
    }
}

/// Waits until the broker has ended and what it made is gone.
pub async fn nothing_left(name: &str, data_dir: &Path) -> Result<(), Failed> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let left = executor::census::take(data_dir)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Failed::from(format!("{name}: left when its executor ended: {left}")));
        }
        tokio::time::sleep(SETTLE_PAUSE).await;
    }
}

pub const MIB: u64 = 1 << 20;

pub fn limits() -> Limit {
    let mut limit = Resources::default().limit;
    limit.memory = Bytes(256 * MIB);
    limit.disk = Bytes(16 * MIB);
    limit.pids = 64;
    limit
}

/// A disk of this size is a loop device with ext4; one of [`limits`] is a tmpfs.
pub const LOOP_DISK: Bytes = Bytes(300 * MIB);

#[derive(Debug)]
pub struct Output {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

/// A process and what it writes.
#[derive(Debug)]
pub struct Started {
    pub process: Box<dyn Process>,
    pub stdout: std::io::PipeReader,
    pub stderr: std::io::PipeReader,
}

impl Lab {
    pub fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            id: format!("s{}", self.next.fetch_add(1, Ordering::Relaxed)),
            image: "host".into(),
            base: None,
            image_digest: None,
            layers: Vec::new(),
            limits: limits(),
            user: "rollout".into(),
            workdir: "/workspace".into(),
        }
    }

    pub async fn make(&self, spec: SandboxSpec) -> Result<Held, CreateError> {
        let id = spec.id.clone();
        Ok(Held { id, sandbox: self.backend.create(spec).await? })
    }

    pub async fn sandbox(&self) -> Held {
        self.sandbox_with(|_| {}).await
    }

    pub async fn sandbox_with(&self, change: impl FnOnce(&mut SandboxSpec)) -> Held {
        let mut spec = self.spec();
        change(&mut spec);
        self.make(spec).await.expect("a sandbox")
    }

    /// A fresh sandbox works, and goes.
    pub async fn serves(&self) {
        let fresh = self.sandbox().await;
        assert_eq!(said(&fresh, "echo ok").await, "ok");
        fresh.end().await;
    }

    /// Compiles a C program and puts it into the sandbox at `/workspace/NAME`.
    pub async fn program(&self, sandbox: &Held, name: &str, source: &str) {
        let made = tests::programs::compile(&self.dir, name, source).expect("a program");
        let content = FileSource::File(std::fs::File::open(made).expect("the program"));
        sandbox.write_file(&format!("/workspace/{name}"), content, 0o755, "0").await.expect("written");
    }

    /// Host pids of the sandbox's processes but init, and init's.
    pub fn processes(&self, sandbox: &Held) -> (i32, Vec<i32>) {
        let pids = tests::census::processes(&self.data_dir, &sandbox.id).expect("a leaf");
        let is_init =
            |pid: &i32| tests::census::status(*pid, "NSpid").is_some_and(|ids| ids.ends_with("\t1"));
        let (init, others): (Vec<i32>, Vec<i32>) = pids.into_iter().partition(is_init);
        assert_eq!(init.len(), 1, "one init in {}", sandbox.id);
        (init[0], others)
    }
}

pub async fn start_as(sandbox: &Held, user: &str, cwd: &str, argv: &[&str]) -> Result<Started, SpawnError> {
    let (stdout, stdout_end) = std::io::pipe().expect("a pipe");
    let (stderr, stderr_end) = std::io::pipe().expect("a pipe");
    let process = sandbox
        .spawn(Spawn {
            argv: argv.iter().map(|argument| (*argument).to_owned()).collect(),
            env: BTreeMap::new(),
            cwd: cwd.into(),
            user: user.into(),
            stdout: stdout_end.into(),
            stderr: stderr_end.into(),
        })
        .await?;
    Ok(Started { process, stdout, stderr })
}

/// Starts a program that stays, and waits for the line it says when it is there.
pub async fn stays(sandbox: &Held, user: &str, argv: &[&str]) -> (Started, Vec<String>) {
    let started = start_as(sandbox, user, "/workspace", argv).await.expect("started");
    let mut stdout = started.stdout.try_clone().expect("a descriptor");
    let lines = tokio::task::spawn_blocking(move || {
        let (mut bytes, mut byte) = (Vec::new(), [0]);
        // By single bytes: what comes after the last line belongs to the caller.
        while !bytes.ends_with(b"there\n") && stdout.read(&mut byte).expect("readable") == 1 {
            bytes.push(byte[0]);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let text = lines.await.expect("read");
    let said = text.strip_suffix("there\n").unwrap_or_else(|| panic!("it ended early: {text}"));
    (started, said.lines().map(str::to_owned).collect())
}

impl Started {
    pub async fn output(self) -> Output {
        let read = |mut pipe: std::io::PipeReader| {
            tokio::task::spawn_blocking(move || {
                let mut bytes = Vec::new();
                pipe.read_to_end(&mut bytes).expect("readable");
                String::from_utf8_lossy(&bytes).into_owned()
            })
        };
        let (stdout, stderr) = (read(self.stdout), read(self.stderr));
        let exit = self.process.wait().await.expect("it ends");
        Output { exit, stdout: stdout.await.expect("read"), stderr: stderr.await.expect("read") }
    }
}

/// Runs a shell script to its end.
pub async fn shell_as(sandbox: &Held, user: &str, script: &str) -> Output {
    let argv = ["/bin/sh", "-c", script];
    start_as(sandbox, user, "/workspace", &argv).await.expect("started").output().await
}

pub async fn shell(sandbox: &Held, script: &str) -> Output {
    shell_as(sandbox, "rollout", script).await
}

/// Runs a script that must succeed; its standard output without the last newline.
pub async fn said(sandbox: &Held, script: &str) -> String {
    let output = shell(sandbox, script).await;
    assert_eq!(output.exit, Exit::Code(0), "{script}: {output:?}");
    output.stdout.trim_end().to_owned()
}

/// Waits (hang guard) until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_async(what, async || holds()).await;
}

/// The same, of what has to be asked.
pub async fn until_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SETTLE;
    while !holds().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(SETTLE_PAUSE).await;
    }
}
