//! What a driver outside is offered: streams, terminals, trees of processes, pinned files, ports.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use executor::sandbox::driven::{Driven, EntryKind, Opened, Opening, Streams};
use executor::sandbox::{Exit, FileError, Sandbox, SpawnError};

use crate::lab::{Lab, said, shell, start};

crate::tests![
    a_process_reads_what_it_is_sent_and_sees_its_end,
    a_terminal_has_its_size_its_keys_and_its_owner,
    a_process_has_the_descriptors_that_were_declared_and_no_other,
    a_killed_tree_is_gone_whole_and_its_neighbours_go_on,
    trees_that_were_left_behind_are_counted_and_swept,
    what_stands_still_goes_on_where_it_was,
    what_was_to_stand_still_goes_on_when_nobody_waits_for_it,
    a_start_that_nobody_waits_for_starts_nothing,
    a_port_of_the_sandbox_is_reached_and_only_there,
    a_pinned_file_is_never_another_while_its_path_is_being_swapped,
    what_is_in_directories_is_listed_and_removed_beneath_the_root,
];

fn driven(sandbox: &dyn Sandbox) -> &dyn Driven {
    sandbox.driven().expect("containers can be driven")
}

fn opening(user: &str, script: &str, streams: Streams) -> Opening {
    Opening {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: BTreeMap::from([("TERM".to_owned(), "dumb".to_owned())]),
        cwd: "/workspace".into(),
        user: user.into(),
        streams,
        report: None,
    }
}

async fn piped(
    sandbox: &dyn Sandbox,
    user: &str,
    script: &str,
    declared: Option<OwnedFd>,
) -> (Opened, [File; 3]) {
    let (stdin_end, stdin) = std::io::pipe().unwrap();
    let (stdout, stdout_end) = std::io::pipe().unwrap();
    let (stderr, stderr_end) = std::io::pipe().unwrap();
    let streams = Streams::Pipes {
        stdin: Some(stdin_end.into()),
        stdout: stdout_end.into(),
        stderr: stderr_end.into(),
    };
    let opening = Opening { report: declared, ..opening(user, script, streams) };
    let opened = driven(sandbox).open(opening).await.expect("it starts");
    let file = |fd: OwnedFd| File::from(fd);
    (opened, [file(stdin.into()), file(stdout.into()), file(stderr.into())])
}

async fn text_of(mut from: File) -> String {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        // The last reader of a terminal gets EIO at its end.
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..read]);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    });
    read.await.unwrap()
}

async fn a_process_reads_what_it_is_sent_and_sees_its_end(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let (opened, [mut stdin, stdout, stderr]) =
        piped(&*sandbox, "rollout", "cat; echo end >&2; exit 3", None).await;
    assert!(opened.pid > 1, "{}", opened.pid);
    let sent = "x".repeat(200_000);
    let bytes = sent.clone();
    let writer = tokio::task::spawn_blocking(move || stdin.write_all(bytes.as_bytes()).unwrap());
    let (out, err) = tokio::join!(text_of(stdout), text_of(stderr));
    writer.await.unwrap();
    assert!(out == sent, "{} bytes came back", out.len());
    assert_eq!((err.as_str(), opened.process.wait().await.unwrap()), ("end\n", Exit::Code(3)));
    drop(opened);
    sandbox.destroy().await.unwrap();
}

