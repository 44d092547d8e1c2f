//! Quantities with units: [`MilliCpu`] is not [`Bytes`].

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// CPU time per wall time, in thousandths of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct MilliCpu(pub u64);

/// Memory or disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Bytes(pub u64);

/// The largest quantity accepted anywhere: sums of 2^16 of them cannot overflow.
pub const QUANTITY_MAX: u64 = 1 << 47;

/// A quantity that cannot be read. `expected` says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{shown}` is not a {kind}: expected {expected}")]
pub struct BadQuantity {
    pub shown: String,
    pub kind: &'static str,
    pub expected: &'static str,
}

fn bad(text: &str, kind: &'static str, expected: &'static str) -> BadQuantity {
    BadQuantity { shown: crate::text::shown(text, 40), kind, expected }
}

/// Plain digits without sign, separator or needless leading zero.
pub(crate) fn whole(digits: &str) -> Option<u64> {
    let canonical = digits == "0" || !digits.starts_with('0');
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    (canonical && plain).then(|| digits.parse().ok())?
}

impl FromStr for MilliCpu {
    type Err = BadQuantity;
    /// Kubernetes' cpu grammar: `2`, `0.5` (at most 3 places) or `500m`; at least `1m`.
    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let parse = || {
            let milli = if let Some(digits) = text.strip_suffix('m') {
                whole(digits)?
            } else if let Some((units, places)) = text.split_once('.') {
                let digits = places.bytes().all(|b| b.is_ascii_digit());
                if places.is_empty() || places.len() > 3 || !digits {
                    return None;
                }
                let part = format!("{places:0<3}").parse::<u64>().ok()?;
                whole(units)?.checked_mul(1000)?.checked_add(part)?
            } else {
                whole(text)?.checked_mul(1000)?
            };
            (1..=QUANTITY_MAX).contains(&milli).then_some(MilliCpu(milli))
        };
        parse().ok_or_else(|| {
            bad(
                text,
                "cpu quantity",
                "cores such as 2 or 0.5 (at most 3 places), or milli-cores such as 500m",
            )
        })
    }
}

/// Suffixes, largest first so that display picks the largest exact one.
const BYTE_UNITS: [(&str, u64); 10] = [
    ("Pi", 1 << 50),
    ("P", 1_000_000_000_000_000),
    ("Ti", 1 << 40),
    ("T", 1_000_000_000_000),
    ("Gi", 1 << 30),
    ("G", 1_000_000_000),
    ("Mi", 1 << 20),
    ("M", 1_000_000),
    ("Ki", 1 << 10),
    ("k", 1_000),
];

impl FromStr for Bytes {
    type Err = BadQuantity;
    /// Kubernetes' byte grammar without fractions and exponents: `512Mi`, `10G`, `4096`.
    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let parse = || {
            let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let (digits, suffix) = text.split_at(split);
            let unit = match suffix {
                "" => 1,
                _ => BYTE_UNITS.iter().find(|(name, _)| *name == suffix)?.1,
            };
            let bytes = whole(digits)?.checked_mul(unit)?;
            (bytes <= QUANTITY_MAX).then_some(Bytes(bytes))
        };
        parse().ok_or_else(|| {
            bad(
                text,
                "byte quantity",
                "a whole number with k M G T P or Ki Mi Gi Ti Pi, such as 512Mi or 10G",
            )
        })
    }
}

