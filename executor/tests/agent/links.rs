//! Links that break, leases that end, executors that are told to end.

use std::collections::BTreeSet;
use std::time::Duration;

use rollout_wire::v1::{self, command, held_attempt::Phase, report};

use crate::fake::{Fault, Point};
use crate::yard::{Yard, attempt, order};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_told_after_every_attach_until_it_is_acknowledged() {
    let mut yard = Yard::start().await;
    yard.set_acknowledges_ends(false);
    let first = yard.run(order("run", "out x")).await;
    for _ in 0..2 {
        yard.break_links(false);
        let hello = yard.hello().await;
        assert_eq!(hello.held.len(), 1);
        assert_eq!((hello.held[0].phase(), hello.held[0].generation), (Phase::Ended, 1));
        assert_eq!(yard.ended().await.outcome.unwrap(), first);
    }
    yard.set_acknowledges_ends(true);
    yard.break_links(false);
    yard.hello().await;
    yard.ended().await;
    // Commands are taken in order: what is read after the acknowledgement comes after it.
    assert!(yard.log(1, attempt(0, 0), "stdout", 0).await.gone);
    yard.break_links(false);
    assert_eq!(yard.hello().await.held, []);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_what_is_held_comes_in_order_with_the_reports() {
    let mut yard = Yard::start_with(|config| {
        config.held_every = Duration::from_millis(1);
        config.capacity.cpu = Some(rollout::MilliCpu(1 << 20));
    })
    .await;
    yard.set_acknowledges_ends(false);
    const ATTEMPTS: usize = 60;
    let starts = (0..ATTEMPTS).map(|sample| {
        let mut order = order("run", "out x; spam 20000");
        order.attempt = Some(attempt(u32::try_from(sample).unwrap(), 0));
        command::Kind::Start(order)
    });
    yard.send_all(starts.collect()).await;
    let (mut started, mut ended, mut lists) = (BTreeSet::new(), BTreeSet::new(), 0);
    let rollout = |attempt: Option<v1::AttemptRef>| attempt.unwrap().rollout;
    loop {
        match yard.next().await {
            report::Kind::Started(report) => drop(started.insert(rollout(report.attempt))),
            report::Kind::Ended(report) => drop(ended.insert(rollout(report.attempt))),
            report::Kind::Held(list) => {
                let of = |phase: Phase| {
                    let of = list.held.iter().filter(move |held| held.phase() == phase);
                    of.map(|held| rollout(held.attempt.clone())).collect::<BTreeSet<_>>()
                };
                // Everything told before it, and nothing that is told after it.
                assert_eq!(of(Phase::Ended), ended);
                let running: BTreeSet<_> = started.difference(&ended).cloned().collect();
                assert!(running.is_subset(&of(Phase::Running)), "{running:?}");
                lists += 1;
                if ended.len() == ATTEMPTS {
                    break;
                }
            }
            _ => {}
        }
    }
    assert!(lists > 1, "one list is no order");
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_end_leaves_the_list_and_a_kept_sandbox_stays_in_it() {
    let mut yard = Yard::start_with(|config| config.held_every = Duration::from_millis(5)).await;
    for (sample, keep) in [(0, false), (1, true)] {
        let mut order = order("run", "true");
        (order.attempt, order.keep) = (Some(attempt(sample, 0)), keep);
        yard.run(order).await;
    }
    let only_the_kept = |report: &report::Kind| {
        let report::Kind::Held(list) = report else { return None };
        let [held] = &list.held[..] else { return None };
        (held.phase() == Phase::Kept).then(|| held.clone())
    };
    let held = yard.wait("a list of the kept one", only_the_kept).await;
    assert_eq!((held.attempt, held.generation), (Some(attempt(1, 0)), 1));
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_while_the_link_is_down_and_its_end_is_told_later() {
    let mut yard = Yard::start().await;
    let mut slow = order("run", "out partial; term 0; sleep");
    slow.step.as_mut().unwrap().timeout_ms = 300;
    yard.send(command::Kind::Start(slow)).await;
    yard.started().await;
    yard.break_links(true);
    yard.backend.until_empty().await;
    yard.accept_links();
    let hello = yard.hello().await;
    assert_eq!(hello.held[0].phase(), Phase::Ended);
    assert_eq!(yard.ended().await.outcome.unwrap().failure.unwrap().code, "step_timeout");
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_end_of_its_lease_an_executor_ends_everything_and_begins_anew() {
    let mut yard = Yard::start().await;
    let first = yard.executor.as_ref().unwrap().incarnation();
    yard.set_ttl_ms(1500);
    yard.break_links(false);
    assert_eq!(yard.hello().await.incarnation, first.to_string(), "a broken link alone changes nothing");
    for (sample, script, keep) in [(0, "sleep", false), (1, "true", true)] {
        let mut order = order("run", script);
        order.attempt = Some(attempt(sample, 0));
        order.keep = keep;
        yard.send(command::Kind::Start(order)).await;
    }
    yard.ended().await;
    yard.backend.until("both sandboxes", |state| state.census.len() == 2).await;
    yard.break_links(true);
    yard.backend.until_empty().await;
    yard.accept_links();
    let hello = yard.hello().await;
    assert_ne!(hello.incarnation, first.to_string());
    assert_eq!(hello.held, []);
    assert!(!yard.has_unread(|r| matches!(r, report::Kind::Ended(_))), "nothing of the old life is told");
    assert_eq!(yard.run(order("run", "true")).await.failure, None);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incarnation_that_is_welcomed_after_its_lease_ended_attaches_anew_as_another() {
    let mut yard = Yard::start().await;
    let first = yard.executor.as_ref().unwrap().incarnation();
    yard.set_ttl_ms(1000);
    yard.break_links(false);
    yard.hello().await;
    yard.send(command::Kind::Start(order("run", "sleep"))).await;
    yard.started().await;
    yard.hold_welcomes();
    yard.break_links(false);
    let hello = yard.hello().await;
    assert_eq!((hello.incarnation, hello.held.len()), (first.to_string(), 1));
    yard.backend.until_empty().await;
    // What the scheduler orders with that welcome is meant for a life that is over.
    let mut late = order("run", "true");
    late.attempt = Some(attempt(1, 0));
    yard.release_welcomes(command::Kind::Start(late));
    let hello = yard.hello().await;
    assert_ne!(hello.incarnation, first.to_string());
    assert_eq!(hello.held, []);
    assert_eq!(yard.run(order("run", "true")).await.failure, None);
    assert_eq!(yard.backend.state().created.len(), 2, "the late order began nothing");
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_lease_outlives_its_ttl() {
    let mut yard = Yard::start().await;
    let first = yard.executor.as_ref().unwrap().incarnation();
    yard.set_ttl_ms(1000);
    yard.break_links(false);
    yard.hello().await;
    let mut long = order("run", "sleep");
    long.step.as_mut().unwrap().timeout_ms = 2500;
    let outcome = yard.run(long).await;
    assert_eq!(outcome.failure.unwrap().code, "step_timeout", "not ended by the lease");
    assert_eq!(yard.executor.as_ref().unwrap().incarnation(), first);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_ends_hands_its_attempts_back() {
    let mut yard = Yard::start().await;
    yard.send(command::Kind::Start(order("agent", "stubborn; sleep"))).await;
    yard.started().await;
    let executor = yard.executor.take().unwrap();
    executor.shut_down();
    let refused = yard.refused().await;
    assert_eq!(refused.class(), v1::attempt_refused::Class::Unhealthy);
    executor.join().await.unwrap();
    assert!(yard.backend.state().census.is_empty());
    yard.executor = Some(yard.serve().unwrap());
    let hello = yard.hello().await;
    assert_eq!(hello.held, [], "another life");
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_backend_an_executor_hands_its_attempts_back_and_ends_with_the_reason() {
    let mut yard = Yard::start().await;
    yard.send(command::Kind::Start(order("agent", "sleep"))).await;
    yard.started().await;
    yard.backend.end.notify_one();
    let refused = yard.refused().await;
    assert_eq!(refused.class(), v1::attempt_refused::Class::Unhealthy);
    let ended = yard.executor.take().unwrap().join().await;
    let Err(executor::Error::Backend { reason }) = ended else { panic!("{ended:?}") };
    assert_eq!(reason, "the broker is gone");
    assert!(yard.backend.state().census.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_executors_never_share_a_data_directory() {
    let yard = Yard::start().await;
    let second = yard.serve();
    assert!(matches!(second, Err(executor::Error::DataDirLocked { .. })), "{second:?}");
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_directories_of_an_executor_are_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut yard = Yard::start().await;
    let data_dir = yard.config.data_dir.clone();
    std::fs::set_permissions(&data_dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let executor = yard.executor.take().unwrap();
    executor.shut_down();
    executor.join().await.unwrap();
    yard.executor = Some(yard.serve().unwrap());
    yard.hello().await;
    let mut held = order("run", "out secret");
    held.keep = true;
    yard.set_acknowledges_ends(false);
    yard.run(held).await;
    let attempts = data_dir.join("attempts");
    let attempt = std::fs::read_dir(&attempts).unwrap().next().unwrap().unwrap().path();
    for dir in [data_dir, attempts, attempt] {
        let mode = std::fs::metadata(&dir).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o700, "{}", dir.display());
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_previous_life_captured_is_removed_at_the_start() {
    let mut yard = Yard::start().await;
    let executor = yard.executor.take().unwrap();
    executor.shut_down();
    executor.join().await.unwrap();
    let orphan = yard.config.data_dir.join("attempts/j0000000000007-1");
    std::fs::create_dir_all(&orphan).unwrap();
    std::fs::write(orphan.join("stdout"), "old").unwrap();
    yard.executor = Some(yard.serve().unwrap());
    assert!(!orphan.exists());
    yard.hello().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_attempts_at_once_end_once_each() {
    let mut yard = Yard::start_with(|config| config.capacity.cpu = Some(rollout::MilliCpu(1 << 20))).await;
    let starts = (0..60).map(|sample| {
        let mut order = order("run", "out x; spam 20000");
        order.attempt = Some(attempt(sample, 0));
        command::Kind::Start(order)
    });
    yard.send_all(starts.collect()).await;
    let mut seen = BTreeSet::new();
    for _ in 0..60 {
        let ended = yard.ended().await;
        assert!(seen.insert(ended.attempt.unwrap().rollout), "told twice");
        assert_eq!(ended.outcome.unwrap().failure, None);
    }
    assert!(!yard.has_unread(|r: &report::Kind| matches!(r, report::Kind::Ended(v1::AttemptEnded { .. }))));
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_what_an_image_is_gets_its_digest_or_that_it_is_not_there() {
    let mut yard = Yard::start().await;
    for (fault, expected) in [(None, Some("host:fake")), (Some(Fault::Fail), None)] {
        if let Some(fault) = fault {
            yard.backend.inject(Point::Identify, fault);
        }
        yard.send(command::Kind::Identify(v1::IdentifyImage { image: "host".to_owned() })).await;
        let told = yard.wait("an answer", |kind| match kind {
            report::Kind::Identified(told) => Some(told.clone()),
            _ => None,
        });
        let told = told.await;
        assert_eq!((told.image.as_str(), told.digest.as_deref()), ("host", expected));
    }
    yard.stop().await;
}
