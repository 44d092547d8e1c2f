//! The service clients call: `Jobs`. Reads come from the store; what is only in memory is asked
//! of the driver; what changes anything goes through the driver and is answered after its commit.

mod artifact;
mod blob;
mod checkpoints;
mod counts;
mod error;
mod explain;
mod garbage;
mod images;
mod jobs;
mod limits;
mod logs;
mod memory;
mod nodes;
mod outlet;
mod page;
mod retry;
mod rollouts;
mod sandboxes;
mod schedules;
pub(crate) mod submit;

use std::sync::Arc;
use std::time::Duration;

use ::images::oci::registry::Client as Registries;
use blobs::BlobStore;
use rollout::JobId;
use rollout_wire::v1;
use scheduler_core::{Cluster, Now};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

pub(crate) use blob::CHUNK_BYTES_MAX;
pub use error::{ApiCode, ApiError};

use crate::clock::ScheduleClock;
use crate::garbage::Collector;
use crate::health::HealthBoard;
use crate::inbox::{Commits, Inbox};
use crate::jobs::Jobs;
use crate::link::Links;
use crate::schedules::Schedules;
use crate::store::Reads;

/// How long a client waits for a commit before it is told that the store is busy. What it asked
/// may still be stored: asking again with the same key is safe.
const COMMIT_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct JobsService {
    pub(crate) reads: Reads,
    pub(crate) jobs: Jobs,
    pub(crate) blobs: BlobStore,
    pub(crate) links: Arc<Links>,
    pub(crate) inbox: Inbox,
    pub(crate) schedules: Schedules,
    pub(crate) schedule_clock: ScheduleClock,
    pub(crate) commits: watch::Receiver<Commits>,
    pub(crate) health: HealthBoard,
    pub(crate) counts: CountsCache,
    /// None where there is only the store.
    pub(crate) collector: Option<Collector>,
    pub(crate) limits: Limits,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Says what tags mean.
    pub(crate) registries: Registries,
    /// There is only the store: no driver, no nodes.
    pub(crate) read_only: bool,
}

pub(crate) use counts::CountsCache;
pub(crate) use limits::{Limits, more_until, too_slow};
pub(crate) use sandboxes::{Refused, SandboxesService, Told, end_of_sandbox, told, whereabouts};

impl JobsService {
    /// The one who deletes; refused where there is none.
    fn collector(&self) -> Result<&Collector, ApiError> {
        self.needs_yard()?;
        self.collector.as_ref().ok_or_else(no_yard)
    }

    /// Refuses what needs a scheduler, where there is none.
    fn needs_yard(&self) -> Result<(), ApiError> {
        if self.read_only { Err(no_yard()) } else { Ok(()) }
    }

    /// What the core says; none without a yard, and none while the store takes no writes, for then
    /// the driver waits.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Cluster, Now) -> T + Send + 'static,
    ) -> Result<Option<T>, ApiError> {
        if self.read_only {
            return Ok(None);
        }
        tokio::select! {
            biased;
            answer = self.inbox.ask(question) => Ok(Some(answer?)),
            () = self.health.store_in_trouble() => Ok(None),
        }
    }
}

fn no_yard() -> ApiError {
    ApiError::new(ApiCode::NoYard, "no yard is running: its data directory is open for reading only")
        .hint("start one with `rollyard dev`")
}

