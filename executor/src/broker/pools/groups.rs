//! Memory groups: made ahead, and handed on from one sandbox to the next after a reset.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::host::cgroup::Tree;
use crate::host::cgroup::memory_groups::{Effort, POOLED, Reset, Unused};

/// Groups made to be ready.
pub const GROUPS_AHEAD: usize = 64;
/// Groups ready, those that came back from sandboxes included; one more is removed. Each keeps some
/// 330 KiB.
pub const GROUPS_READY_MAX: usize = 128;
/// Groups of ended sandboxes that wait for their reset. Past this an ended sandbox's is removed.
pub const GROUPS_RETURNED_MAX: usize = 64;
/// Its writable layer goes about when a sandbox ends, and its last tasks a little later: after this most
/// groups need one look.
const SETTLE: Duration = Duration::from_millis(10);
/// What a sandbox leaves goes by and by: looked at so often, in pauses, before a group is given up.
const RESET_TRIES_MAX: u32 = 50;
const RESET_PAUSE: Duration = Duration::from_millis(4);
/// At this look, and once in so many after it, a group is emptied by force. By then what goes by itself has gone, of most
/// groups: where nothing else runs, a last page stays at hand for good.
const FORCE_AT: u32 = 3;
const FORCE_EVERY: u32 = 25;

#[derive(Debug)]
pub struct Groups {
    /// Names of groups that hold nothing. The last one in is the first out: its memory is warm.
    pub ready: Vec<String>,
    pub returned: VecDeque<Returned>,
    /// Places given out that nothing came back to yet.
    awaited: usize,
    /// Taken out to be reset.
    judging: usize,
    /// What a fresh one says of itself; none where groups cannot be handed on, and none is made ahead.
    pub fresh: Option<Arc<Unused>>,
    not_before: Option<Instant>,
    next: u64,
    pub handed_on: u64,
    pub given_up: u64,
}

/// A group of an ended sandbox.
#[derive(Debug)]
pub struct Returned {
    group: String,
    tries: u32,
    not_before: Instant,
}

impl Returned {
    /// An error is a reason to give it up too.
    pub fn reset(&self, tree: &Tree, fresh: Option<&Unused>) -> Reset {
        let fresh = fresh.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        // The longer it has not worked, the less often is what costs more tried.
        let effort = match self.tries {
            0 => Effort::Look,
            tries if tries == FORCE_AT || tries.is_multiple_of(FORCE_EVERY) => Effort::Force,
            tries if tries.is_power_of_two() => Effort::Squeeze,
            _ => Effort::Look,
        };
        fresh
            .and_then(|fresh| tree.reset_memory_group(&self.group, fresh, effort))
            .unwrap_or(Reset::Unfit("it cannot be read"))
    }
}

impl Groups {
    /// Looks what a fresh group of this host says of itself.
    pub fn new(tree: &Tree) -> io::Result<Self> {
        let fresh = if tree.hands_on_groups() {
            let sample = format!("{POOLED}sample");
            tree.make_memory_group(&sample)?;
            let unused = tree.unused(&sample);
            tree.remove_memory_group(&sample)?;
            Some(Arc::new(unused?))
        } else {
            None
        };
        Ok(Self {
            ready: Vec::with_capacity(GROUPS_READY_MAX),
            returned: VecDeque::with_capacity(GROUPS_RETURNED_MAX),
            awaited: 0,
            judging: 0,
            fresh,
            not_before: None,
            next: 0,
            handed_on: 0,
            given_up: 0,
        })
    }

    pub fn is_full(&self) -> bool {
        self.fresh.is_none() || (self.ready.len() >= GROUPS_AHEAD && self.coming() == 0)
    }

    fn coming(&self) -> usize {
        self.returned.len() + self.judging + self.awaited
    }

    pub fn take(&mut self) -> Option<String> {
        self.ready.pop()
    }

    fn name(&mut self) -> String {
        self.next += 1;
        format!("{POOLED}{}", self.next)
    }

    /// A name for a group of a sandbox that ended, if there is room for it.
    pub fn place(&mut self) -> Option<String> {
        if self.fresh.is_none() || self.coming() >= GROUPS_RETURNED_MAX {
            return None;
        }
        self.awaited += 1;
        Some(self.name())
    }

    /// What came to the place, if it came.
    pub fn give(&mut self, group: Option<String>) {
        self.awaited -= 1;
        let not_before = Instant::now() + SETTLE;
        self.returned.extend(group.map(|group| Returned { group, tries: 0, not_before }));
    }

    pub fn take_returned(&mut self, now: Instant) -> Option<Returned> {
        let at = self.returned.iter().position(|returned| returned.not_before <= now)?;
        self.judging += 1;
        self.returned.remove(at)
    }

    /// Files a group by what its reset came to; one that is given up is to be removed.
    pub fn judged(&mut self, mut returned: Returned, verdict: &Reset, now: Instant) -> Option<String> {
        self.judging -= 1;
        match verdict {
            Reset::Clean if self.ready.len() < GROUPS_READY_MAX => {
                self.handed_on += 1;
                self.ready.push(returned.group);
                None
            }
            Reset::Busy if returned.tries < RESET_TRIES_MAX => {
                returned.tries += 1;
                returned.not_before = now + RESET_PAUSE;
                self.returned.push_back(returned);
                None
            }
            // One more than is kept ready is nothing wrong.
            Reset::Clean => Some(returned.group),
            Reset::Busy | Reset::Unfit(_) => {
                self.given_up += 1;
                Some(returned.group)
            }
        }
    }

    fn is_short(&self) -> bool {
        self.fresh.is_some() && self.ready.len() + self.coming() < GROUPS_AHEAD
    }

    pub fn due(&self, now: Instant) -> Option<Instant> {
        let short = self.is_short().then(|| self.not_before.unwrap_or(now));
        self.returned.iter().map(|returned| returned.not_before).chain(short).min()
    }

    /// The name for one more.
    pub fn short_of(&mut self, now: Instant) -> Option<String> {
        (self.is_short() && self.not_before.is_none_or(|at| at <= now)).then(|| self.name())
    }

    pub fn made(&mut self, group: String, done: Option<()>, retry_at: Instant) {
        match done {
            Some(()) => {
                self.not_before = None;
                self.ready.push(group);
            }
            None => self.not_before = Some(retry_at),
        }
    }

    /// Every group that is held.
    pub fn all(&mut self) -> Vec<String> {
        let returned = self.returned.drain(..).map(|returned| returned.group);
        self.ready.drain(..).chain(returned).collect()
    }
}
