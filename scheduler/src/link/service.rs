//! `Nodes.Attach`.

use std::sync::Arc;

use rollout::Millis;
use rollout_wire::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use super::session::{OUT_BATCHES_MAX, run};
use super::{Links, Starts};
use crate::inbox::Inbox;

/// What a session needs of the scheduler.
#[derive(Debug, Clone)]
pub struct NodesService {
    pub(crate) links: Arc<Links>,
    pub(crate) inbox: Inbox,
    pub(crate) starts: Starts,
    pub(crate) welcome: Welcome,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

#[derive(Debug, Clone)]
pub(crate) struct Welcome {
    pub epoch: u64,
    pub lease_ttl: Millis,
    pub blobs: String,
    pub yard: String,
}

#[tonic::async_trait]
impl v1::nodes_server::Nodes for NodesService {
    type AttachStream = ReceiverStream<Result<v1::CommandBatch, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::ReportBatch>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        // The stream is answered at once: an executor may send its hello only then.
        let (out, batches) = mpsc::channel(OUT_BATCHES_MAX);
        self.tasks.spawn(run(self.clone(), request.into_inner(), out));
        Ok(Response::new(ReceiverStream::new(batches)))
    }
}
