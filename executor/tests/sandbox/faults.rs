//! Failures at every step, and deaths without a goodbye.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use executor::census;
use executor::sandbox::container::{Container, ContainerConfig, Step};
use executor::sandbox::{Backend, CreateError, FileError};
use rollout::Bytes;

use crate::lab::{Lab, assert_empty, limits, said, start};

crate::tests![
    a_creation_that_fails_at_any_step_leaves_nothing,
    an_executor_killed_without_warning_leaves_nothing,
    a_broker_killed_without_warning_takes_its_sandboxes_along,
    a_keeper_killed_without_warning_ends_the_backend,
    a_keeper_ends_with_its_executor_and_holds_its_directory_until_then,
    a_sweep_waits_for_a_loop_device_that_lets_go_late,
    what_an_executor_keeps_is_for_its_owner_alone,
    counters_that_are_slow_to_read_hold_up_nothing_else,
    a_call_without_room_for_a_descriptor_is_refused_alone,
    a_dead_init_is_a_dead_sandbox,
    a_second_executor_on_the_same_directory_is_refused_while_the_first_lives,
];

async fn a_creation_that_fails_at_any_step_leaves_nothing(lab: Lab) {
    for disk in [Bytes(16 << 20), Bytes(300 << 20)] {
        for step in Step::ALL {
            let mut spec = lab.spec();
            spec.limits.disk = disk;
            lab.backend.fail_next_after(*step);
            match lab.backend.create(spec).await {
                Err(CreateError::Failed { action, .. }) => assert_eq!(action, step.as_str()),
                other => panic!("{step:?}: {other:?}"),
            }
            let census = census::take(&lab.data_dir()).unwrap();
            assert!(census.holds_no_sandbox(), "{step:?}: {census}");
        }
    }
    let sandbox = lab.sandbox().await;
    said(&*sandbox, "true").await;
    sandbox.destroy().await.unwrap();
}

const VICTIM: &str = "ROLLYARD_TEST_VICTIM";

/// The process that is killed: it holds sandboxes with hostile processes and says when it does.
pub fn be_the_victim_if_asked() {
    let Some(data_dir) = std::env::var_os(VICTIM) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = Container::start(&ContainerConfig { data_dir: data_dir.into() }).unwrap();
        let mut held = Vec::new();
        for (index, disk) in [16u64, 16, 300].into_iter().enumerate() {
            let mut limit = limits();
            limit.disk = Bytes(disk << 20);
            let spec = executor::sandbox::SandboxSpec {
                id: format!("victim{index}"),
                image: "host".into(),
                base: None,
                image_digest: None,
                layers: Vec::new(),
                limits: limit,
                user: "rollout".into(),
                workdir: "/workspace".into(),
            };
            let sandbox = backend.create(spec).await.unwrap();
            let script = "trap '' TERM HUP; (setsid sleep 1000 &); sleep 1000";
            let process = start(&*sandbox, "rollout", "/", &["sh", "-c", script], &[]).await.unwrap();
            held.push((sandbox, process));
        }
        println!("ready");
        std::future::pending::<()>().await;
    });
}

async fn an_executor_killed_without_warning_leaves_nothing(lab: Lab) {
    let data_dir = lab.dir.path().join("victim-data");
    let own = std::env::current_exe().unwrap();
    let mut victim = Command::new(own).env(VICTIM, &data_dir).stdout(Stdio::piped()).spawn().unwrap();
    let out = victim.stdout.take().unwrap();
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        line
    });
    assert_eq!(line.await.unwrap(), "ready\n");
    let data_dir = data_dir.canonicalize().unwrap();
    let census = census::take(&data_dir).unwrap();
    assert_eq!((census.cgroups.len(), census.loops.len()), (3, 1), "{census}");
    assert!(census.processes.len() >= 9, "{census}");
    victim.kill().unwrap();
    assert_eq!(victim.wait().unwrap().signal(), Some(9));
    let path = data_dir.clone();
    tokio::task::spawn_blocking(move || assert_empty(&path)).await.unwrap();
    // The next life starts where nothing is left.
    let next = Container::start(&ContainerConfig { data_dir: data_dir.clone() }).unwrap();
    drop(next);
    let path = data_dir.clone();
    tokio::task::spawn_blocking(move || assert_empty(&path)).await.unwrap();
    census::remove_parents(&data_dir).unwrap();
}

