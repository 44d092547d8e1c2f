//! Blanks: children that were cloned and furnished before anybody asked for a sandbox.
//!
//! ```text
//! range of ids, network ──> leaves ──> init ──> id maps ──> /proc, masks, /dev ──> [waits] ──> an order
//! ```
//! Its leaves take the id of its sandbox when that is asked for; the one of v2 keeps its name. Its ids, its network
//! and its namespaces are as fresh as those of a child that is cloned for a request: no sandbox had them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rollout::Bytes;
use sandbox_init::birth::{self, Furniture};
use sandbox_init::packet;

use super::networks::Network;
use super::protocol::Step;
use super::provision::{Layer, born, hand_furniture, hand_leaves, receive, until_readable, write_id_maps};
use super::ranges::RANGES_MAX;
use super::serve::{Broker, lock};
use super::teardown::{Record, teardown};

/// How long it may take to be furnished.
const FURNISH_WAIT: Duration = Duration::from_secs(5);

/// A child that waits for its order, or is on its way there.
#[derive(Debug)]
pub struct Blank {
    /// Its range of ids, its leaves, its init to be and its network.
    pub record: Record,
    /// What its leaves are called in every hierarchy.
    pub name: String,
    pub id_base: u32,
    pub pid: i32,
    pub channel: OwnedFd,
    /// A writable layer in memory, of the size that was asked for last.
    pub layer: (Bytes, Layer),
    begun: Instant,
}

impl Blank {
    /// Starts one, of a memory group if there is one, and hands it what it mounts. On a thread that stays in the host's
    /// network and lives as long as the sandboxes: the kernel ends a child with the thread that started it.
    pub fn begin(
        broker: &Broker,
        name: String,
        network: Network,
        group: Option<&str>,
        size: Bytes,
    ) -> io::Result<Self> {
        let mut record = Record { network: Some(network.in_use), ..Record::default() };
        let started = start(broker, &name, &network.namespace, group, &mut record);
        let begun = Instant::now();
        let with_layer = started.and_then(|(id_base, pid, channel)| {
            let layer = Layer::in_memory(size, id_base).map_err(|error| (Step::Disk, error))?;
            Ok((id_base, pid, channel, (size, layer)))
        });
        match with_layer {
            Ok((id_base, pid, channel, layer)) => {
                Ok(Self { record, name, id_base, pid, channel, layer, begun })
            }
            Err((step, error)) => {
                let error = named(step, &error);
                let mut left = teardown(broker, &name, record);
                // If it has the name of the blank by now, it went with that.
                let group = group.map(|group| broker.tree.remove_memory_group(group));
                left.extend(group.and_then(Result::err).map(|error| format!("its memory group: {error}")));
                Err(with_left(error, &left))
            }
        }
    }

    /// Whether it has something to say: that it is furnished, or why it never will be. One that takes too long has.
    pub fn has_come(&self) -> bool {
        self.begun.elapsed() > FURNISH_WAIT || until_readable(self.channel.as_fd(), 0).is_ok()
    }

    /// Takes what it has to say. If that is not that it is furnished, it is ended.
    pub fn furnished(self, broker: &Broker) -> io::Result<Self> {
        let mut bytes = [0; 16];
        let said = receive(self.channel.as_fd(), &mut bytes);
        if said.is_some_and(birth::is_furnished) {
            return Ok(self);
        }
        let errno = if said.is_some() { libc::ECHILD } else { libc::ETIMEDOUT };
        let (step, errno) = said.and_then(birth::failure).unwrap_or((Step::HandIn, errno));
        let error = named(step, &io::Error::from_raw_os_error(errno));
        Err(with_left(error, &self.end(broker)))
    }

    /// Whether it still waits: one that has something to say by now, or whose end is gone, does not.
    pub fn waits(&self) -> bool {
        until_readable(self.channel.as_fd(), 0).is_err()
    }

    /// Ends it; what would not go.
    pub fn end(self, broker: &Broker) -> Vec<String> {
        let Self { record, channel, name, .. } = self;
        drop(channel);
        teardown(broker, &name, record)
    }
}

fn named(step: Step, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", step.as_str()))
}

fn with_left(error: io::Error, left: &[String]) -> io::Error {
    if left.is_empty() { error } else { io::Error::other(format!("{error}; {}", left.join("; "))) }
}

fn start(
    broker: &Broker,
    name: &str,
    network: &OwnedFd,
    group: Option<&str>,
    record: &mut Record,
) -> Result<(u32, i32, OwnedFd), (Step, io::Error)> {
    let at = |step: Step| move |error: io::Error| (step, error);
    let fail_after = broker.pools.blank_fails_after();
    let done = |step: Step| match fail_after {
        Some(fail) if fail == step => Err(at(step)(io::Error::from_raw_os_error(libc::EIO))),
        _ => Ok(()),
    };
    let none = || at(Step::Range)(io::Error::other(format!("all {RANGES_MAX} uid ranges are taken")));
    let id_base = lock(&broker.ranges).take().ok_or_else(none)?;
    record.id_base = Some(id_base);
    done(Step::Range)?;

    record.cgroups = true;
    broker.tree.make_leaves(name, group).map_err(at(Step::Cgroups))?;
    if group.is_some() {
        broker.tree.limit_to_wait(name).map_err(at(Step::Cgroups))?;
    }
    let leaf = broker.tree.leaf(name).map_err(at(Step::Cgroups))?;
    let joins = broker.tree.joins(name).map_err(at(Step::Cgroups))?;
    done(Step::Cgroups)?;

    let (channel, end) = packet::pair().map_err(at(Step::Clone))?;
    let pid = born(broker, end.as_fd(), network.as_fd(), leaf.as_fd(), record)?;
    drop(end);
    done(Step::Clone)?;
    write_id_maps(broker.proc.as_fd(), pid, id_base).map_err(at(Step::IdMaps))?;
    done(Step::IdMaps)?;

    let handed = hand_furniture(broker, channel.as_fd(), Furniture { is_blank: true, fail_after })
        .and_then(|()| hand_leaves(channel.as_fd(), &joins, None));
    // What the child says of its end is more than the broken pipe.
    handed.map_err(|error| {
        let reported = receive(channel.as_fd(), &mut [0; 16]).and_then(birth::failure);
        reported.map_or((Step::HandIn, error), |(step, errno)| (step, io::Error::from_raw_os_error(errno)))
    })?;
    Ok((id_base, pid, channel))
}
