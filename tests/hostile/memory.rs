//! Case 9: memory without end, in every kind there is.

use executor::sandbox::Exit;
use rollout::Bytes;

use crate::lab::{Done, LOOP_DISK, Lab, MIB, said, shell, start_as};

crate::cases![
    "09" every_kind_of_memory_ends_at_the_limit_inside,
    "09" the_page_cache_of_files_is_reclaimed_and_kills_nobody,
    "09" what_waits_in_sockets_is_bounded_and_arrives_within_the_bound,
    "09" the_host_lends_no_room_for_filters_and_errors_of_sockets,
];

const BOMB: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
  size_t one = 1 << 20;
  char *kind = argv[1];
  static char full[1 << 20];
  memset(full, 1, one);
  int fd = !strcmp(kind, "memfd") ? memfd_create("m", 0) : !strcmp(kind, "shm") ? open("/dev/shm/f", O_CREAT | O_RDWR, 0600) : -1;
  for (int i = 0; i < 1024; i++) {
    if (fd >= 0) { if (write(fd, full, one) != one) { perror("write"); return 9; } }
    else if (!strcmp(kind, "sysv")) { int id = shmget(IPC_PRIVATE, one, 0600); if (id < 0) return 9; memset(shmat(id, 0, 0), 1, one); }
    else if (!strcmp(kind, "shared")) memset(mmap(0, one, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 1, one);
    else if (!strcmp(kind, "pipes")) { int p[2]; if (pipe(p)) return 9; fcntl(p[1], F_SETPIPE_SZ, one); fcntl(p[1], F_SETFL, O_NONBLOCK); while (write(p[1], full, 65536) > 0); }
    else if (!strcmp(kind, "sockets")) { int p[2]; if (socketpair(1, SOCK_STREAM, 0, p)) return 9; fcntl(p[1], F_SETFL, O_NONBLOCK); int n = 8 << 20; setsockopt(p[1], 1, SO_SNDBUF, &n, 4); while (write(p[1], full, 65536) > 0); }
    else { char *m = mmap(0, one, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); if (m == MAP_FAILED) return 9; memset(m, 1, one); if (!strcmp(kind, "locked")) mlock(m, one); }
  }
  return 7;
}
"#;

/// 256 MiB would hold none of these; the neighbour and the executor notice nothing.
async fn every_kind_of_memory_ends_at_the_limit_inside(lab: &Lab) -> Done {
    let neighbour = lab.sandbox().await;
    let host = || {
        let text = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        (text, lab.backend.broker_gone())
    };
    let before = host();
    let limit = 32 * MIB;
    for kind in ["anonymous", "locked", "shared", "memfd", "shm", "sysv", "pipes", "sockets"] {
        let sandbox = lab.sandbox_with(|spec| spec.limits.memory = Bytes(limit)).await;
        lab.program(&sandbox, "bomb", BOMB).await;
        let bomb = start_as(&sandbox, "rollout", "/workspace", &["/workspace/bomb", kind]).await.unwrap();
        let exit = bomb.output().await.exit;
        let stats = sandbox.stats().await;
        match kind {
            // A tmpfs with a size of its own, half of the memory: it is full before the memory is.
            "shm" => assert_eq!((exit, stats.oom_kills), (Exit::Code(9), Some(0)), "{kind}: {stats:?}"),
            // The kernel bounds what a user holds in pipes before the limit does.
            "pipes" | "sockets" => {
                assert!(exit != Exit::Signal(9) || stats.oom_kills > Some(0), "{kind}: {exit:?}")
            }
            _ => {
                assert_eq!(exit, Exit::Signal(9), "{kind}: {stats:?}");
                assert!(stats.oom_kills.unwrap() >= 1, "{kind}: {stats:?}");
            }
        }
        let peak = stats.memory_peak.unwrap();
        assert!(peak <= Bytes(limit + 16 * MIB), "{kind}: {stats:?}");
        assert!(peak >= Bytes(limit / 4), "{kind} was tried: {stats:?}");
        sandbox.kill_all().await.unwrap();
        // Memory without a process goes by its name, or with the sandbox.
        let cleaned = "rm -f /dev/shm/f; ipcs -m | awk '/0x/ {print $2}' | xargs -r -n 50 ipcrm shm >/dev/null 2>&1; echo ok";
        assert!(shell(&sandbox, cleaned).await.stdout.ends_with("ok\n"), "{kind}: the sandbox goes on");
        assert_eq!(said(&neighbour, "echo ok").await, "ok", "{kind}");
        assert_eq!(neighbour.stats().await.oom_kills, Some(0), "{kind}");
        sandbox.end().await;
    }
    assert_eq!(host(), before, "the executor and its broker");
    neighbour.end().await;
    Ok(())
}

