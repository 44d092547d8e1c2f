//! A uid range of 65,536 for each sandbox, its own while it lives.

use std::collections::BTreeSet;

/// Ids in a range, and in the id map of a sandbox.
pub const RANGE_LEN: u32 = 65_536;
/// From one range to the next. The kernel finds the record of a user in one of 128 lists, by the low 7 bits of the
/// id and of the id shifted by 7 (`__uidhashfn` in kernel/user.c): of ranges that are 65,536 apart, all equal users
/// are in one list, which every change of user goes through. With 128 more they go around the lists.
const STRIDE: u32 = RANGE_LEN + (1 << 7);
/// The upper half of the id space: what distributions hand out lies below it.
const FIRST: u32 = 0x8000_0000;
/// The range behind the last would hold the reserved id 2^32 - 1.
pub const RANGES_MAX: u32 = 32_704;

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
        Some(FIRST + free * STRIDE)
    }

    pub fn free(&mut self, base: u32) {
        self.taken.remove(&((base - FIRST) / STRIDE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_never_reach_the_reserved_id_and_run_out() {
        let mut ranges = Ranges::new(u32::MAX);
        let mut bases: Vec<u32> = std::iter::from_fn(|| ranges.take()).collect();
        bases.sort_unstable();
        assert_eq!(bases.len(), RANGES_MAX as usize);
        assert!(bases.windows(2).all(|pair| pair[1] - pair[0] >= RANGE_LEN));
        let last = bases.last().and_then(|base| base.checked_add(RANGE_LEN));
        assert!(last.is_some_and(|end| end < u32::MAX && end.checked_add(STRIDE).is_none()));
        ranges.free(bases[5]);
        assert_eq!(ranges.take(), Some(bases[5]));
    }

    #[test]
    fn users_of_many_ranges_are_spread_over_the_lists_of_the_kernel() {
        let mut ranges = Ranges::new(7);
        for id in [0, 1000, RANGE_LEN - 1] {
            let mut lists = [0; 128];
            for _ in 0..1280 {
                let uid = ranges.take().unwrap() + id;
                lists[(((uid >> 7) + uid) & 127) as usize] += 1;
            }
            assert_eq!(lists, [10; 128], "{id}");
        }
    }

    #[test]
    fn a_freed_range_is_not_the_next_one_taken() {
        let mut ranges = Ranges::new(0);
        let first = ranges.take().unwrap();
        ranges.free(first);
        assert_ne!(ranges.take(), Some(first));
    }
}
