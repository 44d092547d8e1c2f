//! Sandboxes that outlive their executor: what is written down of them, what is entrusted to their keeper,
//! and how the next executor takes them over.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollout::BootTime;
use rollout::quantity::TMPFS_DISK_MAX;

use super::process::ContainerProcess;
use super::{Alive, Container, ContainerSandbox, Reserved, driven};
use crate::broker::protocol::{Action, Outcome};
use crate::broker::serve::lock;
use crate::keeper::protocol::Kind;
use crate::sandbox::channel::{Channel, ChannelError};
use crate::sandbox::image::Image;
use crate::sandbox::{AdoptError, Adoption, BaseDeed, CreateError, Deed};

/// For a keeper to hand the channel out, and for init to tell what runs.
const REPLAY_WAIT: Duration = Duration::from_secs(2);

impl Container {
    /// The sandbox of an earlier life, as if this one had made it.
    pub(super) async fn take_over(&self, adoption: Adoption) -> Result<ContainerSandbox, AdoptError> {
        let Adoption { deed, layers, base } = adoption;
        let failed = |action| move |source| AdoptError::Failed { action, source };
        let gone = || AdoptError::Gone(format!("sandbox {}", deed.id));
        {
            let mut inheritance = lock(&self.inheritance);
            let sandboxes = inheritance.as_mut().map(|inheritance| &mut inheritance.sandboxes);
            let sandboxes = sandboxes.ok_or_else(gone)?;
            let at = sandboxes.iter().position(|id| *id == deed.id).ok_or_else(gone)?;
            sandboxes.swap_remove(at);
        }
        // From here on it is destroyed unless this succeeds.
        let mut guard =
            super::Abandoned { client: Arc::clone(&self.shared.client), id: Some(deed.id.clone()) };
        let (keepers, id) = (Arc::clone(&self.shared.keepers), deed.id.clone());
        // What comes later is dropped, and let go by that.
        let finding = tokio::task::spawn_blocking(move || keepers.find(&id));
        let found = tokio::time::timeout(REPLAY_WAIT, finding).await;
        let found = found.map_err(|_| failed("asking the keepers")(io::ErrorKind::TimedOut.into()))?;
        let found = found.map_err(io::Error::other).map_err(failed("asking the keepers"))?;
        let found = found.map_err(|error| failed("asking the keepers")(error.into()))?;
        let (kept, channel) = found.ok_or_else(gone)?;
        // From here on its descriptors go with it too.
        let kept = Arc::new(kept);
        let image = self.image_of(&deed, base.clone()).await.map_err(AdoptError::Image)?;
        // What stood still for a checkpoint or a pause goes on: nothing that is frozen answers.
        self.shared.tree.freeze(&deed.id, false).map_err(failed("letting its processes go on"))?;
        let adopted = tokio::time::timeout(REPLAY_WAIT, Channel::adopt(channel)).await;
        let adopted = adopted.map_err(|_| failed("asking init")(io::ErrorKind::TimedOut.into()))?;
        let (channel, told) = adopted.map_err(|error| match error {
            ChannelError::Dead(reason) => AdoptError::Gone(format!("init of {}: {reason}", deed.id)),
            ChannelError::Io(source) => failed("asking init")(source),
        })?;
        let reserved = self.reserve_adopted(&deed);
        guard.id = None;
        let driven = driven::State::adopted(&self.shared, &deed.id);
        Ok(ContainerSandbox {
            shared: Arc::clone(&self.shared),
            alive: Some(Alive { channel, kept, reserved }),
            // Its leaves were looked at when they were opened.
            _known: super::Known::new(&self.shared, &deed.id, None),
            id: deed.id,
            layers,
            base,
            workdir: deed.workdir,
            image,
            id_base: deed.id_base,
            init_pid: deed.init_pid,
            memory_disk: deed.memory_disk,
            disk_limit: deed.disk_limit,
            image_name: deed.image,
            image_digest: deed.image_digest,
            told,
            driven,
        })
    }

    async fn image_of(
        &self,
        deed: &Deed,
        base: Option<Arc<crate::sandbox::OciBase>>,
    ) -> Result<Arc<Image>, CreateError> {
        match base {
            None => self.image(&deed.image).await,
            Some(base) => {
                let (images, name) = (Arc::clone(&self.images), deed.image.clone());
                let prepared = tokio::task::spawn_blocking(move || images.stacked(&name, &base)).await;
                prepared.map_err(|error| {
                    let action = "preparing the image".to_owned();
                    CreateError::Failed { action, source: io::Error::other(error) }
                })?
            }
        }
    }

