//! The service: a socket for this machine's root alone, and each call to where it is done.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout::outcome::Reward;
use rollout::{JobId, RolloutId, SandboxId};
use rollout_wire::v1::sandboxes_server::{Sandboxes, SandboxesServer};
use rollout_wire::v1::{self, exec_input, forward_input, write_file_chunk};
use rollout_wire::{RUNG_METADATA, to_wire};
use tokio::net::UnixListener;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Response, Status, Streaming};

use super::actions;
use super::ending::Ending;
use super::error::{Refusal, SandboxCode};
use super::live::Live;
use super::log::ActionLog;
use super::transfers::{self, broken_off};
use super::{Sessions, exec, forward};
use crate::workspace::SaveError;

/// Calls of one connection at once.
const CALLS_MAX: u32 = 4096;
/// Bytes on their way of one call that are not taken yet.
const WINDOW_BYTES: u32 = 64 << 10;
/// The largest message a client sends: a file of a recorded action, and room.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// At the end: for connections to close.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// For the first message of a call that sends several.
const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
const TTL_MIN: u64 = 1_000;
const TTL_MAX: u64 = 600_000;
const TURNS_MAX: usize = 4096;
const PROBLEM_BYTES_MAX: usize = 4096;

/// A socket that is bound and not served yet.
#[derive(Debug)]
pub(crate) struct Listener {
    path: PathBuf,
    socket: UnixListener,
}

/// Binds the socket; one that an earlier life left there goes. Call within a tokio runtime.
pub(crate) fn listen(path: &Path) -> io::Result<Listener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(Listener { path: path.canonicalize()?, socket })
}

impl Listener {
    pub(crate) fn url(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    /// Serves until `token`. Sessions that end before that have ended their calls.
    pub(crate) async fn serve(self, sessions: Arc<Sessions>, token: CancellationToken) {
        let service = SandboxesServer::new(Service { sessions })
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let asked = token.clone();
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(CALLS_MAX)
            // A call that takes nothing fills its own window, and never that of the others.
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES * CALLS_MAX)
            .serve_with_incoming_shutdown(service, UnixListenerStream::new(self.socket), async move {
                asked.cancelled().await;
            });
        let overdue = async {
            token.cancelled().await;
            tokio::time::sleep(LEAVE_TIMEOUT).await;
        };
        tokio::select! {
            served = server => if let Err(error) = served {
                tracing::error!(%error, "calls on sandboxes are served no more");
            },
            () = overdue => {}
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "socket not removed");
        }
    }
}

struct Service {
    sessions: Arc<Sessions>,
}

type Answer<T> = Result<Response<T>, Status>;

fn named(text: &str) -> Result<SandboxId, Refusal> {
    text.parse().map_err(|error| Refusal::bad("sandbox", error))
}

impl Service {
    /// The session of that name, shown its claim.
    async fn live(&self, sandbox: &str, claim: &str) -> Result<Arc<Live>, Refusal> {
        let id = named(sandbox)?;
        match self.sessions.find_soon(&id).await? {
            Some(live) => {
                live.check_claim(claim)?;
                Ok(live)
            }
            None => Err(match self.past_path(&id).await? {
                Some(_) => Refusal::ended(sandbox),
                None => not_found(sandbox),
            }),
        }
    }

    /// Where a session that is over left its log.
    async fn past_path(&self, id: &SandboxId) -> Result<Option<PathBuf>, Refusal> {
        if id.node.as_ref().is_some_and(|node| node != self.sessions.node()) {
            return Ok(None);
        }
        let (sessions, id) = (Arc::clone(&self.sessions), id.clone());
        let looked = tokio::task::spawn_blocking(move || sessions.past_path(&id)).await;
        looked.map_err(|error| Refusal::new(SandboxCode::StorageFailed, error.to_string()))
    }

    /// What it left there.
    async fn past(&self, id: &SandboxId) -> Result<Option<Arc<ActionLog>>, Refusal> {
        match self.past_path(id).await? {
            Some(path) => self.sessions.past.get(path).await,
            None => Ok(None),
        }
    }
}

fn not_found(sandbox: &str) -> Refusal {
    let shown = rollout::text::shown(sandbox, 120);
    Refusal::new(SandboxCode::NotFound, format!("no sandbox `{shown}` on this node"))
}

fn elsewhere(call: &str) -> Status {
    let words = format!("{call} is answered by the scheduler of the yard, not by an executor");
    Refusal::new(SandboxCode::NotAvailableYet, words).into()
}

