//! Recorded actions: each is begun once, whatever calls come and go. The same id with the same payload
//! gives the recorded result, or waits for it.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use rollout_wire::v1::{self, act_request::Payload, run_command};
use sha2::{Digest as _, Sha256};

use super::ending::Ending;
use super::error::{Refusal, SandboxCode};
use super::live::{ACTIONS_RUNNING_MAX, Live};
use super::log::{ActionLog, Begun, DONE, LogError, UNKNOWN};
use super::run::{Command, refused, run};
use super::{commands, transfers};
use crate::clock::wall_now;
use crate::storage::chain;

/// Of one stream of an action, and of a file that one reads or writes.
pub(super) const RESULT_BYTES_MAX: usize = 1 << 20;
/// Of the standard input of a command.
const STDIN_BYTES_MAX: usize = 1 << 20;
/// Where a call does not say.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of one page of recorded actions, before the last of it.
const PAGE_BYTES_MAX: usize = 1 << 20;
pub(super) const PAGE_MAX: u32 = 1000;

impl From<LogError> for Refusal {
    fn from(error: LogError) -> Self {
        Self::new(SandboxCode::StorageFailed, chain(&error))
    }
}

/// An action that was checked.
enum Work {
    Run(Command),
    InShell { name: String, text: String, timeout: Duration, output_max: usize },
    Put(v1::PutFile),
    Get(String),
}

/// The payload as it is compared: everything but who sends it.
fn payload_sha256(request: &v1::ActRequest) -> String {
    let bare = v1::ActRequest { payload: request.payload.clone(), ..v1::ActRequest::default() };
    hex::encode(Sha256::digest(bare.encode_to_vec()))
}

pub(super) fn check_id(field: &str, id: &str) -> Result<(), Refusal> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=128).contains(&id.len()) && id.bytes().all(plain) {
        return Ok(());
    }
    Err(Refusal::bad(field, "1 to 128 of [a-zA-Z0-9._-]"))
}

/// Does one action, or tells what became of it before.
pub(super) async fn act(live: &Arc<Live>, request: v1::ActRequest) -> Result<v1::ActReply, Refusal> {
    live.check_claim(&request.claim)?;
    check_id("action_id", &request.action_id)?;
    let payload = payload_sha256(&request);
    let _busy = live.busy()?;
    // A limit that is full is told before anything is recorded: the same id may be sent again.
    let permit = Live::permit(
        &live.limits.actions,
        "recorded actions at work",
        "ACTIONS_RUNNING_MAX",
        ACTIONS_RUNNING_MAX,
    );
    let id = request.action_id;
    let known = live.log.known(&id, &payload)?;
    if let Some(ordinal) = known {
        return repeated(&live.log, ordinal).await;
    }
    let work = checked(live, request.payload)?;
    let permit = permit?;
    let (ordinal, end) = match live.log.begin(&id, &payload, live.plan.max_actions)? {
        Begun::New { ordinal, end } => (ordinal, end),
        // Another call of the same was faster.
        Begun::Known { ordinal } => return repeated(&live.log, ordinal).await,
        Begun::Conflict => return Err(conflict(&id)),
        Begun::Spent => {
            let actions = live.log.count();
            live.end.by_call(Ending::ActionsSpent { actions });
            let words = format!("the session had its {actions} actions");
            return Err(Refusal::new(SandboxCode::MaxActions, words));
        }
        Begun::Full => {
            let words = format!("the log of this session is full after {} actions", live.log.count());
            return Err(Refusal::new(SandboxCode::ActionLogFull, words));
        }
    };
    let session = Arc::clone(live);
    let done = live.tasks().spawn(async move {
        let _permit = permit;
        if let Err(error) = session.log.commit(end).await {
            session.log.lose(&id);
            return Err(error);
        }
        let worked = if session.is_over() {
            Ok(refused(&Refusal::ended(&session.name())))
        } else {
            work.run(&session).await
        };
        session.touch();
        let result = match worked {
            Ok(result) => result,
            Err(refusal) => {
                tracing::debug!(sandbox = %session.id(), problem = refusal.message, "an action is unknown");
                session.log.lose(&id);
                return Ok(None);
            }
        };
        session.log.end(&id, result.clone()).await.map(|()| Some(result))
    });
    let lost = |_| Refusal::new(SandboxCode::StartFailed, "the action ended without a word");
    let result = done.await.map_err(lost)??;
    let state = if result.is_some() { DONE } else { UNKNOWN };
    Ok(v1::ActReply { state: state.to_owned(), result, repeated: false, ordinal })
}

fn conflict(id: &str) -> Refusal {
    let words = format!("action `{id}` was recorded with another payload");
    Refusal::new(SandboxCode::ActionConflict, words)
}

impl ActionLog {
    /// The ordinal of an action that was begun before.
    fn known(&self, id: &str, payload: &str) -> Result<Option<u64>, Refusal> {
        match self.look_up(id, payload) {
            None => Ok(None),
            Some(Begun::Known { ordinal }) => Ok(Some(ordinal)),
            Some(_) => Err(conflict(id)),
        }
    }
}

/// What was recorded, once it is.
async fn repeated(log: &Arc<ActionLog>, ordinal: u64) -> Result<v1::ActReply, Refusal> {
    let v1::Action { state, result, .. } = log.settled(ordinal).await?;
    Ok(v1::ActReply { state, result, repeated: true, ordinal })
}

