//! A yard that answers from a script, and the real binary to ask it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use rollout_wire::v1::jobs_server::{Jobs, JobsServer};
use rollout_wire::v1::*;
use rollout_wire::{CODE_METADATA, HINT_METADATA};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

pub const JOB: &str = "j0000000000007";

/// What the yard was asked to keep or do.
#[derive(Debug, Default)]
pub struct Seen {
    pub submits: Vec<SubmitRequest>,
    pub blobs: Vec<(String, Vec<u8>)>,
    pub cancels: Vec<CancelRequest>,
    pub retries: Vec<RetryRequest>,
}

#[derive(Debug, Default)]
pub struct Script {
    pub jobs: Vec<Job>,
    /// The states a watch goes through.
    pub watch: Vec<Job>,
    pub steps: Vec<StepRow>,
    pub logs: Vec<LogsChunk>,
    /// Every call is refused with this code, message and hint.
    pub refuse: Option<(tonic::Code, &'static str, &'static str, &'static str)>,
    pub seen: Arc<Mutex<Seen>>,
}

/// Serves until dropped.
#[derive(Debug)]
pub struct Yard {
    pub dir: tempfile::TempDir,
    pub seen: Arc<Mutex<Seen>>,
    _runtime: tokio::runtime::Runtime,
}

impl Yard {
    pub fn start(script: Script) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let seen = script.seen.clone();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let socket = dir.path().join("yard.sock");
        let listener = runtime.block_on(async { UnixListener::bind(&socket) }).expect("bound");
        let incoming = UnixListenerStream::new(listener);
        runtime.spawn(Server::builder().serve_with_incoming(JobsServer::new(script), incoming));
        Self { dir, seen, _runtime: runtime }
    }

    /// Runs `rollyard` against this yard, in its directory.
    pub fn ask(&self, args: &[&str]) -> Ran {
        rollyard(self.dir.path(), args)
    }

    /// The same, not yet started.
    pub fn command(&self, args: &[&str]) -> Command {
        command(self.dir.path(), args)
    }

    pub fn ask_json(&self, args: &[&str]) -> Ran {
        rollyard(self.dir.path(), &json(args))
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    }
}

/// The same question with `--output json`.
pub fn json<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter().copied().chain(["--output", "json"]).collect()
}

#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollyard"));
    command.args(args).current_dir(dir).env("ROLLYARD_DATA_DIR", dir);
    command.env_remove("ROLLYARD_YARD").env_remove("RUST_LOG");
    command
}

