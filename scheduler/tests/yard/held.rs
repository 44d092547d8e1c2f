//! An executor that holds something else than the scheduler believes, on a link that never breaks.

use std::collections::BTreeSet;
use std::time::Duration;

use rollout_wire::v1;

use crate::executor::{Behaviour, Executor};
use crate::yard::{HANG, HELLO_ROLLOUTS, Yard, finished, hello};

const LISTS: Option<Duration> = Some(Duration::from_millis(20));

#[tokio::test]
async fn attempts_that_an_executor_lost_are_found_while_its_link_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let behaviour = Behaviour { held: LISTS, forgets: 5, ..Behaviour::default() };
    let executor = Executor::attach(&yard, behaviour);
    let job = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap();
    let ended = finished(&yard, &job.id).await;
    assert_eq!((ended.state.as_str(), ended.failures.len()), ("finished", 0));
    assert_eq!(ended.counts.unwrap().rollouts_ended, HELLO_ROLLOUTS);
    {
        let seen = executor.seen.lock().unwrap();
        assert_eq!((seen.welcomes.len(), seen.refusals.len()), (1, 0), "one link served it all");
        let forgotten: BTreeSet<_> = seen.forgotten.iter().collect();
        assert_eq!(seen.forgotten.len(), 5);
        assert!(forgotten.iter().all(|attempt| seen.runs[*attempt] == 1), "{:?}", seen.runs);
        assert!(seen.runs.values().all(|runs| *runs == 1), "{:?}", seen.runs);
    }
    running.stop().await;
}

#[tokio::test]
async fn an_attempt_nobody_asked_for_is_killed_while_the_link_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour { held: LISTS, hold: true, ..Behaviour::default() });
    let job = yard.client().await.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap();
    let until = async |test: &dyn Fn() -> bool| {
        let wait = async {
            while !test() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(HANG, wait).await.expect("in time");
    };
    let wanted = usize::try_from(HELLO_ROLLOUTS).unwrap();
    until(&|| executor.seen.lock().unwrap().running.len() == wanted).await;
    let foreign = v1::AttemptRef { rollout: format!("{}-g0-s0", job.id), step: 0, attempt: 7 };
    let key = (format!("{}.0.7", foreign.rollout), 3);
    executor.seen.lock().unwrap().running.insert(key.clone(), foreign);
    until(&|| !executor.seen.lock().unwrap().running.contains_key(&key)).await;
    {
        let seen = executor.seen.lock().unwrap();
        assert_eq!(seen.running.len(), wanted, "what is wanted runs on");
        assert_eq!((seen.welcomes.len(), seen.refusals.len()), (1, 0));
    }
    running.stop().await;
}