/// The first message of a call that sends several.
async fn first<T>(inputs: &mut Streaming<T>) -> Result<T, Refusal> {
    match tokio::time::timeout(FIRST_TIMEOUT, inputs.message()).await {
        Ok(Ok(Some(input))) => Ok(input),
        Ok(Ok(None)) => Err(Refusal::bad("input", "the first message is missing")),
        Ok(Err(status)) => Err(broken_off(&status)),
        Err(_) => {
            let words = format!("the first message did not come within {}s", FIRST_TIMEOUT.as_secs());
            Err(Refusal::bad("input", words))
        }
    }
}

fn ending(problem: &str, reward: Option<Reward>) -> Ending {
    match problem {
        "" => Ending::Finished { reward },
        problem => Ending::GivenUp { problem: problem.to_owned() },
    }
}

/// Of a session that goes on under another executor: what its driver said last counts.
pub(super) fn recall(live: &Live) {
    if let Some(said) = live.log.last_word()
        && let Ok(reward) = reward_of(&said)
    {
        live.end.by_call(ending(&said.problem, reward));
    }
}

fn reward_of(request: &v1::FinishSessionRequest) -> Result<Option<Reward>, Refusal> {
    let single = |field: &str, value: f64| {
        #[allow(clippy::cast_possible_truncation, reason = "an overflow gives an infinity, refused here")]
        let single = value as f32;
        if single.is_finite() { Ok(single) } else { Err(Refusal::bad(field, "not a finite 32-bit number")) }
    };
    if request.turn_rewards.len() > TURNS_MAX {
        return Err(Refusal::bad("turn_rewards", format!("at most {TURNS_MAX}")));
    }
    let mut components = Vec::with_capacity(request.turn_rewards.len());
    for turn in &request.turn_rewards {
        single("turn_rewards", turn.reward)?;
        components.push((format!("turn_rewards.{}", turn.turn), turn.reward));
    }
    match request.reward {
        Some(value) => Ok(Some(Reward { value: single("reward", value)?, components })),
        None if components.is_empty() => Ok(None),
        None => Err(Refusal::bad("turn_rewards", "only beside a reward")),
    }
}

#[tonic::async_trait]
impl Sandboxes for Service {
    async fn create(&self, _: Request<v1::CreateSandboxRequest>) -> Answer<v1::Sandbox> {
        Err(elsewhere("Create"))
    }
    /// Only what this node knows better than the scheduler: whether it stands still.
    async fn get(&self, request: Request<v1::GetSandboxRequest>) -> Answer<v1::Sandbox> {
        let request = request.into_inner();
        let live = self.sessions.find_soon(&named(&request.sandbox)?).await?;
        let live = live.ok_or_else(|| not_found(&request.sandbox))?;
        let state = if live.is_parked() { "paused" } else { "running" };
        let (id, state, idle_expires_at_us) = (live.name(), state.to_owned(), Some(live.silent_at().0));
        Ok(Response::new(v1::Sandbox { id, state, idle_expires_at_us, ..v1::Sandbox::default() }))
    }
    async fn list(&self, _: Request<v1::ListSandboxesRequest>) -> Answer<v1::ListSandboxesReply> {
        Err(elsewhere("List"))
    }
    async fn kill(&self, _: Request<v1::KillSandboxesRequest>) -> Answer<v1::KillSandboxesReply> {
        Err(elsewhere("Kill"))
    }
    async fn fork(&self, _: Request<v1::ForkSandboxRequest>) -> Answer<v1::ForkSandboxReply> {
        Err(elsewhere("Fork"))
    }

    /// Of the sessions on this node: the named one, or any of the job, what the driver holds first. It
    /// never waits for one.
    async fn claim(&self, request: Request<v1::ClaimSessionRequest>) -> Answer<v1::ClaimSessionReply> {
        let request = request.into_inner();
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !(1..=255).contains(&request.driver.len()) || !request.driver.bytes().all(plain) {
            return Err(Refusal::bad("driver", "1 to 255 of [a-z0-9-]").into());
        }
        if !(TTL_MIN..=TTL_MAX).contains(&request.ttl_ms) {
            return Err(Refusal::bad("ttl_ms", format!("{TTL_MIN} to {TTL_MAX}")).into());
        }
        let wanted: Option<RolloutId> = match request.rollout.as_str() {
            "" => None,
            rollout => Some(rollout.parse().map_err(|error| Refusal::bad("rollout", error))?),
        };
        let job: Option<JobId> = match request.job.as_str() {
            "" if wanted.is_some() => None,
            job => Some(job.parse().map_err(|error| Refusal::bad("job", error))?),
        };
        let ttl = Duration::from_millis(request.ttl_ms);
        let of_the_kind = |live: &Arc<Live>| {
            let rollout = live.at.attempt.rollout;
            wanted.is_none_or(|wanted| wanted == rollout) && job.is_none_or(|job| job == rollout.group.job)
        };
        let mut worth: Vec<_> = self.sessions.all().into_iter().filter(of_the_kind).collect();
        worth.sort_by_cached_key(|live| !live.is_held_by(&request.driver));
        let mut taken = None;
        for live in worth {
            if request.held_only && !live.is_held_by(&request.driver) {
                continue;
            }
            if let Some(claim) = live.take_claim(&request.driver, ttl).await {
                taken = Some((live, claim));
                break;
            }
        }
        let session = taken.map(|(live, claim)| v1::Session {
            sandbox: live.name(),
            rollout: live.at.attempt.rollout.to_string(),
            step: live.step.name.to_string(),
            attempt: live.at.attempt.attempt,
            group: live.at.attempt.rollout.group.to_string(),
            // The scheduler knows the row.
            task_id: String::new(),
            row: String::new(),
            claim,
            actions: live.actions(),
            takes_reward: live.plan.takes_reward,
        });
        Ok(Response::new(v1::ClaimSessionReply { session, drained: false }))
    }

