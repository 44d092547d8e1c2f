//! How much memory the attempts of a step held, and what that says of what the step asks.
//!
//! Held is anonymous memory and files in memory, the most that was seen of an attempt: what nobody can take
//! from it. Attempts are counted by size, in buckets a quarter of a power of two wide, so that sums over any
//! number of them stay small and exact, whatever the order they came in.
//!
//! Invariant: nothing here changes what is placed or charged; a node keeps what a step asks.

use std::collections::BTreeMap;

use rollout::plan::{JobPlan, ResourcesPlan};
use rollout::quantity::{Resources, TMPFS_DISK_MAX};
use rollout::{Bytes, StepIndex};

/// Buckets of each power of two.
const BUCKETS_EACH: u64 = 1 << BUCKETS_EACH_LOG2;
const BUCKETS_EACH_LOG2: u32 = 2;
/// Of any number of bytes: one for each below [`BUCKETS_EACH`], and so many of each power of two from there.
pub const BUCKETS_MAX: u32 = (u64::BITS - BUCKETS_EACH_LOG2 + 1) << BUCKETS_EACH_LOG2;

/// The part of the attempts that [`HeldMemory::p95`] is enough for.
const P95_PERCENT: u64 = 95;
/// Fewer attempts are no reason to ask for less.
pub const ADVICE_ATTEMPTS_MIN: u64 = 8;
/// A request of more than so many times the 95th percentile is too large.
pub const REQUEST_FACTOR_MAX: u64 = 2;
/// A request that is too large by less is not worth a word.
pub const ADVICE_BYTES_MIN: Bytes = Bytes(64 << 20);
/// What is advised is the 95th percentile and this part of it...
const ADVICE_SLACK_DIVISOR: u64 = 4;
/// ...rounded up to this.
const ADVICE_ROUND: Bytes = Bytes(16 << 20);

/// Sizes that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(u16);

impl Bucket {
    pub fn of(held: Bytes) -> Self {
        let bytes = held.0;
        let index = match bytes.checked_ilog2() {
            Some(log2) if log2 >= BUCKETS_EACH_LOG2 => {
                let shift = log2 - BUCKETS_EACH_LOG2;
                (u64::from(shift) + 1) * BUCKETS_EACH + ((bytes >> shift) - BUCKETS_EACH)
            }
            _ => bytes,
        };
        // At most BUCKETS_MAX - 1.
        Self(u16::try_from(index).unwrap_or(u16::MAX))
    }

    /// None for a number that no size has.
    pub fn from_index(index: u64) -> Option<Self> {
        let index = u16::try_from(index).ok()?;
        (u32::from(index) < BUCKETS_MAX).then_some(Self(index))
    }

    pub fn index(self) -> u16 {
        self.0
    }
}

/// The attempts of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    pub attempts: u64,
    /// The most that one of them held.
    pub most: Bytes,
    /// The largest peak the kernel counted for one of them, cached files included; none: it counts none.
    pub kernel_peak: Option<Bytes>,
}

impl Seen {
    pub fn once(held: Bytes, kernel_peak: Option<Bytes>) -> Self {
        Self { attempts: 1, most: held, kernel_peak }
    }

    pub fn add(&mut self, other: Self) {
        self.attempts = self.attempts.saturating_add(other.attempts);
        self.most = self.most.max(other.most);
        self.kernel_peak = self.kernel_peak.max(other.kernel_peak);
    }
}

/// What all attempts of a step held. At most [`BUCKETS_MAX`] entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldMemory(BTreeMap<Bucket, Seen>);

impl HeldMemory {
    /// Of an attempt that ended.
    pub fn observe(&mut self, held: Bytes, kernel_peak: Option<Bytes>) {
        self.add(Bucket::of(held), Seen::once(held, kernel_peak));
    }

    pub fn add(&mut self, bucket: Bucket, seen: Seen) {
        self.0.entry(bucket).or_default().add(seen);
    }

    pub fn merge(&mut self, other: &Self) {
        for (&bucket, &seen) in &other.0 {
            self.add(bucket, seen);
        }
    }

    pub fn buckets(&self) -> impl Iterator<Item = (Bucket, Seen)> {
        self.0.iter().map(|(&bucket, &seen)| (bucket, seen))
    }

    /// Those that were measured.
    pub fn attempts(&self) -> u64 {
        self.0.values().map(|seen| seen.attempts).fold(0, u64::saturating_add)
    }

    pub fn most(&self) -> Option<Bytes> {
        self.0.values().map(|seen| seen.most).max()
    }

    pub fn kernel_peak(&self) -> Option<Bytes> {
        self.0.values().filter_map(|seen| seen.kernel_peak).max()
    }

    /// What 95 of 100 attempts held at most: never too little, and too much by less than a quarter. It is what
    /// some attempt held. None before the first.
    pub fn p95(&self) -> Option<Bytes> {
        // The smallest number of attempts that is at least 95 of 100, without a product that overflows.
        let attempts = self.attempts();
        let rank =
            attempts - attempts / 100 * (100 - P95_PERCENT) - attempts % 100 * (100 - P95_PERCENT) / 100;
        let mut below = 0u64;
        self.0.values().find_map(|seen| {
            below = below.saturating_add(seen.attempts);
            (below >= rank).then_some(seen.most)
        })
    }
}

