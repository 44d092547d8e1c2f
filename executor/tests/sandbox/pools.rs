//! What is made ahead: that it is used, that nothing of the last sandbox is met again, that it is
//! made when no creation waits, and that it goes with the broker.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use executor::census;
use executor::sandbox::container::{Container, ContainerConfig, Levels, Step};
use executor::sandbox::{Backend, Exit, SandboxSpec};
use rollout::Bytes;

use crate::lab::{Lab, assert_empty, compiled, said, shell};

crate::tests![
    every_sandbox_has_a_network_of_its_own_and_nobody_has_it_after,
    nothing_of_the_last_sandbox_shows_in_a_memory_group_that_is_handed_on,
    a_memory_group_that_saw_an_oom_kill_is_not_handed_on,
    pages_of_shared_trees_are_not_dropped_to_hand_a_group_on,
    groups_of_ordinary_sandboxes_all_come_back_and_what_waits_in_them_has_room,
    a_disk_made_ahead_is_taken_once_and_holds_no_byte_of_another,
    nothing_is_made_ahead_while_a_burst_waits,
    a_creation_that_fails_costs_the_pools_nothing,
    a_blank_that_died_is_not_handed_out,
    a_blank_that_cannot_be_made_costs_nothing_but_time,
    a_sandbox_out_of_a_blank_is_as_one_that_was_cloned_for_it,
    what_is_made_ahead_ends_with_its_broker,
    namespaces_that_wait_for_the_kernel_are_counted_down_to_none,
];

const MIB: u64 = 1 << 20;

/// The directory of a memory group; none where memory is not a v1 hierarchy of its own.
fn group(lab: &Lab, name: &str) -> Option<PathBuf> {
    let top = Path::new("/sys/fs/cgroup/memory/rollyard").join(census::instance(&lab.data_dir()));
    top.is_dir().then(|| top.join(name))
}

fn sized(lab: &Lab, disk: u64) -> SandboxSpec {
    let mut spec = lab.spec();
    spec.limits.disk = Bytes(disk);
    spec
}

async fn every_sandbox_has_a_network_of_its_own_and_nobody_has_it_after(lab: Lab) {
    let cookie = r#"#include <stdio.h>
#include <sys/socket.h>
int main(void) { unsigned long long c = 0; socklen_t n = sizeof c; int s = socket(AF_INET, SOCK_DGRAM, 0);
  if (getsockopt(s, SOL_SOCKET, 71, &c, &n)) return 1; printf("%llu\n", c); return 0; }"#;
    let before = lab.full().await;
    let mut seen = BTreeSet::new();
    // More than are held ready, so that some were made since.
    for _ in 0..before.blanks + before.networks + 10 {
        let sandbox = lab.sandbox().await;
        compiled(&lab, &*sandbox, "cookie", cookie).await;
        assert!(seen.insert(said(&*sandbox, "/workspace/cookie").await), "a network of another sandbox");
        // And it is as a fresh one: a loopback that is up, and no socket.
        let state = said(&*sandbox, "cat /proc/net/dev | wc -l; cat /proc/net/tcp | wc -l").await;
        assert_eq!(state, "3\n1");
        sandbox.destroy().await.unwrap();
    }
    lab.full().await;
}

/// What a group tells, file by file. Without what only ever grows and nothing of the product reads:
/// events since the group was made, in memory.stat; and without which processes are in it.
fn told(group: &Path) -> BTreeMap<String, String> {
    const EVENTS: [&str; 6] = [
        "pgpgin",
        "pgpgout",
        "pgfault",
        "pgmajfault",
        // Pages that were dropped and read again: some, where the machine is short of cache meanwhile.
        "workingset_refault_anon",
        "workingset_refault_file",
    ];
    let mut told = BTreeMap::new();
    for entry in fs::read_dir(group).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let Ok(text) = fs::read_to_string(entry.path()) else { continue };
        if ["tasks", "cgroup.procs", "memory.kmem.slabinfo"].contains(&name.as_str()) {
            continue;
        }
        let lines = text.lines().filter(|line| {
            let key = line.split(' ').next().unwrap_or_default();
            name != "memory.stat" || !EVENTS.contains(&key.strip_prefix("total_").unwrap_or(key))
        });
        told.insert(name.clone(), lines.collect::<Vec<_>>().join("\n"));
    }
    told
}

