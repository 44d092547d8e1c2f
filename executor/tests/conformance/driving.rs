//! A driver outside works in it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use executor::sandbox::driven::{Driven, EntryKind, Opened, Opening, Streams};
use executor::sandbox::{Exit, Sandbox};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::files::read;
use crate::processes::{said, start};
use crate::rule::SOON;
use crate::subject::Yard;

crate::rules![
    a_process_reads_what_it_is_sent[Driven],
    a_killed_tree_is_gone_whole[Driven],
    what_is_frozen_stands_still_and_goes_on[Driven],
    a_port_of_the_sandbox_is_its_own[Driven],
    entries_are_shown_as_the_sandbox_sees_them[Driven],
];

fn driven(sandbox: &dyn Sandbox) -> &dyn Driven {
    sandbox.driven().expect("it can be driven")
}

async fn piped(sandbox: &dyn Sandbox, script: &str) -> (Opened, [File; 3]) {
    let (stdin_end, stdin) = std::io::pipe().unwrap();
    let (stdout, stdout_end) = std::io::pipe().unwrap();
    let (stderr, stderr_end) = std::io::pipe().unwrap();
    let opening = Opening {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: std::collections::BTreeMap::new(),
        cwd: "/workspace".into(),
        user: "rollout".into(),
        streams: Streams::Pipes {
            stdin: Some(stdin_end.into()),
            stdout: stdout_end.into(),
            stderr: stderr_end.into(),
        },
        report: None,
    };
    let opened = driven(sandbox).open(opening).await.expect("it starts");
    (opened, [stdin.into(), stdout.into(), stderr.into()].map(|fd: OwnedFd| File::from(fd)))
}

async fn a_process_reads_what_it_is_sent(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let (opened, [mut stdin, mut stdout, _stderr]) = piped(&*sandbox, "cat; exit 3").await;
    let sent = "x".repeat(200_000);
    let bytes = sent.clone();
    // A pipe nobody reads is an error of writing, and shows in what comes back.
    let writer = tokio::task::spawn_blocking(move || stdin.write_all(bytes.as_bytes()).is_ok());
    let reader = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let (is_written, back) = (writer.await.unwrap(), reader.await.unwrap().unwrap());
    assert!(is_written && back == sent, "{} bytes of {} came back", back.len(), sent.len());
    assert_eq!(opened.process.wait().await.unwrap(), Exit::Code(3));
    drop(opened);
    sandbox.destroy().await.unwrap();
}

async fn a_killed_tree_is_gone_whole(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let (neighbour, [_in, _out, _err]) = piped(&*sandbox, "exec sleep 1001").await;
    let script =
        "trap '' TERM HUP; (setsid sh -c 'sleep 1002 & sleep 1002 & wait' &) & sleep 1002 & wait; sleep 1002";
    let (opened, [_in2, _out2, _err2]) = piped(&*sandbox, script).await;
    let running = "ps -e -o args= | grep -c '^sleep 1002'; true";
    while said(&*sandbox, running).await.parse::<u32>().unwrap() < 3 {}
    opened.process.kill_tree().await.unwrap();
    assert_eq!(said(&*sandbox, running).await, "0", "processes of a killed tree");
    assert_eq!(said(&*sandbox, "ps -e -o args= | grep -c '^sleep 1001'").await, "1", "its neighbour");
    neighbour.process.kill_tree().await.unwrap();
    assert_eq!(neighbour.process.wait().await.unwrap(), Exit::Signal(9));
    sandbox.destroy().await.unwrap();
}

async fn what_is_frozen_stands_still_and_goes_on(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let count = "i=0; while :; do i=$((i+1)); echo $i > n.new; mv n.new n; done";
    let argv = ["sh", "-c", count];
    let (_counter, _pipes) = start(&*sandbox, "rollout", "/workspace", &argv, &[]).await.unwrap();
    let number = async || {
        loop {
            let text = read(&*sandbox, "n").await.unwrap_or_default();
            if let Ok(number) = text.trim().parse::<u64>() {
                return number;
            }
        }
    };
    number().await;
    driven(&*sandbox).freeze(Duration::from_secs(30)).await.unwrap();
    let stopped = number().await;
    // Long enough for whoever runs on a busy machine to show it.
    let mut still = true;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        still &= number().await == stopped;
    }
    assert!(still, "it runs on while it is frozen");
    driven(&*sandbox).thaw().unwrap();
    let goes_on = async { while number().await == stopped {} };
    tokio::time::timeout(SOON, goes_on).await.expect("it does not go on");
    sandbox.destroy().await.unwrap();
}

async fn a_port_of_the_sandbox_is_its_own(yard: &Yard) {
    let host = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = host.local_addr().unwrap().port();
    let sandbox = yard.sandbox().await;
    let reached = driven(&*sandbox).connect(port).await;
    let refused = reached.expect_err("a port of the host was reached");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let serve = format!(
        r#"perl -MSocket -e 'socket(my $l, PF_INET, SOCK_STREAM, 0); bind($l, sockaddr_in({port}, inet_aton("127.0.0.1"))) or die; listen($l, 8); while (accept(my $c, $l)) {{ my $x = <$c>; print $c "you said $x"; close $c }}'"#
    );
    let (_server, _pipes) = start(&*sandbox, "rollout", "/", &["sh", "-c", &serve], &[]).await.unwrap();
    let connecting = async {
        loop {
            match driven(&*sandbox).connect(port).await {
                Ok(connection) => return connection,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let mut connection = tokio::time::timeout(SOON, connecting).await.expect("its own port is reached");
    connection.write_all(b"hello\n").await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "you said hello\n");
    sandbox.destroy().await.unwrap();
}

async fn entries_are_shown_as_the_sandbox_sees_them(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    said(&*sandbox, "mkdir -p d/e; echo 12 > d/f; ln -s /etc d/link; chmod 640 d/f").await;
    let driven = driven(&*sandbox);
    let page = driven.list_page("d", "", 2).await.unwrap().unwrap();
    let kinds: Vec<_> = page.entries.iter().map(|entry| (entry.path.as_str(), entry.kind)).collect();
    assert_eq!((kinds, page.more), (vec![("e", EntryKind::Directory), ("f", EntryKind::File)], true));
    let file = driven.stat("/workspace/d/f").await.unwrap().unwrap();
    assert_eq!((file.size.0, file.mode, file.uid, file.gid), (3, 0o640, 1000, 1000), "ids of the sandbox");
    assert!(driven.stat("d/link/passwd").await.is_err(), "a link was followed");
    let pinned = driven.open_pinned("d/f").await.unwrap().unwrap();
    said(&*sandbox, "echo 345 > d/f").await;
    assert_ne!(pinned.version_now().unwrap(), pinned.entry.version, "another version");
    assert!(driven.remove("d").await.unwrap() && !driven.remove("d").await.unwrap());
    sandbox.destroy().await.unwrap();
}