async fn a_terminal_has_its_size_its_keys_and_its_owner(lab: Lab) {
    let sandbox = lab.sandbox().await;
    for user in ["rollout", "root"] {
        let script = "stty size; stat -c %U $(tty); [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; echo hi > /dev/tty; read x; trap 'stty size' WINCH; echo ready; until read x; do :; done; echo [$x]; trap 'echo int; exit 7' INT; echo again; while :; do sleep 0.01; done";
        let streams = Streams::Terminal { columns: 100, rows: 41 };
        let opened = driven(&*sandbox).open(opening(user, script, streams)).await.unwrap();
        let terminal = File::from(opened.terminal.expect("a terminal"));
        let mut keys = terminal.try_clone().unwrap();
        let resized = terminal.try_clone().unwrap();
        let shown = tokio::task::spawn_blocking(move || {
            let (mut shown, mut buffer, mut said) = (String::new(), [0; 4096], 0);
            let mut from = terminal;
            keys.write_all(b"first\r").unwrap();
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                shown.push_str(&String::from_utf8_lossy(&buffer[..read]));
                if said == 0 && shown.contains("ready") {
                    said = 1;
                    let size = libc::winsize { ws_row: 5, ws_col: 6, ws_xpixel: 0, ws_ypixel: 0 };
                    // SAFETY: the pointer is to a local that outlives the call.
                    let done = unsafe {
                        libc::ioctl(
                            std::os::fd::AsRawFd::as_raw_fd(&resized.as_fd()),
                            libc::TIOCSWINSZ,
                            &raw const size,
                        )
                    };
                    assert_eq!(done, 0);
                    keys.write_all(b"sent\r").unwrap();
                } else if said == 1 && shown.contains("again") {
                    said = 2;
                    keys.write_all(b"\x03").unwrap();
                }
            }
            shown
        });
        let exit = opened.process.wait().await.unwrap();
        opened.process.kill_tree().await.unwrap();
        let shown = shown.await.unwrap();
        assert_eq!(exit, Exit::Code(7), "{shown}");
        for words in
            ["41 100\r\n", &format!("{user}\r\n"), "all\r\nhi\r\n", "5 6\r\n", "[sent]\r\n", "int\r\n"]
        {
            assert!(shown.contains(words), "{user}: {words:?} in {shown:?}");
        }
    }
    // Nothing of the terminals is left for others.
    assert_eq!(said(&*sandbox, "ls /dev/pts").await, "ptmx");
    sandbox.destroy().await.unwrap();
}

async fn a_process_has_the_descriptors_that_were_declared_and_no_other(lab: Lab) {
    let sandbox = lab.sandbox().await;
    // No pipeline: the shell itself would hold one while it looks.
    let list = "ls -1 /proc/$$/fd; readlink /proc/$$/fd/3 >/tmp/$$; cut -c1-5 /tmp/$$";
    for user in ["rollout", "root"] {
        let (_opened, [_, stdout, _]) = piped(&*sandbox, user, list, None).await;
        assert_eq!(text_of(stdout).await, "0\n1\n2\n");
        let (report, report_end) = std::io::pipe().unwrap();
        let (_opened, [_, stdout, _]) =
            piped(&*sandbox, user, &format!("{list}; echo told >&3"), Some(report_end.into())).await;
        assert_eq!(text_of(stdout).await, "0\n1\n2\n3\npipe:\n");
        assert_eq!(text_of(OwnedFd::from(report).into()).await, "told\n");
        let streams = Streams::Terminal { columns: 80, rows: 24 };
        let opened = driven(&*sandbox).open(opening(user, list, streams)).await.unwrap();
        let shown = text_of(opened.terminal.unwrap().into()).await;
        assert_eq!(shown, "0\r\n1\r\n2\r\n");
    }
    sandbox.destroy().await.unwrap();
}

async fn a_killed_tree_is_gone_whole_and_its_neighbours_go_on(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let (neighbour, [_in, _out, _err]) = piped(&*sandbox, "rollout", "exec sleep 1001", None).await;
    let script = "trap '' TERM HUP INT; (setsid sh -c 'sleep 1002 & sleep 1002' &); (sleep 1002 & sleep 1002 &) & for i in 1 2 3 4 5; do sleep 1002 & done; while :; do sleep 0.05; done";
    let (opened, [_in2, _out2, _err2]) = piped(&*sandbox, "rollout", script, None).await;
    while said(&*sandbox, "pgrep -xc -f 'sleep 1002'; true").await.parse::<u32>().unwrap() < 9 {}
    opened.process.kill_tree().await.unwrap();
    assert_eq!(opened.process.wait().await.unwrap(), Exit::Signal(9));
    assert_eq!(said(&*sandbox, "pgrep -xc -f 'sleep 1002'; pgrep -xc -f 'sleep 1001'").await, "0\n1");
    opened.process.kill_tree().await.unwrap();
    neighbour.process.kill_tree().await.unwrap();
    assert_eq!(said(&*sandbox, "pgrep -xc -f 'sleep 1001'; true").await, "0");
    sandbox.destroy().await.unwrap();
}

async fn trees_that_were_left_behind_are_counted_and_swept(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let (opened, [_, stdout, _]) = piped(&*sandbox, "rollout", "sleep 1003 & echo $!", None).await;
    let pid = {
        assert_eq!(opened.process.wait().await.unwrap(), Exit::Code(0));
        let (mut first, mut stdout) = ([0; 16], stdout);
        let read = stdout.read(&mut first).unwrap();
        String::from_utf8_lossy(&first[..read]).trim().to_owned()
    };
    // What it left in the background goes on without it.
    drop(opened);
    said(&*sandbox, &format!("kill -0 {pid}")).await;
    for _ in 0..200 {
        let (opened, [_, stdout, _]) = piped(&*sandbox, "rollout", "echo hi", None).await;
        assert_eq!(text_of(stdout).await, "hi\n");
        opened.process.wait().await.unwrap();
    }
    said(&*sandbox, &format!("kill {pid}")).await;
    sandbox.destroy().await.unwrap();
}