    async fn renew(&self, request: Request<v1::RenewSessionRequest>) -> Answer<v1::RenewSessionReply> {
        let request = request.into_inner();
        let live = self.live(&request.sandbox, &request.claim).await?;
        let ttl = live.check_claim(&request.claim)?;
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        Ok(Response::new(v1::RenewSessionReply { ttl_ms }))
    }

    async fn finish(&self, request: Request<v1::FinishSessionRequest>) -> Answer<v1::FinishSessionReply> {
        let request = request.into_inner();
        let id = named(&request.sandbox)?;
        let log = match self.sessions.find_soon(&id).await? {
            Some(live) => Arc::clone(&live.log),
            None => self.past(&id).await?.ok_or_else(|| not_found(&request.sandbox))?,
        };
        let said =
            v1::FinishSessionRequest { sandbox: String::new(), claim: String::new(), ..request.clone() };
        // Said before, and the answer was lost on its way.
        if let Some(end) = log.finished(&said) {
            log.commit(end).await.map_err(Refusal::from)?;
            return Ok(Response::new(v1::FinishSessionReply {}));
        }
        let live = self.live(&request.sandbox, &request.claim).await?;
        let reward = reward_of(&request)?;
        if request.problem.len() > PROBLEM_BYTES_MAX {
            return Err(Refusal::bad("problem", format!("at most {PROBLEM_BYTES_MAX} bytes")).into());
        }
        if reward.is_some() && !live.plan.takes_reward {
            let words = "the reward of this rollout comes from its grader";
            return Err(Refusal::new(SandboxCode::RewardNotTaken, words).into());
        }
        if reward.is_some() && !request.problem.is_empty() {
            return Err(Refusal::bad("problem", "what did not work out has no reward").into());
        }
        live.finish(ending(&request.problem, reward), &said).await?;
        Ok(Response::new(v1::FinishSessionReply {}))
    }

    async fn act(&self, request: Request<v1::ActRequest>) -> Answer<v1::ActReply> {
        let request = request.into_inner();
        let id = named(&request.sandbox)?;
        let reply = match self.sessions.find_soon(&id).await? {
            Some(live) => actions::act(&live, request).await?,
            None => match self.past(&id).await? {
                Some(log) => actions::act_past(&log, &request.sandbox, &request).await?,
                None => return Err(not_found(&request.sandbox).into()),
            },
        };
        Ok(Response::new(reply))
    }

    async fn list_actions(&self, request: Request<v1::ListActionsRequest>) -> Answer<v1::ListActionsReply> {
        let request = request.into_inner();
        let id = named(&request.sandbox)?;
        let log = match self.sessions.find_soon(&id).await? {
            Some(live) => Arc::clone(&live.log),
            None => self.past(&id).await?.ok_or_else(|| not_found(&request.sandbox))?,
        };
        Ok(Response::new(actions::list(&log, request.from, request.page_size).await?))
    }

    type ExecStream = ReceiverStream<Result<v1::ExecOutput, Status>>;
    async fn exec(&self, request: Request<Streaming<v1::ExecInput>>) -> Answer<Self::ExecStream> {
        let mut inputs = request.into_inner();
        let Some(exec_input::Input::Start(start)) = first(&mut inputs).await?.input else {
            return Err(Refusal::bad("input", "the first input is `start`").into());
        };
        let live = self.live(&start.sandbox, &start.claim).await?;
        Ok(Response::new(ReceiverStream::new(exec::exec(&live, start, inputs).await?)))
    }

