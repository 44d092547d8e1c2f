//! Case 8: processes and threads without end.

use executor::sandbox::Exit;
use tests::census::status;

use crate::lab::{Done, Lab, said, start_as, stays, until, until_async};

crate::cases![
    "08" a_fork_bomb_meets_its_limit_and_dies_with_its_step,
    "08" a_hundred_thousand_threads_meet_their_limit,
    "08" a_daemon_that_left_its_session_dies_with_its_step,
];

async fn a_fork_bomb_meets_its_limit_and_dies_with_its_step(lab: &Lab) -> Done {
    let (sandbox, neighbour) = (lab.sandbox().await, lab.sandbox().await);
    let bomb = r#"
#include <signal.h>
#include <unistd.h>
int main(void) { for (int s = 1; s < 32; s++) signal(s, SIG_IGN); for (;;) if (fork() == 0) setsid(); }"#;
    lab.program(&sandbox, "bomb", bomb).await;
    for _ in 0..3 {
        let _bomb = start_as(&sandbox, "root", "/", &["/workspace/bomb"]).await.unwrap();
        let denied = sandbox.stats().await.pids_denied.unwrap();
        let refused = async || sandbox.stats().await.pids_denied.unwrap() > denied + 1000;
        until_async("forks are refused", refused).await;
        let (_, bombs) = lab.processes(&sandbox);
        assert!(bombs.len() <= 64, "{} processes", bombs.len());
        assert_eq!(said(&neighbour, "for i in 1 2 3; do true & done; wait; echo ok").await, "ok");
        assert_eq!(neighbour.stats().await.pids_denied, Some(0));
        sandbox.kill_all().await.unwrap();
        assert_eq!(lab.processes(&sandbox).1, [0i32; 0], "seen from the host");
        assert_eq!(said(&sandbox, "echo ok").await, "ok");
    }
    let _bomb = start_as(&sandbox, "rollout", "/", &["/workspace/bomb"]).await.unwrap();
    sandbox.end().await;
    neighbour.end().await;
    Ok(())
}

async fn a_hundred_thousand_threads_meet_their_limit(lab: &Lab) -> Done {
    let threads = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *stay(void *p) { pause(); return p; }
int main(void) {
  pthread_attr_t a;
  pthread_t t;
  int made = 0, refused = 0;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, PTHREAD_STACK_MIN);
  for (int i = 0; i < 100000; i++) if (pthread_create(&t, &a, stay, 0)) refused++; else made++;
  printf("%d\n%d\nthere\n", made, refused);
  fflush(stdout);
  pause();
}"#;
    let sandbox = lab.sandbox().await;
    lab.program(&sandbox, "threads", threads).await;
    let (_held, lines) = stays(&sandbox, "rollout", &["/workspace/threads"]).await;
    let (_, others) = lab.processes(&sandbox);
    let seen: u64 = others.iter().map(|pid| status(*pid, "Threads").unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(seen, 64, "the limit, seen from the host");
    assert_eq!(lines, ["63", "99937"]);
    assert!(sandbox.stats().await.pids_denied.unwrap() >= 99_937);
    sandbox.kill_all().await.unwrap();
    assert_eq!(said(&sandbox, "sleep 0 & wait; echo ok").await, "ok");
    sandbox.end().await;
    Ok(())
}

async fn a_daemon_that_left_its_session_dies_with_its_step(lab: &Lab) -> Done {
    let daemon = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
  for (int i = 0; i < 3; i++) if (fork()) { if (!i) { puts("there"); fflush(stdout); } _exit(0); } else { setsid(); setpgid(0, 0); }
  for (int s = 1; s < 65; s++) signal(s, SIG_IGN);
  prctl(PR_SET_NAME, "kworker/0:0");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, 0);
  for (int fd = 0; fd < 3; fd++) close(fd);
  /* A child that nobody waits for by SIGCHLD, one that is traced, one in vfork. */
  if (!syscall(SYS_clone, 0, 0, 0, 0, 0)) for (;;) pause();
  if (!syscall(SYS_clone, SIGUSR1, 0, 0, 0, 0)) for (;;) pause();
  if (!vfork()) for (;;) pause();
  for (;;) pause();
}"#;
    let sandbox = lab.sandbox().await;
    lab.program(&sandbox, "daemon", daemon).await;
    for user in ["rollout", "root"] {
        let (held, _) = stays(&sandbox, user, &["/workspace/daemon"]).await;
        assert_eq!(held.process.wait().await.unwrap(), Exit::Code(0));
        until("the daemon and its children run", || lab.processes(&sandbox).1.len() >= 4).await;
        sandbox.kill_all().await.unwrap();
        assert_eq!(lab.processes(&sandbox).1, [0i32; 0], "{user}: seen from the host");
    }
    sandbox.end().await;
    Ok(())
}
