//! Case 40, what this build can grade: rewards the agent writes, and what it leaves to bend the
//! grader. Each hack has its honest twin, which differs in nothing but the hack.

use std::fmt::Write as _;

use crate::lab::Done;
use crate::yard::Yard;

crate::yard_cases![
    "40" what_an_agent_leaves_never_changes_the_reward,
    "40" a_grader_that_bends_its_reward_file_gives_none,
    "40" a_writer_that_outlives_the_agent_reaches_no_grader,
];

/// Solves (`answer` is 42) or does not, and does `hack` besides. Graded fresh, from its output.
fn graded(hack: &str, answer: u32, user: &str) -> String {
    job(&[
        Step {
            name: "work",
            more: "outputs: [{name: answer, path: answer}, {name: listed, from: 'echo from the shell'}]",
            user,
            script: &format!("{hack}\necho {answer} > answer"),
        },
        Step {
            name: "grade",
            more: "needs: [work], grader: {}, inputs: [{artifact: work.answer, path: /in/answer}]",
            user: "rollout",
            script: GRADER,
        },
    ])
}

const GRADER: &str = "cd /workspace\nif grep -qx 42 /in/answer; then reward=1; else reward=0.25; fi\necho $reward > /logs/verifier/reward.txt";

struct Step<'a> {
    name: &'a str,
    more: &'a str,
    user: &'a str,
    script: &'a str,
}

