//! The system call filter of every sandbox: classic BPF, put together here so that every
//! instruction can be read, and tried by an interpreter in the tests.
//!
//! Refused: what reaches the host's kernel and no program of an agent needs. A call newer than the
//! last one judged here answers ENOSYS, so that nothing slips in with a kernel upgrade. The
//! kernel caches the verdict of calls whose arguments are not read, so the filter costs nothing on
//! the common path. To fill the cache it runs the filter for every call there is, in each creation:
//! so calls are found by halves, not one after the other.

pub use sandbox_init::kernel::seccomp::install;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// The last call judged: removexattrat. open_tree_attr (467) and file_setattr (469, which sets
/// what FS_IOC_FSSETXATTR sets) come after it. x32 calls are numbered far above.
const LAST_CALL: u32 = 466;

const RET_KILL_PROCESS: u32 = 0x8000_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_ALLOW: u32 = 0x7fff_0000;

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const JEQ: u16 = 0x15;
const JGT: u16 = 0x25;
const JSET: u16 = 0x45;
const JUMP: u16 = 0x05;
const RET: u16 = 0x06;

/// Offsets in `struct seccomp_data`.
const AT_NUMBER: u32 = 0;
const AT_ARCH: u32 = 4;
/// The low half of an argument: the part the kernel reads of an `int`.
const fn at_argument(index: u32) -> u32 {
    let low_half = if cfg!(target_endian = "big") { 4 } else { 0 };
    16 + 8 * index + low_half
}

/// Answered EPERM.
const DENIED: &[i64] = &[
    // The mount API, old and by descriptor.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    457, // statmount
    458, // listmount
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    443, // quotactl_fd
    // Namespaces; unshare and clone are judged by their flags below.
    libc::SYS_setns,
    // Kernel interfaces.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_acct,
    libc::SYS_reboot,
    // The host's clock.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    // Placement of other processes' pages.
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
    #[cfg(target_arch = "x86_64")]
    174, // create_module
    #[cfg(target_arch = "x86_64")]
    178, // query_module
    #[cfg(target_arch = "x86_64")]
    177, // get_kernel_syms
];

/// Answered ENOSYS, so that programs fall back: a filter cannot read the struct of clone3.
const ABSENT: &[i64] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// `CLONE_NEW*` of clone: in its low byte clone carries a signal.
const NEW_BY_CLONE: u32 = 0x7e02_0000;
/// As above and CLONE_NEWTIME, which only unshare takes.
const NEW_BY_UNSHARE: u32 = NEW_BY_CLONE | 0x80;

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const NETLINK_ROUTE: u32 = 0;

/// Type and number of refused ioctls: the low 16 bits. Direction and size (which differ between
/// kernels and word sizes) are not compared, and neither is the high half of the argument.
const DENIED_IOCTLS: &[u32] = &[
    0x586d, // XFS_IOC_SWAPEXT
    0x5881, // XFS_IOC_EXCHANGE_RANGE
    0x5882, // XFS_IOC_START_COMMIT
    0x5883, // XFS_IOC_COMMIT_RANGE
    0x660f, // EXT4_IOC_MOVE_EXT
    0x6602, // FS_IOC_SETFLAGS
    0x5820, // FS_IOC_FSSETXATTR
    0x5879, // FITRIM
    0x5412, // TIOCSTI
    0x541c, // TIOCLINUX
];

/// Commands of fcntl that take a lease or a delegation of a file. Whoever opens such a file waits for its
/// holder, 45 s at most: the executor that reads an output, and init that starts a program.
const DENIED_FCNTLS: &[u32] = &[
    1024, // F_SETLEASE
    1040, // F_SETDELEG
];

const SOL_SOCKET: u32 = 1;
const IPPROTO_IP: u32 = 0;
const IPPROTO_IPV6: u32 = 41;

