//! The scheduler's side of the wire, as a test needs it: it welcomes, acknowledges, and shows
//! every report.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use executor::config::{CapacityOverrides, Reserves};
use executor::sandbox::Backend;
use executor::{Config, Endpoint, Handle};
use rollout_wire::v1::nodes_server::{Nodes, NodesServer};
use rollout_wire::v1::{self, command, report};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::fake::FakeBackend;

/// Far beyond anything expected.
const HANG_GUARD: Duration = Duration::from_secs(60);

pub struct Yard<B = FakeBackend> {
    pub backend: Arc<B>,
    pub blobs: blobs::BlobStore,
    pub executor: Option<Handle>,
    pub config: Config,
    service: Arc<Service>,
    reports: mpsc::UnboundedReceiver<report::Kind>,
    /// Reports that were not waited for yet.
    unread: Vec<report::Kind>,
    _dir: tempfile::TempDir,
}

struct Service {
    url: String,
    reports: mpsc::UnboundedSender<report::Kind>,
    commands: Mutex<Option<mpsc::Sender<Result<v1::CommandBatch, Status>>>>,
    links: Mutex<CancellationToken>,
    ttl_ms: AtomicU64,
    acknowledges_ends: AtomicBool,
    refuses: AtomicBool,
    holds_welcomes: watch::Sender<bool>,
    /// Sent right after the next welcome.
    after_welcome: Mutex<Vec<command::Kind>>,
}

fn batch(kind: command::Kind) -> v1::CommandBatch {
    v1::CommandBatch { commands: vec![v1::Command { kind: Some(kind) }] }
}

struct Server(Arc<Service>);

#[tonic::async_trait]
impl Nodes for Server {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<v1::CommandBatch, Status>> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::ReportBatch>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let service = self.0.clone();
        if service.refuses.load(SeqCst) {
            return Err(Status::unavailable("no leader"));
        }
        let mut reports = request.into_inner();
        let (commands, queue) = mpsc::channel(64);
        let broken = service.links.lock().unwrap().child_token();
        let ended = broken.clone();
        tokio::spawn(async move {
            let reading = async {
                while let Ok(Some(batch)) = reports.message().await {
                    for kind in batch.reports.into_iter().filter_map(|report| report.kind) {
                        service.hear(kind, &commands).await;
                    }
                }
            };
            tokio::select! {
                () = reading => {}
                () = broken.cancelled() => {}
            }
            // As the scheduler: its side ends after the executor's.
            broken.cancel();
        });
        let ends = Box::pin(async move { ended.cancelled().await });
        let stream = ReceiverStream::new(queue);
        let stream = futures::StreamExt::take_until(stream, ends);
        Ok(Response::new(Box::pin(stream)))
    }
}

impl Service {
    async fn hear(&self, kind: report::Kind, commands: &mpsc::Sender<Result<v1::CommandBatch, Status>>) {
        let is_held = matches!(kind, report::Kind::Hello(_)) && *self.holds_welcomes.borrow();
        if is_held {
            let _over = self.reports.send(kind.clone());
            let mut holds = self.holds_welcomes.subscribe();
            let _over = holds.wait_for(|holds| !holds).await;
        }
        let answer = match &kind {
            report::Kind::Hello(_) => {
                *self.commands.lock().unwrap() = Some(commands.clone());
                Some(command::Kind::Welcome(v1::Welcome {
                    epoch: 1,
                    lease_ttl_ms: self.ttl_ms.load(SeqCst),
                    blobs: self.url.clone(),
                    yard: "test".to_owned(),
                }))
            }
            report::Kind::Heartbeat(beat) => {
                Some(command::Kind::HeartbeatAck(v1::HeartbeatAck { sequence: beat.sequence }))
            }
            report::Kind::Ended(ended) if self.acknowledges_ends.load(SeqCst) => Some(acknowledgement(ended)),
            _ => None,
        };
        if let Some(answer) = answer {
            let _broken = commands.send(Ok(batch(answer))).await;
        }
        if matches!(kind, report::Kind::Hello(_)) {
            let after = std::mem::take(&mut *self.after_welcome.lock().unwrap());
            for command in after {
                let _broken = commands.send(Ok(batch(command))).await;
            }
        }
        if !is_held && !matches!(kind, report::Kind::Heartbeat(_)) {
            let _over = self.reports.send(kind);
        }
    }
}

fn acknowledgement(ended: &v1::AttemptEnded) -> command::Kind {
    command::Kind::EndedAck(v1::EndedAck { attempt: ended.attempt.clone(), generation: ended.generation })
}

impl Yard {
    /// An executor on the fake backend, attached.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::start_on(FakeBackend::default(), dir, change).await
    }

    /// Ends the executor and shows that nothing is left.
    pub async fn stop(mut self) {
        self.end().await;
        assert!(self.backend.state().census.is_empty(), "{:?}", self.backend.state().census);
    }
}

