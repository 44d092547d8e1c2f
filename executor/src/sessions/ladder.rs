//! Down the idle ladder and up again: processes stand still, memory goes back; the next call resumes, and
//! its caller sees only a delay. Deadlines go on meanwhile.

use std::sync::Arc;
use std::time::Duration;

use rollout::checkpoint::Checkpoint;
use rollout::outcome::{Parked, StoredLog};
use rollout::plan::IdleMode;
use rollout::{BootTime, Bytes};
use rollout_wire::v1;
use tokio::time::{Instant, timeout};

use super::error::{Refusal, SandboxCode};
use super::live::{Leaving, Live};
use super::paused::Paused;
use crate::clock::boot_now;
use crate::workspace::SaveError;

/// For every process to stand still.
pub(crate) const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);
/// For memory to be given back. What is not by then stays where it is.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(30);

/// Of the log of a session that is parked: each time it is sent to the blob store and fetched from there.
const PARKED_LOG_BYTES_MAX: u64 = 64 << 20;
/// Attempts of one session: it is not parked again after so many.
const PARKS_MAX: u32 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Rung {
    #[default]
    Running,
    Frozen,
    /// Frozen, and memory was really given back.
    Reclaimed,
    /// Saved, and about to end on this node.
    Parked,
}

impl Rung {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Frozen => "frozen",
            Self::Reclaimed => "reclaimed",
            Self::Parked => rollout_wire::RUNG_PARKED,
        }
    }
}

/// Where a sandbox is on it. The version grows with every change.
#[derive(Debug, Default)]
pub(super) struct Ladder {
    rung: Rung,
    version: u64,
    reclaimed: Bytes,
    /// At this version it could not be parked: it is not tried again before the next.
    unparkable: Option<u64>,
    /// When it had last been heard of as far as is written down.
    heard_at: Option<Instant>,
}

impl Ladder {
    /// Of a session that goes on where it was parked, or at `adopted` from another executor: its versions
    /// are above every one that was told before. The time since boot, in microseconds, grows faster than
    /// anything is paused and resumed. One that stands still as the other executor left it (`paused`) is at
    /// the version that was told then.
    pub(super) fn after(parked: Option<&Parked>, adopted: Option<BootTime>, paused: Option<&Paused>) -> Self {
        if let Some(&Paused { version, reclaimed, .. }) = paused {
            let rung = if reclaimed > Bytes(0) { Rung::Reclaimed } else { Rung::Frozen };
            return Self { rung, version, reclaimed, ..Self::default() };
        }
        let parked = parked.map_or(0, |parked| parked.version + 1);
        Self { version: parked.saturating_add(adopted.map_or(0, |at| at.0)), ..Self::default() }
    }

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

/// What came of going down.
struct Down {
    reply: v1::LifecycleReply,
    /// It ran until this call.
    froze: bool,
}

fn failed(what: &str, error: &std::io::Error) -> Refusal {
    Refusal::new(SandboxCode::StartFailed, format!("{what}: {error}"))
}

impl Live {
    /// Down, as far as it goes here; one that is down already stays where it is.
    pub(super) async fn pause(self: &Arc<Self>, version: Option<u64>) -> Result<v1::LifecycleReply, Refusal> {
        self.down(version, None).await.map(|down| down.reply)
    }