    /// It was granted once; what it takes is taken whatever there is room for now.
    fn reserve_adopted(&self, deed: &Deed) -> Reserved {
        self.shared.live.fetch_add(1, Ordering::Relaxed);
        let disk = if deed.disk_limit > TMPFS_DISK_MAX { deed.disk_limit } else { rollout::Bytes(0) };
        lock(&self.shared.disk_promised).0 += disk.0;
        Reserved { shared: Arc::clone(&self.shared), disk }
    }

    pub(super) async fn destroy_unclaimed(&self) {
        let unclaimed = lock(&self.inheritance).take().map_or_else(Vec::new, |left| left.sandboxes);
        for id in unclaimed {
            tracing::info!(sandbox = id, "of an earlier life, and nobody claims it: destroyed");
            let (keepers, named) = (Arc::clone(&self.shared.keepers), id.clone());
            let forgotten = tokio::task::spawn_blocking(move || keepers.forget(&named));
            let destroyed = self.shared.client.request(Action::Destroy { id: id.clone() });
            let (destroyed, forgotten) = tokio::join!(destroyed, forgotten);
            match destroyed {
                Ok((Outcome::Destroyed { left }, _)) if left.is_empty() => {}
                Ok((outcome, _)) => tracing::error!(sandbox = id, ?outcome, "not wholly removed"),
                Err(error) => tracing::warn!(sandbox = id, %error, "left to the broker"),
            }
            if let Ok(Err(error)) = forgotten {
                tracing::debug!(sandbox = id, %error, "its descriptors went with their keeper");
            }
        }
    }

    pub(super) fn say_keep_until(&self, ends_at: BootTime) {
        if let Err(error) = self.shared.client.tell(Action::KeepUntil { ends_at_us: ends_at.0 }, &[]) {
            tracing::debug!(%error, "the broker does not hear of the lease");
        }
    }
}

impl ContainerSandbox {
    pub(super) fn written_down(&self) -> Deed {
        let base = self.base.as_ref().map(|base| BaseDeed {
            digest: base.digest.clone(),
            trees: base.layers.iter().map(|layer| layer.path.clone()).collect(),
            env: base.env.clone(),
        });
        Deed {
            id: self.id.clone(),
            image: self.image_name.clone(),
            image_digest: self.image_digest.clone(),
            workdir: self.workdir.clone(),
            id_base: self.id_base,
            init_pid: self.init_pid,
            memory_disk: self.memory_disk,
            disk_limit: self.disk_limit,
            layers: self
                .layers
                .iter()
                .map(|mounted| (mounted.layer.clone(), mounted.at.path.clone()))
                .collect(),
            base,
        }
    }

    pub(super) fn found(&self, number: u32) -> Option<ContainerProcess> {
        let exited = self.told.get(&number)?.exited();
        Some(ContainerProcess { channel: Arc::clone(&self.alive().channel), ticket: number, exited })
    }

    pub(super) async fn hand_over(&self, process: u32, ends: Vec<OwnedFd>) -> io::Result<()> {
        let kinds = (0u8..).take(ends.len()).map(|index| Kind::Stream { process, index }).collect::<Vec<_>>();
        Ok(self.alive().kept.put(&kinds, &ends).await?)
    }

    pub(super) async fn handed_over(&self, process: u32, count: u8) -> io::Result<Vec<OwnedFd>> {
        let kept = Arc::clone(&self.alive().kept);
        let get = move || {
            (0..count).map(|index| kept.get(Kind::Stream { process, index })).collect::<Result<_, _>>()
        };
        Ok(tokio::task::spawn_blocking(get).await.map_err(io::Error::other)??)
    }

    pub(super) async fn let_go(&self, process: u32) {
        let kept = Arc::clone(&self.alive().kept);
        match tokio::task::spawn_blocking(move || kept.forget(process)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(sandbox = self.id, %error, "streams stay with their keeper"),
            Err(error) => tracing::error!(sandbox = self.id, %error, "streams stay with their keeper"),
        }
    }
}
