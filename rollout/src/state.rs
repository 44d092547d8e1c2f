//! States that are stored and shown.

use serde::{Deserialize, Serialize};

/// A step of one rollout.
///
/// ```text
/// Waiting ──needs met──> Ready ──placed──> Running ──ended──> Succeeded | Failed
///    │                     ^                  │
///    │                     └──infra failure───┤ (Backoff until its time, then Ready)
///    └──upstream failed──> Skipped            ├──cancel──> Cancelled
///                                             └──idle────> Parked ──called──> Ready
/// ```
/// `Succeeded`, `Failed`, `Skipped` and `Cancelled` are final, except that a chain whose live
/// sandbox is lost restarts from its head (see scheduler-core).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum StepState {
    Waiting = 0,
    Ready = 1,
    Backoff = 2,
    Running = 3,
    Succeeded = 4,
    Failed = 5,
    Skipped = 6,
    Cancelled = 7,
    /// It has no sandbox, and goes on from its checkpoint at the next call.
    Parked = 8,
}

impl StepState {
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Skipped | Self::Cancelled)
    }
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Backoff => "backoff",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
            Self::Parked => "parked",
        }
    }
}

/// A job. `Held` = a breaker or an operator stopped admission; running work goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Running,
    Held,
    Cancelling,
    /// Every group closed and its rows sealed.
    Finished,
    /// Cancelled, and every group closed and its rows sealed.
    Cancelled,
}

impl JobState {
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::Cancelled)
    }
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Held => "held",
            Self::Cancelling => "cancelling",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Column `group_closed_as`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupClosedAs {
    Full,
    Short,
    Dropped,
    Cancelled,
}

impl GroupClosedAs {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Short => "short",
            Self::Dropped => "dropped",
            Self::Cancelled => "cancelled",
        }
    }
}