    /// `after`: only if nobody called for so long.
    async fn down(self: &Arc<Self>, version: Option<u64>, after: Option<Duration>) -> Result<Down, Refusal> {
        let mut woken = std::pin::pin!(self.woken.notified());
        let (lent, reached) = {
            let _no_start = self.starts.write().await;
            let mut ladder = self.ladder.lock().await;
            ladder.check(version)?;
            // Whoever calls from here on waits for the ladder, and wakes it.
            if ladder.rung != Rung::Running || after.is_some_and(|after| self.idle() < after) {
                return Ok(Down { reply: ladder.reply(), froze: false });
            }
            let lent = self.lend_as_it_is().await?;
            let driven = lent.driven()?;
            let freezing = async {
                let frozen = driven.freeze(FREEZE_TIMEOUT).await;
                frozen.map_err(|error| failed("stopping its processes", &error))
            };
            self.unless_over(freezing).await?;
            ladder.step(Rung::Frozen, Bytes(0));
            self.write_paused(&mut ladder);
            woken.as_mut().enable();
            (lent, ladder.version)
        };
        // Not under the lock: a call that comes meanwhile goes first, and ends this. What runs takes memory
        // as fast as the kernel takes it back.
        let driven = lent.driven()?;
        let reclaiming = async {
            tokio::select! {
                reclaimed = timeout(RECLAIM_TIMEOUT, driven.reclaim()) => Ok(reclaimed),
                () = woken => Ok(Ok(Ok(Bytes(0)))),
            }
        };
        let reclaimed = self.unless_over(reclaiming).await?;
        drop(lent);
        let mut ladder = self.ladder.lock().await;
        match reclaimed {
            Ok(Ok(bytes)) if bytes > Bytes(0) && ladder.version == reached => {
                (ladder.rung, ladder.reclaimed) = (Rung::Reclaimed, bytes);
                self.write_paused(&mut ladder);
            }
            Ok(Ok(_)) => {}
            // It stands still all the same: that is the rung it reached.
            Ok(Err(error)) => tracing::warn!(sandbox = %self.id(), %error, "no memory taken back"),
            Err(_) => tracing::warn!(sandbox = %self.id(), "its memory is not taken back in time"),
        }
        Ok(Down { reply: ladder.reply(), froze: true })
    }