type Reply<T> = Result<Response<T>, Status>;
type Stream<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl v1::jobs_server::Jobs for JobsService {
    type WatchStream = Stream<v1::Job>;
    type LogsStream = Stream<v1::LogsChunk>;
    type ReadArtifactStream = Stream<v1::ArtifactChunk>;
    type ReadLayerStream = Stream<v1::ArtifactChunk>;

    async fn put_blob(&self, request: Request<Streaming<v1::BlobChunk>>) -> Reply<v1::PutBlobReply> {
        answer(self.needs_yard())?;
        answer(blob::put(self, request.into_inner()).await)
    }
    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Reply<v1::SubmitReply> {
        answer(self.needs_yard())?;
        answer(submit::submit(self, request.into_inner()).await)
    }
    async fn get(&self, request: Request<v1::GetRequest>) -> Reply<v1::Job> {
        answer(jobs::get_whole(self, &request.into_inner().job).await)
    }
    async fn list(&self, request: Request<v1::ListRequest>) -> Reply<v1::ListReply> {
        answer(jobs::list(self, &request.into_inner()).await)
    }
    async fn watch(&self, request: Request<v1::GetRequest>) -> Reply<Self::WatchStream> {
        answer(self.needs_yard())?;
        answer(jobs::watch(self, &request.into_inner().job).await)
    }
    async fn list_rollouts(&self, request: Request<v1::ListRolloutsRequest>) -> Reply<v1::ListRolloutsReply> {
        answer(rollouts::list(self, &request.into_inner()).await)
    }
    async fn list_steps(&self, request: Request<v1::ListStepsRequest>) -> Reply<v1::ListStepsReply> {
        answer(rollouts::steps(self, &request.into_inner().rollout).await)
    }
    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Reply<v1::ExplainReply> {
        answer(explain::explain(self, &request.into_inner().target).await)
    }
    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Reply<v1::Job> {
        answer(self.needs_yard())?;
        answer(jobs::cancel(self, request.into_inner()).await)
    }
    async fn retry(&self, request: Request<v1::RetryRequest>) -> Reply<v1::RetryReply> {
        answer(self.needs_yard())?;
        answer(retry::retry(self, request.into_inner()).await)
    }
    async fn logs(&self, request: Request<v1::LogsRequest>) -> Reply<Self::LogsStream> {
        answer(logs::logs(self, &request.into_inner()).await)
    }
    async fn read_artifact(
        &self,
        request: Request<v1::ReadArtifactRequest>,
    ) -> Reply<Self::ReadArtifactStream> {
        answer(artifact::read(self, &request.into_inner()).await)
    }
    async fn list_checkpoints(
        &self,
        request: Request<v1::ListCheckpointsRequest>,
    ) -> Reply<v1::ListCheckpointsReply> {
        answer(checkpoints::list(self, &request.into_inner()).await)
    }
    async fn get_checkpoint(
        &self,
        request: Request<v1::GetCheckpointRequest>,
    ) -> Reply<v1::GetCheckpointReply> {
        answer(checkpoints::get(self, &request.into_inner().id).await)
    }
    async fn read_layer(&self, request: Request<v1::ReadLayerRequest>) -> Reply<Self::ReadLayerStream> {
        answer(checkpoints::read_layer(self, &request.into_inner()).await)
    }
    async fn remove_checkpoint(
        &self,
        request: Request<v1::RemoveCheckpointRequest>,
    ) -> Reply<v1::RemoveCheckpointReply> {
        answer(checkpoints::remove(self, &request.into_inner().id).await)
    }
    async fn collect_garbage(
        &self,
        request: Request<v1::CollectGarbageRequest>,
    ) -> Reply<v1::CollectGarbageReply> {
        answer(garbage::collect(self, &request.into_inner()).await)
    }
    async fn list_nodes(&self, _request: Request<v1::ListNodesRequest>) -> Reply<v1::ListNodesReply> {
        answer(nodes::list(self).await)
    }
    async fn list_schedules(
        &self,
        _request: Request<v1::ListSchedulesRequest>,
    ) -> Reply<v1::ListSchedulesReply> {
        answer(schedules::list(self).await)
    }
    async fn get_schedule(&self, request: Request<v1::GetScheduleRequest>) -> Reply<v1::Schedule> {
        answer(schedules::get(self, &request.into_inner().schedule).await)
    }
    async fn set_schedule(&self, request: Request<v1::SetScheduleRequest>) -> Reply<v1::Schedule> {
        answer(self.needs_yard())?;
        answer(schedules::set(self, &request.into_inner()).await)
    }
    async fn remove_schedule(
        &self,
        request: Request<v1::RemoveScheduleRequest>,
    ) -> Reply<v1::RemoveScheduleReply> {
        answer(self.needs_yard())?;
        answer(schedules::remove(self, &request.into_inner().schedule).await)
    }
    async fn fire_schedule(&self, request: Request<v1::FireScheduleRequest>) -> Reply<v1::FireScheduleReply> {
        answer(self.needs_yard())?;
        answer(schedules::fire(self, &request.into_inner()).await)
    }
}

fn answer<T>(result: Result<T, ApiError>) -> Reply<T> {
    match result {
        Ok(message) => Ok(Response::new(message)),
        Err(error) => {
            error.log();
            Err(error.into())
        }
    }
}

/// An id of a job that exists. Text that is no id and an id nobody has are the same to a caller.
fn job_id(text: &str) -> Result<JobId, ApiError> {
    text.parse().map_err(|_| ApiError::not_found("job", text))
}