/// What may stay charged in all, in bytes: names, inodes and pages of trees that others share.
const CHARGED_MAX: u64 = 64 << 10;

/// A file that tells the same but for what may stay charged.
fn is_about(file: &str, fresh: &str, found: &str) -> bool {
    let numbers = |text: &str| text.trim().parse::<u64>().ok();
    match (file, numbers(fresh), numbers(found)) {
        ("memory.stat", ..) => {
            are_about(fresh, found, |key| match key.strip_prefix("total_").unwrap_or(key) {
                "cache" | "mapped_file" | "inactive_file" | "active_file" => CHARGED_MAX,
                _ => 0,
            })
        }
        // In pages: `file=1 N0=1`.
        ("memory.numa_stat", ..) => are_about(&fresh.replace('=', " "), &found.replace('=', " "), |key| {
            match key.strip_prefix("hierarchical_").unwrap_or(key) {
                "total" | "file" => CHARGED_MAX / 4096,
                _ => 0,
            }
        }),
        (file, Some(fresh), Some(found)) if file.ends_with("usage_in_bytes") && !file.contains(".tcp.") => {
            found <= fresh.max(CHARGED_MAX)
        }
        _ => fresh == found,
    }
}

/// Line by line, a key and a number; `more`: what may be there beyond the first.
fn are_about(fresh: &str, found: &str, more: impl Fn(&str) -> u64) -> bool {
    let read = |text: &str| -> Vec<(String, u64)> {
        let lines = text.lines().filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        });
        lines.collect()
    };
    let (fresh, found) = (read(fresh), read(found));
    fresh.len() == found.len()
        && fresh.iter().zip(&found).all(|((key, fresh), (other, found))| {
            key == other && (fresh == found || *found <= fresh + more(key))
        })
}

/// A sandbox of which every kind of page was charged to its group; gives the group's inode.
async fn filled_and_ended(lab: &Lab, own: &Path) -> u64 {
    let mut spec = lab.spec();
    spec.limits.memory = Bytes(48 * MIB);
    let last = lab.backend.create(spec).await.unwrap();
    let inode = fs::metadata(own).unwrap().ino();
    // Pages of each kind: its own memory, files in memory, files it wrote, names, sockets; and the
    // limit is hit without a kill, since pages of a file can go.
    said(
        &*last,
        "head -c 8M /dev/zero > /dev/shm/a; head -c 12M /dev/zero > /workspace/b
         i=0; while [ $i -lt 500 ]; do : > /workspace/n$i; i=$((i+1)); done
         head -c 20M /dev/zero | tail -c 20M | wc -c",
    )
    .await;
    let grown = r#"#include <string.h>
#include <stdlib.h>
#include <sys/socket.h>
int main(void) { int s[2]; char *m = malloc(16 << 20); memset(m, 7, 16 << 20);
  for (int i = 0; i < 50; i++) { socketpair(AF_UNIX, SOCK_STREAM, 0, s); send(s[0], m, 65536, MSG_DONTWAIT); }
  return 0; }"#;
    compiled(lab, &*last, "grown", grown).await;
    said(&*last, "/workspace/grown").await;
    let peak: u64 =
        fs::read_to_string(own.join("memory.max_usage_in_bytes")).unwrap().trim().parse().unwrap();
    assert!(peak > 20 * MIB, "{peak}");
    last.destroy().await.unwrap();
    inode
}

/// A group is given up rather than handed on with a page that some CPU still has at hand: seldom so often.
const TURNS_MAX: u32 = 20;

