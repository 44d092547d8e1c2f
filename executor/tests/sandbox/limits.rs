//! Limits are the kernel's, and what they did is counted.

use std::time::Duration;

use executor::sandbox::container::{Container, ContainerConfig};
use executor::sandbox::{Backend, Exit};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rollout::Bytes;

use crate::lab::{Lab, assert_empty, compiled, said, shell, start};

crate::tests![
    a_fork_bomb_meets_the_pids_limit_and_dies_at_the_end_of_its_step,
    a_memory_bomb_is_killed_inside_and_counted,
    a_full_disk_is_no_space_and_no_oom_on_tmpfs,
    a_full_disk_is_no_space_on_a_loop_disk_that_then_goes_away,
    limits_can_be_rewritten_for_the_next_step,
    what_runs_goes_before_what_makes_new_ones,
    what_the_tightest_ceiling_allows_is_made_and_the_next_is_refused_by_its_name,
];

async fn a_fork_bomb_meets_the_pids_limit_and_dies_at_the_end_of_its_step(lab: Lab) {
    let (sandbox, neighbour) = (lab.sandbox().await, lab.sandbox().await);
    let bomb = "int main(void) { for (;;) { if (fork() == 0) setsid(); } }";
    compiled(&lab, &*sandbox, "bomb", bomb).await;
    let (_bomb, _pipes) = start(&*sandbox, "rollout", "/", &["/workspace/bomb"], &[]).await.unwrap();
    while sandbox.stats().await.pids_denied.unwrap() < 1000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(start(&*sandbox, "rollout", "/", &["/bin/true"], &[]).await.is_err(), "no room for one more");
    said(&*neighbour, "true").await;
    sandbox.kill_all().await.unwrap();
    assert_eq!(said(&*sandbox, "ps -e -o comm= | grep -c bomb; true").await, "0");
    // And once more, ended by the end of the sandbox.
    let (_bomb, _pipes) = start(&*sandbox, "rollout", "/", &["/workspace/bomb"], &[]).await.unwrap();
    sandbox.destroy().await.unwrap();
    neighbour.destroy().await.unwrap();
}

async fn a_memory_bomb_is_killed_inside_and_counted(lab: Lab) {
    let mut spec = lab.spec();
    spec.limits.memory = Bytes(32 << 20);
    let sandbox = lab.backend.create(spec).await.unwrap();
    let bomb = "#include <stdlib.h>\n#include <string.h>\nint main(void) { for (;;) memset(malloc(1 << 20), 1, 1 << 20); }";
    compiled(&lab, &*sandbox, "bomb", bomb).await;
    let before = sandbox.stats().await.oom_kills.unwrap();
    let (bomb, _pipes) = start(&*sandbox, "rollout", "/", &["/workspace/bomb"], &[]).await.unwrap();
    assert_eq!(bomb.wait().await.unwrap(), Exit::Signal(9));
    let stats = sandbox.stats().await;
    assert!(stats.oom_kills.unwrap() > before, "{stats:?}");
    assert!(stats.memory_peak.unwrap() <= Bytes((32 + 16) << 20), "{stats:?}");
    assert!(stats.memory_peak.unwrap() >= Bytes(32 << 20), "{stats:?}");
    // A shared memory file counts as well.
    let full = shell(&*sandbox, "head -c 100M /dev/zero > /dev/shm/f; echo $?").await;
    assert_ne!(full.stdout, "0\n");
    said(&*sandbox, "rm -f /dev/shm/f").await;
    sandbox.destroy().await.unwrap();
}

async fn fill(sandbox: &dyn executor::sandbox::Sandbox) {
    let output =
        shell(sandbox, "head -c 2G /dev/zero > /workspace/f; LC_ALL=C ls -s --block-size=1 /workspace/f")
            .await;
    assert!(output.stderr.contains("No space left"), "{output:?}");
    let stats = sandbox.stats().await;
    assert_eq!(stats.oom_kills, Some(0));
    assert!(stats.disk_used.unwrap().0 * 10 > stats.disk_size.unwrap().0 * 9, "{stats:?}");
    let refused = sandbox
        .write_file("/workspace/g", executor::sandbox::FileSource::Bytes(vec![0; 1 << 20]), 0o644, "rollout")
        .await;
    assert!(matches!(refused, Err(executor::sandbox::FileError::Full { .. })), "{refused:?}");
    said(sandbox, "rm /workspace/f; truncate -s 1T /workspace/sparse 2>/dev/null; echo ok > /workspace/f")
        .await;
}

