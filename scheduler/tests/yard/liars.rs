//! Executors that say what is not so about nodes and attempts: fenced or refused, and nobody else
//! notices.

use std::time::Duration;

use rollout_wire::v1;
use rollout_wire::v1::command::Kind as Command;
use rollout_wire::v1::report::Kind as Report;

use crate::executor::{Behaviour, Executor};
use crate::liar::{Liar, ended, greeting};
use crate::yard::{HANG, HELLO_ROLLOUTS, Yard, finished, hello};

fn plain(text: &str) -> bool {
    text.chars().all(|c| c == ' ' || c.is_ascii_graphic())
}

/// The yard still runs a job to its end, on another node.
async fn serves(yard: &Yard, key: &str) {
    let _executor = Executor::attach(yard, Behaviour { node: "honest", ..Behaviour::default() });
    let id = yard.client().await.submit(hello(yard, key)).await.unwrap().into_inner().job.unwrap().id;
    let job = finished(yard, &id).await;
    let counts = job.counts.unwrap();
    assert_eq!((job.state.as_str(), counts.rollouts_valid), ("finished", HELLO_ROLLOUTS));
}

#[tokio::test]
async fn a_hello_that_cannot_be_is_refused_in_words_any_log_may_hold() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let held = |rollout: &str| v1::HeldAttempt {
        attempt: Some(v1::AttemptRef { rollout: rollout.to_owned(), step: 0, attempt: 0 }),
        generation: 1,
        phase: 1,
    };
    let with = |change: &dyn Fn(&mut v1::Hello)| {
        let mut hello = greeting("liar");
        change(&mut hello);
        hello
    };
    let hellos = [
        with(&|h| h.node = "a\n\u{1b}[31mforged".to_owned()),
        with(&|h| h.node = "../x".to_owned()),
        with(&|h| h.node = "x".repeat(1 << 20)),
        with(&|h| h.incarnation = "i\u{202e}\n".to_owned()),
        with(&|h| h.capacity = None),
        with(&|h| h.capacity.as_mut().unwrap().memory_bytes = u64::MAX),
        with(&|h| h.capacity.as_mut().unwrap().cpu_milli = u64::MAX),
        with(&|h| h.capacity.as_mut().unwrap().backends = vec![String::new(); 1_000]),
        with(&|h| h.held = vec![held("\u{1b}]0;x\u{7}\n")]),
        with(&|h| h.held = vec![held("j0000000000007-g0-s0"); 65_537]),
    ];
    for hello in hellos {
        let mut liar = Liar::attach(&yard, hello).await;
        let refuse = liar.refused().await;
        assert_eq!(refuse.code, "bad_hello", "{refuse:?}");
        assert!(plain(&refuse.message) && refuse.message.len() < 1_024, "{refuse:?}");
    }
    assert!(
        yard.client().await.list_nodes(v1::ListNodesRequest {}).await.unwrap().into_inner().nodes.is_empty()
    );
    // A node that offers nothing is a node, and gets nothing.
    let mut nothing = greeting("nothing");
    nothing.capacity = Some(v1::Capacity::default());
    nothing.version = "\u{1b}[2J\n".to_owned();
    let _nothing = Liar::attach(&yard, nothing).await;
    serves(&yard, "a").await;
    let nodes = yard.client().await.list_nodes(v1::ListNodesRequest {}).await.unwrap().into_inner().nodes;
    assert!(nodes.iter().all(|node| plain(&node.version)), "{nodes:?}");
    running.stop().await;
}

#[tokio::test]
async fn attempts_that_are_not_its_own_are_taken_from_a_node_however_many_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let count = 65_536;
    let held = |index: u32| v1::HeldAttempt {
        attempt: Some(v1::AttemptRef {
            rollout: format!("j0000000000007-g{index}-s0"),
            step: index % 64,
            attempt: index,
        }),
        generation: u64::MAX,
        phase: 1,
    };
    let mut hello = greeting("liar");
    hello.held = (0..count).map(held).collect();
    let mut liar = Liar::attach(&yard, hello).await;
    let mut kills = 0;
    liar.next(|command| match command {
        Command::Kill(_) => {
            kills += 1;
            (kills == count).then_some(())
        }
        Command::Refuse(refuse) => panic!("{refuse:?} after {kills} kills"),
        _ => None,
    })
    .await;
    serves(&yard, "a").await;
    running.stop().await;
}

