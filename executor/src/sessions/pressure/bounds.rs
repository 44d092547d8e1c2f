//! When a node is short of memory: two marks, so that it does not swing, and what it does at once.

use std::fmt;
use std::str::FromStr;

use rollout::Bytes;

use crate::Error;
use crate::config::Reserves;

/// Pressed from less than this available on, unless the operator says otherwise.
const LOW: Bytes = Bytes(1 << 30);
/// Of tasks that stall for memory, likewise.
const STALL: StallShare = StallShare(1_000);
/// Sandboxes on their way down at once, likewise.
const PARKS: u32 = 16;
/// More at once would be the load that the node is to be spared: each one packs and stores files.
pub const PARKS_MAX: u32 = 256;

/// When a node is short of memory, and what it does about it. Made by [`PressureBounds::of`], which refuses
/// what could not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PressureBounds {
    pub(super) available_low: Bytes,
    pub(super) available_ok: Bytes,
    pub(super) stall_high: StallShare,
    pub(super) parks: usize,
}

/// What the operator says of it; none: the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureOverrides {
    /// Pressed from less than this available on.
    pub low: Option<Bytes>,
    /// And again at ease only with as much as this. Half as much again as `low`.
    pub ok: Option<Bytes>,
    /// With less than `ok`, pressed while tasks stall for memory for so much of the time (`some avg10` of the
    /// kernel). With more than that, what stalls is one sandbox at its own limit, and the others would gain it
    /// nothing.
    pub stall: Option<StallShare>,
    /// Sandboxes on their way down at once. Looks are a second apart.
    pub parks: Option<u32>,
}

impl Default for PressureBounds {
    fn default() -> Self {
        Self { available_low: LOW, available_ok: half_more(LOW), stall_high: STALL, parks: PARKS as usize }
    }
}

fn half_more(low: Bytes) -> Bytes {
    Bytes(low.0.saturating_add(low.0 / 2))
}

impl PressureBounds {
    /// `machine`: all the memory this process may use.
    ///
    /// # Errors
    /// A mark below the reserve of the node (then admission would refuse new sandboxes while idle ones keep
    /// what they want), marks in the wrong order, one that is never reached, or too many at once.
    pub fn of(overrides: PressureOverrides, reserves: Reserves, machine: Bytes) -> Result<Self, Error> {
        let PressureOverrides { low, ok, stall, parks } = overrides;
        let refused = |option, shown: String, problem| Err(Error::BadPressure { option, shown, problem });
        let available_low = low.unwrap_or(LOW);
        let available_ok = ok.unwrap_or(half_more(available_low));
        let parks = parks.unwrap_or(PARKS);
        if available_low < reserves.memory {
            let reserve = reserves.memory;
            let problem = format!("below {reserve}, with less than which the node takes no new sandbox");
            return refused("--pressure-low", available_low.to_string(), problem);
        }
        if available_ok <= available_low {
            let problem = format!("not above --pressure-low, {available_low}, so that the node would swing");
            return refused("--pressure-ok", available_ok.to_string(), problem);
        }
        for (option, given, mark) in
            [("--pressure-low", low, available_low), ("--pressure-ok", ok.or(low), available_ok)]
        {
            if given.is_some() && mark >= machine {
                let problem = format!("never available: this machine has {machine} in all");
                return refused(option, mark.to_string(), problem);
            }
        }
        if parks == 0 || parks > PARKS_MAX {
            let problem = format!("not 1 to {PARKS_MAX} (PARKS_MAX)");
            return refused("--pressure-parks", parks.to_string(), problem);
        }
        Ok(Self { available_low, available_ok, stall_high: stall.unwrap_or(STALL), parks: parks as usize })
    }

    /// For this machine.
    ///
    /// # Errors
    /// As [`of`](Self::of), or the memory of the machine cannot be measured.
    pub fn here(overrides: PressureOverrides, reserves: Reserves) -> Result<Self, Error> {
        let machine = crate::capacity::memory_total();
        let machine = machine.map_err(|source| Error::Measure { what: "the memory", source })?;
        Self::of(overrides, reserves, machine)
    }
}

/// A share of time in hundredths of a percent, more than none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StallShare(u32);

impl StallShare {
    const WHOLE: u32 = 10_000;

    pub fn hundredths(self) -> u32 {
        self.0
    }
}

/// Not a share of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{shown}` is not a share of time: expected a percentage from 0.01 to 100, such as 10 or 12.5")]
pub struct BadShare {
    shown: String,
}

