//! What an attempt's end means: from the facts an executor saw to a row of the failure table.
//!
//! The executor measures and this module decides, so that one table says who is to blame. Rules
//! that hold throughout: a deadline is what the executor's clock says, never exit code 124; a
//! missing exit code stays missing; a limit of the kernel is blamed only if the step failed.

use crate::failure::{Domain, Failure, FailureCode};
use crate::plan::{Per, StepKind};
use crate::quantity::{Bytes, Limit, TMPFS_DISK_MAX};
use crate::reward::RewardProblem;
use crate::text::shown;
use crate::time::Millis;

/// A workspace with no more than this left counts as full: a last write seldom ends on the last
/// byte.
pub const DISK_FULL_SLACK: Bytes = Bytes(64 << 10);

const SHOWN_CHARS_MAX: usize = 400;

/// How the step's process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Signalled(i32),
    /// The kernel refused to run the program: not found, not executable, bad format, too long.
    NotRun {
        problem: String,
    },
    /// The sandbox could not start a process at all.
    NotSpawned {
        problem: String,
    },
    /// It ran, and the kernel's status of it is not known.
    Unknown,
    /// The sandbox died under the work, or its processes could not be ended: nothing it holds
    /// can be trusted.
    Lost {
        reason: String,
    },
}

/// What the kernel counted while the step ran. None = not measured on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    pub oom_kills: Option<u64>,
    pub pids_denied: Option<u64>,
    pub memory_peak: Option<Bytes>,
    /// The most seen in the writable layer, and its size.
    pub disk_used: Option<Bytes>,
    pub disk_size: Option<Bytes>,
    /// The fewest seen.
    pub inodes_free: Option<u64>,
}

impl Counters {
    pub fn oom(&self) -> bool {
        self.oom_kills.is_some_and(|kills| kills > 0)
    }

    pub fn disk_full(&self) -> bool {
        let bytes = match (self.disk_used, self.disk_size) {
            (Some(used), Some(size)) => used.0.saturating_add(DISK_FULL_SLACK.0) >= size.0,
            _ => false,
        };
        bytes || self.inodes_free == Some(0)
    }
}

/// How a session ended, when it was not killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// By its driver's word.
    Finished,
    /// By its driver's word, and it did not work out. `has_unknown`: of an action it had recorded nobody
    /// knows whether it happened, since an executor was lost under it.
    GivenUp {
        problem: String,
        has_unknown: bool,
    },
    /// There was no call for so long.
    Silent {
        idle: Millis,
    },
    /// It had as many actions as it may have.
    ActionsSpent {
        actions: u64,
    },
    /// The deadline of its step.
    Deadline,
    NotSpawned {
        problem: String,
    },
    Lost {
        reason: String,
    },
}

/// A declared output that is not there as declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputProblem {
    pub name: String,
    pub kind: OutputProblemKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputProblemKind {
    /// With what was found in its place.
    Missing { why: String },
    /// `bytes` none: it had more than `max`, and reading stopped there.
    TooLarge { bytes: Option<Bytes>, max: Bytes },
}

/// Everything known about an attempt whose sandbox was ready.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    pub kind: StepKind,
    pub per: Per,
    pub end: End,
    /// The executor's deadline ended it.
    pub timed_out: bool,
    /// Really run, on the monotonic clock.
    pub run: Millis,
    pub timeout: Millis,
    pub limit: Limit,
    pub counters: Counters,
    pub outputs: &'a [OutputProblem],
    /// Of a grader: why it gave no reward.
    pub reward: Option<&'a RewardProblem>,
}

/// Everything known about a session whose sandbox was ready.
#[derive(Debug, Clone)]
pub struct SessionFacts<'a> {
    pub end: SessionEnd,
    /// A client created it: nobody drives it, and it ends by its own deadlines.
    pub unclaimed: bool,
    /// Really run, on the monotonic clock.
    pub run: Millis,
    pub timeout: Millis,
    pub limit: Limit,
    pub counters: Counters,
    pub outputs: &'a [OutputProblem],
}

