//! A node that runs short of memory: idle sandboxes go down the ladder before their own time, the
//! longest idle first and best-effort ones before all others, a few at each look.
//!
//! Invariant: a sandbox with a call in progress is never touched.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rollout::Bytes;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{Key, Live, Sessions};
use crate::capacity::memory_available;

pub(crate) mod bounds;

use bounds::PressureBounds;

/// Between two looks at the node.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What was called for more recently is not idle, however short memory is.
const IDLE_MIN: Duration = Duration::from_secs(2);

/// How the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    available: Bytes,
    /// Hundredths of a percent; none: the kernel does not tell.
    stall: Option<u32>,
}

/// A sandbox that could go down a rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    key: Key,
    idle: Duration,
    best_effort: bool,
}

/// Between the two marks a node stays what it was.
fn is_pressed(was: bool, level: Level, bounds: &PressureBounds) -> bool {
    let stalls = level.stall.is_some_and(|stall| stall >= bounds.stall_high.hundredths());
    level.available < bounds.available_low || (level.available < bounds.available_ok && (was || stalls))
}

/// Whom to take down now, first first, beside those that are `going` down already.
fn choose(mut candidates: Vec<Candidate>, going: &[Key], bounds: &PressureBounds) -> Vec<Key> {
    candidates.retain(|candidate| candidate.idle >= IDLE_MIN && !going.contains(&candidate.key));
    candidates.sort_by_key(|c| (!c.best_effort, std::cmp::Reverse(c.idle), c.key));
    candidates.truncate(bounds.parks.saturating_sub(going.len()));
    candidates.into_iter().map(|candidate| candidate.key).collect()
}

/// Looks at the node until `token`, and takes sandboxes down while it is pressed.
pub(crate) async fn watch(sessions: Arc<Sessions>, bounds: PressureBounds, token: CancellationToken) {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pressed = false;
    tracing::info!(
        low = %bounds.available_low,
        ok = %bounds.available_ok,
        stall = %bounds.stall_high,
        parks = bounds.parks,
        "idle sandboxes go down early when memory is short"
    );
    let mut descent = Descent::default();
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = token.cancelled() => return,
        }
        let level = match tokio::task::spawn_blocking(level).await {
            Ok(Ok(level)) => level,
            // The sampler tells of it.
            Ok(Err(_)) | Err(_) => continue,
        };
        let was = pressed;
        pressed = is_pressed(was, level, &bounds);
        if pressed != was {
            tracing::info!(pressed, available = %level.available.about(), stall = level.stall, "memory of the node");
        }
        if pressed {
            descent.go_on(&sessions, &bounds);
        }
    }
}

/// The sandboxes on their way down. One whose files take long to store delays no look. Dropped, they stay
/// where they are.
#[derive(Debug, Default)]
struct Descent {
    parks: JoinSet<()>,
    going: Vec<(AbortHandle, Key)>,
}

impl Descent {
    /// Begins with as many more as there is room for.
    fn go_on(&mut self, sessions: &Sessions, bounds: &PressureBounds) {
        let going = self.going();
        for live in idlest(sessions, &going, bounds) {
            let key = super::key(live.at);
            self.begin(key, async move { live.park(IDLE_MIN).await });
        }
    }

    fn begin(&mut self, key: Key, park: impl Future<Output = ()> + Send + 'static) {
        self.going.push((self.parks.spawn(park), key));
    }

    /// Those that have not arrived.
    fn going(&mut self) -> Vec<Key> {
        while let Some(joined) = self.parks.try_join_next() {
            if let Err(error) = joined {
                tracing::error!(%error, "a sandbox was not taken down");
            }
        }
        self.going.retain(|(park, _)| !park.is_finished());
        self.going.iter().map(|&(_, key)| key).collect()
    }
}

fn idlest(sessions: &Sessions, going: &[Key], bounds: &PressureBounds) -> Vec<Arc<Live>> {
    let lives: BTreeMap<Key, Arc<Live>> =
        sessions.all().into_iter().map(|live| (super::key(live.at), live)).collect();
    let could = lives.iter().filter(|(_, live)| live.can_go_down());
    let candidates =
        could.map(|(&key, live)| Candidate { key, idle: live.idle(), best_effort: live.step.best_effort });
    let chosen = choose(candidates.collect(), going, bounds);
    chosen.iter().filter_map(|key| lives.get(key).cloned()).collect()
}

/// Blocks.
fn level() -> io::Result<Level> {
    let stall = std::fs::read_to_string("/proc/pressure/memory").ok();
    Ok(Level { available: memory_available()?, stall: stall.as_deref().and_then(some_avg10) })
}