async fn a_full_disk_is_no_space_and_no_oom_on_tmpfs(lab: Lab) {
    let sandbox = lab.sandbox().await;
    assert_eq!(sandbox.stats().await.disk_size, Some(Bytes(16 << 20)));
    fill(&*sandbox).await;
    let inodes =
        shell(&*sandbox, "i=0; while : > /workspace/i$i; do i=$((i+1)); done 2>/dev/null; echo $i").await;
    let made: u64 = inodes.stdout.trim().parse().unwrap_or(0);
    assert!(made < (16 << 20) / 4096, "{inodes:?}");
    assert_eq!(sandbox.stats().await.oom_kills, Some(0));
    sandbox.destroy().await.unwrap();
}

async fn a_full_disk_is_no_space_on_a_loop_disk_that_then_goes_away(lab: Lab) {
    let mut spec = lab.spec();
    spec.limits.disk = Bytes(300 << 20);
    let sandbox = lab.backend.create(spec).await.unwrap();
    let census = executor::census::take(&lab.data_dir()).unwrap();
    assert_eq!((census.loops.len(), census.files.len()), (1, 0), "{census}");
    let size = sandbox.stats().await.disk_size.unwrap();
    assert!(size <= Bytes(300 << 20) && size > Bytes(250 << 20), "{size}");
    fill(&*sandbox).await;
    let flags = r#"#include <fcntl.h>
int ioctl(int, unsigned long, ...);
int main(void) { int f = 0x10; return ioctl(open("/workspace/f", O_RDONLY), 0x40086602ul, &f) == 0; }"#;
    compiled(&lab, &*sandbox, "immutable", flags).await;
    said(&*sandbox, "/workspace/immutable && rm /workspace/f").await;
    sandbox.destroy().await.unwrap();
    assert!(executor::census::take(&lab.data_dir()).unwrap().holds_no_sandbox());
}

async fn limits_can_be_rewritten_for_the_next_step(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let mut limits = crate::lab::limits();
    limits.pids = 3;
    limits.memory = Bytes(64 << 20);
    sandbox.set_limits(limits).await.unwrap();
    let denied = sandbox.stats().await.pids_denied.unwrap();
    shell(&*sandbox, "for i in 1 2 3 4 5; do sleep 0.1 & done; wait").await;
    assert!(sandbox.stats().await.pids_denied.unwrap() > denied);
    limits.pids = 64;
    limits.memory = Bytes(512 << 20);
    sandbox.set_limits(limits).await.unwrap();
    said(&*sandbox, "for i in 1 2 3 4 5; do sleep 0.1 & done; wait").await;
    sandbox.destroy().await.unwrap();
}

/// A hundred descriptors beside the reserve: 55 sandboxes, and the rest for what works in them, which is
/// counted for the whole process (`ceilings::descriptors`).
async fn what_the_tightest_ceiling_allows_is_made_and_the_next_is_refused_by_its_name(lab: Lab) {
    let files = Resource::RLIMIT_NOFILE;
    let (soft, hard) = getrlimit(files).unwrap();
    setrlimit(files, 1_124, hard).unwrap();
    let low = Container::start(&ContainerConfig { data_dir: lab.dir.path().join("low") });
    setrlimit(files, soft, hard).unwrap();
    let low = low.unwrap();
    assert_eq!(low.ceilings().sandboxes, 55);
    let mut held = Vec::new();
    for _ in 0..55 {
        held.push(low.create(lab.spec()).await.unwrap());
    }
    let refused = low.create(lab.spec()).await.unwrap_err();
    assert_eq!(refused.to_string(), "open files of the executor is at its limit: 55 of 55");
    held.pop().unwrap().destroy().await.unwrap();
    held.push(low.create(lab.spec()).await.unwrap());
    for sandbox in held {
        sandbox.destroy().await.unwrap();
    }
    drop(low);
    let path = lab.dir.path().join("low").canonicalize().unwrap();
    tokio::task::spawn_blocking(move || assert_empty(&path)).await.unwrap();
}

async fn what_runs_goes_before_what_makes_new_ones(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let has_cpu = |line: &&str| {
        line.contains(" - cgroup ") && line.rsplit(' ').next().unwrap().split(',').any(|name| name == "cpu")
    };
    // Where the kernel keeps the part of a task outside of groups, and of the group of all sandboxes.
    let (line, file, task, most) = match mounts.lines().find(has_cpu) {
        Some(line) => (line, "cpu.shares", 1_024, 262_144),
        None => {
            (mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap(), "cpu.weight", 100, 10_000)
        }
    };
    let group = std::path::Path::new(line.split(' ').nth(4).unwrap()).join("rollyard").join(file);
    let cpus = u64::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
    let part: u64 = std::fs::read_to_string(group).unwrap().trim().parse().unwrap();
    assert_eq!(part, (4 * cpus * task).min(most), "this host has {cpus} CPUs");
    sandbox.destroy().await.unwrap();
}