/// Options of sockets, by level, and what setting them is answered.
///
/// Filters of sockets are compiled into room that the whole host shares (`net.core.bpf_jit_limit`), and without any
/// of it left no sandbox could load the filter that is built here. What waits in the error queue of a socket is
/// charged to nobody. The resolver of glibc asks for that queue and gives up where it is refused, and does without
/// where it stays empty: so to ask for it is answered with success, and changes nothing.
const DENIED_OPTIONS: &[(u32, &[u32], i32)] = &[
    // SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF.
    (SOL_SOCKET, &[26, 50, 51, 52], libc::EPERM),
    (IPPROTO_IP, &[11], 0),   // IP_RECVERR
    (IPPROTO_IPV6, &[25], 0), // IPV6_RECVERR
];

const fn step(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

const fn errno(errno: i32) -> libc::sock_filter {
    step(RET, RET_ERRNO | errno.cast_unsigned(), 0, 0)
}

fn number(call: i64) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// The filter. Constant; built once and kept.
pub fn program() -> Vec<libc::sock_filter> {
    let mut out = vec![
        step(LOAD, AT_ARCH, 0, 0),
        step(JEQ, AUDIT_ARCH, 1, 0),
        step(RET, RET_KILL_PROCESS, 0, 0),
        step(LOAD, AT_NUMBER, 0, 0),
        step(JGT, LAST_CALL, 0, 1),
        errno(libc::ENOSYS),
    ];
    let of = |calls: &[i64], answer| calls.iter().map(|call| (number(*call), answer)).collect::<Vec<_>>();
    let mut refused = [of(DENIED, libc::EPERM), of(ABSENT, libc::ENOSYS)].concat();
    refused.sort_unstable();
    out.extend(refuse(&refused));
    let allow = step(RET, RET_ALLOW, 0, 0);
    for (call, mask) in [(libc::SYS_clone, NEW_BY_CLONE), (libc::SYS_unshare, NEW_BY_UNSHARE)] {
        judge(
            &mut out,
            call,
            &[step(LOAD, at_argument(0), 0, 0), step(JSET, mask, 0, 1), errno(libc::EPERM), allow],
        );
    }
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        judge(
            &mut out,
            call,
            &[
                step(LOAD, at_argument(0), 0, 0),
                step(JEQ, AF_UNIX, 5, 0),
                step(JEQ, AF_INET, 4, 0),
                step(JEQ, AF_INET6, 3, 0),
                step(JEQ, AF_NETLINK, 0, 3),
                step(LOAD, at_argument(2), 0, 0),
                step(JEQ, NETLINK_ROUTE, 0, 1),
                allow,
                errno(libc::EPERM),
            ],
        );
    }
    let mut ioctl = vec![step(LOAD, at_argument(1), 0, 0), step(AND, 0xffff, 0, 0)];
    for denied in DENIED_IOCTLS {
        ioctl.extend([step(JEQ, *denied, 0, 1), errno(libc::EPERM)]);
    }
    ioctl.push(allow);
    judge(&mut out, libc::SYS_ioctl, &ioctl);
    let mut fcntl = vec![step(LOAD, at_argument(1), 0, 0)];
    for denied in DENIED_FCNTLS {
        fcntl.extend([step(JEQ, *denied, 0, 1), errno(libc::EPERM)]);
    }
    fcntl.push(allow);
    judge(&mut out, libc::SYS_fcntl, &fcntl);
    let mut setsockopt = vec![step(LOAD, at_argument(1), 0, 0)];
    for (level, options, answer) in DENIED_OPTIONS {
        let mut of_level = vec![step(LOAD, at_argument(2), 0, 0)];
        for option in *options {
            of_level.extend([step(JEQ, *option, 0, 1), errno(*answer)]);
        }
        of_level.push(allow);
        judge_value(&mut setsockopt, *level, &of_level);
    }
    setsockopt.push(allow);
    judge(&mut out, libc::SYS_setsockopt, &setsockopt);
    out.push(allow);
    out
}

