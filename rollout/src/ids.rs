//! Every id of the system, in one file. Ids are newtypes: a [`JobId`] is not a [`Generation`].
//!
//! Ids below the job are *derived*: a group is `(job, index)`, a rollout `(group, sample, refill)`.
//! They need no random source and no look-up, and their text says where they belong:
//!
//! ```
//! use rollout::{GroupId, JobId, RolloutId};
//! let job = JobId::from_bits(7);
//! let rollout = RolloutId { group: GroupId { job, index: 17 }, sample: 3, refill: 0 };
//! assert_eq!(rollout.to_string(), "j0000000000007-g17-s3");
//! assert_eq!("j0000000000007-g17-s3".parse::<RolloutId>(), Ok(rollout));
//! ```
//!
//! Ids of different kinds cannot be mixed:
//!
//! ```compile_fail
//! let job = rollout::JobId::from_bits(7);
//! let generation: rollout::Generation = job;
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::Name;
use crate::plan::STEPS_MAX;

/// Crockford base 32, lower case: no `i`, `l`, `o`, `u`.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TEXT_LEN: usize = 13;

fn encode(mut bits: u64) -> [u8; TEXT_LEN] {
    let mut text = [b'0'; TEXT_LEN];
    for slot in text.iter_mut().rev() {
        *slot = ALPHABET[(bits & 31) as usize];
        bits >>= 5;
    }
    text
}

fn decode(text: &str) -> Option<u64> {
    if text.len() != TEXT_LEN {
        return None;
    }
    text.bytes().try_fold(0u64, |bits, byte| {
        let digit = ALPHABET.iter().position(|&c| c == byte)? as u64;
        bits.checked_mul(32)?.checked_add(digit)
    })
}

/// Text that is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind} id; expected the form {form}")]
pub struct ParseIdError {
    pub text: String,
    pub kind: &'static str,
    pub form: &'static str,
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u64);

        impl $name {
            /// The id with these bits; the shell draws them from its random source.
            pub const fn from_bits(bits: u64) -> Self {
                Self(bits)
            }
            pub const fn bits(self) -> u64 {
                self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($prefix)?;
                encode(self.0).iter().try_for_each(|&c| fmt::Write::write_char(f, c as char))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.strip_prefix($prefix).and_then(decode).map(Self).ok_or_else(|| ParseIdError {
                    text: text.chars().take(64).collect(),
                    kind: $kind,
                    form: concat!($prefix, " and 13 characters of 0-9 a-z"),
                })
            }
        }
        impl TryFrom<String> for $name {
            type Error = ParseIdError;
            fn try_from(text: String) -> Result<Self, ParseIdError> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

random_id!(
    /// A submitted job.
    JobId, "j", "job"
);
random_id!(
    /// A spec that runs again and again.
    ScheduleId, "c", "schedule"
);
random_id!(
    /// One life of an executor. A restart under the same node name is a new incarnation.
    IncarnationId, "i", "incarnation"
);

/// Fences attempts: of two attempts of one step, the later has the larger generation, and a
/// report that carries an older one changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Generation(pub u64);

impl Generation {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A node is known by the name its operator gave it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub Name);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One expansion of one task row: `index` counts expansions in the order of admission
/// (epoch after epoch), so it is unique in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupId {
    pub job: JobId,
    pub index: u32,
}

/// One sample of a group. A refilled member has the same `sample` and the next `refill`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RolloutId {
    pub group: GroupId,
    pub sample: u32,
    pub refill: u32,
}

impl RolloutId {
    /// `sample` of the id under which steps run that a group runs once (`per: group`).
    pub const SHARED: u32 = u32::MAX;

    /// Stands for all members of the group.
    pub const fn shared(group: GroupId) -> Self {
        Self { group, sample: Self::SHARED, refill: 0 }
    }

    pub const fn is_shared(self) -> bool {
        self.sample == Self::SHARED
    }
}

/// Position of a step in its plan (`JobPlan::steps`), 0..64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepIndex(pub u8);

/// A live sandbox as something outside the yard names it: a step of a rollout that serves calls, and
/// where it runs. Retries of the step keep the name. Its text is `ROLLOUT@NODE`, with `.STEP` behind the
/// rollout if the step is not the first of its plan:
///
/// ```
/// let id: rollout::SandboxId = "j0000000000007-g0-s0.2@node-a".parse().unwrap();
/// assert_eq!((id.step, id.node.map(|node| node.to_string())), (rollout::StepIndex(2), Some("node-a".into())));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId {
    pub rollout: RolloutId,
    pub step: StepIndex,
    /// None: whoever has it looks for the node.
    pub node: Option<NodeId>,
}

/// One try of a step. `attempt` counts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    pub rollout: RolloutId,
    pub step: StepIndex,
    pub attempt: u32,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-g{}", self.job, self.index)
    }
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_shared() {
            return write!(f, "{}-shared", self.group);
        }
        write!(f, "{}-s{}", self.group, self.sample)?;
        if self.refill > 0 {
            write!(f, "-r{}", self.refill)?;
        }
        Ok(())
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rollout.fmt(f)?;
        if self.step.0 > 0 {
            write!(f, ".{}", self.step.0)?;
        }
        match &self.node {
            Some(node) => write!(f, "@{node}"),
            None => Ok(()),
        }
    }
}

/// `job-group-sample.step index.attempt`; people are shown step *names*, see the CLI.
impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.rollout, self.step.0, self.attempt)
    }
}

