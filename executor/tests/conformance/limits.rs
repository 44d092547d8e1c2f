//! Limits are enforced as they were asked for, what they did is counted, and one that cannot be
//! enforced is refused by its name.

use std::time::Instant;

use executor::sandbox::{CreateError, Exit, FileError, FileSource, SandboxSpec};
use rollout::{Bytes, MilliCpu};

use crate::processes::{ended, said, shell, start};
use crate::subject::Yard;

crate::rules![
    the_memory_limit_kills_inside_and_is_counted,
    the_pids_limit_refuses_forks_and_is_counted,
    a_full_disk_is_no_space_and_no_oom,
    the_cpu_limit_holds,
    limits_can_be_rewritten,
    a_limit_that_cannot_hold_is_refused_by_name,
];

async fn the_memory_limit_kills_inside_and_is_counted(yard: &Yard) {
    let mut spec = yard.spec();
    spec.limits.memory = Bytes(48 << 20);
    let most = Bytes(spec.limits.memory.0 + spec.limits.disk.0);
    let sandbox = yard.backend.create(spec).await.unwrap();
    let neighbour = yard.sandbox().await;
    let before = sandbox.stats().await;
    // It keeps the last line it read, which has no end.
    let argv = ["sh", "-c", "tail /dev/zero & tail /dev/zero & wait $!"];
    let (bomb, _pipes) = start(&*sandbox, "rollout", "/", &argv, &[]).await.unwrap();
    let exit = ended(&*bomb, "it takes memory without end").await;
    assert!(matches!(exit, Exit::Signal(9) | Exit::Code(137)), "{exit:?}");
    let stats = sandbox.stats().await;
    assert!(stats.oom_kills.expect("kills are counted") > before.oom_kills.unwrap(), "{stats:?}");
    assert!(stats.memory_peak.expect("memory is counted") <= most, "more than the limit: {stats:?}");
    said(&*neighbour, "true").await;
    for sandbox in [sandbox, neighbour] {
        sandbox.destroy().await.unwrap();
    }
}

async fn the_pids_limit_refuses_forks_and_is_counted(yard: &Yard) {
    let mut spec = yard.spec();
    spec.limits.pids = 16;
    let sandbox = yard.backend.create(spec).await.unwrap();
    let script = "i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done; echo all";
    let bomb = shell(&*sandbox, &format!("({script}) >out 2>/dev/null </dev/null; cat out")).await;
    assert_eq!(bomb.stdout, "", "more processes than the limit");
    assert!(sandbox.stats().await.pids_denied.expect("refusals are counted") > 0);
    sandbox.kill_all().await.unwrap();
    said(&*sandbox, "true").await;
    sandbox.destroy().await.unwrap();
}

async fn a_full_disk_is_no_space_and_no_oom(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let limit = yard.subject.disk;
    let size = sandbox.stats().await.disk_size.expect("the disk is measured");
    assert!(size <= limit, "a disk of {size}, of {limit}");
    let filled = shell(&*sandbox, &format!("LC_ALL=C head -c {} /dev/zero > f", limit.0 + 4096)).await;
    assert!(filled.stderr.contains("No space left"), "{filled:?}");
    let refused = sandbox.write_file("g", FileSource::Bytes(vec![0; 1 << 20]), 0o644, "rollout").await;
    assert!(matches!(refused, Err(FileError::Full { .. })), "{refused:?}");
    let stats = sandbox.stats().await;
    assert_eq!(stats.oom_kills, Some(0), "{stats:?}");
    assert!(stats.disk_used.unwrap().0 * 10 > size.0 * 9, "{stats:?}");
    said(&*sandbox, "rm f; echo ok > f").await;
    sandbox.destroy().await.unwrap();
}

async fn the_cpu_limit_holds(yard: &Yard) {
    let mut spec = yard.spec();
    spec.limits.cpu = MilliCpu(20);
    let sandbox = yard.backend.create(spec).await.unwrap();
    let (before, began) = (sandbox.stats().await.cpu.expect("time is counted"), Instant::now());
    shell(&*sandbox, "timeout 3 sh -c 'while :; do :; done'").await;
    let (used, passed) = (sandbox.stats().await.cpu.unwrap().0 - before.0, began.elapsed().as_millis());
    // A fiftieth, with room for how the kernel hands it out; a busy machine gives no less than this.
    assert!(u128::from(used) * 16 < passed, "{used} ms of {passed} ms, at 20m");
    sandbox.destroy().await.unwrap();
}

async fn limits_can_be_rewritten(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let mut limits = yard.limits();
    (limits.pids, limits.memory) = (8, Bytes(64 << 20));
    sandbox.set_limits(limits).await.unwrap();
    let many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2 & done; wait";
    shell(&*sandbox, many).await;
    let denied = sandbox.stats().await.pids_denied.unwrap();
    assert!(denied > 0, "the new limit of processes");
    (limits.pids, limits.memory) = (64, Bytes(512 << 20));
    sandbox.set_limits(limits).await.unwrap();
    said(&*sandbox, many).await;
    assert_eq!(sandbox.stats().await.pids_denied, Some(denied), "the limit is wide again");
    sandbox.destroy().await.unwrap();
}

async fn a_limit_that_cannot_hold_is_refused_by_name(yard: &Yard) {
    let refused = async |guarantee: &str, change: fn(&mut SandboxSpec)| {
        let mut spec = yard.spec();
        change(&mut spec);
        match yard.backend.create(spec).await {
            Err(CreateError::NotEnforceable { guarantee: named, .. }) => assert_eq!(named, guarantee),
            other => panic!("{guarantee} was not refused: {other:?}"),
        }
    };
    assert!(yard.backend.ceilings().disk_limit_max < Bytes(1 << 46), "{:?}", yard.backend.ceilings());
    refused("limit.disk", |spec| spec.limits.disk = Bytes(1 << 46)).await;
    refused("limit.disk", |spec| spec.limits.disk = Bytes(0)).await;
    refused("limit.memory", |spec| spec.limits.memory = Bytes(1)).await;
    assert_eq!(yard.left_in_the_end().await, None, "nothing is left of a refusal");
}