async fn nothing_of_the_last_sandbox_shows_in_a_memory_group_that_is_handed_on(lab: Lab) {
    if group(&lab, "s0").is_none() {
        return;
    }
    let mut turn = 0;
    let (own, inode) = loop {
        let before = lab.full().await;
        let own = group(&lab, &format!("s{turn}")).expect("as before");
        let inode = filled_and_ended(&lab, &own).await;
        let after = lab.full().await;
        if after.groups_handed_on == before.groups_handed_on + 1 {
            break (own, inode);
        }
        assert_eq!(after.groups_given_up, before.groups_given_up + 1, "{after:?}");
        turn += 1;
        assert!(turn < TURNS_MAX, "none is handed on: {after:?}");
    };

    let top = own.parent().unwrap();
    let ready: Vec<_> = fs::read_dir(top).unwrap().flatten().filter(|e| e.path().is_dir()).collect();
    let reset = ready.iter().find(|entry| entry.ino() == inode).expect("still there").path();
    let fresh = top.join("pool.fresh");
    fs::create_dir(&fresh).unwrap();
    for dir in [&fresh, &reset] {
        fs::write(dir.join("memory.limit_in_bytes"), "67108864").unwrap();
        for other in ["memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"] {
            if dir.join(other).exists() {
                fs::write(dir.join(other), "67108864").unwrap();
            }
        }
    }
    let (expected, found) = (told(&fresh), told(&reset));
    fs::remove_dir(&fresh).unwrap();
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    for (file, fresh) in &expected {
        assert!(
            is_about(file, fresh, &found[file]),
            "{file}: `{fresh}` in a fresh one, `{}` here",
            found[file]
        );
    }
    // The next blank is made of it, which waits behind those there are.
    let mut others = 0;
    let (next, id) = loop {
        let spec = lab.spec();
        let id = spec.id.clone();
        let next = lab.backend.create(spec).await.unwrap();
        if fs::metadata(group(&lab, &id).unwrap()).unwrap().ino() == inode {
            break (next, id);
        }
        next.destroy().await.unwrap();
        others += 1;
        assert!(others <= lab.full().await.blanks, "no sandbox got it");
    };
    let id = &id;
    let stats = next.stats().await;
    assert_eq!((stats.oom_kills, stats.pids_denied), (Some(0), Some(0)));
    assert!(stats.memory_peak.unwrap() < Bytes(8 * MIB), "{stats:?}");
    // Its limit is its own: neither the last one's nor that of the reset.
    let limit = fs::read_to_string(group(&lab, id).unwrap().join("memory.limit_in_bytes")).unwrap();
    assert_eq!(limit.trim().parse::<u64>().unwrap(), 256 * MIB + 16 * MIB);
    next.destroy().await.unwrap();
}

async fn a_memory_group_that_saw_an_oom_kill_is_not_handed_on(lab: Lab) {
    let Some(own) = group(&lab, "s0") else { return };
    let before = lab.full().await;
    let mut spec = lab.spec();
    spec.limits.memory = Bytes(32 * MIB);
    let last = lab.backend.create(spec).await.unwrap();
    let inode = fs::metadata(&own).unwrap().ino();
    let killed = shell(&*last, "head -c 100M /dev/zero | tail -c 100M > /dev/null").await;
    assert!(last.stats().await.oom_kills.unwrap() > 0, "{killed:?}");
    last.destroy().await.unwrap();
    let after = lab.full().await;
    assert_eq!(
        (after.groups_given_up, after.groups_handed_on),
        (before.groups_given_up + 1, before.groups_handed_on),
        "{after:?}"
    );
    let ready = fs::read_dir(own.parent().unwrap()).unwrap().flatten();
    assert!(ready.into_iter().all(|entry| entry.ino() != inode), "it is gone");
    let next = lab.sandbox().await;
    assert_eq!(next.stats().await.oom_kills, Some(0));
    next.destroy().await.unwrap();
}

async fn pages_of_shared_trees_are_not_dropped_to_hand_a_group_on(lab: Lab) {
    if group(&lab, "s0").is_none() {
        return;
    }
    // A tree whose pages nobody has touched.
    let tree = lab.dir.path().join("tree");
    for dir in ["bin", "proc", "dev", "tmp", "workspace"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
    }
    let source = lab.dir.path().join("reader.c");
    fs::write(&source, READER).unwrap();
    let mut cc = std::process::Command::new("cc");
    cc.args(["-O1", "-static", "-w", "-o"]).arg(tree.join("bin/sh")).arg(&source);
    assert!(cc.status().unwrap().success());
    fs::write(tree.join("big"), vec![5; 8 << 20]).unwrap();
    let big = fs::File::open(tree.join("big")).unwrap();
    big.sync_all().unwrap();
    let forgotten = unsafe_advise(&big);
    assert_eq!(forgotten, 0, "posix_fadvise");
    let before = lab.full().await;
    let mut spec = lab.spec();
    spec.image = format!("dir:{}", tree.display());
    spec.user = "0".into();
    let last = lab.backend.create(spec).await.unwrap();
    let (process, _pipes) = crate::lab::start(&*last, "0", "/", &["/bin/sh"], &[]).await.unwrap();
    assert_eq!(process.wait().await.unwrap(), Exit::Code(0));
    last.destroy().await.unwrap();
    let after = lab.full().await;
    assert_eq!(after.groups_given_up, before.groups_given_up + 1, "{after:?}");
    assert!(resident(&big) > 1000, "the pages the sandbox read are still in memory");
}

