//! Executors that end in the middle of creating, and many sandboxes one after another and at once.

use std::io::{BufRead, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use executor::sandbox::container::{Container, ContainerConfig, Step};
use executor::sandbox::{Backend, CreateError, SandboxSpec};
use rollout::Bytes;

use crate::lab::{Done, LOOP_DISK, Lab, MIB, limits, said};

crate::cases![
    "l6" a_creation_that_fails_at_any_step_leaves_nothing,
    "l10" an_executor_ended_while_it_creates_leaves_nothing,
    "l11" the_first_burst_of_an_executor_is_served,
    "l11" a_hundred_in_a_row_and_eighty_at_once_leave_nothing,
];

async fn a_creation_that_fails_at_any_step_leaves_nothing(lab: &Lab) -> Done {
    let before = crate::lab::before("before", &lab.data_dir).await.unwrap();
    for disk in [Bytes(16 * MIB), LOOP_DISK] {
        for step in Step::ALL {
            let mut spec = lab.spec();
            spec.limits.disk = disk;
            lab.backend.fail_next_after(*step);
            match lab.make(spec).await {
                Err(CreateError::Failed { action, .. }) => assert_eq!(action, step.as_str()),
                other => panic!("{step:?}: {other:?}"),
            }
            let after = crate::lab::settled(step.as_str(), &before, &lab.data_dir).await;
            assert!(
                after.is_ok(),
                "{:?}",
                after.err().and_then(|failed| failed.message().map(str::to_owned))
            );
        }
    }
    Ok(())
}

const VICTIM: &str = "ROLLYARD_HOSTILE_VICTIM";

/// The process that is ended: it creates and destroys without end, and says when it has begun.
pub fn be_the_victim_if_asked() {
    let Some(data_dir) = std::env::var_os(VICTIM) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = Arc::new(Container::start(&ContainerConfig { data_dir: data_dir.into() }).unwrap());
        let mut tasks = Vec::new();
        for task in 0..4u32 {
            let backend = backend.clone();
            tasks.push(tokio::spawn(async move {
                for count in 0u32.. {
                    let mut limit = limits();
                    limit.disk = if count % 8 == 7 { LOOP_DISK } else { limit.disk };
                    let spec = SandboxSpec {
                        id: format!("v{task}-{count}"),
                        image: "host".into(),
                        base: None,
                        image_digest: None,
                        layers: Vec::new(),
                        limits: limit,
                        user: "rollout".into(),
                        workdir: "/workspace".into(),
                    };
                    let sandbox = backend.create(spec).await.unwrap();
                    if (task, count) == (0, 3) {
                        let said = std::io::stdout().write_all(b"creating\n");
                        said.unwrap();
                    }
                    sandbox.destroy().await.unwrap();
                }
            }));
        }
        // They end only by a panic, which then ends this process.
        for task in tasks {
            task.await.unwrap();
        }
    });
}

async fn an_executor_ended_while_it_creates_leaves_nothing(lab: &Lab) -> Done {
    for (round, signal) in
        [libc::SIGKILL, libc::SIGTERM, libc::SIGKILL, libc::SIGTERM].into_iter().enumerate()
    {
        let data_dir = lab.dir.join(format!("victim{round}"));
        let own = std::env::current_exe().unwrap();
        let mut victim = Command::new(own).env(VICTIM, &data_dir).stdout(Stdio::piped()).spawn().unwrap();
        let out = victim.stdout.take().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "creating\n");
        // Somewhere in a creation, elsewhere each time.
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..20_000))).await;
        let pid = nix::unistd::Pid::from_raw(victim.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::try_from(signal).unwrap()).unwrap();
        victim.wait().unwrap();
        crate::lab::nothing_left("the victim", &data_dir).await.unwrap();
        // The next life starts where nothing is left, and serves.
        let next = Container::start(&ContainerConfig { data_dir: data_dir.clone() }).unwrap();
        let sandbox = next.create(lab.spec()).await.unwrap();
        sandbox.destroy().await.unwrap();
        drop(next);
        crate::lab::nothing_left("the next life", &data_dir).await.unwrap();
        executor::census::remove_parents(&data_dir).unwrap();
    }
    Ok(())
}

/// Nothing was made before: all of them need the image at the same moment.
async fn the_first_burst_of_an_executor_is_served(lab: &Lab) -> Done {
    for round in 0..8 {
        let data_dir = lab.dir.join(format!("first{round}"));
        let backend = Container::start(&ContainerConfig { data_dir: data_dir.clone() }).unwrap();
        let specs: Vec<_> = (0..16).map(|_| lab.spec()).collect();
        let made = futures_of(specs.into_iter().map(|spec| backend.create(spec))).await;
        for sandbox in made {
            sandbox.expect("made").destroy().await.unwrap();
        }
        drop(backend);
        crate::lab::nothing_left("the first burst", &data_dir).await.unwrap();
        executor::census::remove_parents(&data_dir).unwrap();
    }
    Ok(())
}

async fn a_hundred_in_a_row_and_eighty_at_once_leave_nothing(lab: &Lab) -> Done {
    let before = crate::lab::before("before", &lab.data_dir).await.unwrap();
    for _ in 0..100 {
        let sandbox = lab.sandbox().await;
        assert_eq!(said(&sandbox, "echo ok").await, "ok");
        sandbox.end().await;
    }
    crate::lab::settled("a hundred in a row", &before, &lab.data_dir).await.unwrap();
    let specs: Vec<_> = (0..80).map(|_| lab.spec()).collect();
    let made = futures_of(specs.into_iter().map(|spec| lab.make(spec))).await;
    let held: Vec<_> = made.into_iter().map(|sandbox| sandbox.expect("made")).collect();
    for sandbox in &held {
        assert_eq!(said(sandbox, "echo ok").await, "ok");
    }
    futures_of(held.into_iter().map(crate::lab::Held::end)).await;
    crate::lab::settled("eighty at once", &before, &lab.data_dir).await.unwrap();
    Ok(())
}

/// All at once, on this task.
pub async fn futures_of<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in waiting.iter_mut().filter(|(_, output)| output.is_none()) {
            if let std::task::Poll::Ready(ready) = future.as_mut().poll(context) {
                *output = Some(ready);
            }
        }
        if waiting.iter().all(|(_, output)| output.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    waiting.into_iter().filter_map(|(_, output)| output).collect()
}
