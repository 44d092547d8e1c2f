//! Starting and stopping: what is opened in which order, and which tasks live.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blobs::BlobStore;
use images::oci::registry::{Client as Registries, docker_config};
use scheduler_core::{Cluster, Now, Snapshot};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;

use crate::api::{CountsCache, JobsService, Limits, SandboxesService};
use crate::clock;
use crate::config::Config;
use crate::driver::{Deadlines, Driver};
use crate::error::Error;
use crate::forward::Channels;
use crate::garbage::Collector;
use crate::health::HealthBoard;
use crate::inbox::{Commits, Inbox};
use crate::jobs::Jobs;
use crate::link::{Links, NodesService, Starts, Welcome};
use crate::listener::{Connection, Listener};
use crate::lock::DataDirLock;
use crate::news::News;
use crate::place;
use crate::recorder::Recorder;
use crate::route::{CALL_WINDOW_BYTES, CALLS_PER_CONNECTION_MAX, CONNECTION_WINDOW_BYTES, Route};
use crate::schedules::{Keeper, Schedules};
use crate::store;
use crate::store::JobKind;

/// Connections accepted and not yet served.
const ACCEPTED_MAX: usize = 64;
/// A peer that answers no ping for this long has lost its connection.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Bytes of the headers of one call.
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// How long open calls may take to end at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// How long to pause when the kernel refuses to accept (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Scheduler;

/// A running scheduler.
#[derive(Debug)]
pub struct Handle {
    urls: Vec<String>,
    stop: CancellationToken,
    main: JoinHandle<Result<(), Error>>,
}

impl Handle {
    /// Where clients and executors connect: the first listener.
    pub fn url(&self) -> &str {
        self.urls.first().map_or("", String::as_str)
    }

    /// Every listener.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Ends when the token was cancelled and everything has stopped, or with the error that made
    /// it stop.
    pub async fn wait(self) -> Result<(), Error> {
        let ended = self.main.await;
        self.stop.cancel();
        ended.map_err(|error| Error::Panicked { task: error.to_string() })?
    }
}

