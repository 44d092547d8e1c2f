//! The `fncall` backend: sandboxes of the [container backend](super::container) that were made before
//! anybody asked, each used once and destroyed.
//!
//! ```text
//! create ──> the pool has one of this shape ──> its limits are rewritten: a handout
//!        └─> it has none ──> the container backend makes one: a creation
//! refill ──> while nothing is being created: one more of a shape that was asked for lately
//! ```
//! Nothing is made ahead on a node where nobody asked. The walls are those of the container backend, since
//! it is what makes them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use rollout::BackendKind;
use rollout::backend::{FNCALL_DISK, refuses_disk, refuses_image};
use rollout::quantity::{Limit, Resources};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::container::{self, Container};
use super::image::Image;
use super::{AdoptError, Adoption, Backend, Ceilings, CreateError, Sandbox, SandboxSpec};
use handout::Handout;
use pool::{Claim, Parked, Pool, Shape};

mod handout;
mod pool;

pub use pool::PARKED_MAX;

/// Between two looks whether nothing is being created any more.
const QUIET_PAUSE: Duration = Duration::from_millis(2);
/// After a sandbox could not be made ahead.
const REFILL_BACKOFF: Duration = Duration::from_secs(5);
/// For the sandbox that is being made when the executor ends.
const WIND_UP_MAX: Duration = Duration::from_secs(10);
/// Between two looks for shapes that nobody asks for any more.
const EXPIRY_PAUSE: Duration = Duration::from_secs(30);

/// The backend. Dropping it destroys what is parked.
#[derive(Debug)]
pub struct FnCall {
    shared: Arc<Shared>,
    refilling: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    container: Arc<Container>,
    pool: Pool,
}

/// What became of the calls so far, and what is ready for the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sandboxes that had been made before they were asked for.
    pub handouts: u64,
    /// Sandboxes made while their call waited.
    pub creations: u64,
    /// Ready now, of all shapes.
    pub parked: usize,
}

impl FnCall {
    /// Hands on sandboxes of `container`. Call it within a tokio runtime.
    pub fn start(container: Arc<Container>) -> Self {
        // Names of an earlier life may live on.
        let inherited = container.inheritance().map_or_else(Vec::new, |left| left.sandboxes);
        let shared = Arc::new(Shared { container, pool: Pool::beside(&inherited) });
        let refilling = tokio::spawn(refill(Arc::clone(&shared)));
        Self { shared, refilling }
    }

    pub fn counts(&self) -> Counts {
        self.shared.pool.counts()
    }

    /// Ids of what was made ahead and waits, as cgroups have them.
    pub fn parked(&self) -> Vec<String> {
        self.shared.pool.parked()
    }

    /// Waits until a sandbox of the shape of `spec` is ready, whether one was asked for or not.
    ///
    /// # Errors
    /// Such a sandbox is refused.
    pub async fn warm(&self, spec: &SandboxSpec) -> Result<(), CreateError> {
        let (shape, _) = self.shared.checked(spec).await?;
        self.shared.pool.ask_for(&shape);
        self.shared.pool.until_ready(&shape).await;
        Ok(())
    }
}

impl Drop for FnCall {
    fn drop(&mut self) {
        self.refilling.abort();
        drop(self.shared.pool.close());
    }
}

impl Shared {
    /// The shape of a spec that this backend does not refuse, with its image.
    async fn checked(&self, spec: &SandboxSpec) -> Result<(Shape, Arc<Image>), CreateError> {
        let refused = |guarantee, problem: String| Err(CreateError::NotEnforceable { guarantee, problem });
        container::check(spec)?;
        if !spec.layers.is_empty() {
            return refused("layers", "backend fncall has no sandboxes over layers".to_owned());
        }
        if spec.base.is_some() {
            let problem = refuses_image(BackendKind::Fncall, "oci:").unwrap_or_default();
            return refused("image", format!("image `{}`: {problem}", spec.image));
        }
        self.container.check_limits(&spec.limits)?;
        if let Some(problem) = refuses_disk(BackendKind::Fncall, spec.limits.disk) {
            return refused("limit.disk", format!("{} was asked for: {problem}", spec.limits.disk));
        }
        let image = self.container.image(&spec.image).await?;
        if image.users.find(&spec.user).is_none() {
            return Err(CreateError::UnknownUser { user: spec.user.clone(), image: spec.image.clone() });
        }
        container::check_layers(spec, &image)?;
        let shape =
            Shape { image: spec.image.clone(), user: spec.user.clone(), workdir: spec.workdir.clone() };
        Ok((shape, image))
    }

    /// A sandbox of this shape that is alive and over the image as it is now. What is not is destroyed.
    fn take(&self, shape: &Shape, image: &Image) -> Option<Parked> {
        while let Some(parked) = self.pool.take(shape) {
            if parked.sandbox.image_digest() == image.digest && parked.sandbox.died().now_or_never().is_none()
            {
                return Some(parked);
            }
        }
        None
    }

