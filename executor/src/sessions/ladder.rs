//! Down the idle ladder and up again: processes stand still, memory goes back; the next call resumes, and
//! its caller sees only a delay. Deadlines go on meanwhile.

use std::sync::Arc;
use std::time::Duration;

use rollout::Bytes;
use rollout_wire::v1;

use super::error::{Refusal, SandboxCode};
use super::live::Live;

/// For every process to stand still.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Rung {
    #[default]
    Running,
    Frozen,
    /// Frozen, and memory was really given back.
    Reclaimed,
}

impl Rung {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Frozen => "frozen",
            Self::Reclaimed => "reclaimed",
        }
    }
}

/// Where a sandbox is on it. The version grows with every change.
#[derive(Debug, Default)]
pub(super) struct Ladder {
    rung: Rung,
    version: u64,
    reclaimed: Bytes,
}

impl Ladder {
    fn step(&mut self, rung: Rung, reclaimed: Bytes) {
        (self.rung, self.reclaimed) = (rung, reclaimed);
        self.version += 1;
    }

    fn check(&self, version: Option<u64>) -> Result<(), Refusal> {
        match version.filter(|version| *version != self.version) {
            None => Ok(()),
            Some(asked) => {
                let words = format!("its lifecycle is at version {}, not {asked}", self.version);
                Err(Refusal::new(SandboxCode::VersionConflict, words))
            }
        }
    }

    fn reply(&self) -> v1::LifecycleReply {
        v1::LifecycleReply {
            rung: self.rung.as_str().to_owned(),
            version: self.version,
            reclaimed_bytes: self.reclaimed.0,
        }
    }
}

fn failed(what: &str, error: &std::io::Error) -> Refusal {
    Refusal::new(SandboxCode::StartFailed, format!("{what}: {error}"))
}

impl Live {
    /// Down, as far as it goes here; one that is down already stays where it is.
    pub(super) async fn pause(self: &Arc<Self>, version: Option<u64>) -> Result<v1::LifecycleReply, Refusal> {
        let mut ladder = self.ladder.lock().await;
        ladder.check(version)?;
        if ladder.rung == Rung::Running {
            let lent = self.lend_as_it_is().await?;
            let driven = lent.driven()?;
            driven.freeze(FREEZE_TIMEOUT).await.map_err(|error| failed("stopping its processes", &error))?;
            ladder.step(Rung::Frozen, Bytes(0));
            match driven.reclaim().await {
                Ok(Bytes(0)) => {}
                Ok(bytes) => (ladder.rung, ladder.reclaimed) = (Rung::Reclaimed, bytes),
                // It stands still all the same: that is the rung it reached.
                Err(error) => tracing::warn!(sandbox = %self.id(), %error, "no memory taken back"),
            }
        }
        Ok(ladder.reply())
    }

    pub(super) async fn resume(
        self: &Arc<Self>,
        version: Option<u64>,
    ) -> Result<v1::LifecycleReply, Refusal> {
        let mut ladder = self.ladder.lock().await;
        ladder.check(version)?;
        if ladder.rung != Rung::Running {
            let lent = self.lend_as_it_is().await?;
            lent.driven()?.thaw().map_err(|error| failed("letting its processes go on", &error))?;
            ladder.step(Rung::Running, Bytes(0));
        }
        Ok(ladder.reply())
    }

    /// Before every call that needs what runs in it.
    pub(super) async fn wake(self: &Arc<Self>) -> Result<(), Refusal> {
        self.resume(None).await.map(drop)
    }

    /// It stands still, and nothing about it changes but the time.
    pub(crate) fn is_parked(&self) -> bool {
        self.ladder.try_lock().is_ok_and(|ladder| ladder.rung != Rung::Running)
    }

    /// Nobody called for a while: down, unless somebody does now.
    pub(crate) async fn park(self: &Arc<Self>, after: Duration) {
        if self.idle() < after || self.ladder.lock().await.rung != Rung::Running {
            return;
        }
        if let Err(refusal) = self.pause(None).await {
            tracing::debug!(sandbox = %self.id(), problem = refusal.message, "not paused");
        }
    }
}
