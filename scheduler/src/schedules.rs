//! Schedules: specs that run again and again.
//!
//! One task keeps them all and takes one question or one fire at a time, so a schedule is never in two
//! minds. What is due and what overlaps is decided by `scheduler_core::cadence`; every change goes
//! through the driver, the job of a fire in one commit with the mark that it fired.

mod fire;
mod keeper;

use rollout::{JobId, ScheduleId};
use tokio::sync::{mpsc, oneshot};

pub(crate) use fire::scheduled_job;
pub(crate) use keeper::Keeper;

use crate::api::ApiError;
use crate::inbox::Stopping;
use crate::store::{NewSchedule, ScheduleRow};

/// Schedules of one yard.
pub const SCHEDULES_MAX: usize = 1_000;
/// Questions that may wait for the keeper; more of them wait with whoever asks.
const ASKS_MAX: usize = 64;

type Reply<T> = oneshot::Sender<Result<T, ApiError>>;

/// What the keeper is asked. Answered after the commit.
pub(crate) enum Ask {
    /// Answered with the schedule, and whether it took the place of one of its name.
    Register {
        new: Box<NewSchedule>,
        reply: Reply<(ScheduleRow, bool)>,
    },
    Set {
        schedule: ScheduleId,
        enabled: bool,
        reply: Reply<ScheduleRow>,
    },
    Remove {
        schedule: ScheduleId,
        reply: Reply<()>,
    },
    Fire {
        schedule: ScheduleId,
        key: String,
        reply: Reply<(ScheduleRow, FiredAs)>,
    },
}

/// What became of a fire that a caller asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FiredAs {
    Started(JobId),
    Waits,
    Skipped,
}

/// Where the keeper is asked; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Schedules(mpsc::Sender<Ask>);

impl Schedules {
    pub fn new() -> (Self, mpsc::Receiver<Ask>) {
        let (sender, asks) = mpsc::channel(ASKS_MAX);
        (Self(sender), asks)
    }

    pub async fn ask(&self, ask: Ask) -> Result<(), Stopping> {
        self.0.send(ask).await.map_err(|_| Stopping)
    }
}
