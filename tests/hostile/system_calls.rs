//! Case 2: calls that reach the host's kernel, and calls that reach init.

use executor::sandbox::Exit;
use tests::census::{descriptors, namespace, status};

use crate::lab::{Done, Lab, said, shell, shell_as, stays};

crate::cases![
    "02" calls_that_reach_the_host_kernel_are_refused,
    "02" a_foreign_architecture_is_killed_and_an_x32_call_is_absent,
    "02" nothing_inside_can_touch_init,
    "02" what_honest_programs_call_is_allowed,
];

const CALLS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#define TRY(name, call) do { errno = 0; long r = (long)(call); printf("%s %d\n", name, r < 0 ? errno : 0); } while (0)
int main(void) {
  static char zero[4096];
  unsigned params[30] = {0};
  char *ns[] = {"mnt", "net", "user", "pid", "ipc", "uts", "cgroup", "time"};
  char path[64];
  TRY("mount", syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, 0));
  TRY("mount_bind", syscall(SYS_mount, "/", "/tmp", 0, 4096, 0));
  TRY("mount_remount", syscall(SYS_mount, 0, "/usr", 0, 32, 0));
  TRY("umount", syscall(SYS_umount2, "/proc", 2));
  TRY("pivot_root", syscall(SYS_pivot_root, "/tmp", "/tmp"));
  TRY("chroot", syscall(SYS_chroot, "/tmp"));
  TRY("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
  TRY("fspick", syscall(SYS_fspick, -100, "/", 0));
  TRY("open_tree", syscall(SYS_open_tree, -100, "/", 1));
  TRY("open_tree_attr", syscall(467, -100, "/", 1, 0, 0));
  TRY("move_mount", syscall(SYS_move_mount, -100, "/proc", -100, "/tmp", 0));
  TRY("mount_setattr", syscall(SYS_mount_setattr, -100, "/usr", 0, zero, 32));
  for (int bit = 7; bit < 31; bit++)
    if (bit == 7 || bit == 17 || bit >= 25) { sprintf(path, "unshare_%d", bit); TRY(path, syscall(SYS_unshare, 1u << bit)); }
  for (int bit = 25; bit < 31; bit++) { sprintf(path, "clone_%d", bit); TRY(path, syscall(SYS_clone, (1u << bit) | 17, 0, 0, 0, 0)); }
  for (int i = 0; i < 8; i++) {
    sprintf(path, "/proc/self/ns/%s", ns[i]);
    int fd = open(path, O_RDONLY);
    TRY("setns_self", syscall(SYS_setns, fd, 0));
    close(fd);
    sprintf(path, "/proc/1/ns/%s", ns[i]);
    TRY("setns_init", (fd = open(path, O_RDONLY)) < 0 ? -1 : syscall(SYS_setns, fd, 0));
  }
  int pidfd = syscall(SYS_pidfd_open, 1, 0);
  TRY("setns_pidfd", syscall(SYS_setns, pidfd, 0x20000));
  close(pidfd);
  TRY("clone3", syscall(SYS_clone3, zero, 88));
  TRY("mknod_block", mknod("/tmp/b", S_IFBLK | 0600, makedev(254, 0)));
  TRY("mknod_char", mknod("/tmp/c", S_IFCHR | 0600, makedev(1, 1)));
  TRY("mknod_whiteout", mknod("/tmp/w", S_IFCHR | 0600, 0));
  TRY("name_to_handle_at", syscall(SYS_name_to_handle_at, -100, "/", zero, zero + 64, 0));
  TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, -100, zero, 0));
  TRY("io_uring_setup", syscall(SYS_io_uring_setup, 1, params));
  TRY("io_uring_enter", syscall(SYS_io_uring_enter, 0, 1, 0, 0, 0, 0));
  TRY("io_uring_register", syscall(SYS_io_uring_register, -1, 0, zero, 0));
  TRY("bpf_map", syscall(SYS_bpf, 0, zero, 64));
  TRY("bpf_prog", syscall(SYS_bpf, 5, zero, 64));
  TRY("perf_event_open", syscall(SYS_perf_event_open, zero, 0, -1, -1, 0));
  TRY("userfaultfd", syscall(SYS_userfaultfd, 1));
  TRY("keyctl", syscall(SYS_keyctl, 0, 0, 0, 0, 0));
  TRY("add_key", syscall(SYS_add_key, "user", "k", "v", 1, -3));
  TRY("request_key", syscall(SYS_request_key, "user", "k", 0, 0));
  TRY("fanotify_init", syscall(SYS_fanotify_init, 0, 0));
  TRY("init_module", syscall(SYS_init_module, zero, 1, ""));
  TRY("finit_module", syscall(SYS_finit_module, 0, "", 0));
  TRY("kexec_load", syscall(SYS_kexec_load, 0, 0, 0, 0));
  TRY("reboot", syscall(SYS_reboot, 0xfee1dead, 672274793, 0x89abcdef, 0));
  TRY("swapon", syscall(SYS_swapon, "/tmp/x", 0));
  TRY("syslog", syscall(SYS_syslog, 3, zero, 4096));
  TRY("acct", syscall(SYS_acct, "/tmp/x"));
  TRY("settimeofday", syscall(SYS_settimeofday, zero, 0));
  TRY("sethostname", syscall(SYS_sethostname, "h", 1));
  TRY("setuid_bits", syscall(SYS_setresuid, 65534, 65534, 65534));
  TRY("file_setattr", syscall(469, -100, "/tmp", zero, 24, 0));
  TRY("af_packet", socket(17, SOCK_RAW, 0));
  TRY("af_vsock", socket(40, SOCK_STREAM, 0));
  TRY("af_alg", socket(38, SOCK_SEQPACKET, 0));
  TRY("af_xdp", socket(44, SOCK_RAW, 0));
  TRY("af_bluetooth", socket(31, SOCK_RAW, 0));
  TRY("raw_ip", socket(2, SOCK_RAW, 1));
  TRY("raw_ip6", socket(10, SOCK_RAW, 58));
  for (int p = 1; p < 22; p++) { sprintf(path, "netlink_%d", p); TRY(path, socket(16, SOCK_RAW, p)); }
  TRY("socketpair_alg", socketpair(38, SOCK_SEQPACKET, 0, params));
  printf("there\n");
  fflush(stdout);
  pause();
}
"#;