impl<B: Backend + 'static> Yard<B> {
    pub async fn start_on(backend: B, dir: tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let socket = dir.path().join("yard.sock");
        let url = format!("file://{}", dir.path().join("blobs").display());
        let (sender, reports) = mpsc::unbounded_channel();
        let service = Arc::new(Service {
            url: url.clone(),
            reports: sender,
            commands: Mutex::default(),
            links: Mutex::default(),
            ttl_ms: AtomicU64::new(600_000),
            acknowledges_ends: AtomicBool::new(true),
            refuses: AtomicBool::new(false),
            holds_welcomes: watch::Sender::new(false),
            after_welcome: Mutex::default(),
        });
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let server = NodesServer::new(Server(service.clone()));
        tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(server, listener));
        let mut config =
            Config::new("node-1".parse().unwrap(), dir.path().join("data"), Endpoint::Unix(socket));
        config.heartbeat_every = Duration::from_millis(20);
        config.reserves = Reserves { memory: rollout::Bytes(0), disk: rollout::Bytes(0) };
        config.capacity = CapacityOverrides {
            cpu: Some(rollout::MilliCpu(8_000)),
            memory: Some(rollout::Bytes(64 << 30)),
            disk: Some(rollout::Bytes(64 << 30)),
            sandboxes: None,
        };
        change(&mut config);
        let backend = Arc::new(backend);
        let blobs = blobs::BlobStore::open(&url).unwrap();
        let mut yard =
            Self { backend, blobs, executor: None, config, service, reports, unread: vec![], _dir: dir };
        yard.executor = Some(yard.serve().unwrap());
        yard.hello().await;
        yard
    }

    pub fn serve(&self) -> Result<Handle, executor::Error> {
        executor::serve(self.config.clone(), self.backend.clone(), CancellationToken::new())
    }

    pub fn set_ttl_ms(&self, ttl_ms: u64) {
        self.service.ttl_ms.store(ttl_ms, SeqCst);
    }

    pub fn set_acknowledges_ends(&self, acknowledges: bool) {
        self.service.acknowledges_ends.store(acknowledges, SeqCst);
    }

    /// Breaks every link; `refuses` says what new attaches find.
    pub fn break_links(&self, refuses: bool) {
        self.service.refuses.store(refuses, SeqCst);
        *self.service.commands.lock().unwrap() = None;
        std::mem::take(&mut *self.service.links.lock().unwrap()).cancel();
    }

    pub fn accept_links(&self) {
        self.service.refuses.store(false, SeqCst);
    }

    /// From now on hellos are reported and not welcomed.
    pub fn hold_welcomes(&self) {
        self.service.holds_welcomes.send_replace(true);
    }

    /// Welcomes what was held, and then sends `command` on the same link.
    pub fn release_welcomes(&self, command: command::Kind) {
        self.service.after_welcome.lock().unwrap().push(command);
        self.service.holds_welcomes.send_replace(false);
    }

    pub async fn send(&self, kind: command::Kind) {
        let commands = self.service.commands.lock().unwrap().clone().expect("a link");
        commands.send(Ok(batch(kind))).await.unwrap();
    }

    pub async fn send_all(&self, kinds: Vec<command::Kind>) {
        let commands = self.service.commands.lock().unwrap().clone().expect("a link");
        let commands_batch = kinds.into_iter().map(|kind| v1::Command { kind: Some(kind) }).collect();
        commands.send(Ok(v1::CommandBatch { commands: commands_batch })).await.unwrap();
    }

    /// The next report, in the order of their arrival.
    pub async fn next(&mut self) -> report::Kind {
        if !self.unread.is_empty() {
            return self.unread.remove(0);
        }
        let next = tokio::time::timeout(HANG_GUARD, self.reports.recv()).await;
        next.expect("a report").expect("the service is there")
    }

    /// The first report not read yet that `pick` takes.
    pub async fn wait<T>(&mut self, what: &str, pick: impl Fn(&report::Kind) -> Option<T>) -> T {
        let found =
            |unread: &[report::Kind]| unread.iter().enumerate().find_map(|(i, r)| Some((i, pick(r)?)));
        let waiting = async {
            loop {
                if let Some((index, picked)) = found(&self.unread) {
                    self.unread.remove(index);
                    return picked;
                }
                let report = self.reports.recv().await.expect("the service is there");
                self.unread.push(report);
            }
        };
        match tokio::time::timeout(HANG_GUARD, waiting).await {
            Ok(picked) => picked,
            Err(_) => panic!("never reported: {what}; unread: {:?}", self.unread),
        }
    }

    pub async fn hello(&mut self) -> v1::Hello {
        let pick =
            |r: &report::Kind| if let report::Kind::Hello(hello) = r { Some(hello.clone()) } else { None };
        self.wait("hello", pick).await
    }

    pub async fn started(&mut self) -> v1::AttemptStarted {
        let pick = |r: &report::Kind| if let report::Kind::Started(s) = r { Some(s.clone()) } else { None };
        self.wait("started", pick).await
    }

    pub async fn ended(&mut self) -> v1::AttemptEnded {
        let pick = |r: &report::Kind| if let report::Kind::Ended(e) = r { Some(e.clone()) } else { None };
        self.wait("ended", pick).await
    }

    pub async fn refused(&mut self) -> v1::AttemptRefused {
        let pick = |r: &report::Kind| if let report::Kind::Refused(e) = r { Some(e.clone()) } else { None };
        self.wait("refused", pick).await
    }

    /// Runs one order to its end.
    pub async fn run(&mut self, start: v1::StartAttempt) -> v1::Outcome {
        self.send(command::Kind::Start(start)).await;
        self.ended().await.outcome.unwrap()
    }

    pub async fn log(
        &mut self,
        request: u64,
        attempt: v1::AttemptRef,
        stream: &str,
        offset: u64,
    ) -> v1::LogData {
        let stream = stream.to_owned();
        let read = v1::ReadLog { request, attempt: Some(attempt), stream, offset, bytes_max: 1 << 20 };
        self.send(command::Kind::ReadLog(read)).await;
        let pick = |r: &report::Kind| match r {
            report::Kind::LogData(data) if data.request == request => Some(data.clone()),
            _ => None,
        };
        self.wait("log data", pick).await
    }

    pub async fn blob(&self, captured: &v1::Captured) -> Bytes {
        match &captured.sha256 {
            None => Bytes::new(),
            Some(sha256) => self.blobs.get(sha256, 1 << 30).await.unwrap(),
        }
    }

    /// Ends the executor; no captured output is left, but of ends that were not acknowledged.
    pub async fn end(&mut self) {
        let executor = self.executor.take().unwrap();
        executor.shut_down();
        tokio::time::timeout(HANG_GUARD, executor.join()).await.expect("the executor ends").unwrap();
        let left: Vec<_> = std::fs::read_dir(self.config.data_dir.join("attempts")).unwrap().collect();
        let unacknowledged = !self.service.acknowledges_ends.load(SeqCst);
        assert!(left.is_empty() || unacknowledged, "{left:?}");
    }

    /// Whether nothing of this kind was reported so far.
    pub fn has_unread(&mut self, pick: impl Fn(&report::Kind) -> bool) -> bool {
        while let Ok(report) = self.reports.try_recv() {
            self.unread.push(report);
        }
        self.unread.iter().any(pick)
    }
}

