//! The health check of a new sandbox: a command that has to succeed before the step's own starts.

use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::time::Duration;

use rollout::Bytes;
use rollout::failure::{Failure, FailureCode};
use rollout::plan::{HealthCheck, ResolvedCommand};
use rollout::text::shown;
use tokio::time::{Instant, sleep, timeout};

use super::environment;
use crate::capture::Capture;
use crate::lifecycle::Order;
use crate::sandbox::{Exit, Sandbox, Spawn, SpawnError};
use crate::storage::chain;

/// Of what a try writes.
const OUTPUT_BYTES_MAX: Bytes = Bytes(64 << 10);
/// For its output, after a try has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Of that, the end, in a failure.
const SHOWN_BYTES: u64 = 400;

/// Until a try succeeds. The caller bounds the whole by the start timeout.
///
/// # Errors
/// `retries` tries in a row failed after the start period, or the sandbox is gone.
pub(super) async fn ready(
    sandbox: &dyn Sandbox,
    order: &Order,
    check: &HealthCheck,
    dir: &Path,
) -> Result<(), Failure> {
    let failed = |message: String| Failure::new(FailureCode::StartFailed, message);
    let began = Instant::now();
    let mut failures = 0;
    loop {
        let why = match attempt(sandbox, order, check, dir).await {
            Ok(None) => return Ok(()),
            Ok(Some(why)) => why,
            Err(problem) => return Err(failed(format!("the health check could not run: {problem}"))),
        };
        let starts = began.elapsed() < Duration::from_millis(check.start_period.0);
        if !starts {
            failures += 1;
        }
        if failures >= check.retries {
            return Err(failed(format!("the health check failed {failures} times, at last: {why}")));
        }
        let pause = if starts { check.start_interval } else { check.interval };
        sleep(Duration::from_millis(pause.0)).await;
    }
}

/// None: it succeeded; else why not.
async fn attempt(
    sandbox: &dyn Sandbox,
    order: &Order,
    check: &HealthCheck,
    dir: &Path,
) -> Result<Option<String>, String> {
    let path = dir.join("health");
    let io = |error: std::io::Error| format!("{}: {error}", path.display());
    let (stdout, capture) = Capture::start(path.clone(), OUTPUT_BYTES_MAX).await.map_err(io)?;
    let step = &order.step;
    let spawn = Spawn {
        argv: environment::argv(&ResolvedCommand::Shell(check.command.clone())),
        env: environment::env(step, sandbox.image_env()),
        cwd: step.workdir.clone(),
        user: step.user.clone(),
        stderr: stdout.try_clone().map_err(io)?,
        stdout,
    };
    let run = async {
        let process = sandbox.spawn(spawn).await?;
        tokio::select! {
            exit = process.wait() => exit,
            reason = sandbox.died() => Err(SpawnError::Dead { reason }),
        }
    };
    let ended = timeout(Duration::from_millis(check.timeout.0), run).await;
    if ended.is_err() {
        sandbox.kill_all().await.map_err(|error| format!("its processes could not be ended: {error}"))?;
    }
    let why = match ended {
        Ok(Ok(Exit::Code(0))) => return Ok(None),
        Ok(Ok(Exit::Code(code))) => format!("it exited with code {code}"),
        Ok(Ok(Exit::Signal(signal))) => format!("it was killed by signal {signal}"),
        Ok(Err(SpawnError::Dead { reason })) => return Err(reason),
        Ok(Err(error)) => format!("it did not run: {}", chain(&error)),
        Err(_) => format!("it still ran after {}", check.timeout),
    };
    // What it left in the background may hold its output open: what is there by now is told.
    if let Err(error) = capture.finish_within(DRAIN_TIMEOUT).await {
        tracing::debug!(%error, "the output of a health check is cut");
    }
    let words = last_words(&path).map_err(io)?;
    Ok(Some(if words.is_empty() { why } else { format!("{why}: {words}") }))
}

fn last_words(path: &Path) -> std::io::Result<String> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        // It said nothing.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let start = file.metadata()?.len().saturating_sub(SHOWN_BYTES);
    file.seek(std::io::SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(SHOWN_BYTES).read_to_end(&mut bytes)?;
    Ok(shown(String::from_utf8_lossy(&bytes).trim(), usize::try_from(SHOWN_BYTES).unwrap_or(usize::MAX)))
}
