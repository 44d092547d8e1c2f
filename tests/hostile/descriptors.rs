//! Case 4: what a process holds when it starts. Seen from the host, by the kernel's own list.

use tests::census::descriptors;

use crate::lab::{Done, Held, Lab, said, stays};

crate::cases![
    "04" a_process_holds_three_descriptors_however_late_it_starts,
    "04" the_broker_and_the_executor_keep_three_descriptors_a_sandbox,
];

async fn audit(lab: &Lab, sandbox: &Held, user: &str) {
    let (started, _) = stays(sandbox, user, &["/bin/sh", "-c", "echo there; exec sleep 1000"]).await;
    let (_, others) = lab.processes(sandbox);
    for process in &others {
        let mut held = descriptors(*process);
        held.sort();
        assert_eq!(held, ["/dev/null", "pipe", "pipe"], "{user}");
    }
    assert_eq!(others.len(), 1);
    started.process.signal(libc::SIGKILL).await.unwrap();
    started.process.wait().await.unwrap();
}

async fn a_process_holds_three_descriptors_however_late_it_starts(lab: &Lab) -> Done {
    let sandbox = lab.sandbox().await;
    for user in ["rollout", "root"] {
        audit(lab, &sandbox, user).await;
        // While others run, and after many have.
        let (_other, _) = stays(
            &sandbox,
            user,
            &["/bin/sh", "-c", "echo there; exec 3<> /dev/null 9< /; while :; do read x; done"],
        )
        .await;
        for _ in 0..20 {
            said(&sandbox, "exec 5> /tmp/x; true").await;
        }
        sandbox.kill_all().await.unwrap();
        audit(lab, &sandbox, user).await;
    }
    // The next step of a chain is this: the same sandbox with other limits.
    sandbox.set_limits(crate::lab::limits()).await.unwrap();
    audit(lab, &sandbox, "rollout").await;
    // Init itself holds its channel, its signals and nothing of the host.
    let (init, _) = lab.processes(&sandbox);
    let mut held = descriptors(init);
    held.sort();
    assert_eq!(held, ["/dev/null", "/dev/null", "/dev/null", "anon_inode:[signalfd]", "socket"]);
    sandbox.end().await;
    Ok(())
}

async fn the_broker_and_the_executor_keep_three_descriptors_a_sandbox(lab: &Lab) -> Done {
    let own = || descriptors(std::process::id().cast_signed()).len();
    let before = own();
    let mut held = Vec::new();
    for count in 1..=5 {
        held.push(lab.sandbox().await);
        assert_eq!(own(), before + 3 * count);
    }
    for sandbox in held {
        sandbox.end().await;
    }
    Ok(())
}
