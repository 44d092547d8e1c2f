//! Scripted scenarios: each `*.txt` here is a story of one yard, told to the real scheduler core with
//! the naive store behind it; what the core records and commands is compared with `*.out`, which is
//! reviewed like code. `UPDATE_GOLDEN=1` writes the outputs anew.
//!
//! A script is a spec between `spec` and `end`, then one verb a line:
//! `submit N` (groups), `attach NODE cpu=N memory=SIZE`, `detach NODE`, `end ATTEMPT ok|CODE [REWARD]`,
//! `refuse ATTEMPT busy|gone|bad MESSAGE`, `identify NODE IMAGE DIGEST|missing`, `wait DURATION`, `retry ROLLOUT..`, `cancel REASON`, `restart` (the scheduler, from
//! its store), `explain [ATTEMPT]`, `seal`. An attempt is written `g0-s1/step`,
//! or `g0-shared/step` where the group runs the step once.

mod yard;

use std::fs;
use std::path::Path;

#[test]
fn every_scenario_goes_as_its_reviewed_output_says() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut scripts: Vec<_> = fs::read_dir(&dir)
        .expect("tests/scenarios")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    scripts.sort();
    assert!(scripts.len() >= 4, "the scenarios are gone");
    let mut wrong = Vec::new();
    for script in scripts {
        let text = fs::read_to_string(&script).expect("a script");
        let found = yard::play(&text);
        let golden = script.with_extension("out");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&golden, &found).expect("the golden file is written");
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if found != expected {
            let line = found.lines().zip(expected.lines()).position(|(a, b)| a != b).unwrap_or(0);
            wrong.push(format!(
                "{}: differs from line {} on\n  now: {:?}\n  was: {:?}",
                golden.display(),
                line + 1,
                found.lines().nth(line),
                expected.lines().nth(line)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
