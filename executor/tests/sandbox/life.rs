//! Creation, processes, and the end.

use std::collections::BTreeMap;

use executor::sandbox::{Backend, CreateError, Exit, SpawnError};

use crate::lab::{Lab, said, shell, shell_as, start};

crate::tests![
    a_process_ends_as_the_kernel_says,
    a_program_that_cannot_run_is_told_by_its_errno,
    a_process_has_the_user_directory_and_environment_it_was_given,
    a_spawn_larger_than_a_datagram_arrives_whole,
    kill_all_ends_daemons_and_leaves_a_working_sandbox,
    a_signal_reaches_the_whole_group,
    a_bad_spec_is_refused_by_name,
    a_dropped_sandbox_and_a_dropped_creation_leave_nothing,
    two_hundred_creations_leave_no_descriptor_cgroup_or_process,
    many_sandboxes_live_side_by_side_with_their_own_ids,
    the_doctor_finds_what_the_backend_uses_and_leaves_nothing,
];

async fn the_doctor_finds_what_the_backend_uses_and_leaves_nothing(lab: Lab) {
    use executor::doctor::{Status, doctor};
    let dir = lab.dir.path().to_owned();
    let report = tokio::task::spawn_blocking(move || doctor(&dir)).await.unwrap();
    // The backend runs here, so whatever it needs must have been found.
    assert!(report.container(), "{report:#?}");
    assert!(report.checks.iter().filter(|check| check.status == Status::Works).count() >= 11, "{report:#?}");
    for check in &report.checks {
        eprintln!("{:?} {}: {} {:?}", check.status, check.name, check.detail, check.errno);
    }
    assert!(report.capacity.is_sorted_by_key(|capacity| capacity.sandboxes));
    let left: Vec<_> = std::fs::read_dir(lab.dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["data"], "no scratch is left");
    lab.sandbox().await.destroy().await.unwrap();
}

async fn a_process_ends_as_the_kernel_says(lab: Lab) {
    let sandbox = lab.sandbox().await;
    for (script, exit) in [
        ("exit 0", Exit::Code(0)),
        ("exit 77", Exit::Code(77)),
        ("kill -9 $$", Exit::Signal(9)),
        ("kill -15 $$", Exit::Signal(15)),
    ] {
        assert_eq!(shell(&*sandbox, script).await.exit, exit, "{script}");
    }
    let output = shell(&*sandbox, "echo out; echo err >&2; cat").await;
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"), "stdin is empty");
    let (process, _pipes) = start(&*sandbox, "rollout", "/", &["sh", "-c", "exit 3"], &[]).await.unwrap();
    for _ in 0..2 {
        assert_eq!(process.wait().await.unwrap(), Exit::Code(3), "and again");
    }
    assert!(sandbox.image_digest().starts_with("host:"));
    sandbox.destroy().await.unwrap();
}

async fn a_program_that_cannot_run_is_told_by_its_errno(lab: Lab) {
    let sandbox = lab.sandbox().await;
    for (program, errno) in [
        ("/absent", libc::ENOENT),
        ("absent", libc::ENOENT),
        ("/etc/passwd", libc::EACCES),
        ("/etc", libc::EACCES),
    ] {
        match start(&*sandbox, "rollout", "/", &[program], &[]).await {
            Err(SpawnError::Exec { source, .. }) => {
                assert_eq!(source.raw_os_error(), Some(errno), "{program}")
            }
            other => panic!("{program}: {:?}", other.map(|_| ())),
        }
    }
    for (cwd, errno) in [("/absent", libc::ENOENT), ("/root", libc::EACCES), ("/etc/passwd/x", libc::ENOTDIR)]
    {
        match start(&*sandbox, "rollout", cwd, &["true"], &[]).await {
            Err(SpawnError::Workdir { workdir, source }) => {
                assert_eq!((workdir.as_str(), source.raw_os_error()), (cwd, Some(errno)));
            }
            other => panic!("{cwd}: {:?}", other.map(|_| ())),
        }
    }
    let stranger = start(&*sandbox, "absent", "/", &["true"], &[]).await;
    assert!(matches!(stranger, Err(SpawnError::UnknownUser { .. })));
    let nothing = start(&*sandbox, "rollout", "/", &[""], &[]).await;
    assert!(matches!(nothing, Err(SpawnError::Setup { .. })));
    // A descriptor of init must not be a way out, whatever it is.
    for fd in 0..12 {
        let cwd = format!("/proc/self/fd/{fd}");
        assert!(start(&*sandbox, "rollout", &cwd, &["true"], &[]).await.is_err(), "{cwd}");
    }
    said(&*sandbox, "true").await;
    sandbox.destroy().await.unwrap();
}

