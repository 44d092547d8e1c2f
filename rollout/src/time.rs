//! Time as data. The shell reads clocks, once a pass; pure code takes what it read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::quantity::{BadQuantity, whole};

/// A point in wall time: microseconds since 1970-01-01 UTC. For rows and people, never for
/// deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp(pub i64);

/// A point on the clock that deadlines use (CLOCK_BOOTTIME of one machine): microseconds since
/// boot. It goes on while the machine sleeps and never jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct BootTime(pub u64);

/// A length of time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Millis(pub u64);

impl BootTime {
    #[must_use]
    pub fn after(self, wait: Millis) -> Self {
        Self(self.0.saturating_add(wait.0.saturating_mul(1000)))
    }
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0) / 1000)
    }
}

impl Timestamp {
    /// Milliseconds from `earlier` to `self`; never negative.
    #[must_use]
    pub fn since(self, earlier: Self) -> Millis {
        Millis(u64::try_from((self.0 - earlier.0) / 1000).unwrap_or(0))
    }
}

/// The longest duration a spec may name: 30 days.
pub const DURATION_MAX: Millis = Millis(30 * 24 * 3_600_000);

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl FromStr for Millis {
    type Err = BadQuantity;
    /// An integer and one of `d h m s ms`, chained large to small: `30s`, `1h30m`, `250ms`.
    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let parse = || {
            let (mut rest, mut total, mut first_allowed) = (text, 0u64, 0usize);
            while !rest.is_empty() {
                let digits = rest.find(|c: char| !c.is_ascii_digit())?;
                let tail = &rest[digits..];
                let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
                let unit = UNITS.iter().position(|(name, _)| *name == &tail[..letters])?;
                if unit < first_allowed {
                    return None;
                }
                first_allowed = unit + 1;
                total = total.checked_add(whole(&rest[..digits])?.checked_mul(UNITS[unit].1)?)?;
                rest = &tail[letters..];
            }
            (!text.is_empty() && total <= DURATION_MAX.0).then_some(Millis(total))
        };
        parse().ok_or_else(|| BadQuantity {
            shown: crate::text::shown(text, 40),
            kind: "duration",
            expected: "whole numbers with d h m s ms, large to small, at most 30d, such as 30s or 1h30m",
        })
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (name, unit) in UNITS {
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_chained_large_to_small() {
        let ms = |t: &str| t.parse::<Millis>().ok().map(|d| d.0);
        assert_eq!(
            [ms("30s"), ms("1h30m"), ms("250ms"), ms("30d")],
            [Some(30_000), Some(5_400_000), Some(250), Some(2_592_000_000)]
        );
        for text in ["", "5", "1.5h", "30m1h", "1h1h", "31d", "s", "-1s", "1 h", "1S"] {
            assert_eq!(ms(text), None, "{text}");
        }
        for n in [0, 1, 1500, 5_400_000, 90_061_001] {
            assert_eq!(Millis(n).to_string().parse(), Ok(Millis(n)));
        }
    }
}
