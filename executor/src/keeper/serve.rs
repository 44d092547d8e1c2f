//! A keeper's life: for each executor a hello and a thread for each connection, and the end when nobody
//! holds the other end of its control socket any more: neither an executor nor the broker.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;

use sandbox_init::packet;

use super::protocol::{
    CONNECTIONS, DATAGRAM_MAX, Hello, Kind, NAME_BYTES_MAX, NAMES_MAX, RESERVED, Ready, Refusal, Reply,
    Request,
};
use crate::broker::serve::lock;
use crate::host::budgets;

/// Serves until the executor and the broker are gone. `control` carries the hello of each executor and the
/// answer to it; its end is how they see ours, and we theirs.
pub(crate) fn run(control: &OwnedFd) -> io::Result<()> {
    leave_the_terminal();
    let room = budgets::raise_open_files()?.saturating_sub(RESERVED);
    // Held to the end: an executor of this directory starts anew when it is released.
    let mut data_lock = None;
    let held = Mutex::new(Held::new(room));
    std::thread::scope(|scope| {
        let mut buffer = [0; DATAGRAM_MAX];
        while let Some((len, mut fds)) = packet::receive(control.as_fd(), &mut buffer, 0)? {
            let hello: Hello = serde_json::from_slice(&buffer[..len])?;
            let locks = usize::from(data_lock.is_none());
            if fds.len() != locks + CONNECTIONS {
                return Err(io::Error::other(format!("a hello with {} descriptors", fds.len())));
            }
            let connections = fds.split_off(locks);
            data_lock = data_lock.or(fds.pop());
            for connection in connections {
                let held = &held;
                scope.spawn(move || serve(&connection, held));
            }
            let ready = serde_json::to_vec(&Ready { room, nonce: hello.nonce })?;
            packet::send(control.as_fd(), &ready, &[], 0)?;
        }
        Ok(())
    })
}

/// A session of its own, so that Ctrl-C reaches the executor alone. What ends this process is its
/// sockets.
fn leave_the_terminal() {
    // SAFETY: no memory involved but a constant name.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"rollyard-keeper".as_ptr(), 0, 0, 0);
    }
}

/// One request at a time, until the other end is gone or sends what is no request.
fn serve(connection: &OwnedFd, held: &Mutex<Held>) {
    let mut buffer = [0; DATAGRAM_MAX];
    while let Ok(Some((len, fds))) = packet::receive(connection.as_fd(), &mut buffer, 0) {
        let Ok(request) = serde_json::from_slice(&buffer[..len]) else { return };
        let (reply, lent) = answer(request, fds, held);
        let Ok(bytes) = serde_json::to_vec(&reply) else { return };
        let lent: Vec<_> = lent.iter().map(AsRawFd::as_raw_fd).collect();
        if packet::send(connection.as_fd(), &bytes, &lent, 0).is_err() {
            return;
        }
    }
}

fn answer(request: Request, fds: Vec<OwnedFd>, held: &Mutex<Held>) -> (Reply, Option<OwnedFd>) {
    let refused = |refusal| (Reply::Refused(refusal), None);
    match request {
        Request::Put { id, kinds } => match lock(held).put(id, &kinds, fds) {
            Ok(()) => (Reply::Kept, None),
            Err(refusal) => refused(refusal),
        },
        // A copy: the sandbox may be dropped while it is on its way.
        Request::Get { id, kind } => match lock(held).get(&id, kind).map(OwnedFd::try_clone) {
            Some(Ok(lent)) => (Reply::Lent, Some(lent)),
            _ => refused(Refusal::Unknown { id, kind }),
        },
        Request::Forget { id, process } => {
            let fds = lock(held).forget(&id, process);
            drop(fds);
            (Reply::Dropped, None)
        }
        Request::Names { after } => (Reply::Names(lock(held).names(after)), None),
        Request::Drop { id } => {
            let fds = lock(held).take(&id);
            // Closed without the lock: the kernel may wait a grace period for each.
            drop(fds);
            (Reply::Dropped, None)
        }
    }
}

/// What a keeper holds.
#[derive(Debug)]
struct Held {
    of: BTreeMap<String, Vec<(Kind, OwnedFd)>>,
    count: u64,
    room: u64,
}

impl Held {
    fn new(room: u64) -> Self {
        Self { of: BTreeMap::new(), count: 0, room }
    }