#[tokio::test]
async fn reports_of_what_runs_elsewhere_change_nothing_however_many_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let holder = Executor::attach(&yard, Behaviour { hold: true, sandboxes: 8, ..Behaviour::default() });
    let id = yard.client().await.submit(hello(&yard, "held")).await.unwrap().into_inner().job.unwrap().id;
    let placed = async {
        while holder.seen.lock().unwrap().runs.len() < 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, placed).await.unwrap();
    let rollout = format!("{id}-g0-s0");
    let steps = || async {
        let request = v1::ListStepsRequest { rollout: rollout.clone() };
        yard.client().await.list_steps(request).await.unwrap().into_inner()
    };
    let started = async {
        loop {
            let steps = steps().await;
            if steps.steps[0].started_at_us.is_some() {
                return steps;
            }
        }
    };
    let before = tokio::time::timeout(HANG, started).await.unwrap();
    assert_eq!(before.steps[0].state, "running");
    let mut nothing = greeting("liar");
    nothing.capacity = Some(v1::Capacity::default());
    let mut liar = Liar::attach(&yard, nothing).await;
    let attempt = |step| Some(v1::AttemptRef { rollout: rollout.clone(), step, attempt: 0 });
    for generation in [0, 1, 2, before.steps[0].generation, u64::MAX] {
        for step in [0, 1, 63] {
            let started = v1::AttemptStarted { attempt: attempt(step), generation, started_at_us: 1 };
            let refused = v1::AttemptRefused {
                attempt: attempt(step),
                generation,
                class: 3,
                message: "\u{1b}\n".to_owned(),
            };
            liar.say(vec![
                ended(&rollout, step, generation),
                Report::Started(started),
                Report::Refused(refused),
            ])
            .await;
        }
    }
    // A flood of them, bytes nobody asked for, and no answer is read.
    for _ in 0..40 {
        liar.say((0..500).map(|_| ended(&rollout, 0, 7)).collect()).await;
        let data = v1::LogData { request: 1, data: vec![0; 1 << 20], gone: false };
        liar.say(vec![Report::LogData(data)]).await;
    }
    serves(&yard, "other").await;
    assert_eq!(steps().await, before);
    running.stop().await;
}

#[tokio::test]
async fn a_sandbox_kept_after_a_failure_is_released_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut honest = greeting("honest");
    let offered = honest.capacity.as_mut().unwrap();
    (offered.backends, offered.disk_limit_max_bytes) = (vec!["container".to_owned()], 8 << 30);
    let mut node = Liar::attach(&yard, honest).await;
    let mut request = hello(&yard, "a");
    request.document = CHAIN.to_owned();
    let id = yard.client().await.submit(request).await.unwrap().into_inner().job.unwrap().id;
    let start =
        node.next(|command| if let Command::Start(start) = command { Some(start) } else { None }).await;
    assert!(start.keep, "a step is to go on in it");
    let Report::Ended(mut end) = ended(&format!("{id}-g0-s0"), 0, start.generation) else { unreachable!() };
    let failure = v1::Failure {
        domain: "agent".to_owned(),
        code: "agent_exit".to_owned(),
        message: "exited with code 3".to_owned(),
        hint: String::new(),
    };
    end.outcome.as_mut().unwrap().failure = Some(failure);
    node.say(vec![Report::Ended(end)]).await;
    // No list of what is held comes: nothing else tells the node.
    let release = |command| if let Command::Release(release) = command { Some(release) } else { None };
    assert_eq!(node.next(release).await.attempt, start.attempt);
    assert_eq!(finished(&yard, &id).await.state, "finished");
    running.stop().await;
}

