//! What was made ahead, by shape: bounded in number and in time.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Counts;
use crate::broker::serve::lock;
use crate::sandbox::Sandbox;

/// How every name begins.
const NAMED: &str = "fncall-";
/// Sandboxes that wait, of all shapes.
pub const PARKED_MAX: usize = 16;
/// Shapes that are made ahead. One more takes the place of the one asked for least lately.
const SHAPES_MAX: usize = 4;
/// Sandboxes that wait, of one shape.
const PARKED_PER_SHAPE: usize = PARKED_MAX / SHAPES_MAX;
/// A shape that nobody asked for so long is not made ahead any more.
const SHAPE_IDLE_MAX: Duration = Duration::from_secs(600);

/// Two sandboxes of one shape differ in their limits alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub image: String,
    pub user: String,
    pub workdir: String,
}

/// A sandbox that serves nobody yet. Dropping it destroys it.
#[derive(Debug)]
pub(super) struct Parked {
    pub id: String,
    pub sandbox: Box<dyn Sandbox>,
}

#[derive(Debug)]
struct Shelf {
    shape: Shape,
    asked_at: Instant,
    ready: VecDeque<Parked>,
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Arc<Mutex<State>>,
    changed: Notify,
    /// Something was parked.
    parked: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The one asked for last comes last. At most [`SHAPES_MAX`].
    shelves: Vec<Shelf>,
    /// The one that is being made ahead.
    making: Option<String>,
    /// Names that calls gave, of sandboxes that live.
    claimed: BTreeSet<String>,
    named: u64,
    counts: Counts,
    is_closed: bool,
}

impl State {
    fn shelf(&mut self, shape: &Shape) -> Option<&mut Shelf> {
        self.shelves.iter_mut().find(|shelf| shelf.shape == *shape)
    }
}

impl Pool {
    /// One that gives none of these names.
    pub fn beside(names: &[String]) -> Self {
        let number = |name: &String| name.strip_prefix(NAMED)?.parse::<u64>().ok();
        let pool = Self::default();
        lock(&pool.state).named = names.iter().filter_map(number).max().unwrap_or(0);
        pool
    }

    /// The next name for a sandbox: jobs' own begin with their id, which has no such word in it.
    pub fn name(&self) -> String {
        let mut state = lock(&self.state);
        state.named += 1;
        format!("{NAMED}{}", state.named)
    }

    pub fn counts(&self) -> Counts {
        let state = lock(&self.state);
        Counts { parked: state.shelves.iter().map(|shelf| shelf.ready.len()).sum(), ..state.counts }
    }

    pub fn count(&self, is_handout: bool) {
        let counts = &mut lock(&self.state).counts;
        *if is_handout { &mut counts.handouts } else { &mut counts.creations } += 1;
    }

    /// Names of what waits, and of what is on its way.
    pub fn parked(&self) -> Vec<String> {
        let state = lock(&self.state);
        let ready = state.shelves.iter().flat_map(|shelf| &shelf.ready).map(|parked| parked.id.clone());
        ready.chain(state.making.clone()).collect()
    }

    /// From now on the shape is made ahead.
    pub fn ask_for(&self, shape: &Shape) {
        let mut state = lock(&self.state);
        let at = state.shelves.iter().position(|shelf| shelf.shape == *shape);
        let mut shelf = at.map_or_else(
            || Shelf { shape: shape.clone(), asked_at: Instant::now(), ready: VecDeque::new() },
            |at| state.shelves.remove(at),
        );
        shelf.asked_at = Instant::now();
        state.shelves.push(shelf);
        let dropped = (state.shelves.len() > SHAPES_MAX).then(|| state.shelves.remove(0));
        drop(state);
        drop(dropped);
        self.changed.notify_one();
    }

    /// The one that waited longest.
    pub fn take(&self, shape: &Shape) -> Option<Parked> {
        let taken = lock(&self.state).shelf(shape)?.ready.pop_front();
        // What was asked for before may have been looked at before, too.
        self.changed.notify_one();
        taken
    }

    /// Gives a sandbox back that nobody wants any more.
    pub fn park(&self, shape: &Shape, parked: Parked) -> Option<Parked> {
        let mut state = lock(&self.state);
        let is_closed = state.is_closed;
        match state.shelf(shape).filter(|shelf| !is_closed && shelf.ready.len() < PARKED_PER_SHAPE) {
            Some(shelf) => shelf.ready.push_back(parked),
            None => return Some(parked),
        }
        self.parked.notify_waiters();
        None
    }

    /// The shape to make one more of, the one asked for last first.
    pub fn short(&self) -> Option<Shape> {
        let state = lock(&self.state);
        let short = state.shelves.iter().rev().find(|shelf| shelf.ready.len() < PARKED_PER_SHAPE);
        short.filter(|_| !state.is_closed).map(|shelf| shelf.shape.clone())
    }

    /// Gives up shapes that nobody asks for.
    pub fn expire(&self) {
        let mut state = lock(&self.state);
        let (kept, old) =
            state.shelves.drain(..).partition(|shelf: &Shelf| shelf.asked_at.elapsed() < SHAPE_IDLE_MAX);
        state.shelves = kept;
        drop(state);
        drop::<Vec<Shelf>>(old);
    }

    /// Nothing is parked any more; gives what waited.
    pub fn close(&self) -> Vec<Parked> {
        let mut state = lock(&self.state);
        state.is_closed = true;
        std::mem::take(&mut state.shelves).into_iter().flat_map(|shelf| shelf.ready).collect()
    }

    /// Whether one is on its way.
    pub fn is_making(&self) -> bool {
        lock(&self.state).making.is_some()
    }

    /// A shape was asked for.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    pub async fn until_ready(&self, shape: &Shape) {
        loop {
            let parked = self.parked.notified();
            tokio::pin!(parked);
            parked.as_mut().enable();
            if lock(&self.state).shelf(shape).is_none_or(|shelf| !shelf.ready.is_empty()) {
                return;
            }
            parked.await;
        }
    }

    /// Names what is on its way until the guard is dropped.
    pub fn making(&self, id: &str) -> Making {
        lock(&self.state).making = Some(id.to_owned());
        Making(Arc::clone(&self.state))
    }
}

pub(super) struct Making(Arc<Mutex<State>>);

impl Drop for Making {
    fn drop(&mut self) {
        lock(&self.0).making = None;
    }
}

/// The name a call gave its sandbox, as long as that lives.
#[derive(Debug)]
pub(super) struct Claim {
    state: Arc<Mutex<State>>,
    id: String,
}

impl Claim {
    /// None: another sandbox has the name.
    pub fn of(pool: &Pool, id: &str) -> Option<Self> {
        let claimed = lock(&pool.state).claimed.insert(id.to_owned());
        claimed.then(|| Self { state: Arc::clone(&pool.state), id: id.to_owned() })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.state).claimed.remove(&self.id);
    }
}