async fn what_stands_still_goes_on_where_it_was(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let count = "i=0; while :; do i=$((i+1)); echo $i > n.new; mv n.new n; done";
    let (_process, _pipes) =
        start(&*sandbox, "rollout", "/workspace", &["sh", "-c", count], &[]).await.unwrap();
    let number = async || {
        loop {
            if let Some((mut file, _)) = sandbox.open_file("n").await.unwrap() {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                if let Ok(number) = text.trim().parse::<u64>() {
                    return number;
                }
            }
        }
    };
    number().await;
    let driven = driven(&*sandbox);
    for _ in 0..3 {
        driven.freeze(Duration::from_secs(30)).await.unwrap();
        let stopped = number().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(number().await, stopped, "nothing runs");
        driven.thaw().unwrap();
        while number().await == stopped {}
    }
    driven.freeze(Duration::from_secs(30)).await.unwrap();
    driven.reclaim().await.unwrap();
    // It ends while it stands still, too.
    sandbox.destroy().await.unwrap();
}

async fn what_was_to_stand_still_goes_on_when_nobody_waits_for_it(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let spin = "for i in 1 2 3 4; do (while :; do :; done) & done; wait";
    let (_process, _pipes) = start(&*sandbox, "rollout", "/", &["sh", "-c", spin], &[]).await.unwrap();
    let driven = driven(&*sandbox);
    let mut dropped = 0;
    while dropped < 3 {
        match tokio::time::timeout(Duration::ZERO, driven.freeze(Duration::from_secs(30))).await {
            Err(_) => dropped += 1,
            Ok(frozen) => {
                frozen.unwrap();
                driven.thaw().unwrap();
            }
        }
        let goes_on = tokio::time::timeout(Duration::from_secs(10), said(&*sandbox, "echo here")).await;
        assert_eq!(goes_on.as_deref(), Ok("here"));
    }
    sandbox.destroy().await.unwrap();
}

