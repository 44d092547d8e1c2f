//! A yard of one sandbox: its files are a folder, its processes are of this machine.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use futures::Stream;
use rollout_wire::CODE_METADATA;
use rollout_wire::v1::sandboxes_server::{Sandboxes, SandboxesServer};
use rollout_wire::v1::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::support::{Ran, rollyard};

pub const SANDBOX: &str = "j0000000000007-g0-s0@node-a";
/// Of a job, and held by its driver.
pub const SESSION: &str = "j0000000000008-g1-s2@node-a";
/// It has ended.
pub const ENDED: &str = "j0000000000009-g0-s0@node-a";

#[derive(Debug, Default)]
pub struct Seen {
    pub creates: Vec<CreateSandboxRequest>,
    pub lists: Vec<ListSandboxesRequest>,
    pub kills: Vec<KillSandboxesRequest>,
    pub forks: Vec<ForkSandboxRequest>,
    pub execs: Vec<ExecStart>,
    pub acts: Vec<ActRequest>,
    pub pauses: Vec<PauseSandboxRequest>,
}

#[derive(Debug, Clone)]
pub struct One {
    pub root: PathBuf,
    pub seen: Arc<Mutex<Seen>>,
    /// What every directory is said to hold, instead of what it holds.
    pub lies: Vec<FileInfo>,
}

#[derive(Debug)]
pub struct SandboxYard {
    pub dir: tempfile::TempDir,
    pub seen: Arc<Mutex<Seen>>,
    _runtime: tokio::runtime::Runtime,
}

impl SandboxYard {
    pub fn start() -> Self {
        Self::lying(Vec::new())
    }

    pub fn lying(lies: Vec<FileInfo>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("root");
        fs::create_dir(&root).expect("made");
        let one = One { root, seen: Arc::default(), lies };
        let seen = one.seen.clone();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let socket = dir.path().join("yard.sock");
        let listener = runtime.block_on(async { UnixListener::bind(&socket) }).expect("bound");
        let incoming = UnixListenerStream::new(listener);
        runtime.spawn(Server::builder().serve_with_incoming(SandboxesServer::new(one), incoming));
        Self { dir, seen, _runtime: runtime }
    }

    /// Runs `rollyard` against this yard, in its directory.
    pub fn ask(&self, args: &[&str]) -> Ran {
        rollyard(self.dir.path(), args)
    }

