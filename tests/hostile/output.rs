//! Case 11: output without end, without lines, without sense, and given away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::lab::{Done, MIB};
use crate::yard::{Row, Yard};

crate::yard_cases![
    "11" floods_are_capped_and_counted_while_the_executor_stays_small,
    "11" bytes_that_are_no_text_and_a_closed_output_make_valid_rows,
    "11" output_hidden_in_a_socket_does_not_hold_the_end,
];

/// Captured per stream and step.
const CAP: u64 = 8 * MIB;
/// How much this process, scheduler and executor together, may grow over a flood.
const GROWTH_MAX: u64 = 64 * MIB;

pub fn job(command: &str) -> String {
    format!(
        r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: output
tasks: {{from: {{inline: [{{n: "1"}}]}}}}
group: {{size: 1}}
defaults: {{image: host, timeout: 120s, resources: {{memory: 128Mi, disk: 16Mi, pids: 64}}}}
steps:
  - name: work
    agent: {{command: [sh, -c, {}]}}
"#,
        serde_json::to_string(command).unwrap()
    )
}

/// The digest of what a step wrote.
fn stdout(step: &Row) -> &str {
    step["stdout_artifact"].strip_prefix("sha256:").expect("a digest")
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

async fn floods_are_capped_and_counted_while_the_executor_stays_small(yard: &Yard) -> Done {
    for (script, written) in [
        // Lines, and one line of 1 GiB without an end.
        ("yes | head -c 4294967296", 4u64 << 30),
        ("head -c 1073741824 /dev/zero | tr '\\0' a", 1 << 30),
    ] {
        let (before, over) = (resident(), Arc::new(AtomicBool::new(false)));
        let watch = over.clone();
        let watcher = tokio::task::spawn_blocking(move || {
            let mut most = 0;
            while !watch.load(Ordering::Relaxed) {
                most = most.max(resident());
                std::thread::sleep(Duration::from_millis(5));
            }
            most
        });
        let rows = yard.run(&job(script)).await;
        over.store(true, Ordering::Relaxed);
        let most = watcher.await.unwrap();
        assert!(most < before + GROWTH_MAX, "{script}: {} MiB more", (most - before) / MIB);
        let step = rows.step("work");
        assert_eq!(step["exit_code"], "0", "{script}: {step:?}");
        assert_eq!(step["capture_truncated"], "true", "{script}: {step:?}");
        assert_eq!(rows.stdout_written, written, "{script}: {step:?}");
        assert_eq!(yard.blob(stdout(step)).await.len() as u64, CAP, "{script}");
    }
    // The twin: what fits is whole.
    let rows = yard.run(&job("yes | head -c 1000000")).await;
    let step = rows.step("work");
    assert_eq!((step["capture_truncated"].as_str(), rows.stdout_written), ("false", 1_000_000));
    Ok(())
}

async fn bytes_that_are_no_text_and_a_closed_output_make_valid_rows(yard: &Yard) -> Done {
    let script = "printf '\\377\\376\\033[2J\\000\\r\\n\\033]0;x\\007'; printf 'e\\200' >&2; exec >&- 2>&-; echo lost; exit 3";
    let rows = yard.run(&job(script)).await;
    let step = rows.step("work");
    assert_eq!(step["exit_code"], "3", "{step:?}");
    assert_eq!(yard.blob(stdout(step)).await, b"\xff\xfe\x1b[2J\0\r\n\x1b]0;x\x07");
    assert_eq!(rows.verdict().1, Some("agent_exit"));
    for row in rows.trajectories.iter().chain(&rows.steps) {
        for (column, text) in row {
            let unsafe_char = text.chars().find(|c| c.is_control() && *c != '\n');
            assert_eq!(unsafe_char, None, "{column}: {text:?}");
        }
    }
    Ok(())
}

/// A descriptor of its own standard output in the queue of a socket that is itself in its queue:
/// the kernel's collector has to find it.
async fn output_hidden_in_a_socket_does_not_hold_the_end(yard: &Yard) -> Done {
    let script = r#"perl -MSocket -e '
        require "sys/syscall.ph" if 0;
        socketpair(my $a, my $b, AF_UNIX, SOCK_DGRAM, 0);
        my $send = sub { my ($to, @fds) = @_; my $data = "x"; my $iov = pack("PQ", $data, 1);
            my $control = pack("QII", 16 + 4 * @fds, 1, 1) . pack("i*", @fds); $control .= "\0" x (-length($control) % 8);
            my $m = pack("QQPQPQQ", 0, 0, $iov, 1, $control, length $control, 0);
            syscall(46, fileno($to), $m, 0) >= 0 or die "sendmsg $!"; };
        $send->($a, 1, 2, fileno($a), fileno($b)); $send->($b, 1, 2, fileno($a), fileno($b));
        print "sent\n";'; (setsid sleep 1000 &); echo done"#;
    let rows = yard.run(&job(script)).await;
    let step = rows.step("work");
    assert_eq!((step["exit_code"].as_str(), rows.verdict().1), ("0", None), "{rows:?}");
    assert_eq!(yard.blob(stdout(step)).await, b"sent\ndone\n");
    Ok(())
}