async fn a_start_that_nobody_waits_for_starts_nothing(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let driven = driven(&*sandbox);
    driven.freeze(Duration::from_secs(30)).await.unwrap();
    for _ in 0..5 {
        let (stdout, stdout_end) = std::io::pipe().unwrap();
        let streams = Streams::Pipes {
            stdin: None,
            stdout: stdout_end.try_clone().unwrap().into(),
            stderr: stdout_end.into(),
        };
        let starting = driven.open(opening("rollout", "touch ran; exec sleep 1004", streams));
        let started = tokio::time::timeout(Duration::from_millis(20), starting).await;
        assert!(started.is_err(), "what stands still answers: {started:?}");
        drop(stdout);
    }
    // What is given up is cleared away beside the caller.
    let own = executor::census::leaves(&lab.data_dir()).unwrap().into_iter();
    let own: Vec<_> = own.filter(|(name, _)| !name.starts_with("pool.")).map(|(_, leaf)| leaf).collect();
    let is_group = |entry: &std::fs::DirEntry| {
        entry.path().is_dir() && entry.file_name().to_string_lossy().starts_with('g')
    };
    while own.iter().any(|leaf| std::fs::read_dir(leaf).unwrap().flatten().any(|entry| is_group(&entry))) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    driven.thaw().unwrap();
    // Init answers in the order it was asked.
    assert_eq!(said(&*sandbox, "pgrep -xc -f 'sleep 1004'; ls").await, "0");
    // One that init has begun already ends, too.
    for wait_us in (0..2000).step_by(50) {
        let (_stdout, stdout_end) = std::io::pipe().unwrap();
        let streams = Streams::Pipes {
            stdin: None,
            stdout: stdout_end.try_clone().unwrap().into(),
            stderr: stdout_end.into(),
        };
        let opening = opening("rollout", "exec sleep 1004", streams);
        tokio::select! {
            started = driven.open(opening) => started.unwrap().process.kill_tree().await.unwrap(),
            () = tokio::time::sleep(Duration::from_micros(wait_us)) => {}
        }
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while said(&*sandbox, "pgrep -xc -f 'sleep 1004'; true").await != "0" {
        assert!(std::time::Instant::now() < deadline, "one is left");
    }
    sandbox.destroy().await.unwrap();
}

async fn a_port_of_the_sandbox_is_reached_and_only_there(lab: Lab) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (sandbox, other) = (lab.sandbox().await, lab.sandbox().await);
    let serve = r#"perl -MSocket -e 'for my $i (0,1) { my ($f,$a) = $i ? (PF_INET6, pack_sockaddr_in6(8081, Socket::inet_pton(PF_INET6,"::1"))) : (PF_INET, pack_sockaddr_in(8080, inet_aton("127.0.0.1"))); next if fork; socket(my $l, $f, SOCK_STREAM, 0) or die; bind($l, $a) or die $!; listen($l, 8); while (accept(my $c, $l)) { my $x = <$c>; print $c "you said $x"; close $c } }'"#;
    let (_process, _pipes) = start(&*sandbox, "rollout", "/", &["sh", "-c", serve], &[]).await.unwrap();
    for port in [8080, 8081] {
        let mut tries = 0;
        let mut connection = loop {
            match driven(&*sandbox).connect(port).await {
                Ok(connection) => break connection,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused),
            }
            tries += 1;
            assert!(tries < 3000, "nothing listens on {port}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        connection.write_all(b"hello\n").await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "you said hello\n");
        // The same number elsewhere is another port.
        let refused = driven(&*other).connect(port).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    let refused = driven(&*sandbox).connect(port).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "the host's own is not reached");
    for sandbox in [sandbox, other] {
        sandbox.destroy().await.unwrap();
    }
}

async fn a_pinned_file_is_never_another_while_its_path_is_being_swapped(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let swap = "cd /workspace; while :; do ln -sfn /etc/shadow p; rm -f p; mkfifo p; rm -f p; mkdir p; rmdir p; head -c 300000 /dev/zero | tr '\\0' a > p; head -c 300000 /dev/zero | tr '\\0' b > p; rm -f p; done";
    let (_swapper, _pipes) = start(&*sandbox, "rollout", "/", &["sh", "-c", swap], &[]).await.unwrap();
    let (mut whole, mut changed, mut none) = (0, 0, 0);
    while whole + changed + none < 2000 || changed == 0 || none == 0 {
        match driven(&*sandbox).open_pinned("p").await {
            Ok(None) | Err(FileError::NotAFile { .. } | FileError::Escapes { .. }) => none += 1,
            Ok(Some(mut pinned)) => {
                let mut bytes = Vec::new();
                pinned.file.read_to_end(&mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| matches!(byte, b'a' | b'b')), "bytes of another file");
                if pinned.version_now().unwrap() == pinned.entry.version {
                    whole += 1;
                    let is_mixed = bytes.contains(&b'a') && bytes.contains(&b'b');
                    assert!(
                        !is_mixed && bytes.len() as u64 == pinned.entry.size.0,
                        "a mix that shows as whole"
                    );
                } else {
                    changed += 1;
                }
            }
            Err(other) => panic!("{other}"),
        }
    }
    sandbox.destroy().await.unwrap();
}

async fn what_is_in_directories_is_listed_and_removed_beneath_the_root(lab: Lab) {
    let sandbox = lab.sandbox().await;
    said(&*sandbox, "mkdir -p d/e; echo 12 > d/f; ln -s /etc d/link; mkfifo d/p; chmod 640 d/f").await;
    let driven = driven(&*sandbox);
    let page = driven.list_page("d", "", 10).await.unwrap().unwrap();
    let kinds: Vec<_> = page.entries.iter().map(|entry| (entry.path.as_str(), entry.kind)).collect();
    let expected = [
        ("e", EntryKind::Directory),
        ("f", EntryKind::File),
        ("link", EntryKind::Symlink),
        ("p", EntryKind::Fifo),
    ];
    assert_eq!(kinds, expected);
    let file = driven.stat("/workspace/d/f").await.unwrap().unwrap();
    assert_eq!((file.size.0, file.mode, file.uid, file.gid), (3, 0o640, 1000, 1000));
    assert!(driven.stat("d/link/passwd").await.is_err());
    assert!(driven.remove("d/link/passwd").await.is_err());
    assert!(driven.remove("d").await.unwrap());
    assert!(!driven.remove("d").await.unwrap());
    assert_eq!(shell(&*sandbox, "ls -d d; ls /etc/passwd").await.stdout, "/etc/passwd\n");
    let missing = opening("nobody-here", "true", Streams::Terminal { columns: 1, rows: 1 });
    assert!(matches!(driven.open(missing).await, Err(SpawnError::UnknownUser { .. })));
    sandbox.destroy().await.unwrap();
}