    /// Below the root of the sandbox.
    pub fn there(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    /// In the directory the program runs in.
    pub fn here(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }
}

pub fn sandbox(id: &str, state: &str) -> Sandbox {
    Sandbox {
        id: id.into(),
        state: state.into(),
        node: "node-a".into(),
        image: "host".into(),
        ..Sandbox::default()
    }
}

fn refused(code: Code, text: &str) -> Status {
    told(code, text, &format!("refused: {text}"))
}

fn told(code: Code, text: &str, message: &str) -> Status {
    let mut status = Status::new(code, message);
    status.metadata_mut().insert(CODE_METADATA, text.parse().expect("ASCII"));
    status
}

impl One {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("unpoisoned")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn info(&self, path: &str) -> Result<FileInfo, Status> {
        let at = self.at(path);
        let metadata = fs::symlink_metadata(&at).map_err(|_| refused(Code::NotFound, "no_such_file"))?;
        let kind = match metadata.file_type() {
            kind if kind.is_dir() => "directory",
            kind if kind.is_symlink() => "symlink",
            kind if kind.is_file() => "file",
            _ => "fifo",
        };
        let target = fs::read_link(&at).map(|target| target.display().to_string());
        Ok(FileInfo {
            path: path.to_owned(),
            kind: kind.into(),
            size: metadata.len(),
            mode: metadata.permissions().mode() & 0o7777,
            version: format!("{}", metadata.mtime_nsec()),
            symlink_target: target.unwrap_or_default(),
            ..FileInfo::default()
        })
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Sandboxes for One {
    async fn create(&self, request: Request<CreateSandboxRequest>) -> Answer<Sandbox> {
        self.seen().creates.push(request.into_inner());
        Ok(Response::new(sandbox(SANDBOX, "running")))
    }

    async fn get(&self, request: Request<GetSandboxRequest>) -> Answer<Sandbox> {
        Ok(Response::new(sandbox(&request.into_inner().sandbox, "paused")))
    }

    /// Two a page, of five.
    async fn list(&self, request: Request<ListSandboxesRequest>) -> Answer<ListSandboxesReply> {
        let request = request.into_inner();
        let from: usize = request.page_token.parse().unwrap_or(0);
        self.seen().lists.push(request);
        let ids = (from..5).take(2).map(|n| sandbox(&format!("j0000000000007-g{n}-s0@node-a"), "running"));
        let next_page_token = if from + 2 < 5 { (from + 2).to_string() } else { String::new() };
        Ok(Response::new(ListSandboxesReply { sandboxes: ids.collect(), next_page_token }))
    }

    /// The second that is named cannot be ended.
    async fn kill(&self, request: Request<KillSandboxesRequest>) -> Answer<KillSandboxesReply> {
        let request = request.into_inner();
        let mut ids = request.sandboxes.clone();
        self.seen().kills.push(request);
        ids.retain(|id| id != ENDED);
        if ids == [SESSION] {
            let failed = KillFailure {
                sandbox: ids.remove(0),
                code: "bad_request".into(),
                message: format!("`{SESSION}` is of a job, not of a client"),
            };
            return Ok(Response::new(KillSandboxesReply { killed: ids, failed: vec![failed] }));
        }
        let failed = (ids.len() > 1).then(|| ids.remove(1)).map(|sandbox| KillFailure {
            sandbox,
            code: "node_lost".into(),
            message: "its node does not answer".into(),
        });
        Ok(Response::new(KillSandboxesReply { killed: ids, failed: failed.into_iter().collect() }))
    }

    async fn claim(&self, _: Request<ClaimSessionRequest>) -> Answer<ClaimSessionReply> {
        Err(refused(Code::Unimplemented, "not_available_yet"))
    }

    async fn fork(&self, request: Request<ForkSandboxRequest>) -> Answer<ForkSandboxReply> {
        let request = request.into_inner();
        let forks = (0..request.count).map(|n| sandbox(&format!("j000000000000{n}-g0-s0@node-a"), "running"));
        let reply = ForkSandboxReply { sandboxes: forks.collect(), checkpoint: "sha256:7".into() };
        self.seen().forks.push(request);
        Ok(Response::new(reply))
    }

    async fn renew(&self, _: Request<RenewSessionRequest>) -> Answer<RenewSessionReply> {
        Err(refused(Code::Unimplemented, "not_available_yet"))
    }

    async fn finish(&self, _: Request<FinishSessionRequest>) -> Answer<FinishSessionReply> {
        Err(refused(Code::Unimplemented, "not_available_yet"))
    }

    /// Says its command back; `lost` is one whose end nobody knows.
    async fn act(&self, request: Request<ActRequest>) -> Answer<ActReply> {
        let request = request.into_inner();
        let Some(act_request::Payload::Run(run)) = request.payload.clone() else {
            return Err(refused(Code::InvalidArgument, "bad_request"));
        };
        self.seen().acts.push(request);
        let Some(run_command::Command::Shell(text)) = run.command else {
            return Err(refused(Code::InvalidArgument, "bad_request"));
        };
        if text == "lost" {
            return Ok(Response::new(ActReply { state: "unknown".into(), ..ActReply::default() }));
        }
        let result = ActResult {
            exit_code: Some(text.len().try_into().expect("short")),
            stdout: format!("{text}\n").into_bytes(),
            ..ActResult::default()
        };
        Ok(Response::new(ActReply { state: "done".into(), result: Some(result), ..ActReply::default() }))
    }

    async fn list_actions(&self, _: Request<ListActionsRequest>) -> Answer<ListActionsReply> {
        Err(refused(Code::Unimplemented, "not_available_yet"))
    }

    type ExecStream = Answers<ExecOutput>;
    async fn exec(&self, request: Request<Streaming<ExecInput>>) -> Answer<Self::ExecStream> {
        let mut inputs = request.into_inner();
        let Some(exec_input::Input::Start(start)) = inputs.message().await?.and_then(|first| first.input)
        else {
            return Err(refused(Code::InvalidArgument, "bad_request"));
        };
        let Some(exec_start::Command::Argv(argv)) = start.command.clone() else {
            return Err(refused(Code::InvalidArgument, "bad_request"));
        };
        if start.sandbox == SESSION {
            let message = format!("session {SESSION} is not held by this claim");
            return Err(told(Code::FailedPrecondition, "claim_lost", &message));
        }
        let mut child = tokio::process::Command::new(&argv.items[0])
            .args(&argv.items[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| told(Code::FailedPrecondition, "command_not_started", &error.to_string()))?;
        let has_input = start.exec_id.is_empty();
        self.seen().execs.push(start);
        let (mut stdin, mut stdout, mut stderr) = (
            child.stdin.take().filter(|_| has_input),
            child.stdout.take().expect("piped"),
            child.stderr.take().expect("piped"),
        );
        tokio::spawn(async move {
            while let Ok(Some(ExecInput { input: Some(input) })) = inputs.message().await {
                match input {
                    exec_input::Input::Stdin(data) => {
                        _ = stdin.as_mut().expect("not after its end").write_all(&data).await;
                    }
                    exec_input::Input::CloseStdin(_) => stdin = None,
                    _ => {}
                }
            }
        });
        let (outputs, waiting) = mpsc::channel(4);
        tokio::spawn(async move {
            let send = async |output| _ = outputs.send(Ok(ExecOutput { output: Some(output) })).await;
            send(exec_output::Output::Started(ExecStarted { pid: 7 })).await;
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let (first, second) = tokio::join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err));
            first.and(second).expect("read");
            for piece in out.chunks(4096) {
                send(exec_output::Output::Stdout(piece.to_vec())).await;
            }
            send(exec_output::Output::Stderr(err)).await;
            let status = child.wait().await.expect("waited for");
            let (exit_code, signal) = (status.code(), status.signal());
            send(exec_output::Output::Ended(ExecEnded { exit_code, signal, timed_out: false })).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(waiting))))
    }

