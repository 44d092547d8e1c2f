//! Whether the host lets programs that changed their user be traced by that user.
//!
//! Before its exec a command is in the memory of init, as its user: it must be none of those.

use std::fs;

/// What stands in the way, if anything does.
pub fn problem() -> Option<&'static str> {
    let set = fs::read_to_string("/proc/sys/fs/suid_dumpable").unwrap_or_default();
    is_traced(&set).then_some(
        "fs.suid_dumpable is 1: who runs in a sandbox could trace what starts it; set it to 0 or 2",
    )
}

fn is_traced(set: &str) -> bool {
    set.trim() == "1"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_refused_where_programs_that_changed_user_may_be_traced() {
        assert!(is_traced("1\n"));
        for set in ["0\n", "2\n", ""] {
            assert!(!is_traced(set), "{set:?}");
        }
    }
}
