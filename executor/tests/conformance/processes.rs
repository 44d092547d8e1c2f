//! Processes end as the kernel says, are who they should be, and die when they are told to.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::{Duration, Instant};

use executor::sandbox::{Exit, Process, Sandbox, Spawn, SpawnError};

use crate::rule::SOON;
use crate::subject::Yard;

crate::rules![
    a_process_ends_as_the_kernel_says,
    a_program_that_cannot_run_is_told_by_its_errno,
    a_process_has_the_user_directory_and_environment_it_was_given,
    a_process_has_three_descriptors,
    arguments_arrive_whole,
    a_signal_reaches_the_whole_group,
    kill_all_ends_daemons_and_leaves_a_working_sandbox,
];

#[derive(Debug)]
pub struct Output {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

/// Starts `argv` with its output in pipes.
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
    let argv = ["/bin/sh", "-c", script];
    let (process, pipes) = start(sandbox, user, "/workspace", &argv, &[]).await.expect("started");
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

/// The end of a process that should be near.
pub async fn ended(process: &dyn Process, why: &str) -> Exit {
    let waiting = tokio::time::timeout(SOON, process.wait()).await;
    waiting.unwrap_or_else(|_| panic!("it goes on: {why}")).expect("it ends")
}

async fn a_process_ends_as_the_kernel_says(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    for (script, exit) in [
        ("exit 0", Exit::Code(0)),
        ("exit 77", Exit::Code(77)),
        ("kill -9 $$", Exit::Signal(9)),
        ("kill -15 $$", Exit::Signal(15)),
    ] {
        assert_eq!(shell(&*sandbox, script).await.exit, exit, "the exit of `{script}`");
    }
    let output = shell(&*sandbox, "echo out; echo err >&2; cat").await;
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"), "stdin is empty");
    let (process, _pipes) = start(&*sandbox, "rollout", "/", &["sh", "-c", "exit 3"], &[]).await.unwrap();
    for _ in 0..2 {
        assert_eq!(process.wait().await.unwrap(), Exit::Code(3), "and again");
    }
    sandbox.destroy().await.unwrap();
}

async fn a_program_that_cannot_run_is_told_by_its_errno(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    for (program, errno) in
        [("/absent", libc::ENOENT), ("absent", libc::ENOENT), ("/etc/passwd", libc::EACCES)]
    {
        match start(&*sandbox, "rollout", "/", &[program], &[]).await {
            Err(SpawnError::Exec { source, .. }) => {
                assert_eq!(source.raw_os_error(), Some(errno), "{program}");
            }
            other => panic!("{program} is no error of exec: {:?}", other.map(|_| ())),
        }
    }
    match start(&*sandbox, "rollout", "/absent", &["true"], &[]).await {
        Err(SpawnError::Workdir { workdir, source }) => {
            assert_eq!((workdir.as_str(), source.raw_os_error()), ("/absent", Some(libc::ENOENT)));
        }
        other => panic!("no error of the directory: {:?}", other.map(|_| ())),
    }
    let stranger = start(&*sandbox, "nobody-here", "/", &["true"], &[]).await;
    assert!(matches!(stranger, Err(SpawnError::UnknownUser { .. })), "a user who does not exist");
    said(&*sandbox, "true").await;
    sandbox.destroy().await.unwrap();
}

async fn a_process_has_the_user_directory_and_environment_it_was_given(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let who = said(&*sandbox, "id -u; id -g; id -G; pwd; umask; ulimit -c").await;
    assert_eq!(who, "1000\n1000\n1000\n/workspace\n0022\n0", "user, directory and mask");
    assert_eq!(shell_as(&*sandbox, "root", "id -u").await.stdout, "0\n", "root of the sandbox");
    assert_eq!(shell_as(&*sandbox, "4321", "id -u").await.stdout, "4321\n", "a user by number");
    let env = [("A", "1 2"), ("B", "=x\n")];
    let (process, [out, _err]) = start(&*sandbox, "rollout", "/", &["/usr/bin/env"], &env).await.unwrap();
    process.wait().await.unwrap();
    assert_eq!(std::io::read_to_string(out).unwrap(), "A=1 2\nB==x\n\n", "the whole environment");
    let owners = said(&*sandbox, "touch mine && stat -c %u /workspace mine").await;
    assert_eq!(owners, "1000\n1000", "the working directory is the user's");
    sandbox.destroy().await.unwrap();
}

async fn a_process_has_three_descriptors(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    for user in ["rollout", "root"] {
        // The shell globs by a descriptor of its own, which is closed before its child lists them.
        let listed = shell_as(&*sandbox, user, "ls /proc/$$/fd").await;
        assert_eq!(listed.stdout, "0\n1\n2\n", "descriptors of {user}");
    }
    assert_eq!(said(&*sandbox, "readlink /proc/$$/fd/0").await, "/dev/null");
    sandbox.destroy().await.unwrap();
}

async fn arguments_arrive_whole(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let long = "x".repeat(100_000);
    let argv = ["/bin/sh", "-c", "echo ${#1} ${#2} ${#BIG}", "sh", &long, &long];
    let (process, [out, _err]) = start(&*sandbox, "rollout", "/", &argv, &[("BIG", &long)]).await.unwrap();
    process.wait().await.unwrap();
    assert_eq!(std::io::read_to_string(out).unwrap(), "100000 100000 100000\n", "lengths of what arrived");
    let huge = "x".repeat(3 << 20);
    match start(&*sandbox, "rollout", "/", &["/bin/true", &huge], &[]).await {
        Err(SpawnError::Exec { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::E2BIG)),
        other => panic!("too long for the kernel: {:?}", other.map(|_| ())),
    }
    sandbox.destroy().await.unwrap();
}

async fn a_signal_reaches_the_whole_group(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let script = "sleep 1000 & sleep 1000 & echo up; wait";
    let argv = ["sh", "-c", script];
    let (process, [mut out, _err]) = start(&*sandbox, "rollout", "/", &argv, &[]).await.unwrap();
    let mut up = [0; 3];
    out.read_exact(&mut up).unwrap();
    process.signal(libc::SIGTERM).await.unwrap();
    assert_eq!(ended(&*process, "a signal was sent").await, Exit::Signal(15));
    // The group has the only other ends of the pipe: it is at its end once they are gone.
    let rest = tokio::task::spawn_blocking(move || std::io::read_to_string(out).unwrap());
    let rest = tokio::time::timeout(SOON, rest).await.expect("the rest of the group has ended");
    assert_eq!(rest.unwrap(), "");
    let late = process.signal(libc::SIGTERM).await.unwrap_err();
    assert_eq!(late.raw_os_error(), Some(libc::ESRCH), "a process that ended");
    sandbox.destroy().await.unwrap();
}

async fn kill_all_ends_daemons_and_leaves_a_working_sandbox(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    for _ in 0..3 {
        let daemon = "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000' >/dev/null 2>&1 &)";
        said(&*sandbox, &format!("for i in 1 2 3; do {daemon}; done")).await;
        let running = "ps -e -o comm= | grep -c sleep; true";
        let deadline = Instant::now() + SOON;
        while said(&*sandbox, running).await == "0" && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (sleeper, _pipes) = start(&*sandbox, "root", "/", &["sleep", "1000"], &[]).await.unwrap();
        sandbox.kill_all().await.unwrap();
        assert_eq!(said(&*sandbox, running).await, "0", "processes after all were killed");
        assert_eq!(ended(&*sleeper, "all were killed").await, Exit::Signal(9));
    }
    sandbox.destroy().await.unwrap();
}
