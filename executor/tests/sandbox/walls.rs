//! Each wall, tried from inside, as the agent's user and as root of the sandbox.

use executor::sandbox::Exit;

use crate::lab::{Lab, compiled, said, shell, shell_as};

crate::tests![
    proc_tells_nothing_of_the_host_and_takes_nothing,
    calls_that_reach_the_host_kernel_are_refused,
    a_process_sees_three_descriptors,
    root_of_the_sandbox_has_no_capability_and_cannot_touch_init,
    nothing_of_the_host_is_mounted_and_usr_is_read_only,
    the_network_is_a_loopback_and_no_abstract_socket_is_shared,
    no_device_can_be_made_and_dev_cannot_be_changed,
    files_of_one_sandbox_are_not_those_of_another,
];

async fn proc_tells_nothing_of_the_host_and_takes_nothing(lab: Lab) {
    let sandbox = lab.sandbox().await;
    for user in ["rollout", "root"] {
        for path in [
            "cmdline",
            "kcore",
            "kallsyms",
            "keys",
            "kmsg",
            "kpagecgroup",
            "kpagecount",
            "modules",
            "slabinfo",
            "interrupts",
            "timer_list",
            "sysrq-trigger",
            "sys/kernel/core_pattern",
            "1/environ",
            "1/mem",
            "1/maps",
        ] {
            let read = shell_as(&*sandbox, user, &format!("head -c 64 /proc/{path} | wc -c")).await;
            assert_eq!(read.stdout, "0\n", "{user} reads /proc/{path}");
        }
        for path in [
            "sysrq-trigger",
            "sys/kernel/core_pattern",
            "sys/kernel/hostname",
            "sys/kernel/shmmax",
            "sys/vm/drop_caches",
            "sys/net/ipv4/ip_forward",
            "sys/user/max_user_namespaces",
            "1/oom_score_adj",
        ] {
            let written = shell_as(&*sandbox, user, &format!("echo b > /proc/{path}")).await;
            assert_ne!(written.exit, Exit::Code(0), "{user} writes /proc/{path}: {written:?}");
        }
    }
    assert_eq!(said(&*sandbox, "cat /proc/self/cgroup | grep -c rollyard; true").await, "0");
    assert_eq!(said(&*sandbox, "ls /sys | wc -l").await, "0");
    // A process may read its own pagemap, 256 GiB of it: that ends too, at its own cost.
    let searched = shell(
        &*sandbox,
        "timeout 120 grep -r --exclude=pagemap nothing-has-this-text /proc /sys >/dev/null 2>&1; echo $?",
    )
    .await;
    assert_ne!(searched.stdout, "124\n", "grep -r over /proc ends");
    // Ordinary programs still find what they need.
    said(
        &*sandbox,
        "grep -q MemTotal /proc/meminfo && grep -q processor /proc/cpuinfo && cat /proc/uptime /proc/loadavg",
    )
    .await;
    sandbox.destroy().await.unwrap();
}