/// Each attempt keeps what it got, so the host sees in the end whether anything came of it.
async fn calls_that_reach_the_host_kernel_are_refused(lab: &Lab) -> Done {
    for user in ["rollout", "root"] {
        let sandbox = lab.sandbox().await;
        lab.program(&sandbox, "calls", CALLS).await;
        let (init, _) = lab.processes(&sandbox);
        let mounts = std::fs::read_to_string(format!("/proc/{init}/mountinfo")).unwrap();
        let (_held, lines) = stays(&sandbox, user, &["/workspace/calls"]).await;
        assert!(lines.len() > 90, "{} attempts", lines.len());
        for line in &lines {
            let (name, errno) = line.split_once(' ').unwrap();
            // Landlock answers EACCES to mknod, hidden /proc files are absent, and who is no root
            // may not set its user ids.
            let expected: &[&str] = match name {
                "mknod_block" | "mknod_char" | "mknod_whiteout" => &["1", "13"],
                "setns_init" => &["1", "2", "13"],
                _ => &["1", "38"],
            };
            assert!(expected.contains(&errno), "{user}: {line}");
        }
        // From the host: three descriptors, no new namespace, no capability, no new mount.
        let (_, processes) = lab.processes(&sandbox);
        let [process] = processes[..] else { panic!("a clone went through: {processes:?}") };
        let mut held = descriptors(process);
        held.sort();
        assert_eq!(held, ["/dev/null", "pipe", "pipe"], "{user}");
        for kind in ["mnt", "net", "user", "pid", "ipc", "uts", "cgroup", "time"] {
            assert_eq!(namespace(process, kind), namespace(init, kind), "{user} {kind}");
            let host = namespace(std::process::id().cast_signed(), kind);
            assert!(kind == "time" || namespace(process, kind) != host, "{user} {kind}");
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status(process, set).unwrap(), "0000000000000000", "{user} {set}");
        }
        assert_eq!(
            (status(process, "NoNewPrivs").unwrap(), status(process, "Seccomp").unwrap()),
            ("1".into(), "2".into())
        );
        assert_eq!(std::fs::read_to_string(format!("/proc/{init}/mountinfo")).unwrap(), mounts);
        sandbox.end().await;
    }
    Ok(())
}

