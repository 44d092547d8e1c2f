//! How a sandbox ended, in words that a client can act on. Every place that tells it takes them from here.

use rollout::failure::Failure;
use rollout::state::JobState;
use rollout::text::shown_line;
use rollout::{FailureCode, Timestamp};
use rollout_wire::{to_wire, v1};

use crate::api::{ApiCode, ApiError};
use crate::store::SandboxRow;

/// Characters of what a failure says that are repeated.
const MESSAGE_CHARS_MAX: usize = 1_500;

/// How the sandbox of a client ended; none if it lives.
pub(crate) fn of_row(row: &SandboxRow) -> Option<v1::SandboxEnd> {
    if !matches!(row.state, JobState::Finished | JobState::Cancelled) {
        return None;
    }
    let (cause, message, hint) = match &row.failure {
        Some(failure) => of_failure(failure),
        None if row.timed_out => (
            "timeout",
            format!("its timeout of {} was over", row.timeout),
            "create another with a longer timeout (at most 7 days); no call puts it off",
        ),
        None if row.silent => {
            let time = row.idle_timeout.map_or_else(String::new, |time| format!(" of {time}"));
            let hint = "create another with a longer idle timeout, or call it more often";
            ("idle_timeout", format!("no call came for its idle timeout{time}"), hint)
        }
        None if row.state == JobState::Cancelled => {
            ("killed", shown_line(&row.reason, MESSAGE_CHARS_MAX), "")
        }
        None => ("finished", "a call finished it".to_owned(), ""),
    };
    Some(end(cause, message, hint, row.finished_at))
}

/// How the session of a step ended: its job has a spec.
pub(super) fn of_session(failure: Option<&Failure>, ended_at: Option<Timestamp>) -> v1::SandboxEnd {
    let (cause, message, hint) = match failure {
        Some(failure) => {
            let (cause, message, hint) = of_failure(failure);
            (cause, message, failure.code.advice().unwrap_or(hint))
        }
        None => ("finished", "its driver finished it".to_owned(), ""),
    };
    end(cause, message, hint, ended_at)
}

fn end(cause: &str, message: String, hint: &str, ended_at: Option<Timestamp>) -> v1::SandboxEnd {
    let ended_at_us = ended_at.map_or(0, |at| at.0);
    v1::SandboxEnd { cause: cause.to_owned(), message, hint: hint.to_owned(), ended_at_us }
}

fn of_failure(failure: &Failure) -> (&'static str, String, &'static str) {
    let cause = if failure.code == FailureCode::Cancelled { "killed" } else { failure.code.as_str() };
    (cause, shown_line(&failure.message, MESSAGE_CHARS_MAX), advice(failure.code))
}

/// What a client can do about it, who wrote no spec; may be empty.
pub(super) const fn advice(code: FailureCode) -> &'static str {
    use FailureCode as Code;
    match code {
        Code::OomGuest => "create another with a larger memory limit",
        Code::DiskQuota => "create another with a larger disk limit",
        Code::PidsLimit => "create another with a larger pids limit",
        Code::NodeLost | Code::LeaseLost | Code::OutcomeUnknown => {
            "create another; `rollyard checkpoint ls` has what was saved of it"
        }
        Code::StartTimeout | Code::QueueDeadline => {
            "ask for less, end other sandboxes, or allow a longer start timeout"
        }
        Code::DriverLost => "raise `session.idle_timeout` if its driver is slow",
        _ => "",
    }
}

/// Why a sandbox failed.
pub(super) fn failure(failure: &Failure) -> v1::Failure {
    v1::Failure { hint: advice(failure.code).to_owned(), ..to_wire::failure(failure) }
}

/// What a call into a sandbox that ended so is told, in place of the answer with this code.
pub(super) fn refusal(code: ApiCode, name: &str, end: &v1::SandboxEnd) -> ApiError {
    let message = format!("sandbox {name} has ended ({}): {}", end.cause, end.message);
    let hint = match end.hint.as_str() {
        "" => "create another; `rollyard checkpoint ls` has what was saved of it",
        hint => hint,
    };
    ApiError::new(code, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use rollout::Millis;

    use super::*;

    fn row(change: impl FnOnce(&mut SandboxRow)) -> SandboxRow {
        let mut row = SandboxRow {
            job: "j0000000000007".parse().unwrap(),
            state: JobState::Finished,
            reason: String::new(),
            created_at: Timestamp(1),
            finished_at: Some(Timestamp(9)),
            image: "host".to_owned(),
            labels: [].into(),
            start_timeout: Millis(1_000),
            timeout: Millis(3_600_000),
            idle_timeout: Some(Millis(30_000)),
            node: None,
            started_at: Some(Timestamp(2)),
            failure: None,
            timed_out: false,
            silent: false,
        };
        change(&mut row);
        row
    }

    fn failed(code: FailureCode, message: &str) -> SandboxRow {
        row(|row| row.failure = Some(Failure::new(code, message)))
    }

    #[test]
    fn each_end_has_a_cause_words_and_what_to_do() {
        use FailureCode as Code;
        for (row, cause, message, hint) in [
            (row(|row| row.timed_out = true), "timeout", "its timeout of 1h was over", "a longer timeout"),
            (
                row(|row| row.silent = true),
                "idle_timeout",
                "no call came for its idle timeout of 30s",
                "a longer idle timeout",
            ),
            (
                row(|row| (row.silent, row.idle_timeout) = (true, None)),
                "idle_timeout",
                "no call came for its idle timeout",
                "a longer idle timeout",
            ),
            (failed(Code::Cancelled, "not needed; it had run 2s"), "killed", "not needed; it had run 2s", ""),
            (
                row(|row| (row.state, row.reason) = (JobState::Cancelled, "no\nmore \u{1b}".to_owned())),
                "killed",
                "no more \\u{1b}",
                "",
            ),
            (failed(Code::NodeLost, "its init died"), "node_lost", "its init died", "checkpoint ls"),
            (failed(Code::OomGuest, "above 1Gi"), "oom_guest", "above 1Gi", "memory limit"),
            (failed(Code::SetupFailed, "1"), "setup_failed", "1", ""),
            (row(|_| ()), "finished", "a call finished it", ""),
        ] {
            let end = of_row(&row).expect(cause);
            assert_eq!((end.cause.as_str(), end.message.as_str(), end.ended_at_us), (cause, message, 9));
            assert!(end.hint.contains(hint) && end.hint.is_empty() == hint.is_empty(), "{end:?}");
        }
        assert_eq!(of_row(&row(|row| (row.state, row.finished_at) = (JobState::Running, None))), None);
    }

    #[test]
    fn a_refusal_says_how_it_ended_and_what_to_do() {
        let end = of_row(&row(|row| row.silent = true)).unwrap();
        let told = refusal(ApiCode::SandboxEnded, "j7-g0-s0", &end);
        let words = "sandbox j7-g0-s0 has ended (idle_timeout): no call came for its idle timeout of 30s";
        assert_eq!(told.message, words);
        assert_eq!(told.hint.as_deref(), Some(end.hint.as_str()));
        let killed = of_row(&failed(FailureCode::Cancelled, "x")).unwrap();
        assert!(refusal(ApiCode::SandboxGone, "j7-g0-s0", &killed).hint.is_some());
    }
}
