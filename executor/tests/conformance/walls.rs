//! What runs inside reaches neither the host, nor a network, nor another sandbox.

use std::collections::BTreeSet;

use executor::sandbox::Exit;

use crate::processes::{said, shell, shell_as};
use crate::subject::Yard;

crate::rules![
    no_network_is_reached,
    nothing_of_the_host_is_seen,
    root_of_a_sandbox_is_not_root_of_the_host,
    files_of_one_sandbox_are_not_those_of_another,
];

async fn no_network_is_reached(yard: &Yard) {
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    host.set_nonblocking(true).unwrap();
    let port = host.local_addr().unwrap().port();
    let sandbox = yard.sandbox().await;
    let connect = format!(
        r#"perl -MSocket -e 'socket(my $s, PF_INET, SOCK_STREAM, 0); print connect($s, sockaddr_in({port}, inet_aton("127.0.0.1"))) ? "in" : "out"'"#
    );
    assert_eq!(said(&*sandbox, &connect).await, "out", "a port of the host");
    assert!(host.accept().is_err(), "the host's listener saw something");
    let links = said(&*sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await;
    assert_eq!(links, "lo", "links");
    let own = r#"perl -MSocket -e 'socket(my $l, PF_INET, SOCK_STREAM, 0); bind($l, sockaddr_in(8080, inet_aton("127.0.0.1"))); listen($l, 1); socket(my $s, PF_INET, SOCK_STREAM, 0); print connect($s, sockaddr_in(8080, inet_aton("127.0.0.1"))) ? "in" : $!+0'"#;
    assert_eq!(said(&*sandbox, own).await, "in", "its own loopback works");
    sandbox.destroy().await.unwrap();
}

async fn nothing_of_the_host_is_seen(yard: &Yard) {
    let secret = yard.dir.join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let sandbox = yard.sandbox().await;
    let seen = shell(&*sandbox, &format!("cat {}", secret.display())).await;
    assert_eq!(seen.stdout, "", "a file of the host");
    let pid = std::process::id();
    let ours = std::fs::read_link("/proc/self/exe").unwrap();
    let theirs =
        shell_as(&*sandbox, "root", &format!("readlink /proc/{pid}/exe; cat /proc/{pid}/cmdline")).await;
    assert!(!theirs.stdout.contains(ours.to_str().unwrap()), "a process of the host: {theirs:?}");
    for path in ["sysrq-trigger", "sys/kernel/core_pattern", "sys/vm/drop_caches"] {
        let written = shell_as(&*sandbox, "root", &format!("echo b > /proc/{path}")).await;
        assert_ne!(written.exit, Exit::Code(0), "/proc/{path} was written");
    }
    sandbox.destroy().await.unwrap();
}

async fn root_of_a_sandbox_is_not_root_of_the_host(yard: &Yard) {
    let mut ranges = BTreeSet::new();
    let mut sandboxes = Vec::new();
    for _ in 0..5 {
        let sandbox = yard.sandbox().await;
        let map = shell_as(&*sandbox, "root", "cat /proc/self/uid_map").await.stdout;
        let numbers: Vec<u64> = map.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [first, base, size] = numbers[..] else { panic!("{map}") };
        assert_eq!((first, size), (0, 65_536), "a range of ids of its own");
        assert!(base > 0 && ranges.insert(base), "{base} is another's");
        sandboxes.push(sandbox);
    }
    for sandbox in sandboxes {
        sandbox.destroy().await.unwrap();
    }
}

async fn files_of_one_sandbox_are_not_those_of_another(yard: &Yard) {
    let (one, two) = (yard.sandbox().await, yard.sandbox().await);
    for place in ["/tmp", "/workspace", "/dev/shm", "/var/tmp"] {
        let mark = format!("{place}/rollyard-conformance-{}", std::process::id());
        let made = shell(&*one, &format!("echo one > {mark}")).await;
        let seen = shell(&*two, &format!("cat {mark}")).await;
        assert_eq!(shell(&*one, &format!("rm -f {mark}")).await.exit, Exit::Code(0));
        assert_eq!(made.exit, Exit::Code(0), "{made:?}");
        assert_eq!(seen.stdout, "", "{place} is shared");
    }
    one.destroy().await.unwrap();
    assert_eq!(said(&*two, "echo ok").await, "ok");
    two.destroy().await.unwrap();
    // The next one starts with nothing of theirs.
    let three = yard.sandbox().await;
    assert_eq!(said(&*three, "ls -A /workspace /tmp /dev/shm | grep -v : ; true").await, "");
    three.destroy().await.unwrap();
}