    pub(super) async fn resume(
        self: &Arc<Self>,
        version: Option<u64>,
    ) -> Result<v1::LifecycleReply, Refusal> {
        let mut ladder = self.ladder.lock().await;
        if ladder.rung == Rung::Parked {
            return Err(Refusal::parked(&self.name()));
        }
        ladder.check(version)?;
        if ladder.rung != Rung::Running {
            let lent = self.lend_as_it_is().await?;
            lent.driven()?.thaw().map_err(|error| failed("letting its processes go on", &error))?;
            ladder.step(Rung::Running, Bytes(0));
            if let Err(error) = Paused::remove(&self.dir) {
                tracing::warn!(sandbox = %self.id(), %error, "the next executor would pause it");
            }
            self.woken.notify_waiters();
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
        let Some(idle) = self.step.idle else { return false };
        self.ladder.try_lock().is_ok_and(|ladder| match ladder.rung {
            Rung::Running => true,
            Rung::Frozen | Rung::Reclaimed => {
                idle.mode == IdleMode::Checkpoint
                    && ladder.unparkable != Some(ladder.version)
                    && self.may_leave().is_ok()
            }
            Rung::Parked => false,
        })
    }

    /// What keeps it on its node whatever its files are like.
    fn may_leave(&self) -> Result<(), Refusal> {
        let refused = |words: String| Err(Refusal::new(SandboxCode::NotParkable, words));
        if self.serves_others {
            let words = "a later step goes on in this very sandbox, so it is frozen and not parked";
            return refused(words.to_owned());
        }
        // Its deadlines may end it while it is parked, and nobody could collect them then.
        if !self.step.outputs.is_empty() {
            let words =
                "its step declares outputs, which are collected on its node, so it is frozen and not parked";
            return refused(words.to_owned());
        }
        if self.at.attempt.attempt >= PARKS_MAX {
            return refused(format!("it was begun {PARKS_MAX} times (PARKS_MAX), and each costs a row"));
        }
        let log = self.log.bytes();
        if log > PARKED_LOG_BYTES_MAX {
            let words =
                format!("its log of {log} bytes is above {PARKED_LOG_BYTES_MAX} (PARKED_LOG_BYTES_MAX)");
            return refused(words);
        }
        Ok(())
    }

    /// All the way down: it stands still, its files and its log are stored, and its runner ends it. A call
    /// that comes meanwhile goes first, and this is refused. Refused, it is as it was before; only one that
    /// nobody called for (`after`) and that cannot be parked stays frozen.
    pub(super) async fn leave(
        self: &Arc<Self>,
        version: Option<u64>,
        after: Option<Duration>,
    ) -> Result<v1::LifecycleReply, Refusal> {
        self.may_leave()?;
        if self.is_called() || self.acts() {
            let words = "a call is in progress, and it is not parked under it";
            return Err(Refusal::new(SandboxCode::VersionConflict, words));
        }
        let down = self.down(version, after).await?;
        let left = self.leave_from(down.reply.version, after).await;
        let stays = |refusal: &Refusal| after.is_some() && refusal.code != SandboxCode::VersionConflict;
        if let Err(refusal) = &left
            && down.froze
            && !stays(refusal)
        {
            // Of another version: somebody else did something with it since.
            if let Err(other) = self.resume(Some(down.reply.version)).await {
                tracing::debug!(sandbox = %self.id(), problem = other.message, "not resumed after all");
            }
        }
        left
    }

    async fn leave_from(
        self: &Arc<Self>,
        reached: u64,
        after: Option<Duration>,
    ) -> Result<v1::LifecycleReply, Refusal> {
        if after.is_some() && self.ladder.lock().await.rung == Rung::Running {
            return Err(Refusal::new(SandboxCode::VersionConflict, "it is not idle any more"));
        }
        let saved = self.save_to_leave().await;
        let mut ladder = self.ladder.lock().await;
        let (checkpoint, log) = match saved {
            Ok(saved) => saved,
            Err(refusal) => {
                ladder.unparkable = Some(ladder.version);
                return Err(refusal);
            }
        };
        if ladder.version != reached || ladder.rung == Rung::Running {
            return Err(Refusal::new(SandboxCode::VersionConflict, "a call came before it was parked"));
        }
        // Of the version that is told: if its end here is not seen through, it stands still at that.
        let here = Paused { version: ladder.version + 1, ..self.as_paused(&ladder) };
        self.write_down(here);
        let parted = self.part(|| {
            if self.end.by_runner().is_err() {
                return Err(Refusal::ended(&self.name()));
            }
            ladder.step(Rung::Parked, Bytes(0));
            Ok(Leaving { checkpoint, log, version: ladder.version })
        });
        if parted.is_err() {
            self.write_paused(&mut ladder);
        }
        parted?;
        Ok(ladder.reply())
    }

    async fn save_to_leave(self: &Arc<Self>) -> Result<(Checkpoint, Option<StoredLog>), Refusal> {
        let refused = |error: SaveError| Refusal::new(SandboxCode::NotParkable, error.to_string());
        let checkpoint = self.save().await.map_err(refused)?;
        Ok((checkpoint, self.store_log().await?))
    }

    fn as_paused(&self, ladder: &Ladder) -> Paused {
        let idle = u64::try_from(self.heard_at().elapsed().as_micros()).unwrap_or(u64::MAX);
        let heard_at = BootTime(boot_now().0.saturating_sub(idle));
        Paused { version: ladder.version, reclaimed: ladder.reclaimed, heard_at }
    }

    /// For the next executor, if this one is killed. Blocks for a moment, and is never half done.
    fn write_paused(&self, ladder: &mut Ladder) {
        ladder.heard_at = Some(self.heard_at());
        self.write_down(self.as_paused(ladder));
    }

    fn write_down(&self, paused: Paused) {
        if let Err(error) = paused.write(&self.dir) {
            tracing::warn!(sandbox = %self.id(), %error, "the next executor would let it go on");
        }
    }

    /// Writes down when it was last heard of, if it stands still and that has changed.
    pub(crate) async fn note_silence(&self) {
        let mut ladder = self.ladder.lock().await;
        if matches!(ladder.rung, Rung::Frozen | Rung::Reclaimed) && ladder.heard_at != Some(self.heard_at()) {
            self.write_paused(&mut ladder);
        }
    }

    /// Nobody called for a while: down as far as its step lets it, unless somebody calls now.
    pub(crate) async fn park(self: &Arc<Self>, after: Duration) {
        if !self.can_go_down() || self.idle() < after {
            return;
        }
        let goes_far = self.step.idle.is_some_and(|idle| idle.mode == IdleMode::Checkpoint);
        let down = if goes_far && self.may_leave().is_ok() {
            self.leave(None, Some(after)).await.map(drop)
        } else {
            self.down(None, Some(after)).await.map(drop)
        };
        if let Err(refusal) = down {
            tracing::debug!(sandbox = %self.id(), problem = refusal.message, "not paused");
        }
    }
}
