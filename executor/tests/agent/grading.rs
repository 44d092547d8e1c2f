//! Rewards: read once, from the channel made for them, or refused.

use rollout_wire::v1;

use crate::yard::{Yard, attempt, grader};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reward_counts_or_is_the_graders_failure() {
    let mut yard = Yard::start().await;
    let json = "/logs/verifier/reward.json";
    for (index, (script, reward, code, words)) in [
        (format!("write {json} {{\"reward\":0.5}}"), Some(0.5), "", ""),
        (format!("write {json} {{\"reward\":0.5}}; exit 1"), Some(0.5), "", ""),
        (format!("write {json} 1; oom; signal 9"), Some(1.0), "", ""),
        ("write /logs/verifier/reward.txt 0.25".to_owned(), Some(0.25), "", ""),
        (format!("write {json} 1; write /logs/verifier/reward.txt 0"), Some(1.0), "", ""),
        ("true".to_owned(), None, "reward_bad", "no reward file"),
        ("exit 7".to_owned(), None, "reward_bad", "exited with code 7"),
        (format!("write {json}"), None, "reward_bad", "is empty"),
        (format!("write {json} NaN"), None, "reward_bad", "cannot be parsed"),
        (format!("write {json} 2"), None, "reward_bad", "outside the range 0 to 1"),
        ("write /logs/verifier/reward.txt nan".to_owned(), None, "reward_bad", "not a finite"),
        (format!("node {json} FIFO"), None, "reward_bad", "is a FIFO"),
        (format!("node {json} directory"), None, "reward_bad", "is a directory"),
        (format!("node {json} symlink"), None, "reward_bad", "is a symlink"),
        (format!("huge {json}"), None, "reward_bad", "1073741824 bytes"),
        ("die".to_owned(), None, "grader_lost", "init is gone"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut order = grader(&script);
        order.attempt = Some(attempt(u32::try_from(index).unwrap(), 0));
        let outcome = yard.run(order).await;
        assert_eq!(outcome.reward.map(|r| r.value), reward, "{script}: {:?}", outcome.failure);
        let failure = outcome.failure.unwrap_or_default();
        assert_eq!(failure.code, code, "{script}");
        assert!(failure.message.contains(words), "{script}: {}", failure.message);
        yard.backend.until_empty().await;
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grader_out_of_time_gives_no_reward_even_if_it_wrote_one() {
    let mut yard = Yard::start().await;
    let mut order = grader("write /logs/verifier/reward.json 1; sleep");
    order.step.as_mut().unwrap().timeout_ms = 40;
    let outcome = yard.run(order).await;
    assert_eq!((outcome.reward, outcome.failure.unwrap().code.as_str()), (None, "grader_timeout"));
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_map_reads_the_exit_code_and_nothing_else() {
    let mut yard = Yard::start().await;
    for (sample, (script, reward, code)) in [
        ("exit 0", Some(1.0), ""),
        ("exit 1", Some(0.0), ""),
        ("exit 2", None, "reward_bad"),
        ("signal 9", None, "reward_bad"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut order = grader(script);
        order.attempt = Some(attempt(u32::try_from(sample).unwrap(), 0));
        let rewards = [(0, 1.0), (1, 0.0)].into();
        order.step.as_mut().unwrap().grader.as_mut().unwrap().source =
            Some(v1::grader::Source::Exit(v1::RewardExit { rewards }));
        let outcome = yard.run(order).await;
        assert_eq!(outcome.reward.map(|r| r.value), reward, "{script}");
        assert_eq!(outcome.failure.unwrap_or_default().code, code, "{script}");
    }
    yard.stop().await;
}

/// The agent's file is emptied away in the grader's directory, and refused anywhere else; the
/// honest twin of each is rewarded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reward_the_agent_wrote_beforehand_never_counts() {
    let mut yard = Yard::start().await;
    for (sample, (path, planted, graded, reward, code)) in [
        ("/logs/verifier/reward.json", true, "true", None, "reward_bad"),
        ("/logs/verifier/reward.json", true, "write /logs/verifier/reward.json 0.5", Some(0.5), ""),
        ("/workspace/reward.json", true, "true", None, "reward_bad"),
        ("/workspace/reward.json", false, "write /workspace/reward.json 0.5", Some(0.5), ""),
    ]
    .into_iter()
    .enumerate()
    {
        let sample = u32::try_from(sample).unwrap();
        let mut agent = crate::yard::order("agent", if planted { "" } else { "true" });
        if planted {
            agent.step.as_mut().unwrap().command = Some(v1::step::Command::Shell(format!("write {path} 1")));
        }
        agent.attempt = Some(attempt(sample, 0));
        agent.keep = true;
        assert_eq!(yard.run(agent).await.failure, None);
        let mut grader = grader(graded);
        grader.attempt = Some(attempt(sample, 1));
        grader.continue_from = Some(attempt(sample, 0));
        let source = v1::RewardFile { paths: vec![path.to_owned()], key: None };
        grader.step.as_mut().unwrap().grader.as_mut().unwrap().source =
            Some(v1::grader::Source::File(source));
        let outcome = yard.run(grader).await;
        assert_eq!(outcome.reward.map(|r| r.value), reward, "{path}: {:?}", outcome.failure);
        assert_eq!(outcome.failure.unwrap_or_default().code, code, "{path}");
    }
    yard.stop().await;
}
