//! A node's end of the calls of sandboxes: it keeps no sandbox, notes what it is asked, and answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blobs::BlobStore;
use bytes::Bytes;
use futures::Stream;
use rollout_wire::v1::exec_input::Input;
use rollout_wire::v1::exec_output::Output;
use rollout_wire::v1::sandboxes_server::{Sandboxes, SandboxesServer};
use rollout_wire::{CODE_METADATA, v1};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::metadata::MetadataValue;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::executor::Seen;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Debug, Default)]
pub struct Kept {
    /// Rollout -> driver.
    pub claims: BTreeMap<String, String>,
    /// The sessions that can be claimed: those that its executor runs.
    pub executor: Option<Arc<Mutex<Seen>>>,
    /// Nothing is saved before so many were asked for.
    pub saves_together: usize,
    /// Claims are never answered.
    pub hangs: bool,
    /// Method and sandbox of each call.
    pub calls: Vec<(String, String)>,
    /// Calls that have begun and not ended.
    pub open: usize,
    pub written: Vec<u8>,
    /// Metadata of the last call.
    pub tag: Option<String>,
    /// Names that it does not have.
    pub away: BTreeSet<String>,
    /// Names of which it says that they are over.
    pub over: BTreeSet<String>,
}

#[derive(Clone)]
pub struct Keeper {
    pub kept: Arc<Mutex<Kept>>,
    blobs: String,
}

pub struct Serving {
    pub kept: Arc<Mutex<Kept>>,
    pub url: String,
    /// Of its own, so that its end ends every connection.
    runtime: Option<Runtime>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Serving {
    pub fn count(&self, method: &str) -> usize {
        self.kept.lock().unwrap().calls.iter().filter(|(called, _)| called == method).count()
    }
}

/// Serves in `dir`, over the blobs of a yard there.
pub fn serve(dir: &Path) -> Serving {
    let path = dir.join("keeper.sock");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = {
        let _inside = runtime.enter();
        UnixListener::bind(&path).unwrap()
    };
    let kept = Arc::new(Mutex::new(Kept::default()));
    let blobs = format!("file://{}", dir.join("data/blobs").display());
    let keeper = Keeper { kept: kept.clone(), blobs };
    let (service, incoming) = (SandboxesServer::new(keeper), UnixListenerStream::new(listener));
    let serving = Server::builder().serve_with_incoming(service, incoming);
    runtime.spawn(async move { serving.await.unwrap() });
    Serving { kept, url: format!("unix:{}", path.display()), runtime: Some(runtime) }
}

/// A refusal in a node's own words.
fn refused(code: &'static str) -> Status {
    let mut status = Status::new(Code::AlreadyExists, "in a node's own words");
    status.metadata_mut().insert(CODE_METADATA, MetadataValue::from_static(code));
    status
}

/// Counts a call as open until it is dropped.
struct Open(Arc<Mutex<Kept>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().unwrap().open -= 1;
    }
}

impl Keeper {
    fn note(&self, method: &str, sandbox: &str) -> Result<Open, Status> {
        let mut kept = self.kept.lock().unwrap();
        kept.calls.push((method.to_owned(), sandbox.to_owned()));
        if kept.away.contains(sandbox) {
            return Err(refused("sandbox_gone"));
        }
        if kept.over.contains(sandbox) {
            return Err(refused("sandbox_ended"));
        }
        kept.open += 1;
        Ok(Open(self.kept.clone()))
    }

    /// Notes a call that nobody here needs an answer to.
    fn only_noted<T>(&self, method: &str, sandbox: &str) -> Result<Response<T>, Status> {
        self.note(method, sandbox)?;
        Err(refused("not_available_yet"))
    }
}

#[tonic::async_trait]
impl Sandboxes for Keeper {
    type ExecStream = Answers<v1::ExecOutput>;
    type ReadFileStream = Answers<v1::FileChunk>;
    type ForwardStream = Answers<v1::ForwardOutput>;