/// `some avg10=0.21 avg60=...`, in hundredths of a percent.
fn some_avg10(text: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let (whole, places) = line.split_whitespace().find_map(|f| f.strip_prefix("avg10="))?.split_once('.')?;
    let places = format!("{places:0<2}");
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(places.get(..2)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use rollout::{GroupId, JobId, RolloutId, StepIndex};

    use super::bounds::PressureOverrides;
    use super::*;
    use crate::config::Reserves;

    fn key(sample: u32) -> Key {
        let group = GroupId { job: JobId::from_bits(7), index: 0 };
        (RolloutId { group, sample, refill: 0 }, StepIndex(0))
    }

    /// As an operator says it.
    fn bounds(low: u64, ok: u64, stall: &str, parks: u32) -> PressureBounds {
        let overrides = PressureOverrides {
            low: Some(Bytes(low)),
            ok: Some(Bytes(ok)),
            stall: Some(stall.parse().unwrap()),
            parks: Some(parks),
        };
        let reserves = Reserves { memory: Bytes(5), disk: Bytes(0) };
        PressureBounds::of(overrides, reserves, Bytes(100)).unwrap()
    }

    #[test]
    fn every_option_is_of_consequence() {
        let level = |available, stall| Level { available: Bytes(available), stall: Some(stall) };
        let pressed = |was, level, bounds: PressureBounds| is_pressed(was, level, &bounds);
        assert!(!pressed(false, level(11, 0), bounds(10, 20, "10", 1)));
        assert!(pressed(false, level(11, 0), bounds(12, 20, "10", 1)), "low");
        assert!(pressed(true, level(19, 0), bounds(10, 20, "10", 1)));
        assert!(!pressed(true, level(19, 0), bounds(10, 19, "10", 1)), "ok");
        assert!(!pressed(false, level(19, 999), bounds(10, 20, "10", 1)));
        assert!(pressed(false, level(19, 999), bounds(10, 20, "9.99", 1)), "stall");
        let idle = |sample| Candidate { key: key(sample), idle: IDLE_MIN, best_effort: false };
        let chosen = |parks| choose((0..9).map(idle).collect(), &[], &bounds(10, 20, "10", parks)).len();
        assert_eq!((chosen(1), chosen(7)), (1, 7), "parks");
    }

    #[test]
    fn a_node_is_pressed_from_one_mark_to_the_other() {
        let bounds = bounds(10, 20, "10", 2);
        for (was, available, stall, pressed) in [
            (false, 10, None, false),
            (false, 9, None, true),
            (true, 10, None, true),
            (true, 19, Some(0), true),
            (false, 19, Some(999), false),
            (false, 19, Some(1000), true),
            // One sandbox thrashes at its own limit, and the node has plenty.
            (false, 20, Some(9999), false),
            (true, 20, Some(9999), false),
            (true, 99, None, false),
        ] {
            let level = Level { available: Bytes(available), stall };
            assert_eq!(is_pressed(was, level, &bounds), pressed, "{was} {level:?}");
        }
    }

    #[test]
    fn best_effort_goes_first_then_the_longest_idle_and_no_more_than_the_bound() {
        let bounds = bounds(10, 20, "10", 3);
        let of = |sample, idle_s, best_effort| Candidate {
            key: key(sample),
            idle: Duration::from_secs(idle_s),
            best_effort,
        };
        let chosen =
            choose(vec![of(0, 50, false), of(1, 90, false), of(2, 3, true), of(3, 60, false)], &[], &bounds);
        assert_eq!(chosen, [key(2), key(1), key(3)]);
        // Those that go down already take their places, and are not chosen again.
        let chosen = choose(vec![of(0, 50, false), of(1, 90, false)], &[key(1), key(2)], &bounds);
        assert_eq!(chosen, [key(0)]);
        // One that a call is in has not been idle at all.
        assert_eq!(choose(vec![of(0, 0, true), of(1, 1, true)], &[], &bounds), []);
    }

    #[tokio::test]
    async fn one_that_takes_long_holds_its_own_place_only() {
        let mut descent = Descent::default();
        descent.begin(key(0), std::future::pending());
        descent.begin(key(1), async {});
        descent.begin(key(2), async { panic!("a fault of this one") });
        tokio::task::yield_now().await;
        assert_eq!(descent.going(), [key(0)]);
    }

    #[test]
    fn the_share_of_stalls_is_read_as_the_kernel_writes_it() {
        let text = "some avg10=12.05 avg60=0.14 avg300=0.03 total=3\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(some_avg10(text), Some(1205));
        assert_eq!(some_avg10("some avg10=0.00 avg60=0.00\n"), Some(0));
        assert_eq!(some_avg10("full avg10=1.00\n"), None);
    }
}
