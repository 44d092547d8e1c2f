//! Persistent shells.

use rollout_wire::v1;

use crate::driver::{Driven, Lab, in_shell};

crate::sessions![
    what_a_command_changes_in_its_shell_stays,
    a_command_has_its_own_bytes_and_no_other,
    a_shell_that_ends_is_begun_anew,
    a_command_past_its_deadline_takes_the_whole_shell,
    shells_do_not_see_each_other,
    many_commands_take_no_memory,
];

async fn run(sandbox: &Driven, id: &str, text: &str) -> v1::ActResult {
    sandbox.done(id, in_shell("main", text, None)).await
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

async fn what_a_command_changes_in_its_shell_stays(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let first = run(&sandbox, "1", "cd /tmp; export A='x y'; B=2; f() { echo \"f $1 $B\"; return 7; }").await;
    assert_eq!((first.exit_code, first.stdout.len()), (Some(0), 0), "{first:?}");
    let second = run(&sandbox, "2", "pwd; sh -c 'echo $A'; f 'a b'").await;
    assert_eq!((second.exit_code, text(&second.stdout)), (Some(7), "/tmp\nx y\nf a b 2\n"));
    let third = run(&sandbox, "3", "echo $?; false").await;
    assert_eq!(third.exit_code, Some(1));
    // By a command of several lines, with every kind of quote, and input that is no command.
    let lines = "cat <<'E'\nit's \"$HOME\" \\\nE\nread x; echo \"[$x]\"; ls /proc/$$/fd | grep -c '^3$'\nprintf 'no end'";
    let fourth = run(&sandbox, "4", lines).await;
    assert_eq!(text(&fourth.stdout), "it's \"$HOME\" \\\n[]\n0\nno end", "{fourth:?}");
    lab.finish(&sandbox).await;
}

/// Whether 32 hex digits stand in a row.
fn has_number(bytes: &[u8]) -> bool {
    bytes.split(|byte| !byte.is_ascii_hexdigit()).any(|run| run.len() >= 32)
}

async fn a_command_has_its_own_bytes_and_no_other(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    for (id, script, out, err) in [
        ("1", "printf a; printf b >&2", "a", "b"),
        ("2", "set -x; : traced", "", "+ : traced"),
        ("3", "echo still traced; set +x", "still traced\n", "+ echo still traced"),
        ("4", "printf() { echo mine; }; echo d", "d\n", ""),
        ("5", "printf x; unset -f printf; printf e", "mine\ne", ""),
        ("6", "exec 2>&1; echo f >&2", "f\n", ""),
    ] {
        let result = run(&sandbox, id, script).await;
        assert_eq!((text(&result.stdout), result.exit_code), (out, Some(0)), "{script}: {result:?}");
        assert!(text(&result.stderr).contains(err), "{script}: {result:?}");
        assert!(!err.is_empty() || result.stderr.is_empty(), "{script}: {result:?}");
        // A traced shell shows how its command is run, and not the number that ends it.
        assert!(!has_number(&result.stdout) && !has_number(&result.stderr), "{script}: {result:?}");
    }
    // More than a pipe holds, to its last byte; and what is past the cap is counted.
    let much = run(&sandbox, "much", "head -c 700000 /dev/zero | tr '\\0' z; echo end").await;
    assert_eq!((much.stdout.len(), much.stdout_bytes), (700_004, 700_004));
    let flood = run(&sandbox, "flood", "yes | head -c 5000000").await;
    assert_eq!((flood.stdout.len(), flood.stdout_bytes, flood.capture_truncated), (1 << 20, 5_000_000, true));
    let after = run(&sandbox, "after", "echo after").await;
    assert_eq!(text(&after.stdout), "after\n");
    lab.finish(&sandbox).await;
}

async fn a_shell_that_ends_is_begun_anew(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    for (id, script, exit_code, signal) in
        [("exit", "A=1; echo bye; exit 5", Some(5), None), ("kill", "echo bye; kill -9 $$", None, Some(9))]
    {
        let ended = run(&sandbox, id, script).await;
        assert_eq!((ended.exit_code, ended.signal), (exit_code, signal), "{ended:?}");
        assert_eq!(text(&ended.stdout), "bye\n");
        let next = run(&sandbox, &format!("{id}.next"), "echo [$A]").await;
        assert_eq!(text(&next.stdout), "[]\n");
    }
    // What is no command ends nothing.
    let broken = run(&sandbox, "syntax", "if then ( '").await;
    assert!(broken.exit_code.is_some_and(|code| code != 0) && !broken.stderr.is_empty(), "{broken:?}");
    let replaced = run(&sandbox, "exec", "exec sh -c 'echo replaced; exit 4'").await;
    assert_eq!((text(&replaced.stdout), replaced.exit_code), ("replaced\n", Some(4)));
    let forged =
        "for fd in /proc/$$/fd/*; do echo 'not the number 0' > $fd; done 2>/dev/null; echo real; exit 3";
    let result = run(&sandbox, "forged", forged).await;
    assert_eq!(result.exit_code, Some(3), "{result:?}");
    lab.finish(&sandbox).await;
}

async fn a_command_past_its_deadline_takes_the_whole_shell(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    run(&sandbox, "1", "A=1; setsid sleep 1005 & sleep 1005 &").await;
    let other = in_shell("other", "sleep 1006 & echo begun", None);
    assert_eq!(text(&sandbox.done("o", other).await.stdout), "begun\n");
    let late = sandbox.done("2", in_shell("main", "echo begun; sleep 1005", Some(300))).await;
    assert!(late.timed_out && text(&late.stdout) == "begun\n", "{late:?}");
    let left = "pgrep -xc -f 'sleep 1005'; pgrep -xc -f 'sleep 1006'";
    assert_eq!(sandbox.said("left", left).await, "0\n1", "and nothing of the other shell");
    assert_eq!(text(&run(&sandbox, "3", "echo [$A]").await.stdout), "[]\n");
    lab.finish(&sandbox).await;
}

async fn shells_do_not_see_each_other(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let calls: Vec<_> = (0..8)
        .map(|n| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move {
                let name = format!("s{n}");
                for turn in 0..5 {
                    let text = format!("N=$((N+1)); echo {n} $N");
                    let result = sandbox.done(&format!("{n}.{turn}"), in_shell(&name, &text, None)).await;
                    assert_eq!(result.stdout, format!("{n} {}\n", turn + 1).into_bytes());
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    for n in 8..16 {
        sandbox.done(&format!("{n}"), in_shell(&format!("s{n}"), "true", None)).await;
    }
    let refused = sandbox.done("full", in_shell("one-more", "true", None)).await;
    assert_eq!(refused.code, "too_many_calls");
    assert!(refused.message.contains("SHELLS_MAX"), "{}", refused.message);
    lab.finish(&sandbox).await;
}

/// `ROLLYARD_SHELL_COMMANDS`: how many; 10,000 outside of CI.
async fn many_commands_take_no_memory(lab: &mut Lab) {
    let commands: u32 =
        std::env::var("ROLLYARD_SHELL_COMMANDS").ok().map_or(500, |text| text.parse().unwrap());
    let sandbox = lab.sandbox().await;
    let resident = || -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let shell_resident = async |id: &str| -> u64 {
        let own = run(&sandbox, id, "echo $$").await;
        let pid = text(&own.stdout).trim().to_owned();
        let rss =
            sandbox.said(&format!("{id}.rss"), &format!("grep VmRSS /proc/{pid}/status | tr -dc 0-9")).await;
        rss.parse::<u64>().unwrap() * 1024
    };
    let mut before = None;
    for n in 0..commands {
        let result = run(&sandbox, &format!("c{n}"), "N=$((N+1)); echo $N; echo err >&2").await;
        assert_eq!(result.stdout, format!("{}\n", n + 1).into_bytes());
        assert_eq!(result.stderr, b"err\n");
        if n == commands / 5 {
            before = Some((resident(), shell_resident("before").await));
        }
    }
    let (own, shells) = before.unwrap();
    let (own_now, shells_now) = (resident(), shell_resident("after").await);
    eprintln!("{commands} commands: executor {own} -> {own_now}, shell {shells} -> {shells_now} bytes");
    assert!(own_now < own + (16 << 20), "executor: {own} -> {own_now}");
    assert!(shells_now < shells + (4 << 20), "shell: {shells} -> {shells_now}");
    lab.finish(&sandbox).await;
}
