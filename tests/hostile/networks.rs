//! Case 45: network namespaces made and destroyed by the thousand, at once.

use std::sync::Arc;

use executor::sandbox::SandboxSpec;
use tests::census::namespace;
use tokio::task::JoinSet;

use crate::lab::{Done, Lab, said, settled, until};
use crate::skips::Skip;

crate::cases![
    "45" a_thousand_network_namespaces_at_once_leave_none,
];

const SANDBOXES: usize = 1_000;
/// Namespaces others on this machine may make or free meanwhile.
const OTHERS_MAX: u64 = 200;

/// Network namespaces of the whole kernel, as its allocator counts them; some that were freed may
/// still be in its lists.
fn of_the_kernel() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/slabinfo").ok()?;
    text.lines().find_map(|line| line.strip_prefix("net_namespace ")?.split_whitespace().next()?.parse().ok())
}

async fn a_thousand_network_namespaces_at_once_leave_none(lab: &Lab) -> Done {
    let Some(kernel_before) = of_the_kernel() else { return Err(Skip("no /proc/slabinfo".into())) };
    let before = crate::lab::before("before", &lab.data_dir).await.unwrap();
    let specs: Vec<SandboxSpec> = (0..SANDBOXES).map(|_| lab.spec()).collect();
    // All are asked for at once. As soon as it is there, every third is dropped, which ends it in the
    // background, every third is destroyed, and every third lives until all others are made.
    let backend = &lab.backend;
    let making = specs.into_iter().enumerate().map(|(index, spec)| async move {
        let id = spec.id.clone();
        let sandbox = executor::sandbox::Backend::create(backend, spec).await.expect("made");
        match index % 3 {
            0 => drop(sandbox),
            1 => sandbox.destroy().await.expect("destroyed"),
            _ => return Some(crate::lab::Held { id, sandbox }),
        }
        None
    });
    let made = crate::lifetimes::futures_of(making).await;
    let held: Vec<_> = made.into_iter().flatten().collect();
    assert_eq!(held.len(), SANDBOXES / 3);
    // Each has a namespace of its own.
    let mut networks: Vec<_> =
        held.iter().map(|sandbox| namespace(lab.processes(sandbox).0, "net").expect("a live init")).collect();
    networks.sort();
    networks.dedup();
    assert_eq!(networks.len(), held.len());
    let seen = of_the_kernel().unwrap_or_default();
    assert!(seen + OTHERS_MAX >= kernel_before + held.len() as u64, "{kernel_before} before, {seen} now");
    assert_eq!(said(&held[0], "echo ok").await, "ok");
    let mut ending = JoinSet::new();
    let held = Arc::new(std::sync::Mutex::new(held));
    for _ in 0..8 {
        let held = Arc::clone(&held);
        ending.spawn(async move {
            loop {
                let next = held.lock().unwrap().pop();
                let Some(sandbox) = next else { return };
                sandbox.end().await;
            }
        });
    }
    while let Some(ended) = ending.join_next().await {
        ended.unwrap();
    }
    settled("a thousand networks", &before, &lab.data_dir).await.unwrap();
    // The kernel frees them in the background.
    until("the kernel has freed them", || of_the_kernel().unwrap_or(u64::MAX) <= kernel_before + OTHERS_MAX)
        .await;
    Ok(())
}