    type ReadFileStream = Answers<FileChunk>;
    async fn read_file(&self, request: Request<ReadFileRequest>) -> Answer<Self::ReadFileStream> {
        let request = request.into_inner();
        let info = self.info(&request.path)?;
        if !request.version.is_empty() && request.version != info.version {
            return Err(refused(Code::Aborted, "path_changed"));
        }
        let data = fs::read(self.at(&request.path)).map_err(|error| Status::internal(error.to_string()))?;
        let mut chunks = vec![Ok(FileChunk { info: Some(info), data: Vec::new() })];
        chunks.extend(data.chunks(5).map(|data| Ok(FileChunk { info: None, data: data.to_vec() })));
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks))))
    }

    async fn write_file(&self, request: Request<Streaming<WriteFileChunk>>) -> Answer<FileInfo> {
        let mut chunks = request.into_inner();
        let Some(write_file_chunk::Chunk::Start(start)) =
            chunks.message().await?.and_then(|first| first.chunk)
        else {
            return Err(refused(Code::InvalidArgument, "bad_request"));
        };
        let mut whole = Vec::new();
        while let Some(WriteFileChunk { chunk: Some(write_file_chunk::Chunk::Data(data)) }) =
            chunks.message().await?
        {
            whole.extend(data);
        }
        if whole.len() as u64 != start.size {
            return Err(refused(Code::Aborted, "path_changed"));
        }
        let at = self.at(&start.path);
        fs::write(&at, whole).map_err(|error| Status::internal(error.to_string()))?;
        let mode = fs::Permissions::from_mode(start.mode.unwrap_or(0o644));
        fs::set_permissions(at, mode).map_err(|error| Status::internal(error.to_string()))?;
        self.info(&start.path).map(Response::new)
    }

    /// Two a page.
    async fn list_files(&self, request: Request<ListFilesRequest>) -> Answer<ListFilesReply> {
        let request = request.into_inner();
        if !self.lies.is_empty() {
            return Ok(Response::new(ListFilesReply { files: self.lies.clone(), more: false }));
        }
        let entries =
            fs::read_dir(self.at(&request.path)).map_err(|error| Status::internal(error.to_string()))?;
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .filter(|name| *name > request.after)
            .collect();
        names.sort();
        let more = names.len() > 2;
        let info = |name: &String| self.info(&format!("{}/{name}", request.path)).expect("there");
        let files = names.iter().take(2).map(info).collect();
        Ok(Response::new(ListFilesReply { files, more }))
    }

    async fn stat_file(&self, request: Request<StatFileRequest>) -> Answer<FileInfo> {
        self.info(&request.into_inner().path).map(Response::new)
    }

    async fn make_dir(&self, request: Request<MakeDirRequest>) -> Answer<FileInfo> {
        let path = request.into_inner().path;
        fs::create_dir(self.at(&path)).map_err(|error| Status::internal(error.to_string()))?;
        self.info(&path).map(Response::new)
    }

    async fn remove_file(&self, _: Request<RemoveFileRequest>) -> Answer<RemoveFileReply> {
        Err(refused(Code::Unimplemented, "not_available_yet"))
    }

    type ForwardStream = Answers<ForwardOutput>;
    async fn forward(&self, _: Request<Streaming<ForwardInput>>) -> Answer<Self::ForwardStream> {
        Err(refused(Code::Unimplemented, "not_available_yet"))
    }

    async fn pause(&self, request: Request<PauseSandboxRequest>) -> Answer<LifecycleReply> {
        self.seen().pauses.push(request.into_inner());
        Ok(Response::new(LifecycleReply { rung: "frozen".into(), version: 4, reclaimed_bytes: 0 }))
    }

    async fn resume(&self, _: Request<ResumeSandboxRequest>) -> Answer<LifecycleReply> {
        Ok(Response::new(LifecycleReply { rung: "running".into(), version: 5, reclaimed_bytes: 0 }))
    }

    async fn take_checkpoint(&self, _: Request<TakeCheckpointRequest>) -> Answer<TakeCheckpointReply> {
        Ok(Response::new(TakeCheckpointReply { id: "sha256:7".into(), ..TakeCheckpointReply::default() }))
    }
}