fn job(steps: &[Step<'_>]) -> String {
    let mut text = String::from(
        r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: graded
tasks: {from: {inline: [{n: "1"}]}}
group: {size: 1}
defaults: {image: host, timeout: 60s, resources: {memory: 128Mi, disk: 16Mi, pids: 64}}
steps:
"#,
    );
    for Step { name, more, user, script } in steps {
        let script = serde_json::to_string(script).unwrap();
        let command = if *name == "work" {
            format!("agent: {{command: [sh, -c, {script}]}}")
        } else {
            format!("run: {script}")
        };
        writeln!(text, "  - {{name: {name}, user: {user}, {command}, {more}}}").unwrap();
    }
    text
}

const HACKS: &[(&str, &str)] = &[
    (
        "a reward written beforehand",
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json; chmod 444 /logs/verifier/*",
    ),
    ("a FIFO there", "mkdir -p /logs/verifier; mkfifo /logs/verifier/reward.json /logs/verifier/reward.txt"),
    (
        "a link there",
        "mkdir -p /logs/verifier; ln -s /etc/passwd /logs/verifier/reward.json; ln -s /workspace/one /logs/verifier/reward.txt; echo 1 > one",
    ),
    (
        "the folder a link",
        "rm -rf /logs/verifier; mkdir -p /tmp/v; echo 1 > /tmp/v/reward.txt; ln -s /tmp/v /logs/verifier",
    ),
    (
        "test files planted",
        "printf 'import sys, pytest\\ndef pytest_runtest_makereport(item, call):\\n    sys.exit(0)\\n' > conftest.py; cp conftest.py sitecustomize.py; echo 'reward=1' > .env; mkdir -p /in; echo 42 > /in/answer 2>/dev/null; true",
    ),
    (
        "profiles and preloads",
        "for f in ~/.profile ~/.bashrc ~/.shrc /etc/profile /etc/ld.so.preload /etc/bash.bashrc /etc/environment; do echo 'echo 1 > /logs/verifier/reward.txt; exit 0' > $f; done 2>/dev/null; true",
    ),
    (
        "programs replaced",
        "for p in /bin/bash /bin/sh /usr/bin/env /usr/bin/grep /bin/echo /usr/local/bin/grep; do rm -f $p; printf '#!/bin/sh\\nexit 0\\n' > $p; done 2>/dev/null; rm -f /bin 2>/dev/null; mkdir -p ~/bin; cp /usr/bin/true ~/bin/grep; true",
    ),
    ("a clean exit early", "echo 42 > /tmp/answer; ln -s /tmp/answer hidden; trap 'exit 0' EXIT"),
];

async fn what_an_agent_leaves_never_changes_the_reward(yard: &Yard) -> Done {
    let shell = std::fs::read("/bin/bash").expect("the host's shell");
    for user in ["rollout", "root"] {
        for answer in [42, 7] {
            let honest = yard.run(&graded("true", answer, user)).await.verdict().0;
            assert_eq!(honest, Some(if answer == 42 { 1.0 } else { 0.25 }), "the control, {user}");
        }
        for (what, hack) in HACKS {
            let rows = yard.run(&graded(hack, 7, user)).await;
            let (reward, code, domain) = rows.verdict();
            // An agent that broke its own shell may not get its output out: no reward, its doing.
            let own_doing = reward.is_none() && domain == Some("agent");
            assert!(reward == Some(0.25) || own_doing, "{user}, {what}: {reward:?} {code:?} {domain:?}");
            if user == "rollout" {
                assert_eq!((reward, code), (Some(0.25), None), "{what}");
                let listed = rows.artifacts.iter().find(|row| row["name"] == "listed").expect("listed");
                assert_eq!(yard.blob(&listed["sha256"]).await, b"from the shell\n", "{what}");
            }
        }
    }
    assert!(std::fs::read("/bin/bash").expect("the host's shell") == shell, "the host's own shell");
    Ok(())
}

/// Five broken graders and more: never a number, always the grader's domain.
async fn a_grader_that_bends_its_reward_file_gives_none(yard: &Yard) -> Done {
    let file = "/logs/verifier/reward.txt";
    for (script, reward) in [
        (format!("echo 0.5 > {file}"), Some(0.5)),
        (format!("echo 0.5 > {file}; exit 3"), Some(0.5)),
        ("exit 0".to_owned(), None),
        ("kill -9 $$".to_owned(), None),
        (format!("mkfifo {file}"), None),
        (format!("mkdir {file}"), None),
        (format!("ln -s /etc/passwd {file}"), None),
        (format!("truncate -s 1G {file}"), None),
        (format!(": > {file}"), None),
        (format!("echo NaN > {file}"), None),
        (format!("echo inf > {file}"), None),
        (format!("echo 1e400 > {file}"), None),
        (format!("echo 1.5 > {file}"), None),
        (format!("echo -0.1 > {file}"), None),
        (format!("printf '1\\0' > {file}"), None),
        (format!("printf '\\377' > {file}"), None),
        (format!("printf '1 1' > {file}"), None),
        ("echo '{\"reward\": 1, \"reward\": 0}' > /logs/verifier/reward.json".to_owned(), None),
        ("echo '{\"a\": 1, \"b\": 0}' > /logs/verifier/reward.json".to_owned(), None),
    ] {
        let rows = yard.run(&job(&[
            Step { name: "work", more: "outputs: [{name: a, path: a}]", user: "rollout", script: "echo 1 > a" },
            Step { name: "grade", more: "needs: [work], inputs: [{artifact: work.a, path: /in/a}], grader: {range: [0, 1], regrades: 0}", user: "rollout", script: &script },
        ])).await;
        let (seen, code, domain) = rows.verdict();
        assert_eq!(seen, reward, "{script}: {code:?}");
        let expected = if reward.is_some() { (None, None) } else { (Some("reward_bad"), Some("grader")) };
        assert_eq!((code, domain), expected, "{script}");
    }
    Ok(())
}

/// The grader works in the agent's own sandbox (which warns at submit): its files stay, its
/// processes do not.
async fn a_writer_that_outlives_the_agent_reaches_no_grader(yard: &Yard) -> Done {
    let writer = "mkdir -p /logs/verifier; for i in 1 2 3; do (setsid sh -c 'trap \"\" TERM HUP INT; while :; do echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json; done' > /dev/null 2>&1 &); done; sleep 0.2; ls /logs/verifier > seen";
    for hack in ["true", writer] {
        let rows = yard
            .run(&job(&[
                Step { name: "work", more: "outputs: []", user: "rollout", script: hack },
                Step {
                    name: "grade",
                    more: "needs: [work], from: work, isolate: reuse, grader: {}",
                    user: "rollout",
                    script: "sleep 0.3; echo 0.25 > /logs/verifier/reward.txt; sleep 0.3",
                },
            ]))
            .await;
        assert_eq!(rows.verdict(), (Some(0.25), None, None), "{hack}: {rows:?}");
    }
    Ok(())
}
