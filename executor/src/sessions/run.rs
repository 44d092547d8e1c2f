//! One command to its end: what it was given, what it wrote, how it ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollout_wire::v1;
use tokio::time::{Instant, sleep_until, timeout};

use super::error::{Refusal, SandboxCode};
use super::live::{BACKGROUND_MAX, Live};
use super::streams::{CHUNK_BYTES, Kept, Stream};
use crate::clock::wall_now;
use crate::sandbox::driven::{Opened, Opening, Streams, TreeProcess};
use crate::sandbox::{Exit, SpawnError};

/// For init to start a process. Whatever runs in the sandbox may be in its way.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// For the status of a process whose tree is gone.
pub(super) const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Command {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub user: String,
    pub stdin: Vec<u8>,
    pub timeout: Duration,
    /// Of each stream.
    pub output_max: usize,
}

/// Why no process of the session runs.
#[derive(Debug)]
pub(super) enum NotStarted {
    Refused(Refusal),
    /// It was asked for, and nobody waited for the answer: it may have done something before it was
    /// ended.
    Unknown(Refusal),
}

impl From<Refusal> for NotStarted {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<NotStarted> for Refusal {
    fn from(not_started: NotStarted) -> Self {
        match not_started {
            NotStarted::Refused(refusal) | NotStarted::Unknown(refusal) => refusal,
        }
    }
}

/// Starts a process of the session, or refuses within a bounded time.
pub(super) async fn start(live: &Arc<Live>, opening: Opening) -> Result<Opened, NotStarted> {
    // Awake until init has answered: one that is paused between would answer with the next call only.
    let _start = live.starts.read().await;
    let lent = live.lend().await?;
    let driven = lent.driven()?;
    let started = live.unless_over(async {
        timeout(START_TIMEOUT, driven.open(opening)).await.map_err(|_| {
            let words = format!("no process could be started within {}s", START_TIMEOUT.as_secs());
            Refusal::new(SandboxCode::StartFailed, words)
        })
    });
    let answered = started.await.map_err(NotStarted::Unknown)?;
    answered.map_err(|error| match error {
        dead @ SpawnError::Dead { .. } => NotStarted::Unknown(dead.into()),
        error => NotStarted::Refused(error.into()),
    })
}

pub(super) fn io_failed(error: &std::io::Error) -> Refusal {
    let code = match error.kind() {
        std::io::ErrorKind::QuotaExceeded => SandboxCode::TooManyCalls,
        _ => SandboxCode::StartFailed,
    };
    Refusal::new(code, format!("its streams cannot be made: {error}"))
}

/// Runs it to its end, its deadline, or that of the session. What it leaves in the background goes on; of
/// that nothing is kept.
///
/// # Errors
/// Whether it ran is not known.
pub(super) async fn run(live: &Arc<Live>, command: Command) -> Result<v1::ActResult, Refusal> {
    let started_at = wall_now();
    let mut result = match Running::start(live, command).await {
        Ok(running) => running.finish(live).await,
        Err(NotStarted::Refused(refusal)) => refused(&refusal),
        Err(NotStarted::Unknown(refusal)) => return Err(refusal),
    };
    result.started_at_us = started_at.0;
    result.finished_at_us = wall_now().0;
    Ok(result)
}

pub(super) fn refused(refusal: &Refusal) -> v1::ActResult {
    v1::ActResult {
        code: refusal.code.as_str().to_owned(),
        message: refusal.message.clone(),
        ..v1::ActResult::default()
    }
}

/// Writes how it ended into a result.
pub(super) fn set_exit(result: &mut v1::ActResult, exit: Option<Exit>) {
    match exit {
        Some(Exit::Code(code)) => result.exit_code = Some(code),
        Some(Exit::Signal(signal)) => result.signal = Some(signal),
        None => {}
    }
}

/// The streams into a result.
pub(super) fn set_output(result: &mut v1::ActResult, stdout: Kept, stderr: Kept) {
    result.capture_truncated = stdout.is_truncated() || stderr.is_truncated();
    (result.stdout_bytes, result.stderr_bytes) = (stdout.written, stderr.written);
    (result.stdout, result.stderr) = (stdout.bytes, stderr.bytes);
}

/// Kills the tree, and gives the status of its first process.
pub(super) async fn end_tree(process: &dyn TreeProcess) -> Option<Exit> {
    if let Err(error) = process.kill_tree().await {
        tracing::warn!(%error, "a process tree was not ended");
    }
    timeout(STATUS_TIMEOUT, process.wait()).await.ok().and_then(Result::ok)
}

struct Running {
    process: Box<dyn TreeProcess>,
    stdin: Stream,
    stdout: Stream,
    stderr: Stream,
    command: Command,
}

impl Running {
    async fn start(live: &Arc<Live>, mut command: Command) -> Result<Self, NotStarted> {
        let failed = |error: std::io::Error| io_failed(&error);
        let (stdin, stdin_end) = if command.stdin.is_empty() {
            (Stream::none(), None)
        } else {
            let (stream, end) = Stream::to_process().map_err(failed)?;
            (stream, Some(end))
        };
        let (stdout, stdout_end) = Stream::from_process().map_err(failed)?;
        let (stderr, stderr_end) = Stream::from_process().map_err(failed)?;
        let opening = Opening {
            argv: std::mem::take(&mut command.argv),
            env: std::mem::take(&mut command.env),
            cwd: std::mem::take(&mut command.cwd),
            user: std::mem::take(&mut command.user),
            streams: Streams::Pipes { stdin: stdin_end, stdout: stdout_end, stderr: stderr_end },
            report: None,
        };
        let Opened { process, .. } = start(live, opening).await?;
        Ok(Self { process, stdin, stdout, stderr, command })
    }