async fn a_process_has_the_user_directory_and_environment_it_was_given(lab: Lab) {
    let sandbox = lab.sandbox().await;
    assert_eq!(
        said(&*sandbox, "id -u; id -g; id -G; pwd; umask; ulimit -c").await,
        "1000\n1000\n1000\n/workspace\n0022\n0"
    );
    assert_eq!(shell_as(&*sandbox, "root", "id -u; touch /etc/x && echo ok").await.stdout, "0\nok\n");
    assert_eq!(shell_as(&*sandbox, "4321", "id -u").await.stdout, "4321\n");
    let (process, [mut out, _err]) =
        start(&*sandbox, "rollout", "/", &["/usr/bin/env"], &[("A", "1 2"), ("B", "=x\n")]).await.unwrap();
    process.wait().await.unwrap();
    assert_eq!(std::io::read_to_string(&mut out).unwrap(), "A=1 2\nB==x\n\n");
    assert_eq!(
        said(&*sandbox, "touch /workspace/mine && stat -c %U /workspace /workspace/mine").await,
        "rollout\nrollout"
    );
    assert_eq!(said(&*sandbox, "hostname").await, "s0");
    sandbox.destroy().await.unwrap();
}

async fn a_spawn_larger_than_a_datagram_arrives_whole(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let long = "x".repeat(100_000);
    let argv = ["/bin/sh", "-c", "echo ${#1} ${#2} ${#BIG}", "sh", &long, &long];
    let (process, [out, _err]) = start(&*sandbox, "rollout", "/", &argv, &[("BIG", &long)]).await.unwrap();
    process.wait().await.unwrap();
    assert_eq!(std::io::read_to_string(out).unwrap(), "100000 100000 100000\n");
    let huge = "x".repeat(3 << 20);
    match start(&*sandbox, "rollout", "/", &["/bin/true", &huge], &[]).await {
        Err(SpawnError::Exec { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::E2BIG)),
        other => panic!("{:?}", other.map(|_| ())),
    }
    sandbox.destroy().await.unwrap();
}

async fn kill_all_ends_daemons_and_leaves_a_working_sandbox(lab: Lab) {
    let sandbox = lab.sandbox().await;
    for _ in 0..5 {
        said(
            &*sandbox,
            "for i in 1 2 3; do (setsid sh -c 'trap \"\" TERM HUP; sleep 1000' >/dev/null 2>&1 &) ; done",
        )
        .await;
        assert_ne!(said(&*sandbox, "ps -e | grep -c sleep").await, "0");
        let (running, _pipes) = start(&*sandbox, "root", "/", &["sleep", "1000"], &[]).await.unwrap();
        sandbox.kill_all().await.unwrap();
        assert_eq!(running.wait().await.unwrap(), Exit::Signal(9));
        assert_eq!(said(&*sandbox, "ps -e | grep -c sleep; true").await, "0");
    }
    sandbox.destroy().await.unwrap();
}

async fn a_signal_reaches_the_whole_group(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let (process, _pipes) =
        start(&*sandbox, "rollout", "/", &["sh", "-c", "sleep 1000 & sleep 1000 & wait"], &[]).await.unwrap();
    process.signal(libc::SIGTERM).await.unwrap();
    assert_eq!(process.wait().await.unwrap(), Exit::Signal(15));
    let late = process.signal(libc::SIGTERM).await.unwrap_err();
    assert_eq!(late.raw_os_error(), Some(libc::ESRCH), "a process that ended");
    sandbox.kill_all().await.unwrap();
    sandbox.destroy().await.unwrap();
}

