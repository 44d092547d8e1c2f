//! A step that goes on in a sandbox another step left: its limits, and layers it names that the
//! sandbox was not made over.
//!
//! Nothing can be mounted under a live overlay, so such layers are copied in. Only for graders: what
//! they leave is thrown away, while the copies would become part of any other workspace, stored with
//! each checkpoint of it.

use rollout::checkpoint::Layer;
use rollout::failure::FailureCode;
use rollout::quantity::Limit;

use super::Tools;
use super::provision::{Unready, failed, stack_failed};
use crate::lifecycle::Order;
use crate::sandbox::{LayError, Mounted, Sandbox};
use crate::storage::chain;
use crate::workspace;

pub(super) async fn take_over(tools: &Tools, order: &Order, kept: &dyn Sandbox) -> Result<(), Unready> {
    let Tools { workspaces, storage, stragglers, .. } = tools;
    let step = &order.step;
    let limited = kept.set_limits(step.resources.limit).await;
    limited.map_err(|error| {
        failed(FailureCode::StartFailed, format!("the limits of the kept sandbox cannot be set: {error}"))
    })?;
    let below = kept.layers();
    let absent = workspace::absent(workspaces, storage, stragglers, order, below).await;
    let absent = absent.map_err(|error| stack_failed(&error))?;
    for (layer, _) in &absent {
        if step.grader.is_none() {
            let message = format!("layer {} cannot be laid over the sandbox this step goes on in", layer.id);
            return Err(failed(FailureCode::NotFound, message));
        }
        check_size(layer, step.resources.limit)?;
    }
    let layers = workspace::fetch_beside(workspaces, storage, stragglers, below, absent).await;
    for layer in layers.map_err(|error| stack_failed(&error))? {
        kept.lay_over(&layer).await.map_err(|error| lay_failed(&layer, &error))?;
    }
    Ok(())
}

/// What is larger than the whole workspace is refused before a byte of it is here.
fn check_size(layer: &Layer, limit: Limit) -> Result<(), Unready> {
    if layer.content <= limit.disk {
        return Ok(());
    }
    let message = format!(
        "layer {} is copied into the sandbox this step goes on in, and its {} are more than the whole \
         disk of {}; a larger disk limit is needed",
        layer.id, layer.content, limit.disk
    );
    Err(failed(FailureCode::NotFound, message))
}

/// What the work left in the way is the task's: no retry helps.
fn lay_failed(layer: &Mounted, error: &LayError) -> Unready {
    let message = format!("layer {}: {}", layer.layer.id, chain(error));
    match error {
        LayError::Tree(tree) if tree.is_full() => {
            let why = "before the step began: a larger disk limit is needed";
            failed(FailureCode::NotFound, format!("{message}, {why}"))
        }
        LayError::Tree(tree) if tree.of_the_packed() => failed(FailureCode::NotFound, message),
        // The same at every try.
        LayError::NotOffered { .. } => failed(FailureCode::NotFound, message),
        LayError::Root(_) | LayError::Tree(_) | LayError::Panicked => {
            failed(FailureCode::StartFailed, message)
        }
    }
}