    async fn finish(self, live: &Arc<Live>) -> v1::ActResult {
        let Self { process, mut stdin, mut stdout, mut stderr, command } = self;
        let Command { stdin: input, timeout, output_max, .. } = command;
        let deadline = Instant::now() + timeout;
        let (mut out, mut err) = (Kept::new(output_max), Kept::new(output_max));
        let (mut out_buffer, mut err_buffer) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        let mut result = v1::ActResult::default();
        let mut sent = 0;
        let exit = {
            let exit = process.wait();
            tokio::pin!(exit);
            loop {
                tokio::select! {
                    exit = &mut exit => break match exit {
                        Ok(exit) => Some(exit),
                        Err(error) => {
                            let refusal = Refusal::from(error);
                            (result.code, result.message) =
                                (refusal.code.as_str().to_owned(), refusal.message);
                            None
                        }
                    },
                    read = stdout.read(&mut out_buffer) => out.take(&out_buffer[..read]),
                    read = stderr.read(&mut err_buffer) => err.take(&err_buffer[..read]),
                    written = stdin.write(&input[sent..]) => {
                        sent += written.unwrap_or(input.len() - sent);
                        if sent == input.len() {
                            stdin.close();
                        }
                    }
                    () = sleep_until(deadline) => {
                        result.timed_out = true;
                        break end_tree(process.as_ref()).await;
                    }
                    () = live.over() => {
                        let refusal = Refusal::ended(&live.name());
                        (result.code, result.message) = (refusal.code.as_str().to_owned(), refusal.message);
                        break end_tree(process.as_ref()).await;
                    }
                }
            }
        };
        out.take_now(&mut stdout, &mut out_buffer);
        err.take_now(&mut stderr, &mut err_buffer);
        set_exit(&mut result, exit);
        set_output(&mut result, out, err);
        leave(live, stdout, stderr);
        result
    }
}

/// Takes what processes in the background go on writing, so that they neither wait nor get SIGPIPE. Past
/// the bound they do get it.
pub(super) fn leave(live: &Arc<Live>, mut stdout: Stream, mut stderr: Stream) {
    if stdout.is_over() && stderr.is_over() {
        return;
    }
    let Ok(permit) =
        Live::permit(&live.limits.background, "outputs in the background", "BACKGROUND_MAX", BACKGROUND_MAX)
    else {
        tracing::debug!(sandbox = %live.id(), "output of a background process is taken no more");
        return;
    };
    let session = Arc::clone(live);
    live.tasks().spawn(async move {
        let _permit = permit;
        tokio::select! {
            _ = async { tokio::join!(stdout.drain(), stderr.drain()) } => {}
            () = session.over() => {}
        }
    });
}