async fn a_broker_killed_without_warning_takes_its_sandboxes_along(lab: Lab) {
    let one = lab.sandbox().await;
    let two = lab.sandbox().await;
    lab.full().await;
    let (process, _pipes) = start(&*one, "rollout", "/", &["sleep", "1000"], &[]).await.unwrap();
    let broker = crate::life::broker_pid();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(broker.cast_signed()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    assert!(!one.died().await.is_empty());
    assert!(!two.died().await.is_empty());
    assert!(process.wait().await.is_err(), "its status is not known: the sandbox died");
    // Nothing is wrong with what is asked: another node, or the next life, can make it.
    let refused = lab.backend.create(lab.spec()).await.unwrap_err();
    assert!(refused.to_string().starts_with("the sandbox backend ended"), "{refused}");
    assert!(!matches!(refused, CreateError::Failed { .. }), "{refused:?}");
    one.destroy().await.unwrap();
    two.destroy().await.unwrap();
    // What it had made ahead is nobody's now: the next start removes it.
    let data_dir = lab.data_dir();
    let census = census::take(&data_dir).unwrap();
    assert!(census.holds_no_sandbox() && !census.ahead.cgroups.is_empty(), "{census}");
    drop(lab);
    let swept = tokio::task::spawn_blocking(move || census::sweep(&data_dir)).await.unwrap();
    let (found, left) = swept.unwrap();
    // Children that waited die with their broker, by and by.
    assert_eq!(found.ahead.cgroups, census.ahead.cgroups);
    assert!(left.is_empty(), "{left}");
}

async fn a_keeper_killed_without_warning_ends_the_backend(lab: Lab) {
    let mut spec = lab.spec();
    // A loop device, held by the keeper's descriptors alone once its sandbox is dead.
    spec.limits.disk = Bytes(300 << 20);
    let (one, two) = (lab.sandbox().await, lab.backend.create(spec).await.unwrap());
    let keepers = crate::life::children("rollyard-keeper");
    assert!(!keepers.is_empty());
    for keeper in keepers {
        let pid = nix::unistd::Pid::from_raw(keeper.cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    assert_eq!(lab.backend.ended().await, "a keeper is gone");
    // The broker destroys them all, and nothing of them can be read.
    assert_eq!(
        (one.died().await.as_str(), two.died().await.as_str()),
        ("a keeper is gone", "a keeper is gone")
    );
    assert!(one.open_file("/etc/passwd").await.is_err());
    assert_eq!(one.stats().await.disk_size, None);
    let refused = lab.backend.create(lab.spec()).await.unwrap_err();
    assert_eq!(refused.to_string(), "the sandbox backend ended: a keeper is gone");
    one.destroy().await.unwrap();
    two.destroy().await.unwrap();
}

async fn a_keeper_ends_with_its_executor_and_holds_its_directory_until_then(lab: Lab) {
    let data_dir = lab.dir.path().join("other");
    let before = crate::life::children("rollyard-keeper");
    let other = Container::start(&ContainerConfig { data_dir: data_dir.clone() }).unwrap();
    let mut keepers = crate::life::children("rollyard-keeper");
    keepers.retain(|pid| !before.contains(pid));
    assert!(!keepers.is_empty());
    let keeper = nix::unistd::Pid::from_raw(keepers[0].cast_signed());
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGSTOP).unwrap();
    drop(other);
    let path = data_dir.canonicalize().unwrap();
    let empty = path.clone();
    tokio::task::spawn_blocking(move || assert_empty(&empty)).await.unwrap();
    let lock = std::fs::File::open(path.join("lock")).unwrap();
    assert!(matches!(lock.try_lock(), Err(std::fs::TryLockError::WouldBlock)), "a keeper still lives");
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGCONT).unwrap();
    // A hang guard is around every test.
    tokio::task::spawn_blocking(move || lock.lock()).await.unwrap().unwrap();
    for pid in keepers {
        let gone = || !std::path::Path::new(&format!("/proc/{pid}")).exists();
        while !gone() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

async fn a_sweep_waits_for_a_loop_device_that_lets_go_late(lab: Lab) {
    let data_dir = lab.dir.path().canonicalize().unwrap().join("late");
    let image = census::disks_dir(&data_dir).join("gone.img");
    std::fs::create_dir_all(image.parent().unwrap()).unwrap();
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let device = String::from_utf8(made.stdout).unwrap();
    // As a mount does that the kernel is still taking down.
    let user = std::fs::File::open(device.trim()).unwrap();
    let late = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(user);
    });
    let swept = data_dir.clone();
    let (found, left) = tokio::task::spawn_blocking(move || census::sweep(&swept)).await.unwrap().unwrap();
    late.join().unwrap();
    assert_eq!((found.loops.len(), found.files.len()), (1, 1), "{found}");
    assert!(left.is_empty(), "{left}");
    census::remove_parents(&data_dir).unwrap();
}

async fn what_an_executor_keeps_is_for_its_owner_alone(lab: Lab) {
    use std::os::unix::fs::PermissionsExt;
    // One made by an older version, open to everyone.
    let open = lab.dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    let other = Container::start(&ContainerConfig { data_dir: open.clone() }).unwrap();
    for top in [lab.data_dir(), open.clone()] {
        for dir in [top.clone(), top.join("disks"), top.join("images")] {
            let mode = std::fs::metadata(&dir).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o700, "{}", dir.display());
        }
    }
    drop(other);
    let path = open.canonicalize().unwrap();
    tokio::task::spawn_blocking(move || assert_empty(&path)).await.unwrap();
    // Its broker removes the parents at its own end.
    std::fs::File::open(open.join("lock")).unwrap().lock().unwrap();
}