/// The failure of a session, or none if it did what it should.
///
/// What a driver does in it is an agent's doing. A sandbox that a client created is over at its
/// deadlines, and nobody is to blame for that.
pub fn classify_session(facts: &SessionFacts<'_>) -> Option<Failure> {
    let &SessionFacts { unclaimed, run, timeout, limit, counters, outputs, .. } = facts;
    let as_agent = |end, timed_out| Facts {
        kind: StepKind::Session,
        per: Per::Rollout,
        end,
        timed_out,
        run,
        timeout,
        limit,
        counters,
        outputs,
        reward: None,
    };
    match &facts.end {
        SessionEnd::Finished => output_failure(outputs),
        SessionEnd::Silent { .. } | SessionEnd::Deadline if unclaimed => None,
        SessionEnd::GivenUp { problem, has_unknown } => {
            let message = format!("its driver gave it up after {run}: {}", shown(problem, SHOWN_CHARS_MAX));
            let code = if *has_unknown { FailureCode::OutcomeUnknown } else { FailureCode::StepExit };
            Some(Failure::new(code, message))
        }
        SessionEnd::Silent { idle } => {
            let message = format!("no call of its driver for {idle}, {run} after it was ready");
            Some(Failure::new(FailureCode::DriverLost, message))
        }
        SessionEnd::ActionsSpent { actions } => {
            Some(Failure::new(FailureCode::MaxActions, format!("had {actions} actions after {run}")))
        }
        SessionEnd::Deadline => classify(&as_agent(End::Unknown, true)),
        SessionEnd::NotSpawned { problem } => {
            classify(&as_agent(End::NotSpawned { problem: problem.clone() }, false))
        }
        SessionEnd::Lost { reason } => classify(&as_agent(End::Lost { reason: reason.clone() }, false)),
    }
}

/// The failure of the attempt, or none if the step did what it should. Of a session: see
/// [`classify_session`].
///
/// A grader that gave a reward has done what it should: its exit code is recorded and not read,
/// and an output of its own that is missing is absent from its artifacts.
pub fn classify(facts: &Facts<'_>) -> Option<Failure> {
    if let Some(failure) = before_the_work(facts) {
        return Some(failure);
    }
    match facts.kind {
        StepKind::Agent | StepKind::Session => agent(facts),
        StepKind::Run => run(facts),
        StepKind::Grader => grader(facts),
    }
}

fn before_the_work(facts: &Facts<'_>) -> Option<Failure> {
    match &facts.end {
        End::Exited(_) | End::Signalled(_) => None,
        End::Unknown if facts.timed_out => None,
        End::Unknown => Some(lost(facts, "the exit status of the step is not known")),
        End::NotRun { problem } => Some(Failure::new(FailureCode::NotFound, shown(problem, SHOWN_CHARS_MAX))),
        End::NotSpawned { problem } => {
            Some(Failure::new(FailureCode::StartFailed, shown(problem, SHOWN_CHARS_MAX)))
        }
        End::Lost { reason } => Some(lost(facts, reason)),
    }
}

/// A sandbox that died of its own memory limit is the doing of what ran in it, and would die
/// again; any other death is nobody's there. A grader's is regraded either way.
fn lost(facts: &Facts<'_>, reason: &str) -> Failure {
    let reason = shown(reason, SHOWN_CHARS_MAX);
    let code = match facts.kind {
        StepKind::Agent | StepKind::Session => Some(FailureCode::OomGuest),
        StepKind::Run => Some(exit_code(facts)),
        StepKind::Grader => None,
    };
    if let Some(code) = code.filter(|_| facts.counters.oom()) {
        let message = format!("the sandbox died after {}: {reason}; {}", facts.run, oom_words(facts));
        return Failure::new(code, message);
    }
    let message = format!("the sandbox was lost after {}: {reason}", facts.run);
    match facts.kind {
        StepKind::Grader => Failure::caused_by(FailureCode::GraderLost, Domain::Sandbox, message),
        StepKind::Agent | StepKind::Run | StepKind::Session => Failure::new(FailureCode::NodeLost, message),
    }
}

fn agent(facts: &Facts<'_>) -> Option<Failure> {
    if facts.timed_out {
        return Some(Failure::new(FailureCode::AgentTimeout, timeout_words(facts)));
    }
    if succeeded(facts) {
        return output_failure(facts.outputs);
    }
    let (code, why) = match limit_behind(facts) {
        Some(LimitHit::Memory) => (FailureCode::OomGuest, oom_words(facts)),
        Some(LimitHit::Disk) => (FailureCode::DiskQuota, disk_words(facts)),
        Some(LimitHit::Pids) => (FailureCode::PidsLimit, pids_words(facts)),
        None => return Some(Failure::new(FailureCode::AgentExit, end_words(facts))),
    };
    Some(Failure::new(code, format!("{}; {why}", end_words(facts))))
}