const READER: &str = r#"#include <fcntl.h>
#include <unistd.h>
int main(void) { static char b[1 << 16]; int f = open("/big", O_RDONLY); long n = 0, r;
  while ((r = read(f, b, sizeof b)) > 0) n += r; return n == 8 << 20 ? 0 : 1; }"#;

fn unsafe_advise(file: &fs::File) -> i32 {
    use std::os::fd::AsRawFd;
    // SAFETY: no memory involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }
}

/// Pages of a file of 8 MiB that are in memory.
fn resident(file: &fs::File) -> usize {
    use std::os::fd::AsRawFd;
    let len = 8 << 20;
    let mut pages = vec![0u8; len / 4096];
    // SAFETY: the mapping is ours, read by nobody, and unmapped; `pages` has a byte for each page.
    unsafe {
        let at =
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, len, pages.as_mut_ptr()), 0);
        libc::munmap(at, len);
    }
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// Whether the bytes are anywhere on the one disk of a sandbox, in files or in free blocks.
fn is_on_disk(lab: &Lab, secret: &[u8]) -> bool {
    let census = census::take(&lab.data_dir()).unwrap();
    let [number] = census.loops[..] else { panic!("one disk: {census}") };
    let mut device = fs::File::open(format!("/dev/loop{number}")).unwrap();
    device.seek(SeekFrom::Start(0)).unwrap();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let got = device.read(&mut chunk).unwrap();
        if got == 0 {
            return false;
        }
        // It is written over and over, so one of them does not lie over the end of a chunk.
        // SAFETY: pointers and lengths are of the two slices.
        let found = unsafe { libc::memmem(chunk.as_ptr().cast(), got, secret.as_ptr().cast(), secret.len()) };
        if !found.is_null() {
            return true;
        }
    }
}

async fn a_disk_made_ahead_is_taken_once_and_holds_no_byte_of_another(lab: Lab) {
    let size = 300 * MIB;
    let first = lab.backend.create(sized(&lab, size)).await.unwrap();
    first.destroy().await.unwrap();
    let ready = lab.full().await;
    assert_eq!(ready.disks, 2, "a size that was asked for is made ahead");
    let census = census::take(&lab.data_dir()).unwrap();
    assert_eq!((census.ahead.loops.len(), census.loops.len()), (2, 0), "{census}");

    let secret = b"a-secret-of-the-last-sandbox";
    let last = lab.backend.create(sized(&lab, size)).await.unwrap();
    assert_eq!(lab.backend.levels().await.unwrap().disks, 1, "it was taken, not made");
    let script = format!("yes {} | head -c 2M > /workspace/f; sync", String::from_utf8_lossy(secret));
    said(&*last, &script).await;
    assert!(is_on_disk(&lab, secret), "the search finds what is there");
    said(&*last, "rm /workspace/f").await;
    last.destroy().await.unwrap();
    lab.full().await;
    for _ in 0..3 {
        let next = lab.backend.create(sized(&lab, size)).await.unwrap();
        assert!(!is_on_disk(&lab, secret));
        assert_eq!(said(&*next, "ls -A /workspace").await, "");
        next.destroy().await.unwrap();
    }
    // Other sizes get their own.
    let other = lab.backend.create(sized(&lab, size + MIB)).await.unwrap();
    assert!(other.stats().await.disk_size.unwrap() > Bytes(250 * MIB));
    other.destroy().await.unwrap();
    assert_eq!(lab.full().await.disks, 4);
}

