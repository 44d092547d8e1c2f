//! One connection, two services: calls are told apart by their path.

use std::convert::Infallible;
use std::task::{Context, Poll};

use rollout_wire::v1::jobs_server::JobsServer;
use rollout_wire::v1::nodes_server::{self, NodesServer};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};

use crate::api::JobsService;
use crate::link::NodesService;

/// Calls of `Nodes` go there; all others to `Jobs`, which answers unknown ones as unimplemented.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub nodes: NodesServer<NodesService>,
    pub jobs: JobsServer<JobsService>,
}

impl Service<Request<Body>> for Route {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both are always ready: each call is its own task.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path().strip_prefix('/').unwrap_or_default();
        let service = path.split('/').next();
        if service == Some(nodes_server::SERVICE_NAME) {
            self.nodes.call(request)
        } else {
            self.jobs.call(request)
        }
    }
}
