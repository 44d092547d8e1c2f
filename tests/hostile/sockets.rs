//! Case 7: a search for anything of the executor's that could be spoken to, and forged messages to
//! whatever answers.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use executor::sandbox::Exit;

use crate::lab::{Done, Lab, shell, start_as};

crate::cases![
    "07" nothing_of_the_executor_answers_and_the_exit_code_stays_the_kernels,
];

/// Connects to every port of the loopback, every socket named in /proc/net/unix, every socket file
/// there is and the abstract names one would guess, sends what init would say, and tries every
/// descriptor it could have been left. Ends with 77 if nothing answered.
const SCAN: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
static int found;
/* Exited, with little-endian ticket and status, in every numbering one may think of. */
static void forge(int fd) {
  for (int tag = 0; tag < 16; tag++) { unsigned char m[9] = {tag, 1, 0, 0, 0, 0, 0, 0, 0}; send(fd, m, 9, MSG_NOSIGNAL | MSG_DONTWAIT); write(fd, m, 9); }
}
static void unix_name(const char *name, int len) {
  for (int type = 1; type <= 5; type += type == 2 ? 3 : 1) {
    int s = socket(AF_UNIX, type, 0);
    struct sockaddr_un a = {AF_UNIX};
    memcpy(a.sun_path, name, len);
    if (!connect(s, (void *)&a, sizeof(short) + len)) { found++; printf("unix %d %.*s\n", type, len - 1, name + 1); forge(s); }
    close(s);
  }
}
static int visit(const char *path, const struct stat *st, int kind, struct FTW *f) {
  if (S_ISSOCK(st->st_mode) && strlen(path) < 107) { found++; printf("file %s\n", path); unix_name(path, strlen(path) + 1); }
  return 0;
}
int main(int argc, char **argv) {
  signal(13, (void *)1);
  for (int port = 1; port < 65536; port++)
    for (int six = 0; six < (port < 4096 ? 2 : 1); six++) {
      int s = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
      struct sockaddr_in a = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}};
      struct sockaddr_in6 b = {AF_INET6, htons(port), 0, IN6ADDR_LOOPBACK_INIT};
      int r = six ? connect(s, (void *)&b, sizeof b) : connect(s, (void *)&a, sizeof a);
      if (!r) {
        struct sockaddr_in6 own;
        socklen_t n = sizeof own;
        getsockname(s, (void *)&own, &n);
        /* Not the port's own other end: a simultaneous open with itself. */
        if (ntohs(own.sin6_port) != port) { found++; printf("tcp %d\n", port); forge(s); }
      }
      close(s);
    }
  FILE *list = fopen("/proc/net/unix", "r");
  char line[512];
  while (list && fgets(line, sizeof line, list)) { char *at = strchr(line, '@'); if (at) { at[strcspn(at, "\n")] = 0; char n[108] = {0}; strncpy(n + 1, at + 1, 106); found++; unix_name(n, strlen(n + 1) + 1); } }
  char *guesses[] = {"rollyard", "rollyard-test-host", "rollyard-broker", "executor", "init", "/tmp/.X11-unix/X0", "dbus"};
  for (unsigned i = 0; i < sizeof guesses / sizeof *guesses; i++) { char n[108] = {0}; strcpy(n + 1, guesses[i]); unix_name(n, strlen(guesses[i]) + 1); }
  nftw("/", visit, 16, FTW_PHYS);
  int init = syscall(SYS_pidfd_open, 1, 0);
  for (int fd = 0; fd < 256; fd++) {
    char path[64];
    sprintf(path, "/proc/1/fd/%d", fd);
    int s = open(path, O_RDWR);
    if (s >= 0) { found++; printf("init %d\n", fd); forge(s); }
    s = syscall(438, init, fd, 0);
    if (s >= 0) { found++; printf("stolen %d\n", fd); forge(s); }
    if (fd > 2 && fd != init && fcntl(fd, F_GETFD) >= 0 && !(list && fd == fileno(list))) { found++; printf("left %d\n", fd); forge(fd); }
  }
  forge(1);
  forge(2);
  return found ? 1 : 77;
}
"#;

async fn nothing_of_the_executor_answers_and_the_exit_code_stays_the_kernels(lab: &Lab) -> Done {
    // As a host has them; all are of this test, in its own namespaces.
    let abstract_name = SocketAddr::from_abstract_name(b"rollyard-test-host").unwrap();
    let by_name = UnixListener::bind_addr(&abstract_name).unwrap();
    let by_path = UnixListener::bind(lab.data_dir.join("yard.sock")).unwrap();
    let by_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for listener in [&by_name, &by_path] {
        listener.set_nonblocking(true).unwrap();
    }
    by_port.set_nonblocking(true).unwrap();
    for user in ["rollout", "root"] {
        let sandbox = lab.sandbox().await;
        lab.program(&sandbox, "scan", SCAN).await;
        let scan = start_as(&sandbox, user, "/workspace", &["/workspace/scan"]).await.unwrap();
        let output = scan.output().await;
        assert_eq!(output.exit, Exit::Code(77), "{user}: {output:?}");
        assert!(
            by_name.accept().is_err() && by_path.accept().is_err() && by_port.accept().is_err(),
            "{user}"
        );
        // A status written by hand is text; the kernel's is another.
        let forged =
            shell(&sandbox, "printf '\\003\\001\\000\\000\\000\\000\\000\\000\\000'; echo exit 0; exit 9")
                .await;
        assert_eq!(forged.exit, Exit::Code(9));
        sandbox.end().await;
    }
    // The positive control: each listener does answer from here, and the sandbox's own do inside.
    std::net::TcpStream::connect(by_port.local_addr().unwrap()).unwrap();
    std::os::unix::net::UnixStream::connect_addr(&abstract_name).unwrap();
    assert!(by_port.accept().is_ok() && by_name.accept().is_ok());
    std::fs::remove_file(lab.data_dir.join("yard.sock")).unwrap();
    let sandbox = lab.sandbox().await;
    lab.program(&sandbox, "scan", SCAN).await;
    let own = r#"perl -MSocket -e 'socket(my $l, PF_INET, SOCK_STREAM, 0); bind($l, sockaddr_in(8080, inet_aton("127.0.0.1"))); listen($l, 100); socket(my $u, PF_UNIX, SOCK_STREAM, 0); bind($u, sockaddr_un("/tmp/s")); listen($u, 9); system("/workspace/scan")'"#;
    let seen = shell(&sandbox, own).await.stdout;
    assert!(seen.contains("tcp 8080") && seen.contains("file /tmp/s"), "what can be found is found: {seen}");
    sandbox.end().await;
    Ok(())
}