    fn put(&mut self, id: String, kinds: &[Kind], fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        if kinds.len() != fds.len() {
            return Err(Refusal::Malformed { kinds: kinds.len(), fds: fds.len() });
        }
        let more = fds.len() as u64;
        if self.count + more > self.room {
            return Err(Refusal::Full { used: self.count, limit: self.room });
        }
        let known = self.of.get(&id).map_or(&[][..], Vec::as_slice);
        if let Some(&kind) = kinds.iter().find(|kind| known.iter().any(|(there, _)| there == *kind)) {
            return Err(Refusal::Taken { id, kind });
        }
        self.of.entry(id).or_default().extend(kinds.iter().copied().zip(fds));
        self.count += more;
        Ok(())
    }

    fn get(&self, id: &str, kind: Kind) -> Option<&OwnedFd> {
        self.of.get(id)?.iter().find(|(there, _)| *there == kind).map(|(_, fd)| fd)
    }

    fn forget(&mut self, id: &str, process: u32) -> Vec<(Kind, OwnedFd)> {
        let Some(of) = self.of.get_mut(id) else { return Vec::new() };
        let is_of_it = |kind: &Kind| matches!(kind, Kind::Stream { process: of, .. } if *of == process);
        let fds: Vec<_> = of.extract_if(.., |(kind, _)| is_of_it(kind)).collect();
        self.count -= fds.len() as u64;
        fds
    }

    fn names(&self, after: Option<String>) -> Vec<String> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut bytes = 0;
        let fits = |id: &&String| {
            // The first one always: a name is shorter than an answer.
            let is_first = bytes == 0;
            bytes += id.len();
            is_first || bytes <= NAME_BYTES_MAX
        };
        let behind = self.of.range::<String, _>((from, Bound::Unbounded)).map(|(id, _)| id);
        behind.take(NAMES_MAX).take_while(fits).cloned().collect()
    }

    fn take(&mut self, id: &str) -> Vec<(Kind, OwnedFd)> {
        let fds = self.of.remove(id).unwrap_or_default();
        self.count -= fds.len() as u64;
        fds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn what_was_put_is_found_by_its_kind_until_it_is_dropped() {
        let mut held = Held::new(4);
        let (root, upper) = (fd(), fd());
        let numbers = [root.as_raw_fd(), upper.as_raw_fd()];
        held.put("a".into(), &[Kind::Root, Kind::Upper], vec![root, upper]).unwrap();
        let found = [Kind::Root, Kind::Upper].map(|kind| held.get("a", kind).unwrap().as_raw_fd());
        assert_eq!(found, numbers);
        assert!(held.get("b", Kind::Root).is_none());
        assert_eq!(held.take("a").len(), 2);
        assert!(held.get("a", Kind::Root).is_none());
        assert_eq!((held.take("a").len(), held.count), (0, 0));
    }

    #[test]
    fn names_come_in_order_and_none_is_left_out() {
        let mut held = Held::new(1_000);
        let ids: Vec<String> = (100..400).map(|n| format!("a-rather-long-name-{n}")).collect();
        for id in &ids {
            held.put(id.clone(), &[Kind::Root], vec![fd()]).unwrap();
        }
        let mut told: Vec<String> = Vec::new();
        loop {
            let names = held.names(told.last().cloned());
            assert!(serde_json::to_vec(&Reply::Names(names.clone())).unwrap().len() <= DATAGRAM_MAX);
            if names.is_empty() {
                break;
            }
            told.extend(names);
        }
        assert_eq!(told, ids);
    }

    #[test]
    fn past_its_room_it_takes_nothing_and_what_it_holds_stays() {
        let mut held = Held::new(3);
        held.put("a".into(), &[Kind::Root, Kind::Upper], vec![fd(), fd()]).unwrap();
        let full = held.put("b".into(), &[Kind::Root, Kind::Upper], vec![fd(), fd()]);
        assert_eq!(full, Err(Refusal::Full { used: 2, limit: 3 }));
        assert!(held.get("b", Kind::Root).is_none());
        held.put("b".into(), &[Kind::Root], vec![fd()]).unwrap();
        held.take("a");
        held.put("c".into(), &[Kind::Root, Kind::Upper], vec![fd(), fd()]).unwrap();
    }

    #[test]
    fn a_descriptor_is_never_replaced_and_none_is_missing() {
        let mut held = Held::new(8);
        held.put("a".into(), &[Kind::Root], vec![fd()]).unwrap();
        let again = held.put("a".into(), &[Kind::Upper, Kind::Root], vec![fd(), fd()]);
        assert_eq!(again, Err(Refusal::Taken { id: "a".into(), kind: Kind::Root }));
        assert!(held.get("a", Kind::Upper).is_none(), "all or none");
        let short = held.put("b".into(), &[Kind::Root], Vec::new());
        assert_eq!(short, Err(Refusal::Malformed { kinds: 1, fds: 0 }));
    }
}
