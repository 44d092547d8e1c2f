//! What lies between an image and a new sandbox: the layers of the checkpoint it starts from, then
//! those its step names.

use std::sync::Arc;

use images::layers::Pinned;
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

/// Layers, and where they are if they are on this node.
pub(crate) type Found = Vec<(Layer, Option<Pinned>)>;

/// A layer that a step names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    Packed(Layer),
    /// All layers of an OCI image, by its reference.
    Image(String),
}

fn parse(text: &str) -> Result<Named, StackError> {
    if !text.starts_with(LAYER_PREFIX) {
        return Ok(Named::Image(text.to_owned()));
    }
    let layer = text.parse::<Layer>().map_err(|error| {
        let text = rollout::text::shown(text, 160);
        StackError::NotALayer { text, problem: error.to_string() }
    });
    layer.map(Named::Packed)
}

/// The layers that a step names, bottom first. Those of an image are on this node then.
async fn named(
    workspaces: &Arc<Workspaces>,
    storage: &Storage,
    tasks: &TaskTracker,
    order: &Order,
) -> Result<Found, StackError> {
    let mut found = Vec::new();
    for text in &order.step.layers {
        match parse(text)? {
            Named::Packed(layer) => found.push((layer, None)),
            Named::Image(reference) => {
                let layers =
                    workspaces.layers_of(storage, tasks, &reference).await.map_err(StackError::Named)?;
                let layers = layers.ok_or_else(|| StackError::NotALayer {
                    text: rollout::text::shown(text, 160),
                    problem: "it has no layers of its own".to_owned(),
                })?;
                found.extend(layers.into_iter().map(|Mounted { layer, at }| (layer, Some(at))));
            }
        }
    }
    Ok(found)
}

/// Puts those on top that are not there yet.
fn add_new(layers: &mut Found, named: Found) {
    for (layer, here) in named {
        if layers.iter().all(|(below, _)| below.id != layer.id) {
            layers.push((layer, here));
        }
    }
}

/// Bottom first. A layer that the workspace was saved over already is not laid over it again: that
/// would undo what was changed since.
pub(crate) async fn stack(
    workspaces: &Arc<Workspaces>,
    storage: &Storage,
    tasks: &TaskTracker,
    order: &Order,
) -> Result<Vec<Mounted>, StackError> {
    let below = order.base.as_ref().map_or_else(Vec::new, |base| base.layers.clone());
    let of_base = below.len();
    let mut layers: Found = below.into_iter().map(|layer| (layer, None)).collect();
    add_new(&mut layers, named(workspaces, storage, tasks, order).await?);
    fetch_all(workspaces, storage, tasks, layers, of_base).await
}

/// The layers that an order names and `below` has not, bottom first. Those of an image are on this
/// node then.
pub(crate) async fn absent(
    workspaces: &Arc<Workspaces>,
    storage: &Storage,
    tasks: &TaskTracker,
    order: &Order,
    below: &[Mounted],
) -> Result<Found, StackError> {
    let mut layers = of_mounted(below);
    add_new(&mut layers, named(workspaces, storage, tasks, order).await?);
    Ok(layers.split_off(below.len()))
}

/// `absent` onto this node, where `below` keeps its room.
pub(crate) async fn fetch_beside(
    workspaces: &Arc<Workspaces>,
    storage: &Storage,
    tasks: &TaskTracker,
    below: &[Mounted],
    absent: Found,
) -> Result<Vec<Mounted>, StackError> {
    let layers = of_mounted(below).into_iter().chain(absent).collect();
    let mut all = fetch_all(workspaces, storage, tasks, layers, 0).await?;
    Ok(all.split_off(below.len()))
}

fn of_mounted(below: &[Mounted]) -> Found {
    below.iter().map(|mounted| (mounted.layer.clone(), Some(mounted.at.clone()))).collect()
}

/// All of them at once; the first `of_base` are those of a checkpoint.
async fn fetch_all(
    workspaces: &Arc<Workspaces>,
    storage: &Storage,
    tasks: &TaskTracker,
    layers: Found,
    of_base: usize,
) -> Result<Vec<Mounted>, StackError> {
    // Before anything is written: what a claim says is not yet true, and its disk is everybody's.
    let all: Vec<Layer> = layers.iter().map(|(layer, _)| layer.clone()).collect();
    let (needed, limit) = (workspaces.store.room_for(&all), workspaces.store.bytes_max());
    if needed > limit {
        return Err(StackError::TooLarge { needed, limit });
    }
    let fetches = layers.into_iter().enumerate().map(|(place, (layer, here))| async move {
        let told = |error| if place < of_base { StackError::Fetch(error) } else { StackError::Named(error) };
        let at = match here {
            Some(here) => here,
            None => workspaces.fetch(storage, tasks, &layer).await.map_err(told)?,
        };
        Ok(Mounted { layer, at })
    });
    futures::future::try_join_all(fetches).await
}