const CALLS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>
#define TRY(name, call) do { errno = 0; long r = (long)(call); printf("%s %d\n", name, r < 0 ? errno : 0); } while (0)
int main(void) {
  char zero[4096] = {0};
  TRY("mount", syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, 0));
  TRY("umount", syscall(SYS_umount2, "/proc", 2));
  TRY("pivot_root", syscall(SYS_pivot_root, "/tmp", "/tmp"));
  TRY("chroot", syscall(SYS_chroot, "/tmp"));
  TRY("unshare_user", syscall(SYS_unshare, CLONE_NEWUSER));
  TRY("unshare_net", syscall(SYS_unshare, CLONE_NEWNET));
  TRY("clone_user", syscall(SYS_clone, CLONE_NEWUSER | 17, 0, 0, 0, 0));
  TRY("clone3", syscall(SYS_clone3, zero, 88));
  TRY("setns", syscall(SYS_setns, open("/proc/self/ns/net", O_RDONLY), 0));
  TRY("mknod_block", mknod("/tmp/b", S_IFBLK | 0600, makedev(254, 0)));
  TRY("mknod_char", mknod("/tmp/c", S_IFCHR | 0600, makedev(1, 1)));
  TRY("mknod_whiteout", mknod("/tmp/w", S_IFCHR | 0600, 0));
  TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, AT_FDCWD, zero, 0));
  TRY("io_uring_setup", syscall(SYS_io_uring_setup, 1, zero));
  TRY("bpf", syscall(SYS_bpf, 0, zero, 64));
  TRY("perf_event_open", syscall(SYS_perf_event_open, zero, 0, -1, -1, 0));
  TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
  TRY("keyctl", syscall(SYS_keyctl, 0, 0, 0, 0, 0));
  TRY("add_key", syscall(SYS_add_key, "user", "k", "v", 1, -1));
  TRY("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
  TRY("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
  TRY("open_tree_attr", syscall(467, AT_FDCWD, "/", 1, 0, 0));
  TRY("file_setattr", syscall(469, AT_FDCWD, "/tmp", zero, 24, 0));
  TRY("init_module", syscall(SYS_init_module, zero, 1, ""));
  TRY("kexec_load", syscall(SYS_kexec_load, 0, 0, 0, 0));
  TRY("reboot", syscall(SYS_reboot, 0xfee1dead, 672274793, 0x89abcdef, 0));
  TRY("settimeofday", syscall(SYS_settimeofday, zero, 0));
  TRY("af_packet", socket(AF_PACKET, SOCK_RAW, 0));
  TRY("af_vsock", socket(40, SOCK_STREAM, 0));
  TRY("af_alg", socket(38, SOCK_SEQPACKET, 0));
  TRY("af_netlink_audit", socket(AF_NETLINK, SOCK_RAW, 9));
  int fd = open("/workspace/flags", O_CREAT | O_RDWR, 0600);
  int flags = 0x10;
  TRY("setflags", ioctl(fd, 0x40086602, &flags));
  TRY("fssetxattr", ioctl(fd, 0x401c5820, zero));
  TRY("swapext", ioctl(fd, 0xc0c0586d, zero));
  TRY("move_ext", ioctl(fd, 0xc028660f, zero));
  TRY("fitrim", ioctl(fd, 0xc0185879, zero));
  TRY("tiocsti", ioctl(0, 0x5412, "x"));
  TRY("tiocsti_high", ioctl(0, 0xdead000000005412ul, "x"));
  TRY("tioclinux", ioctl(0, 0x541c, "x"));
  printf("allowed\n");
  TRY("unix", socket(AF_UNIX, SOCK_STREAM, 0));
  TRY("inet", socket(AF_INET, SOCK_STREAM, 0));
  TRY("inet6", socket(AF_INET6, SOCK_DGRAM, 0));
  TRY("netlink_route", socket(AF_NETLINK, SOCK_RAW, 0));
  TRY("unshare_files", syscall(SYS_unshare, CLONE_FILES));
  int pid = fork();
  if (!pid) _exit(0);
  TRY("fork", pid);
  TRY("rename_across", (mkdir("/tmp/a", 0700), mkdir("/tmp/b2", 0700), rename("/tmp/a", "/tmp/b2/a")));
  return 0;
}
"#;

async fn calls_that_reach_the_host_kernel_are_refused(lab: Lab) {
    for user in ["rollout", "root"] {
        let sandbox = lab.sandbox().await;
        compiled(&lab, &*sandbox, "calls", CALLS).await;
        let output = shell_as(&*sandbox, user, "/workspace/calls; echo end").await;
        assert!(output.stdout.ends_with("end\n"), "{output:?}");
        let (refused, allowed) = output.stdout.split_once("allowed\n").unwrap();
        for line in refused.lines() {
            let (name, errno) = line.split_once(' ').unwrap();
            // mknod of a whiteout is refused by the overlay; Landlock answers EACCES.
            let expected: &[&str] = if name.starts_with("mknod") { &["1", "13"] } else { &["1", "38"] };
            assert!(expected.contains(&errno), "{user}: {line}");
        }
        assert_eq!(refused.lines().count(), 39);
        for line in allowed.lines().filter(|line| *line != "end") {
            assert!(line.ends_with(" 0"), "{user}: {line}");
        }
        sandbox.destroy().await.unwrap();
    }
    let sandbox = lab.sandbox().await;
    // A foreign architecture is killed, not refused.
    if cfg!(target_arch = "x86_64") {
        let foreign =
            r#"int main(void) { long r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20)); return 0; }"#;
        compiled(&lab, &*sandbox, "foreign", foreign).await;
        assert_eq!(shell(&*sandbox, "/workspace/foreign; echo $?").await.stdout, "159\n", "128 + SIGSYS");
    }
    sandbox.destroy().await.unwrap();
}

async fn a_process_sees_three_descriptors(lab: Lab) {
    let sandbox = lab.sandbox().await;
    for user in ["rollout", "root"] {
        // The shell globs by a descriptor of its own, which is closed before echo lists it.
        let listed = shell_as(&*sandbox, user, "ls /proc/$$/fd").await;
        assert_eq!(listed.stdout, "0\n1\n2\n");
    }
    assert_eq!(said(&*sandbox, "readlink /proc/$$/fd/0").await, "/dev/null");
    sandbox.destroy().await.unwrap();
}

async fn root_of_the_sandbox_has_no_capability_and_cannot_touch_init(lab: Lab) {
    let sandbox = lab.sandbox().await;
    for user in ["rollout", "root"] {
        let status =
            shell_as(&*sandbox, user, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status").await;
        for line in status.stdout.lines() {
            let (name, value) = line.split_once(':').unwrap();
            let expected = match name {
                "NoNewPrivs" => 1,
                "Seccomp" => 2,
                _ => 0,
            };
            assert_eq!(u64::from_str_radix(value.trim(), 16).unwrap(), expected, "{user}: {line}");
        }
    }
    let touched = shell_as(
        &*sandbox,
        "root",
        "kill -9 1; ls /proc/1/fd; readlink /proc/1/exe; cat /proc/1/cmdline; true",
    )
    .await;
    assert_eq!(touched.stdout, "", "{touched:?}");
    said(&*sandbox, "true").await;
    sandbox.destroy().await.unwrap();
}

async fn nothing_of_the_host_is_mounted_and_usr_is_read_only(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let points = said(&*sandbox, "cut -d' ' -f2 /proc/self/mounts | grep -v ^/proc/ | sort").await;
    assert_eq!(points, "/\n/dev\n/dev/pts\n/dev/shm\n/proc\n/usr");
    assert_eq!(
        said(&*sandbox, "ls /").await.split_whitespace().filter(|e| *e == "old_root" || *e == "boot").count(),
        0
    );
    for user in ["rollout", "root"] {
        for path in ["/usr/bin/env", "/bin/bash", "/usr/x"] {
            let written = shell_as(&*sandbox, user, &format!("echo x > {path}")).await;
            assert_ne!(written.exit, Exit::Code(0), "{user} {path}");
        }
    }
    let own =
        shell_as(&*sandbox, "root", "echo x > /etc/passwd && rm /etc/hosts && mkdir /newdir && echo ok")
            .await;
    assert_eq!(own.stdout, "ok\n", "the rest of the root is the sandbox's own");
    assert_eq!(said(&*sandbox, "stat -c %u /usr/bin/env /etc").await, "0\n0", "shifted owners");
    assert_eq!(said(&*sandbox, "touch /tmp/a /var/tmp/a /dev/shm/a /workspace/a && echo ok").await, "ok");
    sandbox.destroy().await.unwrap();
}

async fn the_network_is_a_loopback_and_no_abstract_socket_is_shared(lab: Lab) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let address = SocketAddr::from_abstract_name(b"rollyard-test-host").unwrap();
    let _host = UnixListener::bind_addr(&address).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    tcp.set_nonblocking(true).unwrap();
    let sandbox = lab.sandbox().await;
    assert_eq!(said(&*sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo");
    assert_eq!(said(&*sandbox, "tail -n +2 /proc/net/unix | wc -l").await, "0");
    let script = format!(
        r#"perl -MSocket -e 'socket(my $s, PF_INET, SOCK_STREAM, 0); print connect($s, sockaddr_in({port}, inet_aton("127.0.0.1"))) ? "in" : $!+0; socket(my $u, PF_UNIX, SOCK_STREAM, 0); print " ", connect($u, pack("S a*", 1, "\0rollyard-test-host")) ? "in" : $!+0'"#
    );
    assert_eq!(said(&*sandbox, &script).await, "111 111", "ECONNREFUSED");
    assert!(tcp.accept().is_err(), "the host's listener saw nothing");
    let own = r#"perl -MSocket -e 'socket(my $l, PF_INET, SOCK_STREAM, 0); bind($l, sockaddr_in(8080, inet_aton("127.0.0.1"))); listen($l, 1); socket(my $s, PF_INET, SOCK_STREAM, 0); print connect($s, sockaddr_in(8080, inet_aton("127.0.0.1"))) ? "in" : $!+0'"#;
    assert_eq!(said(&*sandbox, own).await, "in", "the sandbox's own loopback works");
    sandbox.destroy().await.unwrap();
}

async fn no_device_can_be_made_and_dev_cannot_be_changed(lab: Lab) {
    let sandbox = lab.sandbox().await;
    assert_eq!(
        said(&*sandbox, "ls /dev | tr '\\n' ' '").await,
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    );
    assert_eq!(
        said(&*sandbox, "echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c")
            .await,
        "4\n4"
    );
    let changed = shell_as(&*sandbox, "root", "rm /dev/null; chmod 0 /dev/null; mknod /dev/x c 1 1; touch /dev/y; ls /dev | wc -l; echo x > /dev/null && echo ok").await;
    assert_eq!(changed.stdout, "13\nok\n");
    let terminal = said(&*sandbox, "script -qec 'tty; echo hi' /dev/null < /dev/null | tr -d '\\r'").await;
    assert!(terminal.contains("/dev/pts/0") && terminal.contains("hi"), "{terminal}");
    sandbox.destroy().await.unwrap();
}

async fn files_of_one_sandbox_are_not_those_of_another(lab: Lab) {
    let (one, two) = (lab.sandbox().await, lab.sandbox().await);
    for place in ["/tmp", "/workspace", "/dev/shm", "/var/tmp"] {
        said(&*one, &format!("echo one > {place}/mark")).await;
        assert_eq!(shell(&*two, &format!("cat {place}/mark")).await.exit, Exit::Code(1), "{place}");
    }
    let ipc = "ipcmk -M 4096 >/dev/null; ipcs -m | grep -c 0x";
    assert_eq!(said(&*one, ipc).await, "1");
    assert_eq!(said(&*two, ipc).await, "1");
    // No pipeline: how many of its parts have run exec by then is chance.
    let seen = said(&*one, "ps -e -o comm= > list; sort -u list").await;
    assert_eq!(seen, "ps\nsh", "only what runs in it");
    one.destroy().await.unwrap();
    assert_eq!(said(&*two, "echo ok").await, "ok");
    two.destroy().await.unwrap();
}
