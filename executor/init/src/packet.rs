//! SEQPACKET datagrams with descriptors. Nothing here allocates except [`receive`], so a process
//! between clone and exec may use the rest.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Descriptors in one datagram.
pub const FDS_MAX: usize = 8;

/// Room for [`FDS_MAX`] descriptors, aligned as `cmsghdr` wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

const _: () = assert!(FDS_MAX * size_of::<RawFd>() + 16 <= 64);

/// Lengths in headers are `u32` in one C library and `usize` in another. Those here fit in both.
fn fit<A: TryInto<B>, B: Default>(len: A) -> B {
    len.try_into().unwrap_or_default()
}

/// Both ends of a fresh SEQPACKET pair, closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: `fds` has room for the two descriptors the call writes.
    let done = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr())
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us these two, nobody else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Sends one datagram. `flags` is added to MSG_NOSIGNAL (MSG_DONTWAIT for an async caller).
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd], flags: i32) -> io::Result<()> {
    if fds.len() > FDS_MAX {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !fds.is_empty() {
        let len = u32::try_from(size_of_val(fds)).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `control` is larger than CMSG_SPACE of FDS_MAX descriptors and aligned, so the
        // first header exists and its data has room for `fds`.
        unsafe {
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = fit(libc::CMSG_SPACE(len));
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = fit(libc::CMSG_LEN(len));
            ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(first), len as usize);
        }
    }
    loop {
        // SAFETY: header, part and control outlive the call.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL | flags) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Descriptors that came with a datagram; closed unless taken.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the datagram; 0 = the other end is gone.
    pub len: usize,
    pub fds: [Option<OwnedFd>; FDS_MAX],
}

/// Receives one datagram into `buffer`. One that was cut is an error. If this process has no room for all
/// of its descriptors (EMFILE), it comes with none of them: who expects some sees that they are missing,
/// and what comes next is still in order.
pub fn receive_into(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: i32) -> io::Result<Received> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = fit(size_of::<Control>());
    let len = loop {
        // SAFETY: header, part and control outlive the call and state their true sizes.
        let got =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC | flags) };
        match usize::try_from(got) {
            Ok(len) => break len,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    let mut fds = [const { None }; FDS_MAX];
    // SAFETY: the kernel filled `control` and `msg_controllen`; the CMSG walk stays inside them,
    // and every descriptor in SCM_RIGHTS is ours now.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if !first.is_null()
            && (*first).cmsg_level == libc::SOL_SOCKET
            && (*first).cmsg_type == libc::SCM_RIGHTS
        {
            let bytes: usize = fit::<_, usize>((*first).cmsg_len) - fit::<_, usize>(libc::CMSG_LEN(0));
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (at, slot) in fds.iter_mut().enumerate().take(bytes / size_of::<RawFd>()) {
                *slot = Some(OwnedFd::from_raw_fd(ptr::read_unaligned(data.add(at))));
            }
        }
    }
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        fds = [const { None }; FDS_MAX];
    }
    Ok(Received { len, fds })
}

/// As [`receive_into`], with a vector of what came. `None` = the other end is gone.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: i32,
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let received = receive_into(socket, buffer, flags)?;
    Ok((received.len > 0).then(|| (received.len, received.fds.into_iter().flatten().collect())))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_arrive_with_their_datagram_and_the_end_is_seen() {
        let (left, right) = pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(left.as_fd(), b"hello", &[writer.as_raw_fd()], 0).unwrap();
        drop(writer);
        let mut buffer = [0; 16];
        let (len, fds) = receive(right.as_fd(), &mut buffer, 0).unwrap().unwrap();
        assert_eq!((&buffer[..len], fds.len()), (&b"hello"[..], 1));
        drop(fds);
        assert_eq!(reader.read(&mut buffer).unwrap(), 0, "the passed end was the last one");
        drop(left);
        assert!(receive(right.as_fd(), &mut buffer, 0).unwrap().is_none());
    }

    #[test]
    fn a_datagram_larger_than_the_buffer_is_an_error_not_a_prefix() {
        let (left, right) = pair().unwrap();
        send(left.as_fd(), &[1; 32], &[], 0).unwrap();
        assert!(receive(right.as_fd(), &mut [0; 16], 0).is_err());
    }

    /// Sets how many descriptors this process may have; gives how many it had.
    fn set_open_files(max: u64) -> u64 {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointers are to a local that outlives both calls.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
            let had = limit.rlim_cur;
            limit.rlim_cur = max;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
            had
        }
    }

    #[test]
    fn without_room_for_its_descriptors_a_datagram_comes_alone_and_the_next_in_order() {
        let (left, right) = pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        for text in [b"one", b"two"] {
            send(left.as_fd(), text, &[writer.as_raw_fd(), left.as_raw_fd()], 0).unwrap();
        }
        drop(writer);
        let mut buffer = [0; 16];
        // Room for one of the two.
        let lowest_free = left.try_clone().unwrap();
        let number = u64::try_from(lowest_free.as_raw_fd()).unwrap();
        drop(lowest_free);
        let had = set_open_files(number + 1);
        let received = receive(right.as_fd(), &mut buffer, 0);
        set_open_files(had);
        let (len, fds) = received.unwrap().unwrap();
        assert_eq!((&buffer[..len], fds.len()), (&b"one"[..], 0));
        let (len, fds) = receive(right.as_fd(), &mut buffer, 0).unwrap().unwrap();
        assert_eq!((&buffer[..len], fds.len()), (&b"two"[..], 2));
        drop(fds);
        assert_eq!(reader.read(&mut buffer).unwrap(), 0, "the copy that came alone was closed");
    }

    #[test]
    fn more_descriptors_than_the_bound_are_refused() {
        let (left, _right) = pair().unwrap();
        let too_many = [left.as_raw_fd(); FDS_MAX + 1];
        assert!(send(left.as_fd(), b"x", &too_many, 0).is_err());
    }
}