pub fn rollyard(dir: &Path, args: &[&str]) -> Ran {
    let output: Output = command(dir, args).output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran {
        code: output.status.code().expect("it exits"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

pub fn job(state: &str) -> Job {
    Job {
        id: JOB.into(),
        name: "hello".into(),
        state: state.into(),
        spec_hash: "sha256:00".into(),
        table_root: "/data/out".into(),
        group_size: 4,
        counts: Some(Counts {
            groups_total: 1,
            rollouts_total: 4,
            rollouts_ended: 4,
            rollouts_valid: 4,
            ..Counts::default()
        }),
        rewards: Some(Rewards { count: 4, sum: 4.0, successes: 4, pass_at_k: Vec::new() }),
        ..Job::default()
    }
}

impl Script {
    fn refused(&self) -> Result<(), Status> {
        let Some((code, text, message, hint)) = self.refuse else { return Ok(()) };
        let mut status = Status::new(code, message);
        status.metadata_mut().insert(CODE_METADATA, text.parse().expect("ASCII"));
        status.metadata_mut().insert(HINT_METADATA, hint.parse().expect("ASCII"));
        Err(status)
    }

    fn job(&self, id: &str) -> Result<Response<Job>, Status> {
        self.refused()?;
        let found = self.jobs.iter().find(|job| job.id == id).cloned();
        found.map(Response::new).ok_or_else(|| Status::not_found("no such job"))
    }
}

type Answers<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

fn answers<T>(items: &[T]) -> Response<Answers<T>>
where
    T: Clone,
{
    Response::new(tokio_stream::iter(items.iter().cloned().map(Ok).collect::<Vec<_>>()))
}

#[tonic::async_trait]
impl Jobs for Script {
    async fn put_blob(
        &self,
        request: Request<Streaming<BlobChunk>>,
    ) -> Result<Response<PutBlobReply>, Status> {
        self.refused()?;
        let mut chunks = request.into_inner();
        let (mut sha256, mut data) = (String::new(), Vec::new());
        while let Some(chunk) = chunks.message().await? {
            if sha256.is_empty() {
                sha256 = chunk.sha256;
            }
            data.extend(chunk.data);
        }
        let size = data.len() as u64;
        self.seen.lock().expect("unpoisoned").blobs.push((sha256, data));
        Ok(Response::new(PutBlobReply { size, existed: false }))
    }

    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitReply>, Status> {
        self.refused()?;
        self.seen.lock().expect("unpoisoned").submits.push(request.into_inner());
        Ok(Response::new(SubmitReply { job: Some(job("running")), ..SubmitReply::default() }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Job>, Status> {
        self.job(&request.into_inner().job)
    }

    /// Two a page, to be sure that pages are followed.
    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListReply>, Status> {
        self.refused()?;
        let from = request.into_inner().page_token.parse().unwrap_or(0);
        let jobs: Vec<Job> = self.jobs.iter().skip(from).take(2).cloned().collect();
        let next = from + jobs.len();
        let next_page_token = if next < self.jobs.len() { next.to_string() } else { String::new() };
        Ok(Response::new(ListReply { jobs, next_page_token }))
    }

    type WatchStream = Answers<Job>;
    async fn watch(&self, _request: Request<GetRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.refused()?;
        Ok(answers(&self.watch))
    }

    async fn list_rollouts(
        &self,
        request: Request<ListRolloutsRequest>,
    ) -> Result<Response<ListRolloutsReply>, Status> {
        self.refused()?;
        let job = request.into_inner().job;
        let rollout = |sample: u32| Rollout {
            id: format!("{job}-g0-s{sample}"),
            task_id: "row-0".into(),
            status: "completed".into(),
            reward: Some(1.0),
            ..Rollout::default()
        };
        Ok(Response::new(ListRolloutsReply {
            rollouts: (0..4).map(rollout).collect(),
            next_page_token: String::new(),
        }))
    }

    async fn list_steps(
        &self,
        _request: Request<ListStepsRequest>,
    ) -> Result<Response<ListStepsReply>, Status> {
        self.refused()?;
        let finished_at_us = self.jobs.first().filter(|job| job.state == "finished").map(|_| 2);
        let rollout = Rollout {
            id: format!("{JOB}-g0-s1"),
            task_id: "row-0".into(),
            status: "completed".into(),
            finished_at_us,
            ..Rollout::default()
        };
        Ok(Response::new(ListStepsReply { steps: self.steps.clone(), rollout: Some(rollout) }))
    }

    async fn list_checkpoints(
        &self,
        _request: Request<ListCheckpointsRequest>,
    ) -> Result<Response<ListCheckpointsReply>, Status> {
        self.refused()?;
        Ok(Response::new(ListCheckpointsReply::default()))
    }

    async fn get_checkpoint(
        &self,
        _request: Request<GetCheckpointRequest>,
    ) -> Result<Response<GetCheckpointReply>, Status> {
        self.refused()?;
        Ok(Response::new(GetCheckpointReply::default()))
    }

    type ReadLayerStream = Answers<ArtifactChunk>;
    async fn read_layer(
        &self,
        _request: Request<ReadLayerRequest>,
    ) -> Result<Response<Self::ReadLayerStream>, Status> {
        self.refused()?;
        Ok(answers(&[]))
    }

    async fn remove_checkpoint(
        &self,
        _request: Request<RemoveCheckpointRequest>,
    ) -> Result<Response<RemoveCheckpointReply>, Status> {
        self.refused()?;
        Ok(Response::new(RemoveCheckpointReply::default()))
    }

    async fn collect_garbage(
        &self,
        request: Request<CollectGarbageRequest>,
    ) -> Result<Response<CollectGarbageReply>, Status> {
        self.refused()?;
        let dry_run = request.into_inner().dry_run;
        Ok(Response::new(CollectGarbageReply { dry_run, ..CollectGarbageReply::default() }))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainReply>, Status> {
        self.refused()?;
        let target = request.into_inner().target;
        Ok(Response::new(ExplainReply {
            lines: vec![format!("{target} waits for memory")],
            json: "{\"waits_for\":\"memory\"}".into(),
        }))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<Job>, Status> {
        self.refused()?;
        self.seen.lock().expect("unpoisoned").cancels.push(request.into_inner());
        Ok(Response::new(job("cancelling")))
    }

    type LogsStream = Answers<LogsChunk>;
    async fn retry(&self, request: Request<RetryRequest>) -> Result<Response<RetryReply>, Status> {
        self.refused()?;
        let request = request.into_inner();
        let reason = NotRetried { code: "agent".to_owned(), why: "are data".to_owned(), rollouts: 1 };
        let reply = RetryReply { job: Some(job("running")), retried: 2, not_retried: vec![reason] };
        self.seen.lock().expect("unpoisoned").retries.push(request);
        Ok(Response::new(reply))
    }
    async fn logs(&self, _request: Request<LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        self.refused()?;
        Ok(answers(&self.logs))
    }

    type ReadArtifactStream = Answers<ArtifactChunk>;
    async fn read_artifact(
        &self,
        request: Request<ReadArtifactRequest>,
    ) -> Result<Response<Self::ReadArtifactStream>, Status> {
        self.refused()?;
        let ReadArtifactRequest { step, name, attempt, .. } = request.into_inner();
        let first = format!("{step} {name} {}\n", attempt.unwrap_or(9)).into_bytes();
        Ok(answers(&[ArtifactChunk { data: first }, ArtifactChunk { data: b"\xff\x1b[2J".to_vec() }]))
    }

    async fn list_nodes(
        &self,
        _request: Request<ListNodesRequest>,
    ) -> Result<Response<ListNodesReply>, Status> {
        self.refused()?;
        Ok(Response::new(ListNodesReply {
            nodes: vec![Node { name: "local".into(), state: "attached".into(), ..Node::default() }],
        }))
    }

    async fn list_schedules(
        &self,
        _request: Request<ListSchedulesRequest>,
    ) -> Result<Response<ListSchedulesReply>, Status> {
        self.refused()?;
        Ok(Response::new(ListSchedulesReply { schedules: vec![schedule("nightly")] }))
    }

    async fn get_schedule(&self, request: Request<GetScheduleRequest>) -> Result<Response<Schedule>, Status> {
        self.refused()?;
        Ok(Response::new(schedule(&request.into_inner().schedule)))
    }

    async fn set_schedule(&self, request: Request<SetScheduleRequest>) -> Result<Response<Schedule>, Status> {
        self.refused()?;
        let SetScheduleRequest { schedule: name, enabled } = request.into_inner();
        Ok(Response::new(Schedule { enabled, ..schedule(&name) }))
    }

    async fn remove_schedule(
        &self,
        request: Request<RemoveScheduleRequest>,
    ) -> Result<Response<RemoveScheduleReply>, Status> {
        self.refused()?;
        Ok(Response::new(RemoveScheduleReply { id: schedule(&request.into_inner().schedule).id }))
    }

    async fn fire_schedule(
        &self,
        request: Request<FireScheduleRequest>,
    ) -> Result<Response<FireScheduleReply>, Status> {
        self.refused()?;
        let FireScheduleRequest { schedule: name, idempotency_key } = request.into_inner();
        let (result, job) = match idempotency_key.as_str() {
            "again" => ("skipped", None),
            _ => ("started", Some(JOB.to_owned())),
        };
        let schedule = Some(Schedule { problem: "the job before runs".into(), ..schedule(&name) });
        Ok(Response::new(FireScheduleReply { schedule, result: result.into(), job }))
    }
}

fn schedule(name: &str) -> Schedule {
    Schedule {
        id: "c0000000000007".into(),
        name: name.into(),
        cron: "0 2 * * *".into(),
        timezone: "UTC".into(),
        enabled: true,
        overlap: "skip".into(),
        next: vec!["2026-12-01 02:00".into()],
        ..Schedule::default()
    }
}