async fn a_foreign_architecture_is_killed_and_an_x32_call_is_absent(lab: &Lab) -> Done {
    if !cfg!(target_arch = "x86_64") {
        return Err(crate::skips::Skip("not x86-64".into()));
    }
    let sandbox = lab.sandbox().await;
    let foreign =
        r#"int main(void) { long r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20)); return 0; }"#;
    lab.program(&sandbox, "foreign", foreign).await;
    let ended = crate::lab::start_as(&sandbox, "rollout", "/", &["/workspace/foreign"]).await.unwrap();
    assert_eq!(ended.output().await.exit, Exit::Signal(31), "SIGSYS");
    let x32 = r#"
#include <errno.h>
#include <unistd.h>
#include <sys/syscall.h>
int main(void) {
  int calls[] = {SYS_getpid, SYS_mount, SYS_ptrace, 512, 520, 521, 534, 545, 547};
  for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
    if (syscall(0x40000000 | calls[i], 0, 0, 0, 0, 0) != -1 || errno != ENOSYS) return i + 1;
  return syscall(SYS_getpid) > 0 ? 77 : 78;
}"#;
    lab.program(&sandbox, "x32", x32).await;
    let ended = crate::lab::start_as(&sandbox, "rollout", "/", &["/workspace/x32"]).await.unwrap();
    assert_eq!(ended.output().await.exit, Exit::Code(77));
    sandbox.end().await;
    Ok(())
}

const AT_INIT: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#define TRY(name, call) do { errno = 0; long r = (long)(call); printf("%s %d\n", name, r < 0 ? errno : 0); } while (0)
int main(void) {
  char b[16];
  struct iovec v = {b, 16}, at = {(void *)0x400000, 16};
  struct rlimit none = {0, 0}, one = {1, 1};
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET(0, &cpu);
  struct sched_param p = {0};
  TRY("ptrace_attach", ptrace(PTRACE_ATTACH, 1, 0, 0));
  TRY("ptrace_seize", ptrace(PTRACE_SEIZE, 1, 0, 0));
  TRY("read_memory", process_vm_readv(1, &v, 1, &at, 1, 0));
  TRY("write_memory", process_vm_writev(1, &v, 1, &at, 1, 0));
  int pidfd = syscall(SYS_pidfd_open, 1, 0);
  for (int fd = 0; fd < 8; fd++) TRY("steal_descriptor", syscall(438, pidfd, fd, 0));
  TRY("nofile", prlimit(1, RLIMIT_NOFILE, &none, 0));
  TRY("nproc", prlimit(1, RLIMIT_NPROC, &none, 0));
  TRY("cpu", prlimit(1, RLIMIT_CPU, &one, 0));
  TRY("as", prlimit(1, RLIMIT_AS, &one, 0));
  TRY("fsize", prlimit(1, RLIMIT_FSIZE, &none, 0));
  TRY("affinity", sched_setaffinity(1, sizeof cpu, &cpu));
  TRY("idle", sched_setscheduler(1, SCHED_IDLE, &p));
  TRY("nice", setpriority(PRIO_PROCESS, 1, 19));
  TRY("ioprio", syscall(SYS_ioprio_set, 1, 1, 3 << 13));
  for (int s = 1; s < 32; s++) TRY("signal", kill(1, s));
  TRY("pidfd_signal", syscall(SYS_pidfd_send_signal, pidfd, SIGSTOP, 0, 0));
  TRY("environ", open("/proc/1/environ", O_RDONLY));
  TRY("oom", open("/proc/1/oom_score_adj", O_WRONLY));
  TRY("mem", open("/proc/1/mem", O_RDWR));
  printf("there\n");
  fflush(stdout);
  pause();
}
"#;