/// An order of one step that runs `script`.
pub fn order(kind: &str, script: &str) -> v1::StartAttempt {
    let resources = rollout_wire::to_wire::resources(&rollout::Resources::default());
    v1::StartAttempt {
        attempt: Some(attempt(0, 0)),
        generation: 1,
        step: Some(v1::Step {
            name: "solve".to_owned(),
            per: "rollout".to_owned(),
            kind: kind.to_owned(),
            command: Some(v1::step::Command::Shell(script.to_owned())),
            image: "host".to_owned(),
            user: "rollout".to_owned(),
            workdir: "/workspace".to_owned(),
            resources: Some(resources),
            timeout_ms: 600_000,
            start_timeout_ms: 600_000,
            grace_ms: 20,
            ..v1::Step::default()
        }),
        ..v1::StartAttempt::default()
    }
}

pub fn attempt(sample: u32, step: u32) -> v1::AttemptRef {
    v1::AttemptRef { rollout: format!("j0000000000007-g0-s{sample}"), step, attempt: 0 }
}

/// A grader that runs `script` and reads its reward from the default files.
pub fn grader(script: &str) -> v1::StartAttempt {
    let paths = ["/logs/verifier/reward.json", "/logs/verifier/reward.txt"].map(str::to_owned).to_vec();
    let mut order = order("grader", script);
    order.step.as_mut().unwrap().grader = Some(v1::Grader {
        source: Some(v1::grader::Source::File(v1::RewardFile { paths, key: None })),
        range: Some(v1::Range { low: 0.0, high: 1.0 }),
        regrades: 1,
        on_agent_timeout: "grade".to_owned(),
        on_timeout: "invalid".to_owned(),
    });
    order
}

pub fn output(name: &str, source: v1::output::Source, max_bytes: u64) -> v1::Output {
    let media_type = "application/octet-stream".to_owned();
    v1::Output { name: name.to_owned(), source: Some(source), media_type, max_bytes }
}
