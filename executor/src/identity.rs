//! What digest an image has on this node, for a scheduler that asks before it places a step.

use std::sync::Arc;
use std::time::Duration;

use rollout_wire::v1;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::messages;
use crate::sandbox::Backend;
use crate::storage::{Storage, chain};
use crate::workspace::Workspaces;

/// Images looked into at once; the others wait their turn, within the time there is.
pub(crate) const IDENTIFYING_MAX: usize = 4;
/// How long an answer may take. Shorter than the scheduler waits for one.
const ANSWER_MAX: Duration = Duration::from_secs(45);

/// Answers once. A queue that is full or closed loses the answer with its link, and the scheduler asks
/// again after the next attach.
pub(crate) async fn answer(
    backend: Arc<dyn Backend>,
    workspaces: Arc<Workspaces>,
    storage: Storage,
    image: String,
    permits: Arc<Semaphore>,
    reports: mpsc::Sender<v1::Report>,
) {
    let looking = async {
        let _turn = permits.acquire().await;
        match workspaces.digest(&storage, &image).await {
            Ok(Some(digest)) => Ok(digest),
            Ok(None) => backend.image_digest(&image).await.map_err(|error| chain(&error)),
            Err(error) => Err(chain(&error)),
        }
    };
    let digest = match timeout(ANSWER_MAX, looking).await {
        Ok(Ok(digest)) => Some(digest),
        Ok(Err(error)) => {
            tracing::info!(image, error, "cannot say what an image is");
            None
        }
        Err(_) => {
            tracing::warn!(image, within_s = ANSWER_MAX.as_secs(), "cannot say in time what an image is");
            None
        }
    };
    let _closed = reports.try_send(messages::identified(image, digest));
}
