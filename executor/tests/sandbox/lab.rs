//! A backend of its own for each test, and a census that must be empty at its end.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Read;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use executor::census;
use executor::sandbox::container::{Container, ContainerConfig, Levels};
use executor::sandbox::{Backend, Exit, Process, Sandbox, SandboxSpec, Spawn, SpawnError};
use rollout::Bytes;
use rollout::quantity::{Limit, Resources};

pub type Test = fn(Lab) -> Pin<Box<dyn Future<Output = ()>>>;

/// A hang guard, far above what any test needs.
const HANG_GUARD: Duration = Duration::from_secs(300);
/// How long a broker may take to clean up after its executor.
const CLEAN_UP: Duration = Duration::from_secs(60);

/// A test table entry from an async function.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[(&str, $crate::lab::Test)] =
            &[$((stringify!($name), |lab| Box::pin($name(lab)))),*];
    };
}

pub struct Lab {
    pub dir: tempfile::TempDir,
    pub backend: Container,
    next: AtomicU32,
}

/// Runs a test and then requires that nothing is left of it.
pub fn run(test: Test) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let kept = dir.path().to_owned();
    runtime.block_on(async move {
        let backend = Container::start(&ContainerConfig { data_dir }).expect("the backend starts");
        let lab = Lab { dir, backend, next: AtomicU32::new(0) };
        let data_dir = lab.data_dir();
        // The directory must outlive the broker's clean-up: leaking it here, removing it below.
        tokio::time::timeout(HANG_GUARD, test(lab)).await.expect("hang guard");
        assert_empty(&data_dir);
        census::remove_parents(&data_dir).expect("the parents are empty");
    });
    drop(runtime);
    let _ = std::fs::remove_dir_all(kept);
}

/// Waits for the broker to finish and requires an empty census.
pub fn assert_empty(data_dir: &std::path::Path) {
    assert_soon(data_dir, census::Census::is_empty);
}

/// The same while the broker lives, which has made some things ahead.
pub fn assert_no_sandbox(data_dir: &std::path::Path) {
    assert_soon(data_dir, census::Census::holds_no_sandbox);
}

fn assert_soon(data_dir: &std::path::Path, holds: impl Fn(&census::Census) -> bool) {
    let deadline = std::time::Instant::now() + CLEAN_UP;
    loop {
        let census = census::take(data_dir).unwrap();
        if holds(&census) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "left: {census}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn limits() -> Limit {
    let mut limit = Resources::default().limit;
    limit.memory = Bytes(256 << 20);
    limit.disk = Bytes(16 << 20);
    limit.pids = 64;
    limit
}

#[derive(Debug)]
pub struct Output {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

impl Lab {
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data").canonicalize().unwrap()
    }

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

    /// Waits until everything that is made ahead is there.
    pub async fn full(&self) -> Levels {
        let waiting = async {
            loop {
                let levels = self.backend.levels().await.unwrap();
                if levels.is_full {
                    return levels;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(HANG_GUARD, waiting).await.expect("the pools fill up")
    }

    pub async fn sandbox(&self) -> Box<dyn Sandbox> {
        self.backend.create(self.spec()).await.expect("created")
    }
}

/// Starts `argv` as `user` with its output in pipes.
pub async fn start(
    sandbox: &dyn Sandbox,
    user: &str,
    cwd: &str,
    argv: &[&str],
    env: &[(&str, &str)],
) -> Result<(Box<dyn Process>, [std::io::PipeReader; 2]), SpawnError> {
    let (stdout, stdout_end) = std::io::pipe().unwrap();
    let (stderr, stderr_end) = std::io::pipe().unwrap();
    let process = sandbox
        .spawn(Spawn {
            argv: argv.iter().map(|argument| (*argument).to_owned()).collect(),
            env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>(),
            cwd: cwd.into(),
            user: user.into(),
            stdout: stdout_end.into(),
            stderr: stderr_end.into(),
        })
        .await?;
    Ok((process, [stdout, stderr]))
}

/// Runs a shell script to its end.
pub async fn shell_as(sandbox: &dyn Sandbox, user: &str, script: &str) -> Output {
    let (process, pipes) =
        start(sandbox, user, "/workspace", &["/bin/sh", "-c", script], &[]).await.expect("started");
    let readers = pipes.map(|mut pipe| {
        tokio::task::spawn_blocking(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let exit = process.wait().await.expect("it ends");
    let [stdout, stderr] = readers;
    Output { exit, stdout: stdout.await.unwrap(), stderr: stderr.await.unwrap() }
}

pub async fn shell(sandbox: &dyn Sandbox, script: &str) -> Output {
    shell_as(sandbox, "rollout", script).await
}

/// Runs a script that must succeed; its standard output without the last newline.
pub async fn said(sandbox: &dyn Sandbox, script: &str) -> String {
    let output = shell(sandbox, script).await;
    assert_eq!(output.exit, Exit::Code(0), "{script}: {output:?}");
    output.stdout.trim_end().to_owned()
}

/// Compiles a C program and puts it into the sandbox at `/workspace/NAME`.
pub async fn compiled(lab: &Lab, sandbox: &dyn Sandbox, name: &str, source: &str) {
    let (from, to) = (lab.dir.path().join(format!("{name}.c")), lab.dir.path().join(name));
    std::fs::write(&from, source).unwrap();
    let status =
        std::process::Command::new("cc").args(["-O1", "-w", "-o"]).arg(&to).arg(&from).status().unwrap();
    assert!(status.success());
    let file = std::fs::File::open(&to).unwrap();
    let content = executor::sandbox::FileSource::File(file);
    sandbox.write_file(&format!("/workspace/{name}"), content, 0o755, "rollout").await.unwrap();
}
