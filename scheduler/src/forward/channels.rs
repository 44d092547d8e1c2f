//! One connection to each node, made when it is first needed and made again by itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollout::NodeId;
use tonic::transport::{Channel, Endpoint};

use super::FORWARDED_CALLS_MAX;
use crate::api::{ApiCode, ApiError};
use crate::link::{Links, NODES_MAX};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A node that answers no ping for so long has lost its connection.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Bytes of one call that wait for its client.
const CALL_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes of all calls of a node: one that nobody takes from holds up no other.
const NODE_WINDOW_BYTES: u32 = CALL_WINDOW_BYTES * FORWARDED_CALLS_MAX;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Channels(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    links: Arc<Links>,
    known: Mutex<BTreeMap<NodeId, Known>>,
}

#[derive(Debug)]
struct Known {
    url: String,
    channel: Channel,
}

impl Channels {
    pub(crate) fn new(links: Arc<Links>) -> Self {
        Self(Arc::new(Inner { links, known: Mutex::default() }))
    }

    /// To a node; to one that is not connected as it was known last, for it may be on its way back.
    pub(crate) fn to(&self, node: &NodeId) -> Result<Channel, ApiError> {
        let told = self.0.links.sandboxes_url(node);
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(url) = told else {
            let last = known.get(node).map(|known| known.channel.clone());
            return last.ok_or_else(|| node_lost(node, "it is not connected"));
        };
        if let Some(known) = known.get(node).filter(|known| known.url == url) {
            return Ok(known.channel.clone());
        }
        if url.is_empty() {
            return Err(node_lost(node, "it serves no calls of sandboxes"));
        }
        let channel = endpoint(&url).map_err(|error| node_lost(node, &error.to_string()))?.connect_lazy();
        if known.len() >= NODES_MAX {
            known.retain(|node, _| self.0.links.sandboxes_url(node).is_some());
        }
        known.insert(node.clone(), Known { url, channel: channel.clone() });
        Ok(channel)
    }
}

pub(super) fn node_lost(node: &NodeId, why: &str) -> ApiError {
    ApiError::new(ApiCode::NodeLost, format!("node {node} cannot be reached: {why}"))
        .hint("`rollyard nodes` lists those that are connected; a node that comes back in time goes on with its sandboxes")
}

fn endpoint(url: &str) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(url.to_owned())?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .initial_stream_window_size(CALL_WINDOW_BYTES)
        .initial_connection_window_size(NODE_WINDOW_BYTES))
}