    async fn claim(
        &self,
        request: Request<v1::ClaimSessionRequest>,
    ) -> Result<Response<v1::ClaimSessionReply>, Status> {
        let v1::ClaimSessionRequest { job, rollout, driver, held_only, .. } = request.into_inner();
        let _open = self.note("Claim", &rollout)?;
        if self.kept.lock().unwrap().hangs {
            return std::future::pending().await;
        }
        let mut kept = self.kept.lock().unwrap();
        let seen = kept.executor.clone().expect("its executor is known");
        let seen = seen.lock().unwrap();
        let is_wanted = |attempt: &&v1::AttemptRef| match rollout.as_str() {
            "" => attempt.rollout.starts_with(&format!("{job}-")),
            rollout => attempt.rollout == rollout,
        };
        let mut sessions: Vec<&v1::AttemptRef> = seen.running.values().filter(is_wanted).collect();
        let is_own = |kept: &Kept, a: &v1::AttemptRef| kept.claims.get(&a.rollout) == Some(&driver);
        sessions.sort_by_key(|attempt| !is_own(&kept, attempt));
        let is_free =
            |a: &&&v1::AttemptRef| is_own(&kept, a) || !held_only && !kept.claims.contains_key(&a.rollout);
        let session = sessions.iter().find(is_free).map(|attempt| v1::Session {
            sandbox: format!("{}.{}@{}", attempt.rollout, attempt.step, "n"),
            rollout: attempt.rollout.clone(),
            attempt: attempt.attempt,
            claim: format!("token-of-{driver}"),
            actions: 3,
            takes_reward: true,
            ..v1::Session::default()
        });
        if let Some(session) = &session {
            kept.claims.insert(session.rollout.clone(), driver);
        }
        Ok(Response::new(v1::ClaimSessionReply { session, drained: false }))
    }