/// Answers the calls of a sorted list, and falls off its end for any other.
fn refuse(calls: &[(u32, i32)]) -> Vec<libc::sock_filter> {
    /// Fewer are compared one after the other.
    const HALVED_MIN: usize = 5;
    if calls.len() < HALVED_MIN {
        return calls.iter().flat_map(|(call, answer)| [step(JEQ, *call, 0, 1), errno(*answer)]).collect();
    }
    let (low, high) = calls.split_at(calls.len() / 2);
    let last_low = low.last().map_or(0, |(call, _)| *call);
    let (low, high) = (refuse(low), refuse(high));
    // As in `judge`: what is too far would never be reached, and a test would see it.
    let past_low = u8::try_from(low.len() + 1).unwrap_or(u8::MAX);
    let past_high = step(JUMP, u32::try_from(high.len()).unwrap_or(u32::MAX), 0, 0);
    [&[step(JGT, last_low, past_low, 0)], low.as_slice(), &[past_high], high.as_slice()].concat()
}

/// Appends `body`, which returns on every path, for `call` alone.
fn judge(out: &mut Vec<libc::sock_filter>, call: i64, body: &[libc::sock_filter]) {
    judge_value(out, number(call), body);
}

/// The same, for what was loaded last.
fn judge_value(out: &mut Vec<libc::sock_filter>, value: u32, body: &[libc::sock_filter]) {
    // Bodies are short by construction; one past 255 would never match, and a test would see it.
    let skip = u8::try_from(body.len()).unwrap_or(u8::MAX);
    out.push(step(JEQ, value, 0, skip));
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer: classic BPF as far as the filter uses it.
    fn verdict(arch: u32, call: u32, arguments: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(call.to_ne_bytes());
        data.extend(arch.to_ne_bytes());
        data.extend(0u64.to_ne_bytes());
        arguments.iter().for_each(|argument| data.extend(argument.to_ne_bytes()));
        let program = program();
        let (mut at, mut accumulator) = (0usize, 0u32);
        loop {
            let step = program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
            match step.code {
                LOAD => {
                    let from = step.k as usize;
                    accumulator = u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
                }
                AND => accumulator &= step.k,
                JUMP => at += step.k as usize,
                JEQ => at += jump(accumulator == step.k),
                JGT => at += jump(accumulator > step.k),
                JSET => at += jump(accumulator & step.k != 0),
                RET => return step.k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn native(call: i64, arguments: [u64; 6]) -> u32 {
        verdict(AUDIT_ARCH, number(call), arguments)
    }

    const EPERM: u32 = RET_ERRNO | 1;
    const ENOSYS: u32 = RET_ERRNO | 38;
    const GARBAGE: u64 = 0xdead_beef_0000_0000;

    #[test]
    fn what_reaches_the_host_kernel_is_refused_and_ordinary_calls_are_not() {
        for call in DENIED {
            assert_eq!(native(*call, [0; 6]), EPERM, "call {call}");
        }
        for call in ABSENT {
            assert_eq!(native(*call, [0; 6]), ENOSYS, "call {call}");
        }
        for call in [libc::SYS_read, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_wait4, 466] {
            assert_eq!(native(call, [u64::MAX; 6]), RET_ALLOW, "call {call}");
        }
        for call in [467, 469, 1000, 0x4000_0000 | libc::SYS_read] {
            assert_eq!(native(call, [0; 6]), ENOSYS, "unjudged or x32 call {call}");
        }
    }

    #[test]
    fn every_call_is_refused_exactly_if_it_is_listed() {
        let judged = [
            libc::SYS_clone,
            libc::SYS_unshare,
            libc::SYS_socket,
            libc::SYS_socketpair,
            libc::SYS_ioctl,
            libc::SYS_fcntl,
            libc::SYS_setsockopt,
        ];
        for call in (0..=i64::from(LAST_CALL)).filter(|call| !judged.contains(call)) {
            let expected = match call {
                _ if DENIED.contains(&call) => EPERM,
                _ if ABSENT.contains(&call) => ENOSYS,
                _ => RET_ALLOW,
            };
            assert_eq!(native(call, [u64::MAX; 6]), expected, "call {call}");
        }
    }

    #[test]
    fn options_that_take_of_the_host_are_refused_and_others_are_not() {
        const DONE: u32 = RET_ERRNO;
        for (level, option, expected) in [
            (1, 26, EPERM),
            (1, 50, EPERM),
            (1, 51, EPERM),
            (1, 52, EPERM),
            (0, 11, DONE),
            (41, 25, DONE),
            (1, 11, RET_ALLOW),
            (1, 8, RET_ALLOW),
            (0, 26, RET_ALLOW),
            (6, 26, RET_ALLOW),
            (41, 26, RET_ALLOW),
        ] {
            let answer = native(libc::SYS_setsockopt, [3, GARBAGE | level, GARBAGE | option, 0, 0, 0]);
            assert_eq!(answer, expected, "level {level} option {option}");
        }
    }

    #[test]
    fn another_architecture_kills() {
        for arch in [0x4000_0003, 0xc000_003d, 0] {
            assert_eq!(verdict(arch, 0, [0; 6]), RET_KILL_PROCESS);
        }
    }

    #[test]
    fn namespaces_are_refused_by_flag_and_threads_are_not() {
        for bit in [0x2_0000u64, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000] {
            for call in [libc::SYS_clone, libc::SYS_unshare] {
                assert_eq!(native(call, [bit | GARBAGE, 0, 0, 0, 0, 0]), EPERM, "{call} {bit:#x}");
            }
        }
        assert_eq!(native(libc::SYS_unshare, [0x80, 0, 0, 0, 0, 0]), EPERM, "time namespace");
        // pthread_create, fork with SIGCHLD, vfork; unshare(CLONE_FILES).
        for flags in [0x3d_0f00, 0x120_0011, 0x4111] {
            assert_eq!(native(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]), RET_ALLOW, "{flags:#x}");
        }
        assert_eq!(native(libc::SYS_unshare, [0x400, 0, 0, 0, 0, 0]), RET_ALLOW);
    }

    #[test]
    fn sockets_are_allowed_by_family() {
        let allowed = [(1, 0), (2, 0), (2, 17), (10, 6), (16, 0)];
        for family in 0..50u64 {
            for protocol in [0u64, 6, 12, 17] {
                let expected = match family {
                    1 | 2 | 10 => RET_ALLOW,
                    16 if protocol == 0 => RET_ALLOW,
                    _ => EPERM,
                };
                let got = native(libc::SYS_socket, [family | GARBAGE, 2, protocol | GARBAGE, 0, 0, 0]);
                assert_eq!(got, expected, "family {family} protocol {protocol}");
            }
        }
        for (family, protocol) in allowed {
            assert_eq!(native(libc::SYS_socket, [family, 1, protocol, 0, 0, 0]), RET_ALLOW);
        }
    }

    #[test]
    fn ioctls_are_refused_by_type_and_number_in_the_low_half_only() {
        // With the direction and size bits that real callers send.
        let denied: [u64; 8] =
            [0xc0c0_586d, 0xc028_660f, 0x4008_6602, 0x4004_6602, 0x401c_5820, 0xc018_5879, 0x5412, 0x541c];
        for command in denied {
            assert_eq!(native(libc::SYS_ioctl, [0, command | GARBAGE, 0, 0, 0, 0]), EPERM, "{command:#x}");
        }
        for command in [0x5401u64, 0x5413, 0x8008_6601, 0x541b] {
            assert_eq!(native(libc::SYS_ioctl, [0, command, 0, 0, 0, 0]), RET_ALLOW, "{command:#x}");
        }
    }

    #[test]
    fn leases_are_refused_and_other_commands_of_fcntl_are_not() {
        for command in [1024u64, 1040] {
            assert_eq!(native(libc::SYS_fcntl, [3, command | GARBAGE, 1, 0, 0, 0]), EPERM, "{command}");
        }
        for command in [0u64, 1, 2, 3, 4, 6, 1025, 1026, 1030, 1031, 1033] {
            assert_eq!(native(libc::SYS_fcntl, [3, command, 1, 0, 0, 0]), RET_ALLOW, "{command}");
        }
    }
}