impl Scheduler {
    /// Opens everything, restores the stored state and serves until `stop` is cancelled.
    pub async fn start(
        config: Config,
        listeners: Vec<Listener>,
        stop: CancellationToken,
    ) -> Result<Handle, Error> {
        let data_dir = config.data_dir.clone();
        let failed = |source| Error::DataDir { path: data_dir.clone(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&data_dir).map_err(failed)?;
        let data_dir: PathBuf = std::fs::canonicalize(&data_dir).map_err(failed)?;
        let lock = DataDirLock::take(&data_dir)?;
        let blobs_url = place::blobs_url(&data_dir, config.blobs.as_deref())?;
        let blobs = open_blobs(blobs_url.clone()).await?;
        place::keep(&data_dir, &blobs_url)?;
        let (writer, reads, yard_id) = store::open(&data_dir, config.commit_hook.clone()).await?;
        let epoch = writer.epoch();
        let claimed = blobs.claim(&yard_id).await;
        claimed.map_err(|source| Error::Blobs { url: blobs_url.clone(), source: Box::new(source) })?;

        let now = Now { boot: clock::boot(), wall: clock::wall() };
        let jobs = Jobs::new(reads.clone(), blobs.clone());
        let mut deadlines = Deadlines::default();
        let mut starts = Deadlines::default();
        let snapshot = restore(&jobs, &mut deadlines, &mut starts, now).await?;
        let core = scheduler_core::Config {
            lease_ttl: config.lease_ttl,
            lease_margin: config.lease_margin,
            overdue_margin: config.overdue_margin,
            in_flight_min: scheduler_core::config::CREATIONS_IN_FLIGHT_MIN,
        };
        let (cluster, restored) = Cluster::restore(core, now, snapshot);
        tracing::info!(yard = %config.yard, epoch, data_dir = %data_dir.display(), "scheduler starts");

        let stop = stop.child_token();
        let tasks = TaskTracker::new();
        let (inbox, inputs) = Inbox::new();
        let links = Arc::new(Links::default());
        let health = HealthBoard::new();
        let news = News::default();
        let wake_recorder = Arc::new(Notify::new());
        let (commits, committed) = watch::channel(Commits { seq: writer.seq(), jobs_ended: 0 });
        let driver = Driver {
            cluster,
            writer,
            reads: reads.clone(),
            jobs: jobs.clone(),
            links: links.clone(),
            inbox: inbox.clone(),
            inputs,
            recorder: wake_recorder.clone(),
            commits,
            health: health.clone(),
            reconcile_every: config.reconcile_every,
            tasks: tasks.clone(),
            stop: stop.clone(),
            deadlines,
            starts,
            news: news.clone(),
            restored,
        };
        let (schedules, asks) = Schedules::new();
        let keeper = Keeper::open(
            jobs.clone(),
            blobs.clone(),
            inbox.clone(),
            committed.clone(),
            config.schedule_clock.clone(),
            asks,
            stop.clone(),
        );
        let keeper = keeper.await?;
        let recorder = Recorder {
            jobs: jobs.clone(),
            blobs: blobs.clone(),
            inbox: inbox.clone(),
            wake: wake_recorder,
            health: health.clone(),
            yard_id,
            stop: stop.clone(),
        };
        let nodes_service = NodesService {
            links: links.clone(),
            inbox: inbox.clone(),
            starts: Starts::new(jobs.clone()),
            welcome: Welcome {
                epoch,
                lease_ttl: config.lease_ttl,
                blobs: blobs_url,
                yard: config.yard.to_string(),
            },
            tasks: tasks.clone(),
            stop: stop.clone(),
        };
        let collector = Collector::new(jobs.clone(), blobs.clone(), inbox.clone(), config.blob_grace);
        tasks.spawn(collector.clone().run(config.collect_every, stop.clone()));
        let jobs_service = JobsService {
            reads,
            jobs,
            blobs,
            links,
            inbox,
            schedules,
            schedule_clock: config.schedule_clock.clone(),
            commits: committed,
            health,
            counts: CountsCache::default(),
            collector: Some(collector),
            limits: Limits::new(config.client_stall, config.reader_stall),
            tasks: tasks.clone(),
            stop: stop.clone(),
            registries: Registries::new(docker_config()),
            read_only: false,
        };
        for listener in &listeners {
            if let Listener::Tcp { address, .. } = listener {
                tracing::warn!(%address, "listening on TCP: every user of this machine can use the yard, which acts as root");
            }
        }
        let urls = listeners.iter().map(Listener::url).collect();
        let sandboxes_service =
            SandboxesService::new(jobs_service, Channels::new(nodes_service.links.clone()), news);
        let parts =
            Parts { driver, recorder, keeper, nodes_service, sandboxes_service, listeners, tasks, lock };
        let main = tokio::spawn(parts.run(stop.clone()));
        Ok(Handle { urls, stop, main })
    }
}

async fn open_blobs(url: String) -> Result<BlobStore, Error> {
    let opened = tokio::task::spawn_blocking(move || {
        BlobStore::open(&url).map_err(|source| Error::Blobs { url, source: Box::new(source) })
    });
    opened.await.map_err(|error| Error::Panicked { task: error.to_string() })?
}

async fn restore(
    jobs: &Jobs,
    deadlines: &mut Deadlines,
    starts: &mut Deadlines,
    now: Now,
) -> Result<Snapshot, Error> {
    let mut snapshot = Snapshot {
        results: jobs.reads().result_snapshots().await?,
        jobs: Vec::new(),
        nodes: jobs.reads().node_snapshots().await?,
    };
    for row in jobs.reads().unfinished_jobs().await? {
        let facts = jobs.of(&row).await?;
        deadlines.add(row.job, facts.plan.timeout, row.retried_at.unwrap_or(row.created_at), now);
        if row.kind == JobKind::Sandbox {
            let sandbox = jobs.reads().sandbox(row.job).await?;
            starts.add(row.job, sandbox.map(|sandbox| sandbox.start_timeout), row.created_at, now);
        }
        let plan = facts.plan.clone();
        // A row that cannot be read now stops the start, which can be tried again; to call its
        // group broken would throw away what its rollouts have done.
        let expand = |index| {
            facts.expanded(index).map_err(|source| Error::Rows { job: row.job, source: Box::new(source) })
        };
        snapshot.jobs.push(jobs.reads().job_snapshot(&row, plan, expand).await?);
    }
    Ok(snapshot)
}

struct Parts {
    driver: Driver,
    recorder: Recorder,
    keeper: Keeper,
    nodes_service: NodesService,
    sandboxes_service: SandboxesService,
    listeners: Vec<Listener>,
    tasks: TaskTracker,
    lock: DataDirLock,
}

impl Parts {
    /// The driver's end is the scheduler's end; everything else follows.
    async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let Self { driver, recorder, keeper, nodes_service, sandboxes_service, listeners, tasks, lock } =
            self;
        let recorder = tokio::spawn(recorder.run());
        let keeper = tokio::spawn(keeper.run());
        let incoming = accept(listeners, &tasks, &stop);
        let route = Route::new(nodes_service, sandboxes_service);
        let server = Server::builder()
            .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
            .http2_max_header_list_size(HEADERS_BYTES_MAX)
            .initial_stream_window_size(CALL_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .serve_with_incoming_shutdown(route, incoming, stop.clone().cancelled_owned());
        let mut server = tokio::spawn(server);
        let mut driver = tokio::spawn(driver.run());

        let result = tokio::select! {
            ended = &mut driver => flat("driver", ended),
            ended = &mut server => match ended {
                Ok(served) => served.map_err(|source| Error::Serve { source }),
                Err(error) => Err(Error::Panicked { task: format!("server: {error}") }),
            },
        };
        if let Err(error) = &result {
            tracing::error!(code = error.code(), error = crate::health::chain(error), "the scheduler stops");
        }
        stop.cancel();
        tasks.close();
        let rest = async {
            if !driver.is_finished() {
                let _ = (&mut driver).await;
            }
            if !server.is_finished() {
                let _ = (&mut server).await;
            }
            let _ = recorder.await;
            let _ = keeper.await;
            tasks.wait().await;
        };
        if tokio::time::timeout(SHUTDOWN_GRACE, rest).await.is_err() {
            tracing::info!("some calls did not end in time; they are cut");
            server.abort();
            driver.abort();
        }
        // Only now may another scheduler open the store.
        drop(lock);
        result
    }
}

fn flat(task: &str, ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    ended.map_err(|error| Error::Panicked { task: format!("{task}: {error}") })?
}

/// One stream of the connections of all listeners.
fn accept(
    listeners: Vec<Listener>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> ReceiverStream<std::io::Result<Connection>> {
    let (accepted, incoming) = mpsc::channel(ACCEPTED_MAX);
    for listener in listeners {
        let (accepted, stop) = (accepted.clone(), stop.clone());
        tasks.spawn(async move {
            loop {
                let connection = tokio::select! {
                    () = stop.cancelled() => return,
                    connection = listener.accept() => connection,
                };
                match connection {
                    Ok(connection) => {
                        if accepted.send(Ok(connection)).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, url = listener.url(), "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
    }
    ReceiverStream::new(incoming)
}
