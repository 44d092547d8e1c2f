//! Which network namespaces the kernel has not begun to take down yet.
//!
//! A namespace whose last user is gone waits in a queue for one worker of the kernel, and keeps its
//! memory meanwhile; nothing says how long that queue is. What the worker does first with a
//! namespace is to strike its number from every other namespace that knows one for it. So each is
//! given a number in a namespace made for this alone, where nobody else gives any: the numbers that
//! are left, less the namespaces in use, are those that wait.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::netns;
use super::{checked, fresh_fd};

const NETLINK_ROUTE: i32 = 0;
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const NSID: u16 = 1;
const NSID_OF_FD: u16 = 3;
/// The kernel chooses the number.
const ANY: i32 = -1;
const FLAG_REQUEST: u16 = 0x1;
const FLAG_ACK: u16 = 0x4;
const FLAG_DUMP: u16 = 0x300;
const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;
const HEADER_LEN: usize = 16;
/// The largest datagram the kernel answers with.
const ANSWER_MAX: usize = 32 * 1024;

/// A namespace that only knows numbers, kept by its socket.
#[derive(Debug)]
pub struct Ledger(OwnedFd);

impl Ledger {
    /// The calling thread is back in `home` afterwards.
    pub fn open(home: BorrowedFd<'_>) -> io::Result<Self> {
        netns::enter_fresh()?;
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: gives a fresh descriptor or an error.
        let socket = fresh_fd(unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_ROUTE) }.into());
        netns::enter(home)?;
        socket.map(Self)
    }

    /// Enters a namespace that is in use.
    pub fn enter(&self, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let mut body = vec![0; 4];
        attribute(&mut body, NSID, ANY);
        attribute(&mut body, NSID_OF_FD, namespace.as_raw_fd());
        self.send(RTM_NEWNSID, FLAG_REQUEST | FLAG_ACK, &body)?;
        self.receive(|_| ())
    }

    /// Namespaces that were entered and that the kernel has not begun to take down.
    pub fn count(&self) -> io::Result<usize> {
        self.send(RTM_GETNSID, FLAG_REQUEST | FLAG_DUMP, &[0; 4])?;
        let mut count = 0;
        self.receive(|kind| count += usize::from(kind == RTM_NEWNSID))?;
        Ok(count)
    }

    fn send(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let len = HEADER_LEN + body.len();
        let mut message = Vec::with_capacity(len);
        message.extend(u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        // Sequence and port: one question at a time, and the kernel fills the port.
        message.extend([0; 8]);
        message.extend(body);
        let fd = self.0.as_fd().as_raw_fd();
        // SAFETY: pointer and length are of `message`.
        checked(unsafe { libc::send(fd, message.as_ptr().cast(), message.len(), 0) } as i64)?;
        Ok(())
    }

    /// Reads one whole answer: `each` sees the type of every message before its end.
    fn receive(&self, mut each: impl FnMut(u16)) -> io::Result<()> {
        let mut buffer = vec![0u8; ANSWER_MAX];
        loop {
            let fd = self.0.as_fd().as_raw_fd();
            // SAFETY: pointer and length are of `buffer`.
            let got = checked(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) } as i64)?;
            let mut rest = &buffer[..usize::try_from(got).unwrap_or(0)];
            while let Some((kind, body, next)) = message(rest) {
                match kind {
                    TYPE_ERROR => {
                        let errno = body.first_chunk().map_or(libc::EBADMSG, |e| -i32::from_ne_bytes(*e));
                        return if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) };
                    }
                    TYPE_DONE => return Ok(()),
                    kind => each(kind),
                }
                rest = next;
            }
            if !rest.is_empty() {
                return Err(io::Error::from_raw_os_error(libc::EBADMSG));
            }
        }
    }
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: i32) {
    body.extend(8u16.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value.to_ne_bytes());
}

/// Type and body of the first message, and what follows it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER_LEN..len)?;
    Some((kind, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_namespace_is_counted_until_the_kernel_takes_it_up() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        // A thread of its own: it changes namespaces.
        let counted = std::thread::spawn(|| {
            let home = netns::current().unwrap();
            let ledger = Ledger::open(home.as_fd()).unwrap();
            assert_eq!(ledger.count().unwrap(), 0);
            let made: Vec<_> = (0..300).map(|_| netns::fresh(home.as_fd()).unwrap()).collect();
            for namespace in &made {
                ledger.enter(namespace.as_fd()).unwrap();
            }
            assert_eq!(ledger.count().unwrap(), 300);
            let kept = made.into_iter().next();
            let deadline = Instant::now() + Duration::from_secs(60);
            while ledger.count().unwrap() != 1 {
                assert!(Instant::now() < deadline, "the kernel never took them up");
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(kept);
        });
        counted.join().unwrap();
    }
}
