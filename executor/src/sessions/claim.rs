//! Who drives a session. Compare-and-set: one driver at a time, until it is silent for its `ttl`.

use std::time::Duration;

use rollout::Millis;
use rollout::outcome::ParkedClaim;
use tokio::time::Instant;

#[derive(Debug)]
struct Held {
    driver: String,
    token: String,
    ttl: Duration,
    heard_at: Instant,
}

impl Held {
    fn lives(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard_at) < self.ttl
    }
}

#[derive(Debug, Default)]
pub(super) struct Claim(Option<Held>);

impl Claim {
    /// The token for `driver`: `fresh`, or the one it has already. None: another driver holds it.
    ///
    /// Whoever waits for a call of its own is not silent: see [`keep`](Self::keep).
    pub fn take(&mut self, driver: &str, ttl: Duration, fresh: String, now: Instant) -> Option<String> {
        match &mut self.0 {
            Some(held) if held.lives(now) && held.driver != driver => None,
            Some(held) if held.lives(now) => {
                (held.ttl, held.heard_at) = (ttl, now);
                Some(held.token.clone())
            }
            _ => {
                let driver = driver.to_owned();
                self.0 = Some(Held { driver, token: fresh.clone(), ttl, heard_at: now });
                Some(fresh)
            }
        }
    }

    /// As it was when its session was parked; heard of now.
    pub fn restored(kept: &ParkedClaim, now: Instant) -> Self {
        let ttl = Duration::from_millis(kept.ttl.0);
        Self(Some(Held { driver: kept.driver.clone(), token: kept.token.clone(), ttl, heard_at: now }))
    }

    /// What there is to keep of it while its session is parked.
    pub fn kept(&self, now: Instant) -> Option<ParkedClaim> {
        let held = self.0.as_ref().filter(|held| held.lives(now))?;
        let ttl = Millis(u64::try_from(held.ttl.as_millis()).unwrap_or(u64::MAX));
        Some(ParkedClaim { driver: held.driver.clone(), token: held.token.clone(), ttl })
    }

    /// Who holds it.
    pub fn driver(&self, now: Instant) -> Option<&str> {
        self.0.as_ref().filter(|held| held.lives(now)).map(|held| held.driver.as_str())
    }

    /// Whether `token` holds it. Hearing of it keeps the claim.
    pub fn hear(&mut self, token: &str, now: Instant) -> Option<Duration> {
        let held = self.0.as_mut().filter(|held| held.lives(now) && held.token == token)?;
        held.heard_at = now;
        Some(held.ttl)
    }

    /// It was heard of up to now: by traffic, or (`waits`) by a call that went on all the time since.
    pub fn keep(&mut self, now: Instant, waits: bool) {
        if let Some(held) = self.0.as_mut().filter(|held| waits || held.lives(now)) {
            held.heard_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_driver_holds_a_session_until_it_is_silent() {
        let mut claim = Claim::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let ttl = Duration::from_secs(10);
        let mut take = |driver: &str, fresh: &str, now| claim.take(driver, ttl, fresh.to_owned(), now);
        assert_eq!(take("a", "t1", at(0)).as_deref(), Some("t1"));
        assert_eq!(take("b", "t2", at(9)), None);
        assert_eq!(take("a", "t3", at(9)).as_deref(), Some("t1"), "it gets back what it holds");
        assert_eq!(take("b", "t4", at(18)), None, "asking again was heard");
        assert_eq!(take("b", "t5", at(19)).as_deref(), Some("t5"));
        assert_eq!((claim.driver(at(20)), claim.driver(at(29))), (Some("b"), None));
        assert_eq!(claim.hear("t1", at(20)), None, "the first is out");
        assert_eq!(claim.hear("t5", at(28)), Some(ttl));
        assert_eq!(claim.hear("t5", at(37)), Some(ttl));
        assert_eq!(claim.hear("t5", at(47)), None, "over by itself");
        claim.keep(at(48), false);
        assert_eq!(claim.hear("t5", at(48)), None, "nothing brings it back");
        assert_eq!(claim.take("c", ttl, "t6".to_owned(), at(49)).as_deref(), Some("t6"));
        claim.keep(at(90), true);
        assert_eq!(claim.take("d", ttl, "t7".to_owned(), at(99)), None, "it waited for a call until 90");
    }
}