/// What a step asks, where it is the same for every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    pub own: Resources,
    /// The larger of each entry over the steps that use its sandbox in turn: what its node keeps.
    pub sandbox: Resources,
}

impl Asked {
    /// None where it is looked up in the row.
    pub fn of(plan: &JobPlan, step: StepIndex) -> Option<Self> {
        let fixed = |step| match &plan.step(step).resources {
            ResourcesPlan::Fixed(resources) => Some(*resources),
            ResourcesPlan::PerRow(_) => None,
        };
        let own = fixed(step)?;
        let mut chain = plan.chain(plan.chain_head(step)).into_iter();
        let sandbox = chain.try_fold(own, |largest, step| Some(largest.max(&fixed(step)?)))?;
        Some(Self { own, sandbox })
    }

    fn disk_in_memory(&self) -> bool {
        self.sandbox.limit.disk <= TMPFS_DISK_MAX
    }
}

/// What to change in the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice {
    pub code: AdviceCode,
    /// Of the step.
    pub field: &'static str,
    pub suggested: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdviceCode {
    /// Nodes keep much more for it than it uses, and others wait.
    AsksTooMuch,
    /// It held more than its node keeps for it.
    AsksTooLittle,
}

impl AdviceCode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AsksTooMuch => "asks_too_much",
            Self::AsksTooLittle => "asks_too_little",
        }
    }
}

const REQUEST_MEMORY: &str = "resources.request.memory";
const REQUEST_DISK: &str = "resources.request.disk";

/// None where the request is right, or too little is known to say.
pub fn advise(asked: &Asked, held: &HeldMemory) -> Option<Advice> {
    let (most, p95) = (held.most()?, held.p95()?);
    if most > asked.sandbox.charge().memory {
        return too_little(asked, most);
    }
    let request = asked.own.request.memory;
    // Another step of its sandbox asks as much: nothing is won here.
    let alone = request >= asked.sandbox.request.memory;
    // No less than any held: who follows it is not told next that it asks too little.
    let suggested = rounded_up(Bytes(p95.0.saturating_add(p95.0 / ADVICE_SLACK_DIVISOR)).max(most));
    let much = request.0 > most.0.saturating_mul(REQUEST_FACTOR_MAX)
        && request.0.saturating_sub(suggested.0) >= ADVICE_BYTES_MIN.0;
    (much && alone && held.attempts() >= ADVICE_ATTEMPTS_MIN).then_some(Advice {
        code: AdviceCode::AsksTooMuch,
        field: REQUEST_MEMORY,
        suggested,
    })
}

/// Within the limits of the step; what counts as memory and is a file is asked for as disk.
fn too_little(asked: &Asked, most: Bytes) -> Option<Advice> {
    let (request, limit) = (asked.sandbox.request, asked.sandbox.limit);
    let files = if asked.disk_in_memory() { request.disk } else { Bytes(0) };
    let whole = rounded_up(most);
    let memory = Bytes(whole.0.saturating_sub(files.0)).min(limit.memory);
    let disk = Bytes(whole.0.saturating_sub(request.memory.0)).min(limit.disk);
    let (field, suggested) = match () {
        () if memory > request.memory => (REQUEST_MEMORY, memory),
        () if asked.disk_in_memory() && disk > request.disk => (REQUEST_DISK, disk),
        () => return None,
    };
    Some(Advice { code: AdviceCode::AsksTooLittle, field, suggested })
}

fn rounded_up(bytes: Bytes) -> Bytes {
    Bytes(bytes.0.div_ceil(ADVICE_ROUND.0).max(1).saturating_mul(ADVICE_ROUND.0))
}

/// `asks 512Mi, held at most 84Mi, p95 80Mi over 128 attempts`; none before the first attempt.
pub fn told(asked: Option<&Asked>, held: &HeldMemory) -> Option<String> {
    let (most, p95, attempts) = (held.most()?.about(), held.p95()?.about(), held.attempts());
    let asks = match asked {
        None => "asks what its row says".to_owned(),
        Some(asked) => {
            let (memory, disk) = (asked.own.request.memory.about(), asked.own.request.disk.about());
            let files = if asked.disk_in_memory() {
                format!(" and {disk} for files in memory")
            } else {
                String::new()
            };
            format!("asks {memory}{files}")
        }
    };
    let attempts = if attempts == 1 { "1 attempt".to_owned() } else { format!("{attempts} attempts") };
    Some(format!("{asks}, held at most {most}, p95 {p95} over {attempts}"))
}

impl Advice {
    /// A sentence for the author of the spec.
    pub fn told(&self, step: &str, asked: &Asked, held: &HeldMemory) -> String {
        let (field, suggested) = (self.field, self.suggested);
        let about = |bytes: Option<Bytes>| bytes.unwrap_or_default().about();
        match self.code {
            AdviceCode::AsksTooMuch => format!(
                "step `{step}` asks for {} of memory and 95 of 100 attempts held at most {}: with `{field}: {suggested}` more of them run at once, and its limit stays what it is",
                asked.own.request.memory.about(),
                about(held.p95())
            ),
            AdviceCode::AsksTooLittle => format!(
                "step `{step}` held up to {}, and nodes keep {} for it, so that they can run out of memory: ask for it with `{field}: {suggested}`",
                about(held.most()),
                asked.sandbox.charge().memory.about()
            ),
        }
    }
}

#[cfg(test)]
mod tests;