    type ReadFileStream = ReceiverStream<Result<v1::FileChunk, Status>>;
    async fn read_file(&self, request: Request<v1::ReadFileRequest>) -> Answer<Self::ReadFileStream> {
        let request = request.into_inner();
        let live = self.live(&request.sandbox, &request.claim).await?;
        Ok(Response::new(ReceiverStream::new(transfers::read(&live, request).await?)))
    }

    async fn write_file(&self, request: Request<Streaming<v1::WriteFileChunk>>) -> Answer<v1::FileInfo> {
        let mut chunks = request.into_inner();
        let Some(write_file_chunk::Chunk::Start(start)) = first(&mut chunks).await?.chunk else {
            return Err(Refusal::bad("chunk", "the first chunk is `start`").into());
        };
        let live = self.live(&start.sandbox, &start.claim).await?;
        Ok(Response::new(transfers::write(&live, start, &mut chunks).await?))
    }

    async fn list_files(&self, request: Request<v1::ListFilesRequest>) -> Answer<v1::ListFilesReply> {
        let request = request.into_inner();
        let live = self.live(&request.sandbox, &request.claim).await?;
        Ok(Response::new(transfers::list(&live, request).await?))
    }

    async fn stat_file(&self, request: Request<v1::StatFileRequest>) -> Answer<v1::FileInfo> {
        let request = request.into_inner();
        let live = self.live(&request.sandbox, &request.claim).await?;
        Ok(Response::new(transfers::stat(&live, &request.path).await?))
    }

    async fn make_dir(&self, request: Request<v1::MakeDirRequest>) -> Answer<v1::FileInfo> {
        let request = request.into_inner();
        let live = self.live(&request.sandbox, &request.claim).await?;
        Ok(Response::new(transfers::make_dir(&live, &request.path, request.user).await?))
    }

    async fn remove_file(&self, request: Request<v1::RemoveFileRequest>) -> Answer<v1::RemoveFileReply> {
        let request = request.into_inner();
        let live = self.live(&request.sandbox, &request.claim).await?;
        let removed = transfers::remove(&live, &request.path).await?;
        Ok(Response::new(v1::RemoveFileReply { removed }))
    }

    type ForwardStream = ReceiverStream<Result<v1::ForwardOutput, Status>>;
    async fn forward(&self, request: Request<Streaming<v1::ForwardInput>>) -> Answer<Self::ForwardStream> {
        let mut inputs = request.into_inner();
        let Some(forward_input::Input::Open(open)) = first(&mut inputs).await?.input else {
            return Err(Refusal::bad("input", "the first input is `open`").into());
        };
        let live = self.live(&open.sandbox, &open.claim).await?;
        Ok(Response::new(ReceiverStream::new(forward::forward(&live, open.claim, open.port, inputs).await?)))
    }

    async fn pause(&self, request: Request<v1::PauseSandboxRequest>) -> Answer<v1::LifecycleReply> {
        let request = request.into_inner();
        let live = self.live(&request.sandbox, &request.claim).await?;
        let reply = if request.park {
            live.leave(request.version, None).await?
        } else {
            live.pause(request.version).await?
        };
        // The scheduler passes the message on unread.
        let rung = reply.rung.parse::<MetadataValue<Ascii>>();
        let rung = rung.map_err(|error| Status::internal(format!("rung `{}`: {error}", reply.rung)))?;
        let mut response = Response::new(reply);
        response.metadata_mut().insert(RUNG_METADATA, rung);
        Ok(response)
    }

    async fn resume(&self, request: Request<v1::ResumeSandboxRequest>) -> Answer<v1::LifecycleReply> {
        let request = request.into_inner();
        let live = self.live(&request.sandbox, &request.claim).await?;
        Ok(Response::new(live.resume(request.version).await?))
    }

    /// The scheduler gives it its name.
    async fn take_checkpoint(
        &self,
        request: Request<v1::TakeCheckpointRequest>,
    ) -> Answer<v1::TakeCheckpointReply> {
        let request = request.into_inner();
        let live = self.live(&request.sandbox, &request.claim).await?;
        let _busy = live.busy()?;
        live.wake().await?;
        let saved = live.save().await.map_err(|error| {
            let code = match &error {
                SaveError::Refused(_) => SandboxCode::WrongKindOfFile,
                SaveError::TooSlow(_) => SandboxCode::TooManyCalls,
                SaveError::Storage(_) => SandboxCode::StorageFailed,
                SaveError::Over => SandboxCode::SandboxEnded,
            };
            Refusal::new(code, error.to_string())
        })?;
        let (checkpoint, id) = (Some(to_wire::checkpoint(&saved)), saved.id().to_string());
        Ok(Response::new(v1::TakeCheckpointReply { checkpoint, id }))
    }
}
