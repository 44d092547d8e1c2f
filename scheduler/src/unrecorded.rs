//! How the stored reason of a job tells of rows that cannot be written.

/// Begins what is told; what comes before it is the job's own reason.
const MISSING: &str = "rows are missing: ";

/// `reason` with the problem told behind it.
pub(crate) fn with_unrecorded(reason: &str, problem: &str) -> String {
    let told = format!("{MISSING}{problem}; it is tried again at the next start");
    if reason.is_empty() { told } else { format!("{reason}; {told}") }
}

/// What was told.
pub(crate) fn told(reason: &str) -> Option<&str> {
    reason.find(MISSING).map(|at| &reason[at..])
}

/// The job's own reason, and whether something was told.
pub(crate) fn without_unrecorded(reason: &str) -> (&str, bool) {
    match reason.split_once(MISSING) {
        Some((own, _)) => (own.trim_end_matches("; "), true),
        None => (reason, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_taken_off_again() {
        for own in ["", "cancelled; by hand"] {
            assert_eq!(without_unrecorded(&with_unrecorded(own, "no room")), (own, true));
            assert_eq!(without_unrecorded(own), (own, false));
        }
    }
}