fn run(facts: &Facts<'_>) -> Option<Failure> {
    if facts.timed_out {
        return Some(Failure::new(timeout_code(facts), with_limit(facts, timeout_words(facts))));
    }
    if succeeded(facts) {
        return output_failure(facts.outputs);
    }
    Some(Failure::new(exit_code(facts), with_limit(facts, end_words(facts))))
}

/// A step that its group runs once fails for all of it.
fn exit_code(facts: &Facts<'_>) -> FailureCode {
    match facts.per {
        Per::Rollout => FailureCode::StepExit,
        Per::Group => FailureCode::SetupFailed,
    }
}

fn timeout_code(facts: &Facts<'_>) -> FailureCode {
    match facts.per {
        Per::Rollout => FailureCode::StepTimeout,
        Per::Group => FailureCode::SetupTimeout,
    }
}

fn grader(facts: &Facts<'_>) -> Option<Failure> {
    if facts.timed_out {
        return Some(Failure::new(FailureCode::GraderTimeout, with_limit(facts, timeout_words(facts))));
    }
    let problem = facts.reward?;
    let message = format!("{problem}; {}", end_words(facts));
    Some(Failure::new(FailureCode::RewardBad, with_limit(facts, message)))
}

fn succeeded(facts: &Facts<'_>) -> bool {
    facts.end == End::Exited(0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitHit {
    Memory,
    Disk,
    Pids,
}

fn limit_behind(facts: &Facts<'_>) -> Option<LimitHit> {
    let counters = &facts.counters;
    if counters.oom() {
        Some(LimitHit::Memory)
    } else if counters.disk_full() {
        Some(LimitHit::Disk)
    } else if counters.pids_denied.is_some_and(|denied| denied > 0) {
        Some(LimitHit::Pids)
    } else {
        None
    }
}

fn with_limit(facts: &Facts<'_>, message: String) -> String {
    match limit_behind(facts) {
        Some(LimitHit::Memory) => format!("{message}; {}", oom_words(facts)),
        Some(LimitHit::Disk) => format!("{message}; {}", disk_words(facts)),
        Some(LimitHit::Pids) => format!("{message}; {}", pids_words(facts)),
        None => message,
    }
}

fn end_words(facts: &Facts<'_>) -> String {
    let run = facts.run;
    match &facts.end {
        End::Exited(code) => {
            // As shells and `env` say of what they were to run; it may be a code of the program's own all the same.
            let reading = match code {
                126 => " (in a shell: a program that cannot be run)",
                127 => " (in a shell: a program that is not there)",
                _ => "",
            };
            format!("exited with code {code} after {run}{reading}")
        }
        End::Signalled(signal) => format!("was killed by signal {signal} after {run}"),
        End::Unknown => format!("ended after {run} with an unknown status"),
        End::NotRun { problem } | End::NotSpawned { problem } => shown(problem, SHOWN_CHARS_MAX),
        End::Lost { reason } => shown(reason, SHOWN_CHARS_MAX),
    }
}

fn timeout_words(facts: &Facts<'_>) -> String {
    format!("still ran at its deadline: ran {} with a timeout of {}", facts.run, facts.timeout)
}

fn oom_words(facts: &Facts<'_>) -> String {
    let limit = facts.limit.memory;
    let kills = facts.counters.oom_kills.unwrap_or_default();
    let peak = facts.counters.memory_peak.map(|peak| format!(" (peak {})", peak.about())).unwrap_or_default();
    let disk = facts.limit.disk;
    let disk = if disk <= TMPFS_DISK_MAX {
        format!(" and the {disk} of disk kept in memory")
    } else {
        String::new()
    };
    format!("the kernel killed {kills} of its processes at the memory limit {limit}{disk}{peak}")
}

fn disk_words(facts: &Facts<'_>) -> String {
    let counters = &facts.counters;
    if counters.inodes_free == Some(0) {
        return format!("the workspace had no inode left (disk limit {})", facts.limit.disk);
    }
    let used = counters.disk_used.unwrap_or_default();
    format!("the workspace was full: {} used of the disk limit {}", used.about(), facts.limit.disk)
}

fn pids_words(facts: &Facts<'_>) -> String {
    let denied = facts.counters.pids_denied.unwrap_or_default();
    format!("{denied} forks were refused at the limit of {} tasks", facts.limit.pids)
}

/// The code of the first problem, the words of all.
fn output_failure(problems: &[OutputProblem]) -> Option<Failure> {
    let code = match problems.first()?.kind {
        OutputProblemKind::Missing { .. } => FailureCode::OutputMissing,
        OutputProblemKind::TooLarge { .. } => FailureCode::OutputTooLarge,
    };
    let words = |problem: &OutputProblem| match &problem.kind {
        OutputProblemKind::Missing { why } => {
            format!("output `{}` is missing: {}", problem.name, shown(why, SHOWN_CHARS_MAX))
        }
        OutputProblemKind::TooLarge { bytes: Some(bytes), max } => {
            format!("output `{}` has {} bytes, above its max_bytes {max}", problem.name, bytes.0)
        }
        OutputProblemKind::TooLarge { bytes: None, max } => {
            format!("output `{}` has more than its max_bytes {max}", problem.name)
        }
    };
    Some(Failure::new(code, problems.iter().map(words).collect::<Vec<_>>().join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Resources;

    const OOM: Counters = Counters {
        oom_kills: Some(2),
        pids_denied: None,
        memory_peak: Some(Bytes(1000)),
        disk_used: None,
        disk_size: None,
        inodes_free: None,
    };
    const NONE: Counters = Counters {
        oom_kills: Some(0),
        pids_denied: Some(0),
        memory_peak: None,
        disk_used: Some(Bytes(0)),
        disk_size: Some(Bytes(1 << 20)),
        inodes_free: Some(7),
    };
    const FULL: Counters = Counters { disk_used: Some(Bytes(1 << 20)), ..NONE };
    const NO_INODES: Counters = Counters { inodes_free: Some(0), ..NONE };
    const NO_FORKS: Counters = Counters { pids_denied: Some(3), ..NONE };
    const UNMEASURED: Counters = Counters {
        oom_kills: None,
        pids_denied: None,
        memory_peak: None,
        disk_used: None,
        disk_size: None,
        inodes_free: None,
    };

    fn facts(kind: StepKind, end: End, timed_out: bool, counters: Counters) -> Facts<'static> {
        Facts {
            kind,
            per: Per::Rollout,
            end,
            timed_out,
            run: Millis(61_250),
            timeout: Millis(60_000),
            limit: Resources::default().limit,
            counters,
            outputs: &[],
            reward: None,
        }
    }

    #[test]
    fn a_step_that_a_group_runs_once_fails_as_its_setup() {
        let code = |end, timed_out, counters| {
            let facts = Facts { per: Per::Group, ..facts(StepKind::Run, end, timed_out, counters) };
            classify(&facts).map(|failure| failure.code)
        };
        assert_eq!(code(End::Exited(1), false, NONE), Some(FailureCode::SetupFailed));
        assert_eq!(code(End::Exited(0), true, NONE), Some(FailureCode::SetupTimeout));
        let lost = || End::Lost { reason: "init is gone".into() };
        assert_eq!(code(lost(), false, OOM), Some(FailureCode::SetupFailed));
        assert_eq!(code(lost(), false, NONE), Some(FailureCode::NodeLost));
        assert_eq!(code(End::Exited(0), false, NONE), None);
    }

    #[test]
    fn each_end_has_one_code() {
        use End::{Exited, Signalled};
        use FailureCode as Code;
        use StepKind::{Agent, Grader, Run};
        let not_run = || End::NotRun { problem: "cannot run `x`".into() };
        let not_spawned = || End::NotSpawned { problem: "no pid".into() };
        let lost = || End::Lost { reason: "init is gone".into() };
        for (kind, end, timed_out, counters, code) in [
            (Agent, Exited(0), false, NONE, None),
            (Agent, Exited(0), false, OOM, None),
            (Agent, Exited(0), false, FULL, None),
            (Agent, Exited(0), false, NO_FORKS, None),
            (Agent, Exited(1), false, NONE, Some(Code::AgentExit)),
            (Agent, Exited(1), false, UNMEASURED, Some(Code::AgentExit)),
            (Agent, Exited(124), false, NONE, Some(Code::AgentExit)),
            (Agent, Signalled(11), false, NONE, Some(Code::AgentExit)),
            (Agent, Signalled(9), false, OOM, Some(Code::OomGuest)),
            (Agent, Exited(1), false, OOM, Some(Code::OomGuest)),
            (Agent, Exited(1), false, FULL, Some(Code::DiskQuota)),
            (Agent, Exited(1), false, NO_INODES, Some(Code::DiskQuota)),
            (Agent, Exited(254), false, NO_FORKS, Some(Code::PidsLimit)),
            (Agent, Signalled(15), true, NONE, Some(Code::AgentTimeout)),
            (Agent, Exited(0), true, NONE, Some(Code::AgentTimeout)),
            (Agent, Signalled(9), true, OOM, Some(Code::AgentTimeout)),
            (Agent, not_run(), false, NONE, Some(Code::NotFound)),
            (Agent, not_spawned(), false, NONE, Some(Code::StartFailed)),
            (Agent, lost(), false, NONE, Some(Code::NodeLost)),
            (Agent, lost(), false, OOM, Some(Code::OomGuest)),
            (Agent, End::Unknown, false, NONE, Some(Code::NodeLost)),
            (Agent, End::Unknown, true, NONE, Some(Code::AgentTimeout)),
            (Grader, End::Unknown, false, NONE, Some(Code::GraderLost)),
            (Run, Exited(0), false, OOM, None),
            (Run, Exited(2), false, NONE, Some(Code::StepExit)),
            (Run, Exited(124), false, NONE, Some(Code::StepExit)),
            (Run, Signalled(9), false, OOM, Some(Code::StepExit)),
            (Run, Exited(1), false, FULL, Some(Code::StepExit)),
            (Run, Exited(0), true, NONE, Some(Code::StepTimeout)),
            (Run, not_run(), false, NONE, Some(Code::NotFound)),
            (Run, lost(), false, OOM, Some(Code::StepExit)),
            (Run, lost(), true, OOM, Some(Code::StepExit)),
            (Run, lost(), false, NONE, Some(Code::NodeLost)),
            (Grader, Exited(0), false, NONE, None),
            (Grader, Exited(1), false, NONE, None),
            (Grader, Signalled(9), false, OOM, None),
            (Grader, Signalled(15), true, NONE, Some(Code::GraderTimeout)),
            (Grader, not_run(), false, NONE, Some(Code::NotFound)),
            (Grader, not_spawned(), false, NONE, Some(Code::StartFailed)),
            (Grader, lost(), false, NONE, Some(Code::GraderLost)),
        ] {
            let facts = facts(kind, end, timed_out, counters);
            let failure = classify(&facts);
            assert_eq!(failure.as_ref().map(|f| f.code), code, "{facts:?}");
            if let Some(failure) = failure {
                assert!(failure.code != Code::GraderLost || failure.domain == Domain::Sandbox);
            }
        }
    }

    #[test]
    fn sessions_end_as_their_drivers_left_them() {
        use FailureCode as Code;
        let given_up = |has_unknown| SessionEnd::GivenUp { problem: "no\u{7} answer".into(), has_unknown };
        let silent = || SessionEnd::Silent { idle: Millis(300_000) };
        let lost = || SessionEnd::Lost { reason: "init is gone".into() };
        let not_spawned = || SessionEnd::NotSpawned { problem: "no pid".into() };
        let spent = || SessionEnd::ActionsSpent { actions: 5 };
        for (end, unclaimed, counters, code, words) in [
            (SessionEnd::Finished, false, NONE, None, ""),
            (SessionEnd::Finished, true, OOM, None, ""),
            (
                given_up(false),
                false,
                NONE,
                Some(Code::StepExit),
                "gave it up after 1m1s250ms: no\\u{7} answer",
            ),
            // What its node lost is not the task's.
            (given_up(true), false, NONE, Some(Code::OutcomeUnknown), "gave it up after 1m1s250ms: no"),
            (silent(), false, NONE, Some(Code::DriverLost), "no call of its driver for 5m, 1m1s250ms"),
            (silent(), true, NONE, None, ""),
            (spent(), false, NONE, Some(Code::MaxActions), "had 5 actions after 1m1s250ms"),
            (
                SessionEnd::Deadline,
                false,
                NONE,
                Some(Code::AgentTimeout),
                "ran 1m1s250ms with a timeout of 1m",
            ),
            (SessionEnd::Deadline, false, OOM, Some(Code::AgentTimeout), "ran 1m1s250ms"),
            (SessionEnd::Deadline, true, NONE, None, ""),
            (lost(), false, NONE, Some(Code::NodeLost), "was lost after 1m1s250ms: init is gone"),
            (lost(), false, OOM, Some(Code::OomGuest), "memory limit"),
            (lost(), true, NONE, Some(Code::NodeLost), "was lost"),
            (not_spawned(), true, NONE, Some(Code::StartFailed), "no pid"),
        ] {
            let (run, timeout) = (Millis(61_250), Millis(60_000));
            let limit = Resources::default().limit;
            let facts = SessionFacts { end, unclaimed, run, timeout, limit, counters, outputs: &[] };
            let failure = classify_session(&facts);
            assert_eq!(failure.as_ref().map(|failure| failure.code), code, "{facts:?}");
            let message = failure.map(|failure| failure.message).unwrap_or_default();
            assert!(message.contains(words), "{message}");
        }
        let missing = [OutputProblem {
            name: "patch".into(),
            kind: OutputProblemKind::Missing { why: "nothing there".into() },
        }];
        let facts = |end| SessionFacts {
            end,
            unclaimed: false,
            run: Millis(1),
            timeout: Millis(2),
            limit: Resources::default().limit,
            counters: NONE,
            outputs: &missing,
        };
        let code = |end| classify_session(&facts(end)).map(|failure| failure.code);
        assert_eq!(code(SessionEnd::Finished), Some(Code::OutputMissing));
        assert_eq!(code(given_up(false)), Some(Code::StepExit));
    }

    #[test]
    fn messages_quote_what_happened() {
        for (kind, end, timed_out, counters, words) in [
            (StepKind::Agent, End::Exited(3), false, NONE, "exited with code 3 after 1m1s250ms"),
            (
                StepKind::Agent,
                End::Exited(127),
                false,
                NONE,
                "exited with code 127 after 1m1s250ms (in a shell: a program that is not there)",
            ),
            (StepKind::Agent, End::Signalled(9), true, NONE, "ran 1m1s250ms with a timeout of 1m"),
            (
                StepKind::Agent,
                End::Signalled(9),
                false,
                OOM,
                "at the memory limit 2Gi and the 256Mi of disk kept in memory (peak 1000)",
            ),
            (StepKind::Agent, End::Exited(1), false, FULL, "1Mi used of the disk limit 256Mi"),
            (StepKind::Agent, End::Exited(1), false, NO_INODES, "no inode left"),
            (
                StepKind::Run,
                End::Exited(1),
                false,
                NO_FORKS,
                "3 forks were refused at the limit of 1024 tasks",
            ),
            (StepKind::Run, End::Exited(1), true, OOM, "memory limit"),
        ] {
            let message = classify(&facts(kind, end, timed_out, counters)).unwrap().message;
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn outputs_count_only_if_the_step_succeeded() {
        let missing = OutputProblem {
            name: "patch".into(),
            kind: OutputProblemKind::Missing { why: "nothing at /workspace/p".into() },
        };
        let large = OutputProblem {
            name: "log".into(),
            kind: OutputProblemKind::TooLarge { bytes: Some(Bytes(9)), max: Bytes(8) },
        };
        let problems = [large, missing];
        for (kind, end, outputs, code) in [
            (StepKind::Agent, End::Exited(0), &problems[..1], Some(FailureCode::OutputTooLarge)),
            (StepKind::Agent, End::Exited(0), &problems[1..], Some(FailureCode::OutputMissing)),
            (StepKind::Agent, End::Exited(0), &problems[..], Some(FailureCode::OutputTooLarge)),
            (StepKind::Agent, End::Exited(1), &problems[..], Some(FailureCode::AgentExit)),
            (StepKind::Run, End::Exited(0), &problems[1..], Some(FailureCode::OutputMissing)),
            (StepKind::Grader, End::Exited(0), &problems[..], None),
        ] {
            let facts = Facts { outputs, ..facts(kind, end, false, NONE) };
            let failure = classify(&facts);
            assert_eq!(failure.as_ref().map(|f| f.code), code, "{facts:?}");
            let names = |f: &Failure| f.message.contains("`log`") && f.message.contains("`patch`");
            assert!(
                outputs.len() < 2 || code != Some(FailureCode::OutputTooLarge) || names(&failure.unwrap())
            );
        }
    }

    #[test]
    fn a_bad_reward_is_the_graders_and_says_how_it_ended() {
        let problem = RewardProblem::NotFinite { value: f64::NAN };
        let facts = Facts { reward: Some(&problem), ..facts(StepKind::Grader, End::Exited(1), false, OOM) };
        let failure = classify(&facts).unwrap();
        assert_eq!((failure.code, failure.domain), (FailureCode::RewardBad, Domain::Grader));
        for words in ["reward NaN is not a finite", "exited with code 1", "memory limit"] {
            assert!(failure.message.contains(words), "{}", failure.message);
        }
    }
}
