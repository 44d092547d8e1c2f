//! Case 1: what /proc and /sys show, and what they take.

use std::io::Read;

use executor::sandbox::Exit;

use crate::lab::{Done, Lab, said, shell_as, stays};

crate::cases![
    "01" proc_tells_nothing_of_the_host_and_takes_nothing,
    "01" a_search_through_proc_and_sys_ends,
    "01" pagemap_tells_no_frame_of_the_machine,
];

const SECRET: [&str; 18] = [
    "cmdline",
    "kcore",
    "kallsyms",
    "keys",
    "key-users",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "modules",
    "slabinfo",
    "interrupts",
    "timer_list",
    "sched_debug",
    "vmallocinfo",
    "pagetypeinfo",
    "sysrq-trigger",
    "sys/kernel/core_pattern",
];
const WRITTEN: [&str; 14] = [
    "sysrq-trigger",
    "sys/kernel/core_pattern",
    "sys/kernel/hostname",
    "sys/kernel/shmmax",
    "sys/kernel/modprobe",
    "sys/kernel/randomize_va_space",
    "sys/vm/drop_caches",
    "sys/vm/overcommit_memory",
    "sys/net/ipv4/ip_forward",
    "sys/fs/file-max",
    "sys/user/max_user_namespaces",
    "1/oom_score_adj",
    "1/environ",
    "irq/default_smp_affinity",
];

async fn proc_tells_nothing_of_the_host_and_takes_nothing(lab: &Lab) -> Done {
    let sandbox = lab.sandbox().await;
    let (init, _) = lab.processes(&sandbox);
    let settings = || {
        WRITTEN.map(|path| match std::fs::read_to_string(format!("/proc/{path}")) {
            Ok(text) if !path.starts_with('1') => text,
            _ => String::new(),
        })
    };
    let before = settings();
    for user in ["rollout", "root"] {
        for path in SECRET.iter().chain(&["1/environ", "1/mem", "1/maps", "1/cmdline", "1/exe", "1/root/etc"])
        {
            let read =
                shell_as(&sandbox, user, &format!("head -c 64 /proc/{path} 2>/dev/null | wc -c")).await;
            assert_eq!(read.stdout, "0\n", "{user} reads /proc/{path}");
        }
        for path in WRITTEN {
            let written = shell_as(&sandbox, user, &format!("echo 1 > /proc/{path}")).await;
            assert_ne!(written.exit, Exit::Code(0), "{user} writes /proc/{path}: {written:?}");
        }
    }
    assert_eq!(settings(), before, "the host's own settings");
    // From the host, with every right: what the sandbox's mounts show there is empty.
    let shown = |path: &str| {
        let mut bytes = Vec::new();
        match std::fs::File::open(format!("/proc/{init}/root/proc/{path}")) {
            Ok(file) => file.take(64).read_to_end(&mut bytes).map(|_| bytes.len()).unwrap_or(0),
            Err(_) => 0,
        }
    };
    for path in SECRET {
        assert_eq!(shown(path), 0, "/proc/{path} through the sandbox's own mounts");
    }
    assert_eq!(std::fs::read(format!("/proc/{init}/environ")).unwrap(), b"", "init's environment");
    assert_eq!(std::fs::read_dir(format!("/proc/{init}/root/sys")).unwrap().count(), 0);
    // Honest use.
    assert!(shown("meminfo") > 0, "an unmasked file through the same mounts");
    let honest = "grep -c MemTotal /proc/meminfo; echo 500 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj; cat /proc/uptime /proc/loadavg /proc/cpuinfo /proc/self/environ > /dev/null && echo ok";
    assert_eq!(said(&sandbox, honest).await, "1\n500\nok");
    sandbox.end().await;
    Ok(())
}

/// Of pagemap, which is 256 GiB of the reader's own address space, the beginning is searched: a
/// reader pays for the rest with its own processor time, and ends when it is killed.
async fn a_search_through_proc_and_sys_ends(lab: &Lab) -> Done {
    let sandbox = lab.sandbox().await;
    for user in ["rollout", "root"] {
        let script = "grep -r --exclude=pagemap x /proc /sys > found 2>/dev/null; wc -c < found";
        let searched = shell_as(&sandbox, user, &format!("cd /tmp; {script}")).await;
        let found: u64 = searched.stdout.trim().parse().expect("it ends and says how much it found");
        assert!(found > 0, "it has searched: {searched:?}");
        assert_eq!(shell_as(&sandbox, user, "rm /tmp/found").await.exit, Exit::Code(0));
        let script = "find /proc -name pagemap -exec head -c 1048576 {} ';' 2> /dev/null | wc -c";
        let searched = shell_as(&sandbox, user, script).await;
        let read: u64 = searched.stdout.trim().parse().expect("it ends and says how much it read");
        assert!(read >= 1 << 20, "its own at least: {searched:?}");
        let (endless, _) =
            stays(&sandbox, user, &["/bin/sh", "-c", "echo there; exec grep -c x /proc/self/pagemap"]).await;
        endless.process.signal(libc::SIGKILL).await.unwrap();
        assert_eq!(endless.process.wait().await.unwrap(), Exit::Signal(libc::SIGKILL), "{user}");
    }
    sandbox.end().await;
    Ok(())
}

/// The entry of the first page that the reader has mapped: present, and without its frame.
const OWN_PAGE: &str = r#"perl -e '
    open(my $maps, "<", "/proc/self/maps") or die "maps: $!"; my ($start) = <$maps> =~ /^([0-9a-f]+)-/;
    open(my $pages, "<:raw", "/proc/self/pagemap") or die "pagemap: $!";
    seek($pages, hex($start) / 4096 * 8, 0) or die "seek: $!"; read($pages, my $entry, 8) == 8 or die "read: $!";
    my $value = unpack("Q", $entry); printf "%d %d\n", $value >> 63, $value & ((1 << 55) - 1);'"#;

async fn pagemap_tells_no_frame_of_the_machine(lab: &Lab) -> Done {
    let sandbox = lab.sandbox().await;
    for user in ["rollout", "root"] {
        let output = shell_as(&sandbox, user, OWN_PAGE).await;
        assert_eq!(output.stdout, "1 0\n", "{user}: {output:?}");
    }
    // The same program with the machine's own rights: the frame is there to be told.
    let outside = std::process::Command::new("/bin/sh").args(["-c", OWN_PAGE]).output().unwrap();
    let told = String::from_utf8_lossy(&outside.stdout).into_owned();
    assert!(told.starts_with("1 ") && told != "1 0\n", "{outside:?}");
    sandbox.end().await;
    Ok(())
}
