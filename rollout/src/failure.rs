//! The failure table: every way a rollout can end badly, whose fault it is, and what follows.
//!
//! The three flags mean: *retry*: the yard may try the step again (infrastructure only);
//! *grade*: the grader still runs; *valid*: a reward the grader gives counts. Reward is null
//! unless valid: infrastructure failure is never a reward.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Who is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Domain {
    Agent,
    Task,
    Grader,
    ModelEndpoint,
    Sandbox,
    Node,
    Network,
    Storage,
    Scheduler,
}

impl Domain {
    pub const ALL: [Self; 9] = [
        Self::Agent,
        Self::Task,
        Self::Grader,
        Self::ModelEndpoint,
        Self::Sandbox,
        Self::Node,
        Self::Network,
        Self::Storage,
        Self::Scheduler,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Task => "task",
            Self::Grader => "grader",
            Self::ModelEndpoint => "model_endpoint",
            Self::Sandbox => "sandbox",
            Self::Node => "node",
            Self::Network => "network",
            Self::Storage => "storage",
            Self::Scheduler => "scheduler",
        }
    }

    /// The domains whose failures the yard may retry.
    pub const fn infrastructure(self) -> bool {
        !matches!(self, Self::Agent | Self::Task | Self::Grader)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Column `status` of a trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Completed,
    Truncated,
    Aborted,
    Failed,
    Cancelled,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Truncated => "truncated",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One row of the failure table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consequence {
    pub domain: Domain,
    pub should_retry: bool,
    pub should_grade: bool,
    pub has_valid_reward: bool,
    pub status: Status,
    /// Column `stop_reason`; none where the table has none.
    pub stop_reason: Option<&'static str>,
}

macro_rules! failure_table {
    ($($variant:ident $code:literal: $domain:ident $retry:literal $grade:literal $valid:literal $status:ident $stop:expr;)*) => {
        /// Why an attempt, a step or a rollout failed. The text form is the stable code of
        /// column `failure_code` and of docs/errors.md.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum FailureCode { $($variant),* }

        impl FailureCode {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code),* }
            }

            /// What follows from this failure. `grader_lost` names the sandbox domain here; the
            /// row carries the domain of its cause.
            pub const fn consequence(self) -> Consequence {
                match self { $(Self::$variant => Consequence {
                    domain: Domain::$domain,
                    should_retry: $retry == 1,
                    should_grade: $grade == 1,
                    has_valid_reward: $valid == 1,
                    status: Status::$status,
                    stop_reason: $stop,
                }),* }
            }
        }
    };
}

