//! Reading a data directory that no scheduler serves: the questions of the API that the store can
//! answer, and nothing else.
//!
//! It takes no lock and no epoch, starts no driver and writes nothing, so it neither waits for a
//! scheduler of the same directory nor keeps one from starting.

use std::io;

use blobs::BlobStore;
use futures::stream::{self, StreamExt};
use hyper_util::rt::TokioIo;
use images::oci::registry::{Client as Registries, docker_config};
use rollout_wire::MESSAGE_BYTES_MAX;
use rollout_wire::v1::jobs_server::JobsServer;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::{Channel, Endpoint, Server};

use crate::api::{CountsCache, JobsService, Limits};
use crate::config::Config;
use crate::error::Error;
use crate::health::HealthBoard;
use crate::inbox::{Commits, Inbox};
use crate::jobs::Jobs;
use crate::listener::Connection;
use crate::place;
use crate::schedules::Schedules;
use crate::store;

/// An open data directory.
#[derive(Debug)]
pub struct Reader {
    channel: Channel,
    stop: CancellationToken,
    tasks: TaskTracker,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Reader {
    /// Opens `config.data_dir`, which must have been a scheduler's before.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        let failed = |source| Error::DataDir { path: config.data_dir.clone(), source };
        let data_dir = std::fs::canonicalize(&config.data_dir).map_err(failed)?;
        let reads = store::open_read_only(&data_dir).await?;
        let url = place::blobs_url(&data_dir, config.blobs.as_deref())?;
        let opened = tokio::task::spawn_blocking(move || {
            BlobStore::open_existing(&url).map_err(|source| Error::Blobs { url, source: Box::new(source) })
        });
        let blobs = opened.await.map_err(|error| Error::Panicked { task: error.to_string() })??;

        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        // Nobody is behind these: what needs a driver is answered without or refused.
        let (inbox, _) = Inbox::new();
        let (schedules, _) = Schedules::new();
        let (_, commits) = watch::channel(Commits { seq: 0, jobs_ended: 0 });
        let service = JobsService {
            jobs: Jobs::new(reads.clone(), blobs.clone()),
            reads,
            blobs,
            links: std::sync::Arc::default(),
            inbox,
            schedules,
            schedule_clock: config.schedule_clock.clone(),
            commits,
            health: HealthBoard::new(),
            counts: CountsCache::default(),
            collector: None,
            limits: Limits::new(config.client_stall, config.reader_stall),
            tasks: tasks.clone(),
            stop: stop.clone(),
            registries: Registries::new(docker_config()),
            read_only: true,
        };
        let jobs = JobsServer::new(service)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        // A pair of sockets has no address: nobody else can connect, and no file is left.
        let (ours, theirs) = UnixStream::pair()
            .map_err(|source| Error::Listen { address: "a pair of sockets".to_owned(), source })?;
        let incoming = stream::iter([Ok::<_, io::Error>(Connection::Unix(ours))]).chain(stream::pending());
        let serving =
            Server::builder().serve_with_incoming_shutdown(jobs, incoming, stop.clone().cancelled_owned());
        let server = tokio::spawn(serving);
        let mut theirs = Some(theirs);
        let connector = tower::service_fn(move |_| {
            let stream = theirs.take();
            async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::other("the reader was closed")) }
        });
        let connected = Endpoint::from_static("http://reader").connect_with_connector(connector).await;
        let channel = connected.map_err(|source| Error::Serve { source })?;
        Ok(Self { channel, stop, tasks, server })
    }

    /// Where a client asks.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Ends once every open answer has.
    pub async fn close(self) -> Result<(), Error> {
        let Self { channel, stop, tasks, server } = self;
        drop(channel);
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        let ended = server.await.map_err(|error| Error::Panicked { task: error.to_string() })?;
        ended.map_err(|source| Error::Serve { source })
    }
}