async fn nothing_is_made_ahead_while_a_burst_waits(lab: Lab) {
    const BURST: u32 = 100;
    lab.sandbox().await.destroy().await.unwrap();
    let before = lab.full().await;
    let creations = (0..BURST).map(|_| lab.backend.create(lab.spec()));
    // Asked last, so it is answered when the last creations are in flight.
    let (made, levels) = tokio::join!(futures::future::join_all(creations), lab.backend.levels());
    let levels = levels.unwrap();
    let sandboxes: Vec<_> = made.into_iter().map(|made| made.expect("made")).collect();
    assert_eq!((levels.blanks, levels.networks), (0, 0), "more were asked for than were ready: {levels:?}");
    // One may begin before the first is seen, and one when the last have been taken.
    assert!(levels.begun <= before.begun + 2, "{before:?} {levels:?}");
    // And when none waits any more, it goes on by itself.
    let after = lab.full().await;
    assert!(after.begun >= before.begun + u64::from(before.networks), "{after:?}");
    for sandbox in sandboxes {
        sandbox.destroy().await.unwrap();
    }
}

async fn a_creation_that_fails_costs_the_pools_nothing(lab: Lab) {
    for disk in [16 * MIB, 300 * MIB] {
        let sandbox = lab.backend.create(sized(&lab, disk)).await.unwrap();
        sandbox.destroy().await.unwrap();
        let before = lab.full().await;
        for step in Step::ALL {
            lab.backend.fail_next_after(*step);
            assert!(lab.backend.create(sized(&lab, disk)).await.is_err(), "{step:?}");
            let census = census::take(&lab.data_dir()).unwrap();
            assert!(census.holds_no_sandbox(), "{step:?}: {census}");
            let after = lab.full().await;
            // Of groups those that came back are kept too, up to a bound.
            let held = |levels: Levels| (levels.blanks, levels.networks, levels.groups >= 64, levels.disks);
            assert_eq!(held(after), held(before), "{step:?}");
        }
    }
}

/// 3 of 100 once did not: the kernel told of a page that was gone, for as long as two seconds. And blanks that waited in a
/// group with the limit of a reset were killed by it.
async fn groups_of_ordinary_sandboxes_all_come_back_and_what_waits_in_them_has_room(lab: Lab) {
    const SANDBOXES: usize = 200;
    let before = lab.full().await;
    if !before.hands_on_groups {
        eprintln!("SKIPPED: memory groups are not handed on here");
        return;
    }
    for _ in 0..SANDBOXES {
        let sandbox = lab.sandbox().await;
        assert_eq!(said(&*sandbox, "echo here").await, "here");
        sandbox.destroy().await.unwrap();
    }
    let after = lab.full().await;
    assert!(after.groups_handed_on >= before.groups_handed_on + 100, "{after:?}");
    // One may have been charged with pages of a program that nobody had read before.
    assert!(after.groups_given_up <= before.groups_given_up + 1, "{after:?}");
    let mut waiting = 0;
    for leaf in fs::read_dir(group(&lab, ".").unwrap()).unwrap().flatten() {
        if leaf.file_name().to_string_lossy().starts_with("pool.b") {
            waiting += 1;
            let limit = fs::read_to_string(leaf.path().join("memory.limit_in_bytes")).unwrap();
            assert!(limit.trim().parse::<u64>().unwrap() >= MIB, "{}: {limit}", leaf.path().display());
        }
    }
    assert_eq!(waiting, after.blanks);
}