    async fn act(&self, request: Request<v1::ActRequest>) -> Result<Response<v1::ActReply>, Status> {
        let tag = request.metadata().get("x-tag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        self.kept.lock().unwrap().tag = tag;
        let act = request.into_inner();
        let _open = self.note("Act", &act.sandbox)?;
        match act.action_id.as_str() {
            "conflict" => Err(refused("action_conflict")),
            "never" => std::future::pending().await,
            _ => {
                let data = match act.payload {
                    Some(v1::act_request::Payload::Put(put)) => put.data,
                    _ => Vec::new(),
                };
                let result = v1::ActResult { data, ..v1::ActResult::default() };
                let state = "done".to_owned();
                Ok(Response::new(v1::ActReply { state, result: Some(result), ..v1::ActReply::default() }))
            }
        }
    }

    async fn exec(
        &self,
        request: Request<Streaming<v1::ExecInput>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        let mut inputs = request.into_inner();
        let first = inputs.message().await?.and_then(|first| first.input);
        let Some(Input::Start(start)) = first else { return Err(refused("bad_request")) };
        let open = self.note("Exec", &start.sandbox)?;
        let (send, answers) = mpsc::channel(1);
        tokio::spawn(async move {
            let _open = open;
            let output = |output| Ok(v1::ExecOutput { output: Some(output) });
            let _ = send.send(output(Output::Started(v1::ExecStarted { pid: 7 }))).await;
            if start.user == "flood" {
                while send.send(output(Output::Stdout(vec![b'x'; 60_000]))).await.is_ok() {}
                return;
            }
            while let Ok(Some(input)) = inputs.message().await {
                let ended = v1::ExecEnded { exit_code: Some(3), ..v1::ExecEnded::default() };
                let answer = match input.input {
                    Some(Input::Stdin(bytes)) => Output::Stdout(bytes),
                    Some(Input::CloseStdin(_)) => Output::Ended(ended),
                    _ => continue,
                };
                if send.send(output(answer)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn write_file(
        &self,
        request: Request<Streaming<v1::WriteFileChunk>>,
    ) -> Result<Response<v1::FileInfo>, Status> {
        use v1::write_file_chunk::Chunk;
        let mut chunks = request.into_inner();
        let (mut written, mut path) = (Vec::new(), String::new());
        while let Some(chunk) = chunks.message().await? {
            match chunk.chunk {
                Some(Chunk::Start(start)) => {
                    drop(self.note("WriteFile", &start.sandbox)?);
                    path = start.path;
                }
                Some(Chunk::Data(data)) => written.extend(data),
                None => return Err(refused("bad_request")),
            }
        }
        let size = written.len() as u64;
        self.kept.lock().unwrap().written = written;
        Ok(Response::new(v1::FileInfo { path, size, ..v1::FileInfo::default() }))
    }

    async fn take_checkpoint(
        &self,
        request: Request<v1::TakeCheckpointRequest>,
    ) -> Result<Response<v1::TakeCheckpointReply>, Status> {
        let sandbox = request.into_inner().sandbox;
        let _open = self.note("TakeCheckpoint", &sandbox)?;
        let count = self.kept.lock().unwrap().calls.len();
        let asked = |kept: &Kept| kept.calls.iter().filter(|(called, _)| called == "TakeCheckpoint").count();
        while self.kept.lock().is_ok_and(|kept| asked(&kept) < kept.saves_together) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let blobs = BlobStore::open(&self.blobs).unwrap();
        let blob = blobs.put(Bytes::from(format!("what {sandbox} changed, {count}"))).await.unwrap();
        let layer = v1::Layer {
            id: format!("sha256:{}", blob.sha256),
            blob_sha256: blob.sha256,
            packed_bytes: blob.size,
            content_bytes: blob.size,
            entries: 1,
        };
        let checkpoint = Some(v1::Checkpoint { image: "host:0".to_owned(), layers: vec![layer] });
        Ok(Response::new(v1::TakeCheckpointReply { checkpoint, id: String::new() }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewSessionRequest>,
    ) -> Result<Response<v1::RenewSessionReply>, Status> {
        drop(self.note("Renew", &request.into_inner().sandbox)?);
        Ok(Response::new(v1::RenewSessionReply { ttl_ms: 9 }))
    }

    async fn finish(
        &self,
        request: Request<v1::FinishSessionRequest>,
    ) -> Result<Response<v1::FinishSessionReply>, Status> {
        self.only_noted("Finish", &request.into_inner().sandbox)
    }
    async fn list_actions(
        &self,
        request: Request<v1::ListActionsRequest>,
    ) -> Result<Response<v1::ListActionsReply>, Status> {
        self.only_noted("ListActions", &request.into_inner().sandbox)
    }
    async fn read_file(
        &self,
        request: Request<v1::ReadFileRequest>,
    ) -> Result<Response<Self::ReadFileStream>, Status> {
        self.only_noted("ReadFile", &request.into_inner().sandbox)
    }
    async fn list_files(
        &self,
        request: Request<v1::ListFilesRequest>,
    ) -> Result<Response<v1::ListFilesReply>, Status> {
        self.only_noted("ListFiles", &request.into_inner().sandbox)
    }
    async fn stat_file(
        &self,
        request: Request<v1::StatFileRequest>,
    ) -> Result<Response<v1::FileInfo>, Status> {
        self.only_noted("StatFile", &request.into_inner().sandbox)
    }
    async fn make_dir(&self, request: Request<v1::MakeDirRequest>) -> Result<Response<v1::FileInfo>, Status> {
        self.only_noted("MakeDir", &request.into_inner().sandbox)
    }
    async fn remove_file(
        &self,
        request: Request<v1::RemoveFileRequest>,
    ) -> Result<Response<v1::RemoveFileReply>, Status> {
        self.only_noted("RemoveFile", &request.into_inner().sandbox)
    }
    async fn forward(
        &self,
        request: Request<Streaming<v1::ForwardInput>>,
    ) -> Result<Response<Self::ForwardStream>, Status> {
        use v1::forward_input::Input;
        let first = request.into_inner().message().await?.and_then(|first| first.input);
        let Some(Input::Open(open)) = first else { return Err(refused("bad_request")) };
        self.only_noted("Forward", &open.sandbox)
    }
    async fn pause(
        &self,
        request: Request<v1::PauseSandboxRequest>,
    ) -> Result<Response<v1::LifecycleReply>, Status> {
        self.only_noted("Pause", &request.into_inner().sandbox)
    }
    async fn resume(
        &self,
        request: Request<v1::ResumeSandboxRequest>,
    ) -> Result<Response<v1::LifecycleReply>, Status> {
        self.only_noted("Resume", &request.into_inner().sandbox)
    }

    // A scheduler never asks a node for these.
    async fn create(&self, _: Request<v1::CreateSandboxRequest>) -> Result<Response<v1::Sandbox>, Status> {
        self.only_noted("Create", "")
    }
    async fn get(&self, _: Request<v1::GetSandboxRequest>) -> Result<Response<v1::Sandbox>, Status> {
        self.only_noted("Get", "")
    }
    async fn list(
        &self,
        _: Request<v1::ListSandboxesRequest>,
    ) -> Result<Response<v1::ListSandboxesReply>, Status> {
        self.only_noted("List", "")
    }
    async fn kill(
        &self,
        _: Request<v1::KillSandboxesRequest>,
    ) -> Result<Response<v1::KillSandboxesReply>, Status> {
        self.only_noted("Kill", "")
    }
    async fn fork(
        &self,
        _: Request<v1::ForkSandboxRequest>,
    ) -> Result<Response<v1::ForkSandboxReply>, Status> {
        self.only_noted("Fork", "")
    }
}