    /// A sandbox for this call, and whether it had been made before.
    async fn obtain(
        &self,
        spec: &SandboxSpec,
        parked: Option<Parked>,
    ) -> Result<(Box<dyn Sandbox>, bool), CreateError> {
        let Some(parked) = parked else {
            let id = self.pool.name();
            return Ok((self.container.create(SandboxSpec { id, ..spec.clone() }).await?, false));
        };
        // If this future is dropped here, so is the sandbox, and that destroys it.
        let rewritten = parked.sandbox.set_limits(spec.limits).await;
        rewritten
            .map_err(|source| CreateError::Failed { action: "rewriting its limits".to_owned(), source })?;
        Ok((parked.sandbox, true))
    }
}

#[tonic::async_trait]
impl Backend for FnCall {
    fn kind(&self) -> BackendKind {
        BackendKind::Fncall
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError> {
        let (shape, image) = self.shared.checked(&spec).await?;
        let claim = Claim::of(&self.shared.pool, &spec.id).ok_or_else(|| {
            let action = format!("naming the sandbox: `{}` is in use", spec.id);
            CreateError::Failed { action, source: io::ErrorKind::AlreadyExists.into() }
        })?;
        // Before it is asked for: what is made for those who come next is not this one's.
        let parked = self.shared.take(&shape, &image);
        self.shared.pool.ask_for(&shape);
        let (sandbox, is_handout) = self.shared.obtain(&spec, parked).await?;
        self.shared.pool.count(is_handout);
        Ok(Box::new(Handout::new(sandbox, spec.id, claim)))
    }

    async fn adopt(&self, id: &str, adoption: Adoption) -> Result<Box<dyn Sandbox>, AdoptError> {
        let claim = Claim::of(&self.shared.pool, id).ok_or_else(|| AdoptError::Failed {
            action: "naming the sandbox",
            source: io::ErrorKind::AlreadyExists.into(),
        })?;
        let sandbox = self.shared.container.adopt(id, adoption).await?;
        Ok(Box::new(Handout::new(sandbox, id.to_owned(), claim)))
    }

    async fn image_digest(&self, image: &str) -> Result<String, CreateError> {
        if let Some(problem) = refuses_image(BackendKind::Fncall, image) {
            return Err(CreateError::BadRootfs { image: image.to_owned(), problem: problem.to_owned() });
        }
        self.shared.container.image_digest(image).await
    }

    fn ceilings(&self) -> Ceilings {
        Ceilings { disk_limit_max: FNCALL_DISK, ..self.shared.container.ceilings() }
    }

    fn ahead_max(&self) -> u32 {
        u32::try_from(PARKED_MAX).unwrap_or(u32::MAX)
    }

    async fn wind_up(&self) {
        for parked in self.shared.pool.close() {
            destroy(parked).await;
        }
        let made = async {
            while self.shared.pool.is_making() {
                sleep(QUIET_PAUSE).await;
            }
        };
        if tokio::time::timeout(WIND_UP_MAX, made).await.is_err() {
            tracing::warn!("a sandbox is still being made ahead");
        }
    }

    async fn ended(&self) -> String {
        self.shared.container.ended().await
    }
}

async fn destroy(parked: Parked) {
    if let Err(error) = parked.sandbox.destroy().await {
        tracing::error!(%error, "a sandbox that served nobody did not go");
    }
}

/// What a sandbox has until it is handed out.
fn limits_ahead() -> Limit {
    Limit { disk: FNCALL_DISK, ..Resources::default().limit }
}

/// Keeps the pool full, and small when nobody asks. Creations of jobs go first.
async fn refill(shared: Arc<Shared>) {
    loop {
        shared.pool.expire();
        let Some(shape) = shared.pool.short() else {
            tokio::select! {
                () = shared.pool.changed() => {}
                () = sleep(EXPIRY_PAUSE) => {}
            }
            continue;
        };
        if shared.container.is_creating() {
            sleep(QUIET_PAUSE).await;
            continue;
        }
        let id = shared.pool.name();
        let spec = SandboxSpec {
            id: id.clone(),
            image: shape.image.clone(),
            base: None,
            image_digest: None,
            layers: Vec::new(),
            limits: limits_ahead(),
            user: shape.user.clone(),
            workdir: shape.workdir.clone(),
        };
        let making = shared.pool.making(&id);
        // Whoever closed the pool meanwhile does not wait for this one.
        if shared.pool.short().is_none() {
            continue;
        }
        match shared.container.create(spec).await {
            Ok(sandbox) => {
                if let Some(unwanted) = shared.pool.park(&shape, Parked { id, sandbox }) {
                    destroy(unwanted).await;
                }
            }
            Err(error) => {
                drop(making);
                tracing::info!(image = shape.image, %error, "no sandbox could be made ahead");
                sleep(REFILL_BACKOFF).await;
                continue;
            }
        }
        drop(making);
    }
}
