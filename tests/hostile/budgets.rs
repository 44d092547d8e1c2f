//! Case 48: what the kernel grants a user. It counts inotify, queues, signals and locked memory of a
//! user namespace by the user that made it: one sandbox that takes all of it must leave the others all
//! of theirs.

use tests::census::descriptors;

use crate::lab::{Done, Held, Lab, said, stays};

crate::cases![
    "48" a_sandbox_that_uses_up_every_budget_leaves_the_others_theirs,
];

/// Takes of each kind until it is refused, says how many it has and the errno, and keeps them.
const HOG: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>
#define UNTIL_REFUSED(name, most, call) \
  do { long n = 0; errno = 0; while (n < most && (call) >= 0) n++; printf("%s %ld %d\n", name, n, errno); } while (0)
static int queue(long n) {
  char name[32];
  struct mq_attr of = {.mq_maxmsg = 10, .mq_msgsize = 8192};
  sprintf(name, "/q%ld", n);
  return mq_open(name, O_CREAT | O_RDWR, 0600, &of);
}
static int locked(void) {
  int id = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
  return id < 0 ? id : shmctl(id, SHM_LOCK, 0);
}
int main(int argc, char **argv) {
  long all = atol(argv[1]);
  int files = 2000, instances = 400, held[400];
  sigset_t set;
  sigfillset(&set);
  sigprocmask(SIG_BLOCK, &set, 0);
  for (int i = 0; i < instances; i++) held[i] = all > i ? inotify_init1(0) : -1;
  if (all == 1) { files = 1; instances = 1; }
  for (int f = 0; f < files; f++) { char name[32]; sprintf(name, "w%d", f); close(open(name, O_CREAT | O_RDWR, 0600)); }
  long most = all == 1 ? 1 : (long)files * instances;
  UNTIL_REFUSED("watches", most, ({ char name[32]; sprintf(name, "w%ld", n / instances); inotify_add_watch(held[n % instances], name, IN_ALL_EVENTS); }));
  UNTIL_REFUSED("instances", all, inotify_init1(0));
  UNTIL_REFUSED("queues", all, queue(n));
  UNTIL_REFUSED("signals", all, sigqueue(getpid(), SIGRTMIN, (union sigval){0}));
  UNTIL_REFUSED("locked", (all < 64 ? all : 64), locked());
  UNTIL_REFUSED("terminals", all, open("/dev/ptmx", O_RDWR | O_NOCTTY));
  puts("there");
  fflush(stdout);
  pause();
}"#;

/// What the program says of each kind: how many, and why not more.
fn told(lines: &[String]) -> Vec<(&str, u64, i32)> {
    let told = lines.iter().map(|line| {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default();
        (word(), word().parse().unwrap(), word().parse().unwrap())
    });
    told.collect()
}

/// The budget of the host for one user.
fn granted(setting: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{setting}")).unwrap();
    text.trim().parse().unwrap()
}

/// One of each kind is had, by a process of its own that then ends.
async fn has_one_of_each(sandbox: &Held, who: &str) {
    let (one, lines) = stays(sandbox, "rollout", &["/workspace/hog", "1"]).await;
    for (kind, made, errno) in told(&lines) {
        assert_eq!((made, errno), (1, 0), "{who} can still have {kind}");
    }
    one.process.signal(libc::SIGKILL).await.unwrap();
    one.process.wait().await.unwrap();
    said(sandbox, "rm -f /workspace/w*").await;
}

async fn a_sandbox_that_uses_up_every_budget_leaves_the_others_theirs(lab: &Lab) -> Done {
    let made_before = lab.sandbox().await;
    lab.program(&made_before, "hog", HOG).await;
    has_one_of_each(&made_before, "one made before, before").await;
    let mut hogs = Vec::new();
    // The second gets as much as the first: they share nothing.
    for which in ["the first", "the second"] {
        let hog = lab.sandbox().await;
        lab.program(&hog, "hog", HOG).await;
        let (process, lines) = stays(&hog, "rollout", &["/workspace/hog", "1000000"]).await;
        let told = told(&lines);
        let of = |name: &str| *told.iter().find(|(kind, ..)| *kind == name).unwrap();
        // Seen from the host, by the kernel's own list.
        let (_, others) = lab.processes(&hog);
        let instances = descriptors(others[0]).iter().filter(|kind| *kind == "anon_inode:inotify").count();
        assert_eq!(instances as u64, granted("max_user_instances"), "{which}: {told:?}");
        assert_eq!(of("instances").2, libc::EMFILE, "{which}: {told:?}");
        let watches = granted("max_user_watches");
        assert_eq!(of("watches"), ("watches", watches, libc::ENOSPC), "{which}: {told:?}");
        assert_eq!(of("terminals"), ("terminals", 256, libc::ENOSPC), "{which}: {told:?}");
        for kind in ["queues", "signals", "locked"] {
            assert!(of(kind).1 > 1, "{which} has {kind}: {told:?}");
        }
        hogs.push((hog, process, lines));
    }
    assert_eq!(hogs[0].2, hogs[1].2, "each has the whole of its own");
    has_one_of_each(&made_before, "one made before").await;
    let made_after = lab.sandbox().await;
    lab.program(&made_after, "hog", HOG).await;
    has_one_of_each(&made_after, "one made after").await;
    for (hog, _process, _) in hogs {
        hog.kill_all().await.unwrap();
        // What a process held goes with it; the rest with the sandbox.
        assert_eq!(said(&hog, "echo ok").await, "ok");
        hog.end().await;
    }
    made_before.end().await;
    made_after.end().await;
    Ok(())
}