async fn a_blank_that_died_is_not_handed_out(lab: Lab) {
    let full = lab.full().await;
    let blanks = census::take(&lab.data_dir()).unwrap().ahead.processes;
    assert_eq!(blanks.len(), full.blanks as usize);
    for pid in &blanks {
        // Children of the broker that nobody reaped: the numbers are theirs.
        let pid = nix::unistd::Pid::from_raw(*pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    // Death takes its time. One that dies after it was looked at fails its creation.
    let is_over = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
    };
    while !blanks.iter().all(is_over) {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    for _ in 0..=full.blanks {
        let sandbox = lab.sandbox().await;
        assert_eq!(said(&*sandbox, "echo here").await, "here");
        sandbox.destroy().await.unwrap();
    }
    assert_eq!(lab.full().await.blanks, full.blanks);
    let now = census::take(&lab.data_dir()).unwrap();
    assert!(now.holds_no_sandbox(), "{now}");
    assert!(now.ahead.processes.iter().all(|pid| !blanks.contains(pid)), "{now}");
}

async fn a_blank_that_cannot_be_made_costs_nothing_but_time(lab: Lab) {
    let before = lab.full().await;
    let ahead = Step::ALL.iter().filter(|step| step.is_ahead() || **step == Step::Cgroups);
    for step in ahead.filter(|step| **step != Step::Network) {
        lab.backend.fail_next_blank_after(*step).unwrap();
        lab.sandbox().await.destroy().await.unwrap();
        let after = lab.full().await;
        assert_eq!((after.blanks, after.networks), (before.blanks, before.networks), "{step:?}");
        let census = census::take(&lab.data_dir()).unwrap();
        assert!(census.holds_no_sandbox(), "{step:?}: {census}");
        assert_eq!(census.ahead.processes.len(), after.blanks as usize, "{step:?}: {census}");
        let leaves = census.ahead.cgroups.iter().filter(|name| name.starts_with("pool.b")).count();
        assert_eq!(leaves, after.blanks as usize, "{step:?}: {census}");
    }
}

/// What a sandbox is in and sees: its groups, its mounts, its names, its limits and its rights.
async fn seen(data_dir: &Path, sandbox: &dyn executor::sandbox::Sandbox, id: &str) -> String {
    let text = said(
        sandbox,
        "cat /proc/1/limits; cat /proc/1/cgroup /proc/self/cgroup; \
         cut -d' ' -f4- /proc/self/mountinfo; hostname; \
         cat /proc/1/uid_map /proc/1/gid_map; grep -E '^(Cap|NoNewPrivs|Seccomp|Groups|Uid|Gid)' /proc/1/status; \
         readlink /proc/1/fd/*; ls /proc | grep -c '^[0-9]'; ls /dev /dev/pts /dev/shm; \
         echo > /proc/sys/kernel/hostname || echo read-only; \
         stat -f -c %S%b /dev/shm; cat /proc/net/dev | wc -l",
    )
    .await;
    let leaves = census::leaves(data_dir).unwrap().into_iter().filter(|(name, _)| name == id);
    let pids: Vec<_> =
        leaves.map(|(_, leaf)| fs::read_to_string(leaf.join("cgroup.procs")).unwrap()).collect();
    let counts: Vec<_> = pids.iter().map(|pids| pids.lines().count()).collect();
    let init = init_from_outside(pids.concat().lines().next().unwrap());
    format!("{}\nprocesses in its leaves: {counts:?}\n{init}", text.replace(id, "ID"))
}

/// What nobody in a sandbox may see of its init: rights, limits, descriptors, and that it cannot be traced.
fn init_from_outside(pid: &str) -> String {
    let own = Path::new("/proc").join(pid);
    let status = fs::read_to_string(own.join("status")).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let kept = "00000000000001e0";
    for (set, expected) in [
        ("CapPrm:", kept),
        ("CapEff:", kept),
        ("CapBnd:", kept),
        ("CapInh:", "0000000000000000"),
        ("CapAmb:", "0000000000000000"),
        ("NoNewPrivs:", "1"),
        ("Seccomp:", "2"),
        ("Seccomp_filters:", "1"),
        ("Name:", "init"),
        ("Groups:", ""),
    ] {
        assert_eq!(field(set), expected, "{set}");
    }
    // Of a process that may be traced they are its own user's, else root's of its namespace: the first of the range whose
    // last one init is.
    let user: u32 = field("Uid:").split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!(fs::metadata(own.join("status")).unwrap().uid(), user - 65_535, "it may be traced");
    let mut open: Vec<_> = fs::read_dir(own.join("fd"))
        .unwrap()
        .flatten()
        .map(|fd| {
            let to = fs::read_link(fd.path()).unwrap().to_string_lossy().into_owned();
            let kind = to.split_once(":[").map_or(to.as_str(), |(kind, _)| kind).to_owned();
            format!("{} {kind}", fd.file_name().to_string_lossy())
        })
        .collect();
    open.sort();
    assert_eq!(open, ["0 /dev/null", "1 /dev/null", "2 /dev/null", "3 socket", "4 anon_inode"]);
    root_of_its_namespace(&own);
    fs::read_to_string(own.join("limits")).unwrap()
}

/// Whoever joins its mount namespace finds the root that init has, and nothing else of a root.
fn root_of_its_namespace(own: &Path) {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).unwrap();
    let (namespace, root) = (fs::File::open(own.join("ns/mnt")).unwrap(), identity(&own.join("root/")));
    let joined = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let up = fs::metadata("/../..").map(|found| (found.dev(), found.ino())).unwrap();
        (identity(Path::new("/")), up, fs::metadata("/file").is_ok())
    });
    let (seen, up, is_masked) = joined.join().unwrap();
    assert_eq!((seen, up, is_masked), (root, root, false));
}

