//! Down the idle ladder and up again: processes stand still, memory goes back; the next call resumes, and
//! its caller sees only a delay. Deadlines go on meanwhile.

use std::sync::Arc;
use std::time::Duration;

use rollout::Bytes;
use rollout_wire::v1;
use tokio::time::timeout;

use super::error::{Refusal, SandboxCode};
use super::live::Live;

/// For every process to stand still.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);
/// For memory to be given back. What is not by then stays where it is.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(30);

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
        self.down(version, None).await
    }

    /// `after`: only if nobody called for so long.
    async fn down(
        self: &Arc<Self>,
        version: Option<u64>,
        after: Option<Duration>,
    ) -> Result<v1::LifecycleReply, Refusal> {
        let (lent, reached) = {
            let _no_start = self.starts.write().await;
            let mut ladder = self.ladder.lock().await;
            ladder.check(version)?;
            // Whoever calls from here on waits for the ladder, and wakes it.
            if ladder.rung != Rung::Running || after.is_some_and(|after| self.idle() < after) {
                return Ok(ladder.reply());
            }
            let lent = self.lend_as_it_is().await?;
            let driven = lent.driven()?;
            let freezing = async {
                let frozen = driven.freeze(FREEZE_TIMEOUT).await;
                frozen.map_err(|error| failed("stopping its processes", &error))
            };
            self.unless_over(freezing).await?;
            ladder.step(Rung::Frozen, Bytes(0));
            (lent, ladder.version)
        };
        // Not under the lock: a call that comes meanwhile goes first.
        let driven = lent.driven()?;
        let reclaiming = async { Ok(timeout(RECLAIM_TIMEOUT, driven.reclaim()).await) };
        let reclaimed = self.unless_over(reclaiming).await?;
        drop(lent);
        let mut ladder = self.ladder.lock().await;
        match reclaimed {
            Ok(Ok(bytes)) if bytes > Bytes(0) && ladder.version == reached => {
                (ladder.rung, ladder.reclaimed) = (Rung::Reclaimed, bytes);
            }
            Ok(Ok(_)) => {}
            // It stands still all the same: that is the rung it reached.
            Ok(Err(error)) => tracing::warn!(sandbox = %self.id(), %error, "no memory taken back"),
            Err(_) => tracing::warn!(sandbox = %self.id(), "its memory is not taken back in time"),
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

    /// Whether there is a rung below that it may go to by itself.
    pub(super) fn can_go_down(&self) -> bool {
        self.step.idle.is_some() && !self.is_parked()
    }

    /// Nobody called for a while: down, unless somebody does now.
    pub(crate) async fn park(self: &Arc<Self>, after: Duration) {
        if let Err(refusal) = self.down(None, Some(after)).await {
            tracing::debug!(sandbox = %self.id(), problem = refusal.message, "not paused");
        }
    }
}