async fn a_bad_spec_is_refused_by_name(lab: Lab) {
    let refused = |change: fn(&mut executor::sandbox::SandboxSpec)| {
        let mut spec = lab.spec();
        change(&mut spec);
        lab.backend.create(spec)
    };
    for id in ["", "UPPER", "a/b", "..", "a.b", "a_b"] {
        let mut spec = lab.spec();
        spec.id = id.into();
        assert!(matches!(lab.backend.create(spec).await, Err(CreateError::Failed { .. })), "{id}");
    }
    assert!(matches!(refused(|s| s.user = "absent".into()).await, Err(CreateError::UnknownUser { .. })));
    assert!(matches!(refused(|s| s.image = "dir:/proc".into()).await, Err(CreateError::BadRootfs { .. })));
    assert!(matches!(refused(|s| s.workdir = "/a/../b".into()).await, Err(CreateError::BadRootfs { .. })));
    assert!(matches!(refused(|s| s.workdir = "/bin/x".into()).await, Err(CreateError::BadRootfs { .. })));
    let huge = refused(|s| s.limits.disk = rollout::Bytes(1 << 46)).await;
    assert!(matches!(huge, Err(CreateError::NotEnforceable { guarantee: "limit.disk", .. })), "{huge:?}");
    let sandbox = lab.sandbox().await;
    let mut twice = lab.spec();
    twice.id = "s7".into();
    let first = lab.backend.create(twice.clone()).await.unwrap();
    assert!(matches!(lab.backend.create(twice).await, Err(CreateError::Failed { .. })), "an id in use");
    said(&*first, "true").await;
    first.destroy().await.unwrap();
    sandbox.destroy().await.unwrap();
}

async fn a_dropped_sandbox_and_a_dropped_creation_leave_nothing(lab: Lab) {
    drop(lab.sandbox().await);
    let creation = lab.backend.create(lab.spec());
    let _ = tokio::time::timeout(std::time::Duration::from_micros(300), creation).await;
    let data_dir = lab.data_dir();
    tokio::task::spawn_blocking(move || crate::lab::assert_no_sandbox(&data_dir)).await.unwrap();
    // The backend still serves.
    lab.sandbox().await.destroy().await.unwrap();
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

pub fn broker_pid() -> u32 {
    children("rollyard-broker").pop().expect("a broker")
}

/// Children of this process by their name.
pub fn children(name: &str) -> Vec<u32> {
    let children = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()?;
        (parent == std::process::id() && stat.contains(name)).then_some(pid)
    });
    children.collect()
}

async fn two_hundred_creations_leave_no_descriptor_cgroup_or_process(lab: Lab) {
    // Warm: the image's descriptor is kept, and threads of the pool appear.
    lab.sandbox().await.destroy().await.unwrap();
    let pids = [vec![std::process::id(), broker_pid()], children("rollyard-keeper")].concat();
    let all = || pids.iter().map(|pid| descriptors(*pid)).collect::<Vec<_>>();
    lab.full().await;
    let before = all();
    let begun = std::time::Instant::now();
    for _ in 0..200 {
        let sandbox = lab.sandbox().await;
        let (process, _pipes) = start(&*sandbox, "rollout", "/", &["/bin/true"], &[]).await.unwrap();
        assert_eq!(process.wait().await.unwrap(), Exit::Code(0));
        sandbox.destroy().await.unwrap();
    }
    eprintln!("200 x create, /bin/true, destroy: {:.2} ms each", begun.elapsed().as_secs_f64() * 5.0);
    // The reader task of the last channel closes its descriptor when it is polled next.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while all() != before && std::time::Instant::now() < deadline {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(all(), before, "the executor, its broker, its keepers");
    let census = executor::census::take(&lab.data_dir()).unwrap();
    assert!(census.holds_no_sandbox(), "{census}");
}

async fn many_sandboxes_live_side_by_side_with_their_own_ids(lab: Lab) {
    let mut sandboxes = Vec::new();
    for _ in 0..20 {
        sandboxes.push(lab.sandbox().await);
    }
    let mut bases = BTreeMap::new();
    for sandbox in &sandboxes {
        let map = said(&**sandbox, "cat /proc/self/uid_map").await;
        let numbers: Vec<u64> = map.split_whitespace().map(|n| n.parse().unwrap()).collect();
        assert_eq!((numbers[0], numbers[2]), (0, 65536));
        bases.insert(numbers[1], ());
        said(&**sandbox, "echo mine > /workspace/file").await;
    }
    assert_eq!(bases.len(), 20, "each has its own range");
    for sandbox in sandboxes {
        assert_eq!(said(&*sandbox, "cat /workspace/file; ls /workspace").await, "mine\nfile");
        sandbox.destroy().await.unwrap();
    }
}