/// The answer for a session that is over: only what was recorded.
pub(super) async fn act_past(
    log: &Arc<ActionLog>,
    name: &str,
    request: &v1::ActRequest,
) -> Result<v1::ActReply, Refusal> {
    check_id("action_id", &request.action_id)?;
    match log.known(&request.action_id, &payload_sha256(request))? {
        Some(ordinal) => repeated(log, ordinal).await,
        None => Err(Refusal::ended(name)),
    }
}

/// The recorded actions from an ordinal on.
pub(super) async fn list(
    log: &Arc<ActionLog>,
    from: u64,
    page_size: u32,
) -> Result<v1::ListActionsReply, Refusal> {
    if !(1..=PAGE_MAX).contains(&page_size) {
        return Err(Refusal::bad("page_size", format!("1 to {PAGE_MAX}")));
    }
    let count = log.count();
    let mut actions = Vec::new();
    let mut bytes = 0;
    let end = count.min(from.saturating_add(page_size.into()));
    for ordinal in from..end {
        if bytes >= PAGE_BYTES_MAX {
            break;
        }
        let action = log.action(ordinal).await?;
        bytes += action.encoded_len();
        actions.push(action);
    }
    let more = from.saturating_add(actions.len() as u64) < count;
    Ok(v1::ListActionsReply { actions, more })
}

/// What a request asks for, if it can be done at all.
fn checked(live: &Live, payload: Option<Payload>) -> Result<Work, Refusal> {
    match payload {
        None => Err(Refusal::bad("payload", "one of run, put, get")),
        Some(Payload::Get(get)) => Ok(Work::Get(get.path)),
        Some(Payload::Put(put)) => {
            if put.data.len() > RESULT_BYTES_MAX {
                let words = format!("at most {RESULT_BYTES_MAX} bytes; WriteFile takes more");
                return Err(Refusal::bad("put.data", words));
            }
            Ok(Work::Put(put))
        }
        Some(Payload::Run(run)) => checked_run(live, run),
    }
}

fn checked_run(live: &Live, run: v1::RunCommand) -> Result<Work, Refusal> {
    let timeout = commands::timeout(live, run.timeout_ms.map(Duration::from_millis).unwrap_or(TIMEOUT))?;
    let output_max = match run.output_bytes_max {
        None => RESULT_BYTES_MAX,
        Some(max) => usize::try_from(max)
            .ok()
            .filter(|max| *max <= RESULT_BYTES_MAX)
            .ok_or_else(|| Refusal::bad("run.output_bytes_max", format!("at most {RESULT_BYTES_MAX}")))?,
    };
    if run.stdin.len() > STDIN_BYTES_MAX {
        return Err(Refusal::bad("run.stdin", format!("at most {STDIN_BYTES_MAX} bytes")));
    }
    if !run.in_shell.is_empty() {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if run.in_shell.len() > 64 || !run.in_shell.bytes().all(plain) {
            return Err(Refusal::bad("run.in_shell", "1 to 64 of [a-z0-9-]"));
        }
        let Some(run_command::Command::Shell(text)) = run.command else {
            return Err(Refusal::bad("run.in_shell", "a persistent shell takes `shell` text"));
        };
        if !(run.env.is_empty() && run.cwd.is_empty() && run.user.is_empty() && run.stdin.is_empty()) {
            let words = "env, cwd, user and stdin are those of the shell: set them in its text";
            return Err(Refusal::bad("run.in_shell", words));
        }
        commands::check_text("run.shell", &text)?;
        return Ok(Work::InShell { name: run.in_shell, text, timeout, output_max });
    }
    let argv = match run.command {
        None => return Err(Refusal::bad("run.command", "one of shell, argv")),
        Some(run_command::Command::Shell(text)) => commands::shell_argv(text)?,
        Some(run_command::Command::Argv(argv)) => commands::checked_argv(argv)?,
    };
    Ok(Work::Run(Command {
        argv,
        env: commands::env(live, run.env),
        cwd: commands::cwd(live, run.cwd),
        user: commands::user(live, run.user),
        stdin: run.stdin,
        timeout,
        output_max,
    }))
}

impl Work {
    /// # Errors
    /// Whether it was done is not known.
    async fn run(self, live: &Arc<Live>) -> Result<v1::ActResult, Refusal> {
        Ok(match self {
            Self::Run(command) => return run(live, command).await,
            Self::InShell { name, text, timeout, output_max } => {
                // The shell may stand still.
                if let Err(refusal) = live.wake().await {
                    return Ok(refused(&refusal));
                }
                live.shells.run(live, &name, &text, timeout, output_max).await
            }
            Self::Put(put) => timed(transfers::put(live, put)).await,
            Self::Get(path) => timed(transfers::get(live, &path)).await,
        })
    }
}

/// A file's way into a result.
async fn timed(work: impl Future<Output = Result<v1::ActResult, Refusal>>) -> v1::ActResult {
    let started_at = wall_now();
    let mut result = work.await.unwrap_or_else(|refusal| refused(&refusal));
    (result.started_at_us, result.finished_at_us) = (started_at.0, wall_now().0);
    result
}