async fn a_dead_init_is_a_dead_sandbox(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let census = census::take(&lab.data_dir()).unwrap();
    assert_eq!(census.processes.len(), 1, "an idle sandbox is its init: {census}");
    let init = nix::unistd::Pid::from_raw(census.processes[0]);
    nix::sys::signal::kill(init, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(sandbox.died().await, "init is gone");
    assert!(start(&*sandbox, "rollout", "/", &["true"], &[]).await.is_err());
    sandbox.kill_all().await.unwrap();
    // Its files are still there until it is destroyed.
    assert!(sandbox.open_file("/etc/passwd").await.unwrap().is_some());
    sandbox.destroy().await.unwrap();
}

async fn a_second_executor_on_the_same_directory_is_refused_while_the_first_lives(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let file = std::fs::File::open(lab.data_dir().join("lock")).unwrap();
    assert!(matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)));
    said(&*sandbox, "true").await;
    sandbox.destroy().await.unwrap();
}

async fn a_call_without_room_for_a_descriptor_is_refused_alone(lab: Lab) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let sandbox = lab.sandbox().await;
    let other = lab.sandbox().await;
    lab.full().await;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let open = || std::fs::File::open("/dev/null");
    let taken: Vec<_> = {
        setrlimit(Resource::RLIMIT_NOFILE, 512, hard).unwrap();
        std::iter::from_fn(|| open().ok()).collect()
    };
    let refused = sandbox.open_file("/etc/passwd").await;
    let failed = lab.backend.create(lab.spec()).await;
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    drop(taken);
    match refused {
        Err(FileError::Io { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::EMFILE)),
        other => panic!("{other:?}"),
    }
    match failed {
        Err(CreateError::Failed { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(lab.backend.broker_gone(), None);
    for sandbox in [sandbox, other] {
        assert!(sandbox.open_file("/etc/passwd").await.unwrap().is_some());
        said(&*sandbox, "true").await;
        sandbox.destroy().await.unwrap();
    }
}

async fn counters_that_are_slow_to_read_hold_up_nothing_else(lab: Lab) {
    use nix::sys::signal::{Signal, kill};
    let sandbox: std::sync::Arc<dyn executor::sandbox::Sandbox> = lab.sandbox().await.into();
    lab.full().await;
    let keepers: Vec<_> = crate::life::children("rollyard-keeper")
        .into_iter()
        .map(|keeper| nix::unistd::Pid::from_raw(keeper.cast_signed()))
        .collect();
    keepers.iter().for_each(|keeper| kill(*keeper, Signal::SIGSTOP).unwrap());
    // More than the runtime has threads.
    let reading: Vec<_> = (0..8)
        .map(|_| {
            let sandbox = std::sync::Arc::clone(&sandbox);
            tokio::spawn(async move { sandbox.stats().await })
        })
        .collect();
    let free = tokio::time::timeout(std::time::Duration::from_secs(10), async {
        for _ in 0..8 {
            tokio::spawn(tokio::time::sleep(std::time::Duration::from_millis(20))).await.unwrap();
        }
    });
    let free = free.await;
    keepers.iter().for_each(|keeper| kill(*keeper, Signal::SIGCONT).unwrap());
    assert!(free.is_ok(), "the threads of the runtime wait for a keeper");
    for stats in reading {
        assert!(stats.await.unwrap().disk_size.is_some());
    }
}
