//! Holds a job whose step fails in bulk.

use std::collections::VecDeque;

use rollout::failure::Status;
use rollout::{Domain, FailureCode, StepIndex};

use crate::config::BREAKER_WINDOW;
use crate::record::BreakerEnd;

/// The last final ends of one step of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Breaker {
    /// Ends there were.
    ends: u64,
    /// The last [`BREAKER_WINDOW`]: the code, if it counts against the job.
    window: VecDeque<Option<FailureCode>>,
}

impl Breaker {
    /// Counts a final end. What agents do, and a cancel, do not count against the job.
    pub fn count(&mut self, step: StepIndex, code: Option<FailureCode>) -> BreakerEnd {
        let code =
            code.filter(|c| c.domain() != Domain::Agent && c.consequence().status != Status::Cancelled);
        let end = BreakerEnd { step, number: self.ends, code };
        self.push(end);
        end
    }

    /// Takes back what was counted, oldest first.
    pub fn push(&mut self, end: BreakerEnd) {
        if self.window.len() == BREAKER_WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(end.code);
        self.ends = end.number + 1;
    }

    /// More than half of a full window failed with the code of the last end.
    pub fn tripped(&self) -> Option<FailureCode> {
        let code = (*self.window.back()?)?;
        let failed = self.window.iter().filter(|c| **c == Some(code)).count();
        (self.window.len() == BREAKER_WINDOW && failed * 2 > BREAKER_WINDOW).then_some(code)
    }
}