failure_table! {
    //                                          domain    retry grade valid  status    stop_reason
    StartFailed      "start_failed":            Sandbox       1 0 0 Failed    None;
    StartTimeout     "start_timeout":           Sandbox       1 0 0 Failed    None;
    NodeLost         "node_lost":               Node          1 0 0 Failed    None;
    NodePressure     "node_pressure":           Node          1 0 0 Failed    None;
    StorageFailed    "storage_failed":          Storage       1 0 0 Failed    None;
    LeaseLost        "lease_lost":              Scheduler     1 0 0 Failed    None;
    SetupFailed      "setup_failed":            Task          0 0 0 Failed    None;
    SetupTimeout     "setup_timeout":           Task          0 0 0 Failed    None;
    StepExit         "step_exit":               Task          0 0 0 Failed    None;
    StepTimeout      "step_timeout":            Task          0 0 0 Failed    None;
    ModelUnavailable "model_unavailable":       ModelEndpoint 1 1 0 Aborted   None;
    EgressFailed     "egress_failed":           Network       1 1 0 Aborted   None;
    NoActivity       "no_activity":             ModelEndpoint 1 0 0 Failed    None;
    Unauthorized     "unauthorized":            Task          0 0 0 Failed    None;
    NotFound         "not_found":               Task          0 0 0 Failed    None;
    Cancelled        "cancelled":               Scheduler     0 0 0 Cancelled Some("cancelled");
    Straggler        "straggler":               Scheduler     0 0 0 Cancelled Some("straggler");
    Stale            "stale":                   Scheduler     0 0 0 Cancelled Some("stale");
    JobTimeout       "job_timeout":             Scheduler     0 0 0 Cancelled Some("job_timeout");
    QueueDeadline    "queue_deadline":          Scheduler     0 0 0 Cancelled Some("queue_deadline");
    BudgetExhausted  "budget_exhausted":        Scheduler     0 0 0 Cancelled Some("budget_exhausted");
    DriverLost       "driver_lost":             Scheduler     1 0 0 Aborted   None;
    GraderTimeout    "grader_timeout":          Grader        0 1 0 Failed    None;
    RewardBad        "reward_bad":              Grader        0 1 0 Failed    None;
    GraderLost       "grader_lost":             Sandbox       1 1 0 Failed    None;
    AgentExit        "agent_exit":              Agent         0 1 1 Completed Some("agent_exit");
    AgentTimeout     "agent_timeout":           Agent         0 1 1 Truncated Some("agent_timeout");
    ContextOverflow  "context_overflow":        Agent         0 1 1 Truncated Some("context_overflow");
    MaxTurns         "max_turns":               Agent         0 1 1 Truncated Some("max_turns");
    MaxActions       "max_actions":             Agent         0 1 1 Truncated Some("max_actions");
    MaxTotalTokens   "max_total_tokens":        Agent         0 1 1 Truncated Some("max_total_tokens");
    Refused          "refused":                 Agent         0 1 1 Completed Some("refused");
    OomGuest         "oom_guest":               Agent         0 1 1 Truncated Some("oom_guest");
    DiskQuota        "disk_quota":              Agent         0 1 1 Truncated Some("disk_quota");
    PidsLimit        "pids_limit":              Agent         0 1 1 Truncated Some("pids_limit");
    OutputMissing    "output_missing":          Agent         0 1 1 Completed Some("stop");
    OutputTooLarge   "output_too_large":        Agent         0 1 1 Completed Some("stop");
    TooManyBranches  "too_many_branches":       Agent         0 1 1 Truncated Some("too_many_branches");
    GuardCut         "guard_cut":               Agent         0 1 1 Aborted   Some("cancelled");
    GuardFault       "guard_fault":             Node          1 0 0 Failed    None;
    OutcomeUnknown   "outcome_unknown":         Node          0 0 0 Aborted   None;
    Unclassified     "unclassified":            Scheduler     0 0 0 Failed    None;
}

impl FailureCode {
    pub const fn domain(self) -> Domain {
        self.consequence().domain
    }

    /// What whoever wrote the spec can do about it, where the code alone says so. It is no part of the message:
    /// a sandbox of a client has no spec.
    pub const fn advice(self) -> Option<&'static str> {
        match self {
            Self::OomGuest => Some("raise resources.limit.memory"),
            Self::DiskQuota => Some("raise resources.limit.disk"),
            Self::PidsLimit => Some("raise resources.limit.pids"),
            _ => None,
        }
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a failure code of this version")]
pub struct UnknownFailureCode(pub String);

impl FromStr for FailureCode {
    type Err = UnknownFailureCode;
    fn from_str(text: &str) -> Result<Self, UnknownFailureCode> {
        let found = Self::ALL.iter().find(|code| code.as_str() == text);
        found.copied().ok_or_else(|| UnknownFailureCode(crate::text::shown(text, 64)))
    }
}
impl TryFrom<String> for FailureCode {
    type Error = UnknownFailureCode;
    fn try_from(text: String) -> Result<Self, UnknownFailureCode> {
        text.parse()
    }
}
impl From<FailureCode> for String {
    fn from(code: FailureCode) -> String {
        code.as_str().to_owned()
    }
}

/// The longest failure message, in bytes.
pub const FAILURE_MESSAGE_BYTES_MAX: usize = 4096;

/// A failure as it is reported and stored. The message quotes what happened (the time really
/// run, the bytes really used), never just the configured limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: FailureCode,
    /// Of the cause; equals `code.domain()` except for `grader_lost` and `outcome_unknown`.
    pub domain: Domain,
    pub message: String,
}

impl Failure {
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self::caused_by(code, code.domain(), message)
    }

    pub fn caused_by(code: FailureCode, domain: Domain, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > FAILURE_MESSAGE_BYTES_MAX {
            let mut end = FAILURE_MESSAGE_BYTES_MAX - 3;
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
            message.push_str("...");
        }
        Self { code, domain, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_infrastructure_is_retried_and_only_the_agent_has_a_valid_reward() {
        for code in FailureCode::ALL {
            let c = code.consequence();
            assert!(!c.should_retry || c.domain.infrastructure(), "{code}");
            assert!(!c.has_valid_reward || c.domain == Domain::Agent, "{code}");
            assert!(!c.has_valid_reward || c.should_grade, "{code}");
            assert_eq!(code.as_str().parse(), Ok(*code));
        }
    }
}