/// Also root of the sandbox: its init is the executor's, and starves or ends for nobody inside.
async fn nothing_inside_can_touch_init(lab: &Lab) -> Done {
    for user in ["rollout", "root"] {
        let sandbox = lab.sandbox().await;
        lab.program(&sandbox, "at_init", AT_INIT).await;
        let (init, _) = lab.processes(&sandbox);
        let seen = || {
            // Fields 18 and 19, 41: priority, niceness, policy.
            let stat = std::fs::read_to_string(format!("/proc/{init}/stat")).unwrap();
            let fields: Vec<_> =
                stat.rsplit(')').next().unwrap().split_whitespace().map(str::to_owned).collect();
            let scheduled = [fields[15].clone(), fields[16].clone(), fields[38].clone()];
            let limits = std::fs::read_to_string(format!("/proc/{init}/limits")).unwrap();
            (limits, scheduled, status(init, "Cpus_allowed"), descriptors(init).len())
        };
        let before = seen();
        let (held, lines) = stays(&sandbox, user, &["/workspace/at_init"]).await;
        assert!(seen() == before, "{user}: {lines:?}\n{:?}\n{before:?}", seen());
        for line in lines.iter().filter(|line| !line.starts_with("signal ")) {
            assert!(!line.ends_with(" 0"), "{user}: {line}");
        }
        held.process.signal(libc::SIGKILL).await.unwrap();
        assert_eq!(held.process.wait().await.unwrap(), Exit::Signal(9));
        assert_eq!(said(&sandbox, "echo ok").await, "ok", "{user}: init still serves");
        sandbox.end().await;
    }
    Ok(())
}

const HONEST: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define TRY(name, call) do { errno = 0; long r = (long)(call); if (r < 0) { printf("%s %d\n", name, errno); bad = 1; } } while (0)
static void *nothing(void *p) { return p; }
int main(void) {
  int bad = 0, pair[2], pid;
  pthread_t t;
  struct rlimit l;
  cpu_set_t cpu;
  TRY("unix", socket(1, SOCK_STREAM, 0));
  TRY("inet", socket(2, SOCK_STREAM, 0));
  TRY("inet6", socket(10, SOCK_DGRAM, 0));
  TRY("netlink_route", socket(16, SOCK_RAW, 0));
  TRY("socketpair", socketpair(1, SOCK_SEQPACKET, 0, pair));
  TRY("unshare_files", syscall(SYS_unshare, CLONE_FILES));
  TRY("thread", -pthread_create(&t, 0, nothing, 0));
  TRY("join", -pthread_join(t, 0));
  if (!(pid = fork())) { pause(); _exit(0); }
  TRY("fork", pid);
  TRY("ptrace_child", ptrace(PTRACE_ATTACH, pid, 0, 0));
  TRY("wait", waitpid(pid, 0, 0));
  TRY("child_limit", prlimit(pid, RLIMIT_NOFILE, 0, &l));
  TRY("getrlimit", getrlimit(RLIMIT_NOFILE, &l));
  l.rlim_cur = l.rlim_max;
  TRY("setrlimit", setrlimit(RLIMIT_NOFILE, &l));
  TRY("affinity", sched_getaffinity(0, sizeof cpu, &cpu));
  TRY("set_affinity", sched_setaffinity(0, sizeof cpu, &cpu));
  TRY("nice", setpriority(PRIO_PROCESS, 0, 5));
  TRY("memfd", syscall(SYS_memfd_create, "m", 0));
  TRY("mkfifo", mkfifo("/tmp/f", 0600));
  TRY("rename", (mkdir("/tmp/a", 0700), mkdir("/tmp/b", 0700), rename("/tmp/a", "/tmp/b/a")));
  TRY("kill", kill(pid, 9));
  return bad;
}
"#;

async fn what_honest_programs_call_is_allowed(lab: &Lab) -> Done {
    for user in ["rollout", "root"] {
        let sandbox = lab.sandbox().await;
        lab.program(&sandbox, "honest", HONEST).await;
        let output = shell_as(&sandbox, user, "/workspace/honest").await;
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), ""), "{user}");
        sandbox.end().await;
    }
    let sandbox = lab.sandbox().await;
    let output =
        shell(&sandbox, "echo out > /dev/stdout; echo err > /dev/stderr; ls /proc/self/fd > /dev/null").await;
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"), "{output:?}");
    sandbox.end().await;
    Ok(())
}
