//! What is made ahead of creations: network namespaces, blanks in them, memory groups and disks in files.
//!
//! One thread makes it, a piece at a time (blanks furnish themselves meanwhile), and begins none while a creation waits
//! or is in flight here, which it is until its order is handed in:
//! the pieces take locks of the kernel that creations need too. That is also why it does not run
//! at idle priority: on a busy machine it would be set aside with such a lock in its hands. A network
//! takes none of a creation's that has its own, and a blank takes what is taken for one creation in turn
//! with it, so these are begun beside one where there is a CPU for it.

pub mod disks;
pub mod groups;
mod rate;

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rollout::Bytes;
use rollout::quantity::TMPFS_DISK_MAX;

use self::disks::{Disk, Disks};
use self::groups::{Groups, Returned};
use self::rate::Rate;
use super::blank::Blank;
use super::networks::{Maker, Network};
use super::protocol::{Levels, Step};
use super::serve::{Broker, CREATION_WIDTH, lock};

/// Children held ready, each with a network namespace.
pub const BLANKS_AHEAD: usize = 32;
/// Of them, so many may be on their way at once: most of that is waiting for the kernel.
const BLANKS_COMING_MAX: usize = 4;
/// What the leaves of one are called before a number; no group of memory is.
const BLANK: &str = "pool.b";
/// Network namespaces held ready beside those.
pub const NETWORKS_AHEAD: usize = 64;
/// Namespaces that wait for the kernel to take them down, past which none is made ahead. Each keeps
/// some 200 KiB. Those the kernel has begun with are not counted.
pub const NETWORKS_PENDING_MAX: usize = 256;
/// Networks of ended sandboxes that are let go of together: the kernel takes down many at once for little more than one.
const BURIED_MAX: usize = 32;
/// How long they may wait for more.
const BURIED_PAUSE: Duration = Duration::from_millis(5);
/// The queue of the kernel is looked at once for so many namespaces made ahead.
const PENDING_LOOK_EVERY: u64 = 16;
/// How long to wait for the kernel when too many wait for it, and for what failed to be tried again.
const PENDING_PAUSE: Duration = Duration::from_millis(20);
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// How long until a request is looked for again that some thread of the broker is about to take.
const WAITING_PAUSE: Duration = Duration::from_millis(1);
/// How long until blanks on their way are looked for again.
const COMING_PAUSE: Duration = Duration::from_micros(500);

#[derive(Debug)]
pub struct Pools {
    state: Mutex<State>,
    changed: Condvar,
    pub maker: Maker,
}

#[derive(Debug)]
struct State {
    /// Creations in flight.
    creating: usize,
    /// Creations in flight beside which a network or a blank may be begun.
    creating_beside_max: usize,
    ending: bool,
    /// The one that waits longest goes first.
    blanks: VecDeque<Blank>,
    /// Those that are not furnished yet.
    blanks_coming: VecDeque<Blank>,
    blanks_not_before: Option<Instant>,
    blanks_made: u64,
    blank_fails_after: Option<Step>,
    /// Of the writable layer in memory that was asked for last.
    layer_size: Bytes,
    networks: Vec<Network>,
    networks_not_before: Option<Instant>,
    networks_made: u64,
    networks_pending: usize,
    buried: Vec<Network>,
    /// Of the first of those.
    buried_at: Instant,
    groups: Groups,
    disks: Disks,
    /// Pieces begun.
    begun: u64,
    rate: Rate,
}

/// One thing to do, of which the pool may be short.
#[derive(Debug)]
enum Piece {
    Network,
    /// Under that name, in that network, of that memory group, with a layer of that size.
    Blank(String, Network, Option<String>, Bytes),
    /// It was begun, and has something to say.
    Came(Blank),
    /// Of that name.
    Group(String),
    Reset(Returned),
    /// Of so many bytes, under that name.
    Disk(u64, String),
    /// Nobody asks for such any more.
    Retire(Disk),
}

/// A creation, from its request to its answer.
#[derive(Debug)]
pub struct Creating<'a>(&'a Pools);

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.creating -= 1;
        state.look(Instant::now());
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Creating<'_> {
    /// It was a success.
    pub fn done(&self) {
        self.0.lock().rate.created(Instant::now());
    }
}

