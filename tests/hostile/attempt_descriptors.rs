//! Case 4 on the way that jobs go: what the commands of whole attempts hold when they start, told
//! by the kernel from inside, and stored as their output.

use crate::lab::Done;
use crate::yard::{Rows, Yard};

crate::yard_cases![
    "04" steps_output_commands_and_graders_hold_three_descriptors,
];

/// The agent leaves descriptors and a process behind, goes on in a second step, and each command
/// lists what it was given. `ls` opens the folder it lists: one more, the lowest that is free.
const AUDITED: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: audited
tasks: {from: {inline: [{n: "1"}]}}
group: {size: 1}
defaults: {image: host, timeout: 60s, resources: {memory: 128Mi, disk: 16Mi, pids: 64}}
steps:
  - name: work
    agent: {command: [sh, -c, "ls -l /proc/self/fd; exec 5< / 9<> /dev/null; ls -l /proc/self/fd; setsid sleep 1000 & echo done > answer"]}
    outputs: [{name: answer, path: answer}, {name: first, from: ls -l /proc/self/fd}, {name: second, from: ls -l /proc/self/fd}]
  - name: next
    needs: [work]
    from: work
    run: ls -l /proc/self/fd
    outputs: [{name: late, from: ls -l /proc/self/fd}]
  - name: grade
    needs: [work, next]
    from: image
    grader: {}
    inputs: [{artifact: work.answer, path: /in/answer}]
    run: ls -l /proc/self/fd; echo 1 > /logs/verifier/reward.txt
    outputs: [{name: graded, from: ls -l /proc/self/fd}]
"#;

/// Descriptors and what they lead to, by number; numbers of pipes and processes left out.
fn listings(text: &str) -> Vec<Vec<(u32, String)>> {
    let mut listings = Vec::new();
    for line in text.lines() {
        if line.starts_with("total ") {
            listings.push(Vec::new());
            continue;
        }
        let (entry, target) = line.split_once(" -> ").unwrap_or_else(|| panic!("no descriptor: {line}"));
        let number = entry.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number");
        let kind = target.split([':', '[']).next().unwrap_or(target);
        let kind = if kind.starts_with("/proc/") { "the listing" } else { kind };
        listings.last_mut().expect("a listing begins with its total").push((number, kind.to_owned()));
    }
    listings
}

fn held(stderr: &str) -> Vec<(u32, String)> {
    [(0, "/dev/null"), (1, "pipe"), (2, stderr), (3, "the listing")]
        .map(|(number, target)| (number, target.to_owned()))
        .to_vec()
}

async fn of_step(yard: &Yard, rows: &Rows, step: &str) -> Vec<Vec<(u32, String)>> {
    let digest = rows.step(step)["stdout_artifact"].strip_prefix("sha256:").expect("a digest").to_owned();
    listings(&String::from_utf8(yard.blob(&digest).await).expect("text"))
}

async fn of_output(yard: &Yard, rows: &Rows, name: &str) -> Vec<Vec<(u32, String)>> {
    let row = rows.artifacts.iter().find(|row| row["name"] == name);
    let row = row.unwrap_or_else(|| panic!("no output {name}: {:?}", rows.artifacts));
    listings(&String::from_utf8(yard.blob(&row["sha256"]).await).expect("text"))
}

async fn steps_output_commands_and_graders_hold_three_descriptors(yard: &Yard) -> Done {
    let rows = yard.run(AUDITED).await;
    assert_eq!(rows.verdict(), (Some(1.0), None, None), "{rows:?}");
    let [given, opened] = &of_step(yard, &rows, "work").await[..] else { panic!("two listings") };
    assert_eq!(given, &held("pipe"), "the agent");
    // The audit sees a descriptor that is there.
    let more = |number| opened.iter().any(|(known, _)| *known == number);
    assert!(more(5) && more(9) && opened.len() == 6, "{opened:?}");
    for step in ["next", "grade"] {
        assert_eq!(of_step(yard, &rows, step).await, [held("pipe")], "{step}");
    }
    for output in ["first", "second", "late", "graded"] {
        assert_eq!(of_output(yard, &rows, output).await, [held("/dev/null")], "{output}");
    }
    Ok(())
}