impl fmt::Display for MilliCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) { write!(f, "{}", self.0 / 1000) } else { write!(f, "{}m", self.0) }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0");
        }
        let binary = BYTE_UNITS.iter().filter(|(name, _)| name.ends_with('i'));
        match binary.into_iter().find(|(_, unit)| self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Bytes {
    /// For sentences: at most one decimal, in the largest binary unit. Not exact.
    pub fn about(self) -> String {
        let binary = BYTE_UNITS.iter().find(|(name, unit)| name.ends_with('i') && self.0 >= *unit);
        let Some((name, unit)) = binary else { return self.0.to_string() };
        let tenths = (u128::from(self.0) * 10 + u128::from(unit / 2)) / u128::from(*unit);
        match tenths % 10 {
            0 => format!("{}{name}", tenths / 10),
            part => format!("{}.{part}{name}", tenths / 10),
        }
    }
}

/// What a step asks of a node. Requests are packed; limits are what the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    pub request: Request,
    pub limit: Limit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Request {
    pub cpu: MilliCpu,
    pub memory: Bytes,
    pub disk: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limit {
    pub cpu: MilliCpu,
    pub memory: Bytes,
    pub disk: Bytes,
    /// Tasks (processes and threads) alive at once.
    pub pids: u32,
}

/// Up to this `limit.disk` the writable layer is a tmpfs, whose pages count as memory: the memory
/// cgroup limit is then `limit.memory + limit.disk`, and the ledger charges both.
pub const TMPFS_DISK_MAX: Bytes = Bytes(256 << 20);

impl Default for Resources {
    fn default() -> Self {
        let disk = Bytes(256 << 20);
        Self {
            request: Request { cpu: MilliCpu(500), memory: Bytes(512 << 20), disk },
            limit: Limit { cpu: MilliCpu(2000), memory: Bytes(2 << 30), disk, pids: 1024 },
        }
    }
}

impl Resources {
    /// What the ledger of a node is charged while the sandbox exists.
    pub fn charge(&self) -> Request {
        let mut charge = self.request;
        if self.limit.disk <= TMPFS_DISK_MAX {
            charge.memory = Bytes(charge.memory.0 + charge.disk.0);
            charge.disk = Bytes(0);
        }
        charge
    }

    /// The larger of each entry: what a sandbox needs that serves both steps in turn.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        Self {
            request: Request {
                cpu: self.request.cpu.max(other.request.cpu),
                memory: self.request.memory.max(other.request.memory),
                disk: self.request.disk.max(other.request.disk),
            },
            limit: Limit {
                cpu: self.limit.cpu.max(other.limit.cpu),
                memory: self.limit.memory.max(other.limit.memory),
                disk: self.limit.disk.max(other.limit.disk),
                pids: self.limit.pids.max(other.limit.pids),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_follow_the_kubernetes_grammar() {
        let cpu = |t: &str| t.parse::<MilliCpu>().ok().map(|c| c.0);
        assert_eq!(
            [cpu("2"), cpu("0.5"), cpu("500m"), cpu("1.125")],
            [Some(2000), Some(500), Some(500), Some(1125)]
        );
        for text in
            ["-1", "2cores", "0", "0m", "0.0001", "1e3", "0x10", "NaN", "inf", "01", "1_000", "", "1.", ".5"]
        {
            assert_eq!(cpu(text), None, "{text}");
        }
        let bytes = |t: &str| t.parse::<Bytes>().ok().map(|b| b.0);
        assert_eq!(
            [bytes("4Gi"), bytes("10G"), bytes("7"), bytes("1k")],
            [Some(4 << 30), Some(10_000_000_000), Some(7), Some(1000)]
        );
        for text in ["4GB", "400m", "1e6", "-1", "1.5Gi", "18446744073709551616", "9999999Pi", "Gi", "0x10"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn quantities_survive_their_text() {
        for n in [1, 999, 1000, 1024, 1536, 1 << 30, 3 << 20] {
            assert_eq!(Bytes(n).to_string().parse(), Ok(Bytes(n)));
            assert_eq!(MilliCpu(n).to_string().parse(), Ok(MilliCpu(n)));
        }
    }

    #[test]
    fn sentences_round_to_one_decimal() {
        let about = |n| Bytes(n).about();
        assert_eq!(
            [about(0), about(1023), about(1 << 30), about(24_159_796 << 10)],
            ["0", "1023", "1Gi", "23Gi"]
        );
        assert_eq!(about((900 << 30) + (256 << 20)), "900.3Gi");
        assert_eq!(about(1536), "1.5Ki");
    }

    #[test]
    fn a_tmpfs_disk_is_charged_as_memory() {
        let charge = Resources::default().charge();
        assert_eq!((charge.memory, charge.disk), (Bytes(768 << 20), Bytes(0)));
        let mut large = Resources::default();
        large.limit.disk = Bytes(1 << 30);
        large.request.disk = Bytes(1 << 30);
        assert_eq!(large.charge().disk, Bytes(1 << 30));
    }
}
