//! A uid range of 65,536 for each sandbox, its own while it lives.

use std::collections::BTreeSet;

/// Ids in a range, and in the id map of a sandbox.
pub const RANGE_LEN: u32 = 65_536;
/// The upper half of the id space: what distributions hand out lies below it.
const FIRST: u32 = 0x8000_0000;
/// The last range would hold the reserved id 2^32 - 1.
pub const RANGES_MAX: u32 = 32_767;

/// Which ranges are taken.
#[derive(Debug)]
pub struct Ranges {
    taken: BTreeSet<u32>,
    next: u32,
}

impl Ranges {
    /// `seed` spreads the executors of one host over the space.
    pub fn new(seed: u32) -> Self {
        Self { taken: BTreeSet::new(), next: seed % RANGES_MAX }
    }

    /// The base of a free range; none if all are taken. A freed range is the last to come again.
    pub fn take(&mut self) -> Option<u32> {
        let free = (0..RANGES_MAX)
            .map(|offset| (self.next + offset) % RANGES_MAX)
            .find(|index| !self.taken.contains(index))?;
        self.taken.insert(free);
        self.next = (free + 1) % RANGES_MAX;
        Some(FIRST + free * RANGE_LEN)
    }

    pub fn free(&mut self, base: u32) {
        self.taken.remove(&((base - FIRST) / RANGE_LEN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_never_reach_the_reserved_id_and_run_out() {
        let mut ranges = Ranges::new(u32::MAX);
        let mut bases = BTreeSet::new();
        while let Some(base) = ranges.take() {
            assert!(base.checked_add(RANGE_LEN).is_some_and(|end| end < u32::MAX));
            assert!(bases.insert(base / RANGE_LEN));
        }
        assert_eq!(bases.len(), RANGES_MAX as usize);
        ranges.free(FIRST + 5 * RANGE_LEN);
        assert_eq!(ranges.take(), Some(FIRST + 5 * RANGE_LEN));
    }

    #[test]
    fn a_freed_range_is_not_the_next_one_taken() {
        let mut ranges = Ranges::new(0);
        let first = ranges.take().unwrap();
        ranges.free(first);
        assert_ne!(ranges.take(), Some(first));
    }
}