async fn the_page_cache_of_files_is_reclaimed_and_kills_nobody(lab: &Lab) -> Done {
    let sandbox = lab
        .sandbox_with(|spec| {
            spec.limits.memory = Bytes(32 * MIB);
            spec.limits.disk = LOOP_DISK;
        })
        .await;
    assert_eq!(
        said(&sandbox, "head -c 200M /dev/zero > f && cat f f > /dev/null && wc -c < f").await,
        "209715200"
    );
    let stats = sandbox.stats().await;
    assert_eq!(stats.oom_kills, Some(0), "{stats:?}");
    assert!(stats.memory_peak.unwrap() <= Bytes(33 * MIB), "{stats:?}");
    assert!(stats.disk_used.unwrap() >= Bytes(200 * MIB), "{stats:?}");
    sandbox.end().await;
    Ok(())
}

/// Fills sockets that nobody reads, then says how many bytes there were to read.
const UNREAD: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
  static char bytes[60000];
  static int fds[4000];
  int sockets = atoi(argv[1]);
  long sum = 0;
  for (int i = 0; i < sockets; i++) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    fds[i] = socket(AF_INET, SOCK_DGRAM, 0);
    int from = socket(AF_INET, SOCK_DGRAM, 0);
    if (fds[i] < 0 || from < 0) return 9;
    if (bind(fds[i], (void *)&at, len) || getsockname(fds[i], (void *)&at, &len)) return 8;
    for (int n = 0; n < 3; n++) sendto(from, bytes, sizeof bytes, MSG_DONTWAIT, (void *)&at, len);
    close(from);
  }
  for (int i = 0; i < sockets; i++)
    for (long n; (n = recv(fds[i], bytes, sizeof bytes, MSG_DONTWAIT)) > 0;) sum += n;
  printf("%ld\n", sum);
  return 0;
}
"#;

async fn what_waits_in_sockets_is_bounded_and_arrives_within_the_bound(lab: &Lab) -> Done {
    let sandbox = lab.sandbox_with(|spec| spec.limits.memory = Bytes(64 * MIB)).await;
    lab.program(&sandbox, "unread", UNREAD).await;
    let few = said(&sandbox, "/workspace/unread 20").await;
    assert_eq!(few, (20 * 3 * 60_000).to_string(), "what programs do");
    // 300 MB, unless something holds them back.
    let many: u64 = said(&sandbox, "/workspace/unread 2000").await.parse().unwrap();
    assert!((4 * MIB..=64 * MIB).contains(&many), "{many} bytes waited");
    sandbox.end().await;
    Ok(())
}

/// The host compiles filters of sockets into room that all sandboxes share, and charges nobody for what waits in error
/// queues.
const OPTIONS: &str = r#"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
  struct sock_filter accept[] = {{0x06, 0, 0, 0xffff}};
  struct sock_fprog filter = {1, accept};
  int one = 1, s = socket(AF_INET, SOCK_DGRAM, 0);
  int attached = setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) ? errno : 0;
  int queue = setsockopt(s, IPPROTO_IP, 11, &one, sizeof one) ? errno : 0;
  struct sockaddr_in shut = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  connect(s, (void *)&shut, sizeof shut);
  send(s, "x", 1, 0);
  usleep(20000);
  char byte;
  int told = recv(s, &byte, 1, MSG_DONTWAIT) < 0 ? errno : 0;
  int queued = recv(s, &byte, 1, MSG_ERRQUEUE | MSG_DONTWAIT) < 0 ? errno : 0;
  int other = setsockopt(s, SOL_SOCKET, SO_RCVBUF, &one, sizeof one) ? errno : 0;
  printf("%d %d %d %d %d\n", attached, queue, told, queued, other);
  return 0;
}
"#;

async fn the_host_lends_no_room_for_filters_and_errors_of_sockets(lab: &Lab) -> Done {
    let sandbox = lab.sandbox().await;
    lab.program(&sandbox, "options", OPTIONS).await;
    // EPERM; done, as the resolver wants it; ECONNREFUSED all the same; EAGAIN: nothing is queued; done.
    assert_eq!(said(&sandbox, "/workspace/options").await, "1 0 111 11 0");
    sandbox.end().await;
    Ok(())
}
