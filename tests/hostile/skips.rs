//! What a host may lack, and what runs here.

use std::io::Write;

use libtest_mimic::Failed;

/// A mechanism this host lacks.
#[derive(Debug)]
pub struct Skip(pub String);

/// Trials that may be skipped, each with the beginning of the reason it may give.
const EXPECTED: &[(&str, &str)] = &[
    ("case_05_no_ioctl_reaches_a_file_of_an_image_on_xfs", "no mkfs.xfs"),
    ("case_05_no_ioctl_reaches_a_file_of_an_image_on_xfs", "no xfs in this kernel"),
    ("case_03_set_id_bits_and_file_capabilities_of_an_image_give_nothing", "no setcap"),
];

/// Passes a skip that was expected, and fails any other.
pub fn judge(name: &str, skip: &Skip) -> Result<(), Failed> {
    let Skip(reason) = skip;
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {reason}");
    let expected = EXPECTED.iter().any(|(known, why)| *known == name && reason.starts_with(why));
    if expected { Ok(()) } else { Err(Failed::from(format!("{name}: a skip nobody expects: {reason}"))) }
}

/// Cgroup version and security modules, for whoever reads the run.
pub fn say_what_runs_here() {
    let modules = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_else(|_| "not told".into());
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let has = |kind: &str| table.lines().any(|line| line.contains(&format!(" - {kind} ")));
    let cgroups = match (has("cgroup2"), has("cgroup")) {
        (true, true) => "v1 controllers with a v2 tree",
        (true, false) => "v2",
        _ => "no v2 tree",
    };
    let _ = writeln!(std::io::stderr(), "cgroups: {cgroups}; security modules: {}", modules.trim());
}
