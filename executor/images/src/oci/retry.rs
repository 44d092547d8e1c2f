//! How often and when something is asked of a registry again.

use std::time::{Duration, SystemTime};

/// Tries of one request that brings nothing.
pub(super) const TRIES_MAX: u32 = 6;
/// The longest wait a registry can ask for; told to wait longer, nobody waits.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
const FIRST_WAIT: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The tries of one request.
#[derive(Debug, Default)]
pub(super) struct Tries {
    made: u32,
}

impl Tries {
    /// After a try that failed: how long to wait before the next; none if that was the last.
    pub fn next(&mut self, asked: Option<Duration>) -> Option<Duration> {
        self.made += 1;
        if self.made >= TRIES_MAX || asked.is_some_and(|asked| asked > RETRY_AFTER_MAX) {
            return None;
        }
        let own = FIRST_WAIT.saturating_mul(1 << (self.made - 1)).min(WAIT_MAX);
        Some(asked.unwrap_or(own))
    }

    /// Something came of a try.
    pub fn progressed(&mut self) {
        self.made = 0;
    }

    pub fn made(&self) -> u32 {
        self.made
    }
}

/// A `Retry-After`: seconds, or a date.
pub(super) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_end() {
        let mut tries = Tries::default();
        let waits: Vec<_> = std::iter::from_fn(|| tries.next(None)).map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000]);
        assert_eq!(tries.made(), TRIES_MAX);
    }

    #[test]
    fn a_registry_that_says_when_is_obeyed_up_to_a_bound() {
        let mut tries = Tries::default();
        assert_eq!(tries.next(Some(Duration::from_secs(7))), Some(Duration::from_secs(7)));
        assert_eq!(tries.next(Some(RETRY_AFTER_MAX + Duration::from_secs(1))), None);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, seconds) in [
            ("3", Some(3)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:40 GMT", Some(3)),
            ("Sun, 06 Nov 1994 08:49:30 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            assert_eq!(retry_after(text, now), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
