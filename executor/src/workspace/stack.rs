//! What lies between an image and a new sandbox: the layers of the checkpoint it starts from, then
//! those its step names.

use std::sync::Arc;

use rollout::checkpoint::{LAYER_PREFIX, Layer};
use tokio_util::task::TaskTracker;

use super::{FetchError, Workspaces};
use crate::lifecycle::Order;
use crate::sandbox::Mounted;
use crate::storage::Storage;

/// Why the layers of an order are not to be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StackError {
    /// What the step names is no layer that can be fetched.
    #[error("layer `{text}`: {problem}")]
    NotALayer { text: String, problem: String },
    /// A layer of the checkpoint to start from.
    #[error(transparent)]
    Fetch(FetchError),
    /// A layer that the step names. The checkpoint has no part in it.
    #[error("`layers` of the step: {0}")]
    Named(FetchError),
    /// No node has room for it, whatever else runs.
    #[error(
        "the layers of this step are {needed} bytes, and this node keeps at most {limit} (layer_bytes_max)"
    )]
    TooLarge { needed: u64, limit: u64 },
}

/// The layers that a step names, as the spec has them. Those of a registry are not there yet.
pub(crate) fn named(order: &Order) -> Result<Vec<Layer>, StackError> {
    let parse = |text: &String| {
        let refused = |problem: String| {
            let text = rollout::text::shown(text, 160);
            StackError::NotALayer { text, problem }
        };
        if !text.starts_with(LAYER_PREFIX) {
            return Err(refused(format!("only `{LAYER_PREFIX}` texts name a layer here")));
        }
        text.parse::<Layer>().map_err(|error| refused(error.to_string()))
    };
    order.step.layers.iter().map(parse).collect()
}

/// Bottom first. A layer that the workspace was saved over already is not laid over it again: that
/// would undo what was changed since.
pub(crate) async fn stack(
    workspaces: &Arc<Workspaces>,
    storage: &Storage,
    tasks: &TaskTracker,
    order: &Order,
) -> Result<Vec<Mounted>, StackError> {
    let mut layers = order.base.as_ref().map_or_else(Vec::new, |base| base.layers.clone());
    let of_base = layers.len();
    for layer in named(order)? {
        if layers.iter().all(|below| below.id != layer.id) {
            layers.push(layer);
        }
    }
    // Before anything is written: what a claim says is not yet true, and its disk is everybody's.
    let (needed, limit) = (workspaces.store.room_for(&layers), workspaces.store.bytes_max());
    if needed > limit {
        return Err(StackError::TooLarge { needed, limit });
    }
    let fetches = layers.into_iter().enumerate().map(|(place, layer)| async move {
        let at = workspaces.fetch(storage, tasks, &layer).await;
        let told = |error| if place < of_base { StackError::Fetch(error) } else { StackError::Named(error) };
        let at = at.map_err(told)?;
        Ok(Mounted { layer, at })
    });
    futures::future::try_join_all(fetches).await
}
