//! A request to run rollouts again: what is asked, who is chosen, and what is answered.

use std::collections::BTreeMap;

use rollout::{JobId, RolloutId};
use rollout_wire::v1;
use scheduler_core::record::RolloutEnd;
use scheduler_core::retry::{NotRetried, RetryScope};
use tokio::sync::oneshot;

use crate::error::Error;

/// Rollouts that one request looks at: as many as may wait to be run again.
pub const CANDIDATES_MAX: usize = scheduler_core::config::RETRY_MEMBERS_MAX;

/// Which rollouts of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Job,
    Group(u32),
    Rollout(RolloutId),
}

pub struct Retry {
    pub job: JobId,
    pub of: Of,
    pub scope: RetryScope,
    pub key: String,
    /// sha256 over everything the request asks for, hex.
    pub request_hash: String,
    pub reply: oneshot::Sender<Result<v1::RetryReply, RetryRefused>>,
}

#[derive(Debug)]
pub enum RetryRefused {
    NoJob,
    /// The key belongs to another request.
    KeyInUse,
    /// The job was cancelled, and nobody said that this does not matter.
    Cancelled,
    /// The job is just ending.
    Ending,
    /// Nothing is to be run again.
    Nothing(Box<v1::RetryReply>),
    /// More than [`CANDIDATES_MAX`] at once.
    TooMany,
    Store(Error),
}

impl From<Error> for RetryRefused {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// An ended rollout without a valid reward.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub rollout: RolloutId,
    pub end: RolloutEnd,
    /// It waits to be run again already.
    pub asked: bool,
}

/// Whom a request runs again, and why the others are not.
pub(crate) struct Choice {
    pub rollouts: Vec<RolloutId>,
    others: BTreeMap<NotRetried, u64>,
}

impl Choice {
    pub fn of(found: Vec<Candidate>, scope: RetryScope) -> Self {
        let (mut rollouts, mut others) = (Vec::new(), BTreeMap::new());
        for Candidate { rollout, end, asked } in found {
            let why = if asked { Err(NotRetried::Asked) } else { scope.takes(&end) };
            match why {
                Ok(()) => rollouts.push(rollout),
                Err(why) => *others.entry(why).or_default() += 1,
            }
        }
        Self { rollouts, others }
    }

    pub fn is_asked(&self) -> bool {
        self.others.contains_key(&NotRetried::Asked)
    }

    /// `taken` of them were: the core has known of the others before.
    pub fn reply(&self, taken: u64) -> v1::RetryReply {
        let mut others = self.others.clone();
        let known = (self.rollouts.len() as u64).saturating_sub(taken);
        if known > 0 {
            *others.entry(NotRetried::Asked).or_default() += known;
        }
        let reason = |(why, rollouts): (NotRetried, u64)| v1::NotRetried {
            code: why.code().to_owned(),
            why: why.as_str().to_owned(),
            rollouts,
        };
        v1::RetryReply { job: None, retried: taken, not_retried: others.into_iter().map(reason).collect() }
    }
}
