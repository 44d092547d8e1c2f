//! Blanks: children that were cloned and furnished before anybody asked for a sandbox.
//!
//! ```text
//! range of ids ──> network ──> clone3 ──> id maps ──> /proc, masks, /dev ──> [waits] ──> an order
//! ```
//! What a child needs no request for is a third of the time a creation takes. A blank is born in a leaf of
//! its own kind, and moved to that of its sandbox before it has anything of it. Its ids, its network and its
//! namespaces are as fresh as those of a child that is cloned for a request: no sandbox had them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use sandbox_init::packet;

use super::child::{self, Plan};
use super::networks::Network;
use super::provision::{READY_WAIT_MS, born, until_readable, write_id_maps};
use super::ranges::RANGES_MAX;
use super::serve::{Broker, lock};
use super::teardown::{Record, teardown};

/// The leaf in the v2 tree that blanks are born in.
pub const NURSERY: &str = "pool.blanks";

/// A child that waits for its order.
#[derive(Debug)]
pub struct Blank {
    /// Its range of ids, its init to be and its network. No cgroups yet.
    pub record: Record,
    pub id_base: u32,
    pub pid: i32,
    pub channel: OwnedFd,
}

impl Blank {
    /// On a thread that stays in the host's network and lives as long as the sandboxes: the kernel ends a child
    /// with the thread that started it.
    pub fn make(broker: &Broker, network: Network, nursery: &OwnedFd) -> io::Result<Self> {
        let mut record = Record { network: Some(network.in_use), ..Record::default() };
        match Self::begin(broker, &network.namespace, nursery, &mut record) {
            Ok((id_base, pid, channel)) => Ok(Self { record, id_base, pid, channel }),
            Err(error) => match teardown(broker, NURSERY, record) {
                left if left.is_empty() => Err(error),
                left => Err(io::Error::other(format!("{error}; {}", left.join("; ")))),
            },
        }
    }

    fn begin(
        broker: &Broker,
        network: &OwnedFd,
        nursery: &OwnedFd,
        record: &mut Record,
    ) -> io::Result<(u32, i32, OwnedFd)> {
        let none = || io::Error::other(format!("all {RANGES_MAX} uid ranges are taken"));
        let id_base = lock(&broker.ranges).take().ok_or_else(none)?;
        record.id_base = Some(id_base);
        let (channel, end) = packet::pair()?;
        let plan = Plan { is_blank: true, ..Plan::of(broker, end.as_fd()) };
        let pid =
            born(broker, &plan, network.as_fd(), nursery.as_fd(), record).map_err(|(_, error)| error)?;
        drop(end);
        write_id_maps(broker.proc.as_fd(), pid, id_base)?;
        let masks = broker.fresh_masks()?;
        child::hand_furniture(channel.as_fd(), broker.fresh_dev()?.as_fd(), masks.as_fd())?;
        until_readable(channel.as_fd(), READY_WAIT_MS)?;
        let mut bytes = [0; 16];
        let received = packet::receive_into(channel.as_fd(), &mut bytes, libc::MSG_DONTWAIT)?;
        match &bytes[..received.len] {
            said if child::is_furnished(said) => Ok((id_base, pid, channel)),
            said => Err(match child::failure(said) {
                Some((step, errno)) => {
                    let error = io::Error::from_raw_os_error(errno);
                    io::Error::new(error.kind(), format!("{}: {error}", step.as_str()))
                }
                None => io::Error::from_raw_os_error(libc::ECHILD),
            }),
        }
    }

    /// Whether it still waits: one that has something to say by now, or whose end is gone, does not.
    pub fn waits(&self) -> bool {
        until_readable(self.channel.as_fd(), 0).is_err()
    }

    /// Ends it; what would not go.
    pub fn end(self, broker: &Broker) -> Vec<String> {
        let Self { record, channel, .. } = self;
        drop(channel);
        teardown(broker, NURSERY, record)
    }
}
