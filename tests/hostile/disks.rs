//! Case 10: a disk filled in every way, on each kind of writable layer.

use executor::sandbox::{CreateError, FileError, FileSource};
use rollout::Bytes;

use crate::lab::{Done, Held, LOOP_DISK, Lab, MIB, said, shell, stays};

crate::cases![
    "10" a_disk_in_memory_is_full_at_its_limit_and_nothing_is_killed,
    "10" a_limit_of_nothing_is_refused_and_never_read_as_none,
    "10" a_disk_in_a_file_is_full_at_its_limit_and_nothing_is_killed,
];

async fn a_disk_in_memory_is_full_at_its_limit_and_nothing_is_killed(lab: &Lab) -> Done {
    fill(lab, Bytes(16 * MIB)).await;
    Ok(())
}

async fn a_disk_in_a_file_is_full_at_its_limit_and_nothing_is_killed(lab: &Lab) -> Done {
    fill(lab, LOOP_DISK).await;
    Ok(())
}

async fn a_limit_of_nothing_is_refused_and_never_read_as_none(lab: &Lab) -> Done {
    for bytes in [0, 1, 4096, MIB - 1] {
        for (guarantee, is_disk) in [("limit.disk", true), ("limit.memory", false)] {
            let mut spec = lab.spec();
            *(if is_disk { &mut spec.limits.disk } else { &mut spec.limits.memory }) = Bytes(bytes);
            match lab.make(spec).await {
                Err(CreateError::NotEnforceable { guarantee: named, .. }) => assert_eq!(named, guarantee),
                other => panic!("{guarantee} {bytes}: {other:?}"),
            }
        }
    }
    let sandbox = lab.sandbox_with(|spec| spec.limits.disk = Bytes(MIB)).await;
    let filled = shell(&sandbox, "head -c 2M /dev/zero > f").await;
    assert!(filled.stderr.contains("No space left"), "{filled:?}");
    sandbox.end().await;
    Ok(())
}

/// Links, names and attributes without end. Each way ends with an errno, and then starts anew
/// where the rest is.
const FLOOD: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
int main(int argc, char **argv) {
  static char value[60000];
  char name[300], other[300];
  long made = 0, failures = 0;
  int last = 0;
  memset(value, 'v', sizeof value);
  mkdir("many", 0700);
  if (chdir("many")) return 1;
  close(open("f", O_CREAT | O_RDWR, 0600));
  for (long i = 0; i < 1000000 && failures < 200; i++) {
    int r;
    sprintf(name, "n%ld", i);
    if (!strcmp(argv[1], "inodes")) { r = open(name, O_CREAT | O_WRONLY, 0600); if (r >= 0) close(r); }
    else if (!strcmp(argv[1], "links")) r = link("f", name);
    else if (!strcmp(argv[1], "folders")) { r = mkdir(name, 0700); }
    else if (!strcmp(argv[1], "symlinks")) { memset(other, 'x', 250); other[250] = 0; r = symlink(other, name); }
    else { if (i % 4 == 0) { sprintf(other, "x%ld", i); r = open(other, O_CREAT | O_WRONLY, 0600); if (r < 0) { failures++; last = errno; continue; } close(r); } sprintf(name, "user.n%ld", i); r = setxattr(other, name, value, i % 2 ? 500 : sizeof value, 0); }
    if (r < 0) { failures++; last = errno; } else made++;
  }
  printf("%ld\n%d\nthere\n", made, last);
  fflush(stdout);
  pause();
}
"#;

async fn fill(lab: &Lab, disk: Bytes) {
    let sandbox = lab
        .sandbox_with(|spec| {
            spec.limits.disk = disk;
            spec.limits.memory = Bytes(128 * MIB);
        })
        .await;
    let size = sandbox.stats().await.disk_size.unwrap();
    assert!(size <= disk && size.0 > disk.0 * 8 / 10, "{size} of {disk}");
    let used = async || sandbox.stats().await.disk_used.unwrap();
    let start = used().await;

    // One file; then a file whose name is gone.
    for script in [
        "head -c 2G /dev/zero > big",
        "exec 3> gone; rm gone; head -c 2G /dev/zero >&3",
        "fallocate -l 1T reserved || { i=0; while fallocate -l 1M r$i; do i=$((i+1)); done; }",
    ] {
        let filled = shell(&sandbox, script).await;
        assert!(filled.stderr.contains("No space left"), "{script}: {filled:?}");
        no_kill(&sandbox, script).await;
        said(&sandbox, "rm -f big reserved r[0-9]*").await;
        assert!(used().await <= Bytes(start.0 + MIB), "{script}: given back, {} after {start}", used().await);
    }
    // Held open by a process that outlives its script, until the step ends.
    let (_held, _) = stays(
        &sandbox,
        "rollout",
        &["/bin/sh", "-c", "exec 3> gone; rm gone; head -c 2G /dev/zero >&3; echo there; exec sleep 1000"],
    )
    .await;
    assert!(used().await.0 * 10 > size.0 * 9, "{} of {size}", used().await);
    let refused = sandbox.write_file("g", FileSource::Bytes(vec![0; 1 << 20]), 0o644, "rollout").await;
    assert!(matches!(refused, Err(FileError::Full { .. })), "{refused:?}");
    sandbox.kill_all().await.unwrap();
    assert!(used().await <= Bytes(start.0 + MIB), "{} after {start}", used().await);

    // Holes are no bytes, and are not read as such.
    said(&sandbox, "truncate -s 1T sparse 2>/dev/null || truncate -s 1G sparse; echo ok > ok; cat ok").await;
    assert!(used().await <= Bytes(start.0 + MIB), "a hole of {} after {start}", used().await);
    let (_, long) = sandbox.open_file("sparse").await.unwrap().unwrap();
    assert!(long >= Bytes(1 << 30), "{long}");
    said(&sandbox, "rm sparse ok").await;

    lab.program(&sandbox, "flood", FLOOD).await;
    let ways: &[&str] = match disk {
        LOOP_DISK => &["inodes", "links", "attributes"],
        _ => &["inodes", "links", "folders", "symlinks", "attributes"],
    };
    for way in ways {
        let (_held, lines) = stays(&sandbox, "rollout", &["/workspace/flood", way]).await;
        let (made, errno): (u64, i32) = (lines[0].parse().unwrap(), lines[1].parse().unwrap());
        no_kill(&sandbox, way).await;
        let bounded = [libc::ENOSPC, libc::EMLINK, libc::EDQUOT, libc::E2BIG, libc::EOPNOTSUPP];
        assert!(made < 1_000_000 && bounded.contains(&errno), "{way}: {made} made, then errno {errno}");
        assert!(errno == libc::EOPNOTSUPP || made > 10, "{way}: {made} made, then errno {errno}");
        assert!(used().await <= size, "{way}");
        sandbox.kill_all().await.unwrap();
        said(&sandbox, "find many -delete").await;
        assert!(used().await <= Bytes(start.0 + 4 * MIB), "{way}: {} after {start}", used().await);
    }
    assert_eq!(said(&sandbox, "echo honest > f; cat f").await, "honest");
    sandbox.end().await;
}

async fn no_kill(sandbox: &Held, what: &str) {
    assert_eq!(sandbox.stats().await.oom_kills, Some(0), "{what}");
}