impl FromStr for StallShare {
    type Err = BadShare;
    /// `10`, `12.5`, `0.25%`: at most two places.
    fn from_str(text: &str) -> Result<Self, BadShare> {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let parse = || {
            let number = text.strip_suffix('%').unwrap_or(text);
            let (whole, places) = number.split_once('.').unwrap_or((number, "0"));
            if !digits(whole) || !digits(places) || places.len() > 2 {
                return None;
            }
            let places: u32 = format!("{places:0<2}").parse().ok()?;
            let share = whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(places)?;
            (1..=Self::WHOLE).contains(&share).then_some(Self(share))
        };
        parse().ok_or_else(|| BadShare { shown: rollout::text::shown(text, 40) })
    }
}

impl fmt::Display for StallShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:02}", self.0 / 100, self.0 % 100);
        write!(f, "{}%", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_is_not_said_follows_from_what_is() {
        let reserves = Reserves { memory: Bytes(GIB / 2), disk: Bytes(0) };
        let of = |low, ok, stall: Option<&str>, parks| {
            let stall = stall.map(|text| text.parse().unwrap());
            let overrides = PressureOverrides { low, ok, stall, parks };
            let bounds = PressureBounds::of(overrides, reserves, Bytes(24 * GIB)).unwrap();
            (bounds.available_low.0, bounds.available_ok.0, bounds.stall_high.0, bounds.parks)
        };
        let bytes = |bytes| Some(Bytes(bytes));
        assert_eq!(of(None, None, None, None), (GIB, GIB * 3 / 2, 1_000, 16));
        assert_eq!(of(bytes(4 * GIB), None, None, None), (4 * GIB, 6 * GIB, 1_000, 16));
        assert_eq!(of(None, bytes(2 * GIB), None, None), (GIB, 2 * GIB, 1_000, 16));
        assert_eq!(of(bytes(GIB / 2), bytes(GIB), Some("12.5"), Some(256)), (GIB / 2, GIB, 1_250, 256));
        let default = PressureBounds::of(PressureOverrides::default(), reserves, Bytes(GIB)).unwrap();
        assert_eq!(default, PressureBounds::default(), "of a small machine too");
    }

    #[test]
    fn what_could_not_work_is_refused_by_the_name_of_its_option() {
        let reserves = Reserves { memory: Bytes(GIB / 2), disk: Bytes(0) };
        let bytes = |bytes| Some(Bytes(bytes));
        for (low, ok, parks, message) in [
            (
                bytes(GIB / 4),
                None,
                None,
                "--pressure-low 256Mi: below 512Mi, with less than which the node takes no new sandbox",
            ),
            (
                bytes(2 * GIB),
                bytes(2 * GIB),
                None,
                "--pressure-ok 2Gi: not above --pressure-low, 2Gi, so that the node would swing",
            ),
            (
                None,
                bytes(GIB / 2),
                None,
                "--pressure-ok 512Mi: not above --pressure-low, 1Gi, so that the node would swing",
            ),
            (
                bytes(24 * GIB),
                None,
                None,
                "--pressure-low 24Gi: never available: this machine has 24Gi in all",
            ),
            (
                bytes(16 * GIB),
                None,
                None,
                "--pressure-ok 24Gi: never available: this machine has 24Gi in all",
            ),
            (
                None,
                bytes(25 * GIB),
                None,
                "--pressure-ok 25Gi: never available: this machine has 24Gi in all",
            ),
            (None, None, Some(0), "--pressure-parks 0: not 1 to 256 (PARKS_MAX)"),
            (None, None, Some(257), "--pressure-parks 257: not 1 to 256 (PARKS_MAX)"),
        ] {
            let overrides = PressureOverrides { low, ok, stall: None, parks };
            let refused = PressureBounds::of(overrides, reserves, Bytes(24 * GIB)).unwrap_err();
            assert_eq!(refused.to_string(), format!("pressure_refused: {message}"));
            assert!(refused.hint().is_some());
        }
    }

    #[test]
    fn a_share_is_a_percentage_with_two_places() {
        for (text, hundredths, shown) in
            [("10", 1_000, "10%"), ("12.5", 1_250, "12.5%"), ("0.01%", 1, "0.01%"), ("100", 10_000, "100%")]
        {
            let share: StallShare = text.parse().unwrap();
            assert_eq!((share.hundredths(), share.to_string().as_str()), (hundredths, shown));
        }
        for text in
            ["", "0", "0.00", "100.01", "101", "-1", "+1", "1.005", "1.", ".5", "ten", "1e1", "99999999999"]
        {
            assert!(text.parse::<StallShare>().is_err(), "{text}");
        }
    }
}