fn number(part: Option<&str>, prefix: &str) -> Option<u32> {
    let digits = part?.strip_prefix(prefix)?;
    let canonical = digits == "0" || !digits.starts_with('0');
    (canonical && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

impl FromStr for GroupId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let parse = || {
            let mut parts = text.split('-');
            let job = parts.next()?.parse().ok()?;
            let index = number(parts.next(), "g")?;
            parts.next().is_none().then_some(GroupId { job, index })
        };
        parse().ok_or_else(|| ParseIdError {
            text: text.chars().take(64).collect(),
            kind: "group",
            form: "JOB-g<index>",
        })
    }
}

impl FromStr for RolloutId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let parse = || {
            let mut parts = text.split('-');
            let job = parts.next()?.parse().ok()?;
            let index = number(parts.next(), "g")?;
            let group = GroupId { job, index };
            let rollout = match parts.next()? {
                "shared" => RolloutId::shared(group),
                part => {
                    let sample = number(Some(part), "s").filter(|&s| s != RolloutId::SHARED)?;
                    let refill = match parts.next() {
                        None => 0,
                        part => number(part, "r").filter(|&r| r > 0)?,
                    };
                    RolloutId { group, sample, refill }
                }
            };
            parts.next().is_none().then_some(rollout)
        };
        parse().ok_or_else(|| ParseIdError {
            text: text.chars().take(64).collect(),
            kind: "rollout",
            form: "JOB-g<index>-s<sample>, with -r<round> after a refill, or JOB-g<index>-shared",
        })
    }
}

impl FromStr for SandboxId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let parse = || {
            let (place, node) = match text.split_once('@') {
                None => (text, None),
                Some((place, node)) => (place, Some(NodeId(node.parse().ok()?))),
            };
            let (rollout, step) = match place.split_once('.') {
                None => (place, 0),
                Some((rollout, step)) => (rollout, number(Some(step), "").filter(|&step| step > 0)?),
            };
            // A plan has no more steps.
            let step = u8::try_from(step).ok().filter(|&step| usize::from(step) < STEPS_MAX)?;
            let rollout: RolloutId = rollout.parse().ok()?;
            (!rollout.is_shared()).then_some(SandboxId { rollout, step: StepIndex(step), node })
        };
        parse().ok_or_else(|| ParseIdError {
            text: text.chars().take(64).collect(),
            kind: "sandbox",
            form: "ROLLOUT@NODE, with .STEP behind the rollout where its step is not the first; @NODE may be left out",
        })
    }
}

macro_rules! text_form {
    ($($name:ident),*) => {$(
        impl TryFrom<String> for $name {
            type Error = ParseIdError;
            fn try_from(text: String) -> Result<Self, ParseIdError> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    )*};
}
text_form!(GroupId, RolloutId, SandboxId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_text() {
        for bits in [0, 1, 31, 32, u64::MAX] {
            let id = JobId::from_bits(bits);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let group = GroupId { job: JobId::from_bits(9), index: 0 };
        let rollout = RolloutId { group, sample: 12, refill: 2 };
        assert_eq!(rollout.to_string().parse(), Ok(rollout));
        let shared = RolloutId::shared(group);
        assert_eq!(shared.to_string(), "j0000000000009-g0-shared");
        assert_eq!(shared.to_string().parse(), Ok(shared));
    }

    #[test]
    fn sandboxes_are_named_by_rollout_step_and_node() {
        let group = GroupId { job: JobId::from_bits(7), index: 0 };
        let rollout = RolloutId { group, sample: 3, refill: 1 };
        for (step, node, text) in [
            (0, None, "j0000000000007-g0-s3-r1"),
            (0, Some("a"), "j0000000000007-g0-s3-r1@a"),
            (1, None, "j0000000000007-g0-s3-r1.1"),
            (63, Some("node-1.rack_2"), "j0000000000007-g0-s3-r1.63@node-1.rack_2"),
        ] {
            let node = node.map(|node: &str| NodeId(node.parse().unwrap()));
            let id = SandboxId { rollout, step: StepIndex(step), node };
            assert_eq!(id.to_string(), text);
            assert_eq!(text.parse(), Ok(id));
        }
    }

    #[test]
    fn what_names_no_sandbox_is_refused() {
        for text in [
            "",
            "@a",
            "j0000000000007@a",
            "j0000000000007-g0@a",
            "j0000000000007-g0-s0@",
            "j0000000000007-g0-s0@a@b",
            "j0000000000007-g0-s0@-a",
            "j0000000000007-g0-s0.@a",
            "j0000000000007-g0-s0.0",
            "j0000000000007-g0-s0.01",
            "j0000000000007-g0-s0.64",
            "j0000000000007-g0-s0.+1",
            "j0000000000007-g0-s0.1.2",
            "j0000000000007-g0-shared@a",
        ] {
            assert!(text.parse::<SandboxId>().is_err(), "{text}");
        }
    }

    #[test]
    fn near_misses_are_refused() {
        for text in ["", "j", "j000000000000", "J0000000000007", "i0000000000007", "jzzzzzzzzzzzzz"] {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
        for text in [
            "j0000000000007-g01-s0",
            "j0000000000007-g1-s0-r0",
            "j0000000000007-g1-s0-r1-",
            "j0000000000007-g+1-s0",
            "j0000000000007-g1-s4294967295",
            "j0000000000007-g1-shared-r1",
        ] {
            assert!(text.parse::<RolloutId>().is_err(), "{text}");
        }
    }
}