impl Pools {
    /// `ahead`: if not, nothing is ever made ahead or handed on.
    pub fn new(maker: Maker, groups: Groups, ahead: bool) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let state = State {
            creating: 0,
            creating_beside_max: cpus.saturating_sub(1).min(CREATION_WIDTH - 1),
            ending: !ahead,
            blanks: VecDeque::with_capacity(BLANKS_AHEAD),
            blanks_coming: VecDeque::with_capacity(BLANKS_COMING_MAX),
            blanks_not_before: None,
            blanks_made: 0,
            blank_fails_after: None,
            layer_size: TMPFS_DISK_MAX,
            networks: Vec::with_capacity(NETWORKS_AHEAD),
            networks_not_before: None,
            networks_made: 0,
            networks_pending: 0,
            buried: Vec::with_capacity(BURIED_MAX),
            buried_at: Instant::now(),
            groups,
            disks: Disks::default(),
            begun: 0,
            rate: Rate::default(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), maker }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// But for networks and blanks, nothing is made ahead while this lives.
    pub fn creating(&self) -> Creating<'_> {
        let mut state = self.lock();
        state.creating += 1;
        state.look(Instant::now());
        Creating(self)
    }

    /// One that waits for its order. One that does no more is ended.
    pub fn blank(&self, broker: &Broker) -> Option<Blank> {
        loop {
            let taken = self.lock().blanks.pop_front();
            self.changed.notify_all();
            let blank = taken?;
            if blank.waits() {
                return Some(blank);
            }
            say_left(&blank.end(broker));
        }
    }

    /// The next one fails after this step. For tests.
    pub fn fail_next_blank(&self, step: Step) {
        self.lock().blank_fails_after = Some(step);
    }

    /// After which step the one that is being made fails.
    pub fn blank_fails_after(&self) -> Option<Step> {
        self.lock().blank_fails_after.take()
    }

    /// A writable layer of this size was asked for: as a rule the next one is like it.
    pub fn note_layer(&self, size: Bytes) {
        if size <= TMPFS_DISK_MAX {
            self.lock().layer_size = size;
        }
    }

    pub fn network(&self) -> Option<Network> {
        let taken = self.lock().networks.pop();
        self.changed.notify_all();
        taken
    }

    /// Takes the network of a sandbox that ended, to let go of it with others.
    pub fn bury(&self, network: Network) {
        let mut state = self.lock();
        if state.ending {
            return;
        }
        if state.buried.is_empty() {
            state.buried_at = Instant::now();
        }
        state.buried.push(network);
        let gone = if state.buried.len() >= BURIED_MAX { state.unbury() } else { Vec::new() };
        drop(state);
        drop(gone);
        self.changed.notify_all();
    }

    /// The name of a group that holds nothing.
    pub fn group(&self) -> Option<String> {
        self.lock().groups.take()
    }

    /// The name a sandbox's group may be kept under; none if there is no room for it.
    pub fn group_place(&self) -> Option<String> {
        let mut state = self.lock();
        if state.ending { None } else { state.groups.place() }
    }

    /// Takes what was renamed to the place it was given; none if it was not.
    pub fn take_back(&self, group: Option<String>) {
        self.lock().groups.give(group);
        self.changed.notify_all();
    }

    /// A disk of exactly so many bytes, and a note that such are asked for.
    pub fn disk(&self, bytes: u64) -> Option<Disk> {
        self.lock().disks.take(bytes, Instant::now())
    }

    pub fn levels(&self) -> Levels {
        let state = self.lock();
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        Levels {
            blanks: count(state.blanks.len()),
            networks: count(state.networks.len()),
            networks_pending: count(state.networks_pending + state.buried.len()),
            groups: count(state.groups.ready.len()),
            hands_on_groups: state.groups.fresh.is_some(),
            disks: count(state.disks.ahead.len()),
            groups_handed_on: state.groups.handed_on,
            groups_given_up: state.groups.given_up,
            begun: state.begun,
            creations_per_s_milli: state.rate.per_s_milli(),
            is_full: state.is_full(),
        }
    }

    /// From here on nothing is made ahead and nothing is taken back.
    pub fn end(&self) {
        self.lock().ending = true;
        self.changed.notify_all();
    }

    /// Makes what is short until the end, on a thread that stays in the host's network.
    pub fn run(&self, broker: &Broker) {
        while let Some(piece) = self.next(broker) {
            if let Err((what, error)) = self.make(broker, piece) {
                say(format_args!("making {what} ahead: {error}"));
            }
        }
    }

    fn next(&self, broker: &Broker) -> Option<Piece> {
        let mut state = self.lock();
        loop {
            if state.ending {
                return None;
            }
            let come = state.blanks_coming.iter().position(Blank::has_come);
            if let Some(blank) = come.and_then(|at| state.blanks_coming.remove(at)) {
                return Some(Piece::Came(blank));
            }
            let now = Instant::now();
            if !state.buried.is_empty() && now >= state.buried_at + BURIED_PAUSE {
                let gone = state.unbury();
                drop(state);
                drop(gone);
                state = self.lock();
                continue;
            }
            state.look(now);
            let mut pause = state.due_in(now);
            if pause == Some(Duration::ZERO) {
                // Between two creations of a burst none is in flight, and the next one waits here.
                if !is_readable(broker.socket().as_fd())
                    && let Some(piece) = state.short_of(now)
                {
                    state.begun += 1;
                    return Some(piece);
                }
                pause = Some(WAITING_PAUSE);
            }
            if !state.buried.is_empty() {
                let due = (state.buried_at + BURIED_PAUSE).saturating_duration_since(now);
                pause = Some(pause.map_or(due, |pause| pause.min(due)));
            }
            if !state.blanks_coming.is_empty() {
                pause = Some(pause.map_or(COMING_PAUSE, |pause| pause.min(COMING_PAUSE)));
            }
            state = match pause {
                Some(pause) => {
                    let waited = self.changed.wait_timeout(state, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn make(&self, broker: &Broker, piece: Piece) -> Result<(), (&'static str, std::io::Error)> {
        match piece {
            Piece::Network => {
                let made = self.maker.make(broker.host_network.as_fd());
                let mut state = self.lock();
                state.networks_made += 1;
                let is_time = state.networks_made.is_multiple_of(PENDING_LOOK_EVERY);
                if is_time || state.networks_pending > NETWORKS_PENDING_MAX {
                    drop(state);
                    // What cannot be counted may be without end.
                    let pending = self.maker.pending().unwrap_or(usize::MAX);
                    state = self.lock();
                    state.networks_pending = pending;
                }
                state.networks_not_before = if made.is_err() {
                    Some(Instant::now() + FAILED_PAUSE)
                } else if state.networks_pending > NETWORKS_PENDING_MAX {
                    Some(Instant::now() + PENDING_PAUSE)
                } else {
                    None
                };
                state.networks.push(made.map_err(|error| ("a network namespace", error))?);
            }
            Piece::Blank(name, network, group, size) => {
                let begun = Blank::begin(broker, name, network, group.as_deref(), size);
                let mut state = self.lock();
                if begun.is_err() {
                    state.blanks_not_before = Some(Instant::now() + FAILED_PAUSE);
                }
                state.blanks_coming.push_back(begun.map_err(|error| ("a blank", error))?);
            }
            Piece::Came(blank) => {
                let furnished = blank.furnished(broker);
                let mut state = self.lock();
                state.blanks_not_before = furnished.is_err().then(|| Instant::now() + FAILED_PAUSE);
                state.blanks.push_back(furnished.map_err(|error| ("a blank", error))?);
            }
            Piece::Group(name) => {
                let made = broker.tree.make_memory_group(&name);
                self.lock().groups.made(name, made.is_ok().then_some(()), Instant::now() + FAILED_PAUSE);
                made.map_err(|error| ("a memory group", error))?;
            }
            Piece::Reset(returned) => {
                // Creations must not wait for this: nothing is locked meanwhile.
                let fresh = self.lock().groups.fresh.clone();
                let verdict = returned.reset(&broker.tree, fresh.as_deref());
                let given_up = self.lock().groups.judged(returned, &verdict, Instant::now());
                if let Some(group) = given_up {
                    let removed = broker.tree.remove_memory_group(&group);
                    removed.map_err(|error| ("room for a memory group", error))?;
                }
            }
            Piece::Disk(bytes, name) => {
                let made = disks::make(&broker.pooled_disk_path(&name), bytes);
                let mut state = self.lock();
                match made {
                    Ok((device, mount)) => state.disks.ahead.push(Disk { bytes, name, device, mount }),
                    Err(error) => {
                        state.disks.not_before = Some(Instant::now() + FAILED_PAUSE);
                        return Err(("a disk", error));
                    }
                }
            }
            Piece::Retire(disk) => {
                let left = disk.destroy(broker);
                if let Some(left) = left {
                    return Err(("room for a disk", std::io::Error::other(left)));
                }
            }
        }
        Ok(())
    }

    /// After the end: lets go of everything that is held; what would not go is named.
    pub fn destroy(&self, broker: &Broker) -> Vec<String> {
        let blanks = {
            let mut state = self.lock();
            let coming = std::mem::take(&mut state.blanks_coming);
            std::mem::take(&mut state.blanks).into_iter().chain(coming).collect::<Vec<_>>()
        };
        // All at once, so that none is waited for while it runs.
        let killed = blanks.iter().map(|blank| (&blank.name, broker.tree.kill(&blank.name)));
        let mut left: Vec<_> = killed
            .filter_map(|(name, killed)| killed.err().map(|error| format!("killing {name}: {error}")))
            .collect();
        left.extend(blanks.into_iter().flat_map(|blank| blank.end(broker)));
        let mut state = self.lock();
        state.networks.clear();
        state.buried.clear();
        for group in state.groups.all() {
            if let Err(error) = broker.tree.remove_memory_group(&group) {
                left.push(format!("memory group {group}: {error}"));
            }
        }
        let disks = std::mem::take(&mut state.disks.ahead);
        left.extend(disks.into_iter().filter_map(|disk| disk.destroy(broker)));
        left
    }
}

impl State {
    /// To be dropped without the lock.
    fn unbury(&mut self) -> Vec<Network> {
        std::mem::replace(&mut self.buried, Vec::with_capacity(BURIED_MAX))
    }

    fn is_full(&self) -> bool {
        self.networks.len() >= NETWORKS_AHEAD
            && self.blanks.len() >= BLANKS_AHEAD
            && self.blanks_coming.is_empty()
            && self.buried.is_empty()
            && self.groups.is_full()
            && self.disks.is_full()
    }

    /// Files the time since the last change of what goes on.
    fn look(&mut self, now: Instant) {
        let is_making = self.due_in(now) == Some(Duration::ZERO) || !self.blanks_coming.is_empty();
        let can_make = is_making && !self.ending;
        self.rate.look(self.creating > 0, self.is_full(), can_make, now);
    }

    /// In how long a piece may be begun; none if nothing is short, or not while as much is created.
    fn due_in(&self, now: Instant) -> Option<Duration> {
        let beside = |due: Option<Instant>| due.filter(|_| self.creating <= self.creating_beside_max);
        let network = (self.networks.len() < NETWORKS_AHEAD).then(|| self.networks_not_before.unwrap_or(now));
        let blank = self.lacks_blanks().then(|| self.blanks_not_before.unwrap_or(now));
        let alone = |due: Option<Instant>| due.filter(|_| self.creating == 0);
        let due = [beside(network), beside(blank), alone(self.groups.due(now)), alone(self.disks.due(now))];
        Some(due.into_iter().flatten().min()?.saturating_duration_since(now))
    }

    /// Whether one is short that there is a network for.
    fn lacks_blanks(&self) -> bool {
        self.blanks.len() + self.blanks_coming.len() < BLANKS_AHEAD
            && self.blanks_coming.len() < BLANKS_COMING_MAX
            && !self.networks.is_empty()
    }

    /// What takes least first: it is back soonest.
    fn short_of(&mut self, now: Instant) -> Option<Piece> {
        let is_alone = self.creating == 0;
        if is_alone && let Some(returned) = self.groups.take_returned(now) {
            return Some(Piece::Reset(returned));
        }
        if self.lacks_blanks()
            && self.blanks_not_before.is_none_or(|at| at <= now)
            && let Some(network) = self.networks.pop()
        {
            self.blanks_made += 1;
            let name = format!("{BLANK}{}", self.blanks_made);
            return Some(Piece::Blank(name, network, self.groups.take(), self.layer_size));
        }
        if self.networks.len() < NETWORKS_AHEAD && self.networks_not_before.is_none_or(|at| at <= now) {
            return Some(Piece::Network);
        }
        if !is_alone {
            return None;
        }
        if let Some(name) = self.groups.short_of(now) {
            return Some(Piece::Group(name));
        }
        if let Some(disk) = self.disks.take_unasked(now) {
            return Some(Piece::Retire(disk));
        }
        self.disks.short_of(now).map(|(bytes, name)| Piece::Disk(bytes, name))
    }
}

fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let mut waiting = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as stated.
    unsafe { libc::poll(&raw mut waiting, 1, 0) > 0 }
}

/// There is no subscriber in this process: its standard error is the executor's.
pub fn say(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "rollyard broker: {what}");
}

fn say_left(left: &[String]) {
    if !left.is_empty() {
        say(format_args!("ending what was made ahead: {}", left.join("; ")));
    }
}