const CHAIN: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: chain
tasks: {from: {inline: [{n: "6"}]}}
defaults: {image: host, timeout: 30s}
steps:
  - {name: work, agent: {command: ["false"]}}
  - {name: more, needs: [work], run: "true"}
"#;

#[tokio::test]
async fn a_report_that_cannot_be_ends_the_session_and_not_the_yard() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let bad = |rollout: &str, step| v1::AttemptRef { rollout: rollout.to_owned(), step, attempt: 0 };
    let good = "j0000000000007-g0-s0";
    let started = |rollout: &str, step, started_at_us| {
        Report::Started(v1::AttemptStarted {
            attempt: Some(bad(rollout, step)),
            generation: 1,
            started_at_us,
        })
    };
    let reports = [
        started("\u{1b}[31m\n", 0, 1),
        started(good, 64, 1),
        started(good, u32::MAX, 1),
        started(good, 0, -1),
        started(good, 0, i64::MAX),
        Report::Hello(greeting("other")),
        Report::LogData(v1::LogData { data: vec![0; 33 << 20], ..v1::LogData::default() }),
    ];
    for report in reports {
        let mut liar = Liar::attach(&yard, greeting("liar")).await;
        liar.say(vec![report]).await;
        let refuse = liar.refused().await;
        assert_eq!(refuse.code, "bad_report", "{refuse:?}");
        assert!(plain(&refuse.message) && refuse.message.len() < 1_024, "{refuse:?}");
    }
    serves(&yard, "a").await;
    running.stop().await;
}

#[tokio::test]
async fn the_first_end_of_an_attempt_counts_and_what_its_step_cannot_end_with_is_unknown() {
    type Lie = fn(&mut v1::Outcome);
    fn of(name: &str, size: u64) -> v1::Artifact {
        v1::Artifact { name: name.to_owned(), size, sha256: "0".repeat(64), ..v1::Artifact::default() }
    }
    fn reward(value: f32) -> Option<v1::Reward> {
        Some(v1::Reward { value, components: Vec::new() })
    }
    let lies: [(&str, Lie); 9] = [
        ("reward.value", |o| o.reward = o.reward.as_ref().and(reward(f32::NAN))),
        ("reward.value", |o| o.reward = o.reward.as_ref().and(reward(f32::INFINITY))),
        ("outside the range", |o| o.reward = o.reward.as_ref().and(reward(1.5))),
        ("outside the range", |o| o.reward = o.reward.as_ref().and(reward(-1.0))),
        ("no grader", |o| o.reward = reward(1.0)),
        ("gave no reward", |o| o.reward = None),
        ("is not declared", |o| o.artifacts.push(of("other", 1))),
        ("at most", |o| o.artifacts.iter_mut().for_each(|artifact| artifact.size = 1 << 50)),
        ("twice", |o| o.artifacts = o.artifacts.iter().cloned().chain(o.artifacts.clone()).collect()),
    ];
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    for (index, (words, lie)) in lies.into_iter().enumerate() {
        let _executor =
            Executor::attach(&yard, Behaviour { lie: Some(lie), twice: true, ..Behaviour::default() });
        let mut request = hello(&yard, &format!("k{index}"));
        request.document = request.document.replace("grader: {", "grader: {range: [0, 1], ");
        let id = yard.client().await.submit(request).await.unwrap().into_inner().job.unwrap().id;
        let job = finished(&yard, &id).await;
        let failure = &job.failures[0];
        assert_eq!((failure.code.as_str(), failure.rollouts), ("outcome_unknown", HELLO_ROLLOUTS), "{words}");
        assert!(failure.example.contains(words), "{words}: {}", failure.example);
        assert_eq!(job.counts.unwrap().rollouts_valid, 0, "{words}");
        assert_eq!(yard.summary(&id).trajectories, HELLO_ROLLOUTS, "{words}");
    }
    running.stop().await;
}