async fn a_sandbox_out_of_a_blank_is_as_one_that_was_cloned_for_it(lab: Lab) {
    let data_dir = lab.dir.path().join("cold");
    let cold = Container::start_cold(&ContainerConfig { data_dir: data_dir.clone() }).unwrap();
    let data_dir = data_dir.canonicalize().unwrap();
    let (theirs, ours) = (lab.spec(), lab.spec());
    let (their_id, our_id) = (theirs.id.clone(), ours.id.clone());
    let cloned = cold.create(theirs).await.unwrap();
    lab.full().await;
    let blanks = census::take(&lab.data_dir()).unwrap().ahead.processes;
    let sandbox = lab.backend.create(ours).await.unwrap();
    let now = census::take(&lab.data_dir()).unwrap().processes;
    assert!(now.iter().any(|pid| blanks.contains(pid)), "none of {blanks:?} became it, but {now:?}");
    // Ranges of ids differ from one to the next, and the kernel lists mounts in no order.
    let lines = |text: String| -> Vec<String> {
        let words = text.split_inclusive(|c: char| !c.is_ascii_digit());
        let is_large = |word: &str| word.len() > "65536,".len();
        let told =
            words.map(|word| if word.as_bytes()[0].is_ascii_digit() && is_large(word) { "N" } else { word });
        let mut lines: Vec<String> = told.collect::<String>().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let ours = lines(seen(&lab.data_dir(), &*sandbox, &our_id).await);
    let theirs = lines(seen(&data_dir, &*cloned, &their_id).await);
    assert_eq!(ours, theirs);
    for sandbox in [sandbox, cloned] {
        sandbox.destroy().await.unwrap();
    }
    drop(cold);
    let path = data_dir.clone();
    tokio::task::spawn_blocking(move || assert_empty(&path)).await.unwrap();
    fs::File::open(data_dir.join("lock")).unwrap().lock().unwrap();
    census::remove_parents(&data_dir).unwrap();
}

async fn what_is_made_ahead_ends_with_its_broker(lab: Lab) {
    let data_dir = lab.dir.path().join("other");
    let other = Container::start(&ContainerConfig { data_dir: data_dir.clone() }).unwrap();
    let data_dir = data_dir.canonicalize().unwrap();
    other.create(sized(&lab, 300 * MIB)).await.unwrap().destroy().await.unwrap();
    while !other.levels().await.unwrap().is_full {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let census = census::take(&data_dir).unwrap();
    assert!(census.holds_no_sandbox(), "{census}");
    assert_eq!((census.ahead.loops.len(), census.ahead.files.len()), (2, 2), "{census}");
    let blanks = other.levels().await.unwrap().blanks;
    assert!(blanks > 0);
    assert_eq!(census.ahead.processes.len(), blanks as usize, "{census}");
    drop(other);
    let path = data_dir.clone();
    tokio::task::spawn_blocking(move || assert_empty(&path)).await.unwrap();
    fs::File::open(data_dir.join("lock")).unwrap().lock().unwrap();
    census::remove_parents(&data_dir).unwrap();
}

async fn namespaces_that_wait_for_the_kernel_are_counted_down_to_none(lab: Lab) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    for _ in 0..100 {
        lab.sandbox().await.destroy().await.unwrap();
    }
    // Looked at with every few that are made ahead.
    loop {
        for _ in 0..20 {
            lab.sandbox().await.destroy().await.unwrap();
        }
        let levels = lab.full().await;
        assert!(levels.networks_pending < 1000, "{levels:?}");
        if levels.networks_pending <= 40 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{levels:?}");
    }
}
