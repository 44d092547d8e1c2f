//! Case 4: what a process holds when it starts. Seen from the host, by the kernel's own list.

use tests::census::descriptors;

use crate::lab::{Done, Held, Lab, said, stays};

crate::cases![
    "04" a_process_holds_three_descriptors_however_late_it_starts,
    "04" an_idle_sandbox_costs_the_executor_one_descriptor_and_its_keeper_three,
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

async fn an_idle_sandbox_costs_the_executor_one_descriptor_and_its_keeper_three(lab: &Lab) -> Done {
    let executor = std::process::id().cast_signed();
    let [broker, keeper] = ["rollyard-broker", "rollyard-keeper"].map(|name| {
        let named = tests::census::children(executor)
            .into_iter()
            .filter(|pid| tests::census::status(*pid, "Name").as_deref() == Some(name));
        let named: Vec<_> = named.collect();
        assert!(!named.is_empty(), "{name}");
        named
    });
    let count = |pids: &[i32]| pids.iter().map(|pid| descriptors(*pid).len()).sum::<usize>();
    let all = || [count(&[executor]), count(&broker), count(&keeper)];
    let before = all();
    let mut held = Vec::new();
    for made in 1..=5 {
        let sandbox = lab.sandbox().await;
        // What a call borrows goes back.
        assert!(sandbox.open_file("/etc/passwd").await.unwrap().is_some());
        assert!(sandbox.stats().await.disk_size.is_some());
        held.push(sandbox);
        let expected = [before[0] + made, before[1], before[2] + 3 * made];
        crate::lab::until("one in the executor, none in the broker, three in a keeper", || all() == expected)
            .await;
    }
    for sandbox in held {
        sandbox.end().await;
    }
    Ok(())
}
