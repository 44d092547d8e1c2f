//! Which rows of a task set run, and in which order: `tasks.filter`.
//!
//! The order is `ids`, shuffle, `offset`, `limit`. Nothing is copied or sorted: a shuffled position
//! is computed when it is asked for, so a filter over ten million rows costs no memory. The same
//! seed, epoch and number of rows give the same order on every machine and in every version.

use std::collections::BTreeMap;

use crate::plan::Filter;

/// Of the ids of `filter.ids` that no row has, so many are named.
pub const MISSING_IDS_LISTED_MAX: usize = 20;

/// The rows of one task set that a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    base: Base,
    shuffle_seed: Option<u64>,
    offset: u32,
    len: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Base {
    /// Every row, from 0.
    All(u32),
    /// These rows, ascending.
    Listed(Vec<u32>),
}

impl Selection {
    /// Of `rows` rows; `listed` are those that `filter.ids` names, ascending, if it names any.
    pub fn new(filter: &Filter, rows: u32, listed: Option<Vec<u32>>) -> Self {
        let base = listed.map_or(Base::All(rows), Base::Listed);
        let found = match &base {
            Base::All(rows) => *rows,
            Base::Listed(rows) => u32::try_from(rows.len()).unwrap_or(u32::MAX),
        };
        let offset = u32::try_from(filter.offset).unwrap_or(u32::MAX).min(found);
        let left = found - offset;
        let len = filter.limit.map_or(left, |limit| left.min(u32::try_from(limit).unwrap_or(u32::MAX)));
        Self { base, shuffle_seed: filter.shuffle_seed, offset, len }
    }

    /// Rows of one epoch.
    pub const fn len(&self) -> u32 {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn base_len(&self) -> u32 {
        match &self.base {
            Base::All(rows) => *rows,
            Base::Listed(rows) => u32::try_from(rows.len()).unwrap_or(u32::MAX),
        }
    }

    fn at(&self, place: u32) -> u32 {
        match &self.base {
            Base::All(_) => place,
            Base::Listed(rows) => rows[place as usize],
        }
    }

    /// The row of the task set at `position` of an epoch; none past the end.
    pub fn row(&self, epoch: u32, position: u32) -> Option<u32> {
        if position >= self.len {
            return None;
        }
        let place = self.offset + position;
        Some(self.at(match self.shuffle_seed {
            None => place,
            Some(seed) => Permutation::new(seed, epoch, self.base_len()).at(place),
        }))
    }

    /// Every row that some epoch can run, ascending.
    pub fn candidates(&self) -> impl Iterator<Item = u32> + '_ {
        let range = match self.shuffle_seed {
            None => self.offset..self.offset + self.len,
            Some(_) if self.is_empty() => 0..0,
            Some(_) => 0..self.base_len(),
        };
        range.map(|place| self.at(place))
    }
}

/// The ids of `filter.ids`, while rows are read.
#[derive(Debug)]
pub struct WantedIds<'a>(BTreeMap<&'a str, bool>);

impl<'a> WantedIds<'a> {
    /// None if the filter names no ids.
    pub fn of(filter: &'a Filter) -> Option<Self> {
        let ids = filter.ids.as_ref()?;
        Some(Self(ids.iter().map(|id| (id.as_str(), false)).collect()))
    }

    /// Whether this id is one of them; it counts as found from now on.
    pub fn wants(&mut self, id: &str) -> bool {
        self.0.get_mut(id).map(|found| *found = true).is_some()
    }

    /// Ids that no row had, in order.
    pub fn missing(&self) -> Vec<&'a str> {
        self.0.iter().filter(|(_, found)| !**found).map(|(id, _)| *id).collect()
    }
}

/// What to say of ids that no row has: at most [`MISSING_IDS_LISTED_MAX`] of them.
pub fn missing_ids(missing: &[&str]) -> String {
    let listed = missing.iter().take(MISSING_IDS_LISTED_MAX);
    let listed: Vec<String> = listed.map(|id| format!("`{}`", crate::text::shown(id, 64))).collect();
    let more = match missing.len().saturating_sub(MISSING_IDS_LISTED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("no row has the task id {}{more}", listed.join(", "))
}

/// A pseudo-random order of `0..n`, one place at a time: a Feistel network over the smallest even
/// number of bits that holds `n`, walked until it lands below `n`. It is a bijection on its domain,
/// so the walk ends, and after fewer than four steps on average.
#[derive(Debug, Clone, Copy)]
struct Permutation {
    n: u32,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

const ROUNDS: usize = 6;

impl Permutation {
    fn new(seed: u64, epoch: u32, n: u32) -> Self {
        let bits = u32::BITS - n.saturating_sub(1).leading_zeros();
        let mut state = mix(seed).wrapping_add(mix(u64::from(epoch) ^ EPOCH));
        let keys = [(); ROUNDS].map(|()| {
            state = state.wrapping_add(GOLDEN);
            mix(state)
        });
        Self { n, half_bits: bits.div_ceil(2).max(1), keys }
    }

    fn at(&self, place: u32) -> u32 {
        let mut at = u64::from(place);
        loop {
            at = self.step(at);
            if at < u64::from(self.n) {
                // Below `n`, which is a u32.
                return u32::try_from(at).unwrap_or(place);
            }
        }
    }

    fn step(&self, at: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (at >> self.half_bits, at & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const EPOCH: u64 = 0xd1b5_4a32_d192_ed03;

/// The finalizer of splitmix64.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(shuffle_seed: Option<u64>, offset: u64, limit: Option<u64>) -> Filter {
        Filter { ids: None, shuffle_seed, offset, limit }
    }

    fn rows(selection: &Selection, epoch: u32) -> Vec<u32> {
        (0..selection.len()).map(|position| selection.row(epoch, position).unwrap()).collect()
    }

    #[test]
    fn a_shuffle_is_an_order_of_all_rows_for_every_number_of_them() {
        for n in (0..300).chain([1_023, 1_024, 1_025, 5_000]) {
            let selection = Selection::new(&filter(Some(7), 0, None), n, None);
            let mut found = rows(&selection, 3);
            found.sort_unstable();
            assert_eq!(found, (0..n).collect::<Vec<_>>(), "{n} rows");
            assert_eq!(selection.row(3, n), None);
        }
    }

    #[test]
    fn seeds_and_epochs_give_different_orders_and_the_same_ones_again() {
        let of = |seed, epoch| rows(&Selection::new(&filter(Some(seed), 0, None), 1_000, None), epoch);
        assert_eq!(of(7, 0), of(7, 0));
        for (a, b) in [((7, 0), (7, 1)), ((7, 0), (8, 0)), ((0, 1), (1, 0))] {
            let same = of(a.0, a.1).iter().zip(of(b.0, b.1)).filter(|(x, y)| **x == *y).count();
            assert!(same < 15, "{a:?} and {b:?} agree in {same} of 1,000 places");
        }
    }

    /// A job that goes on in a later version must find the order it began with.
    #[test]
    fn the_order_is_pinned() {
        let selection = Selection::new(&filter(Some(7), 0, None), 10, None);
        assert_eq!(rows(&selection, 0), PINNED[0]);
        assert_eq!(rows(&selection, 1), PINNED[1]);
        let large = Selection::new(&filter(Some(7), 0, Some(3)), 10_000_000, None);
        assert_eq!(rows(&large, 0), PINNED_LARGE);
    }

    const PINNED: [[u32; 10]; 2] = [[4, 6, 0, 7, 2, 3, 8, 5, 1, 9], [0, 6, 4, 9, 2, 3, 1, 7, 5, 8]];
    const PINNED_LARGE: [u32; 3] = [5_447_092, 6_044_609, 3_122_191];

    #[test]
    fn a_shuffle_moves_rows_evenly() {
        // Which of 8 rows comes first, over 8,000 seeds: 1,000 times each, give or take.
        let mut firsts = [0u32; 8];
        for seed in 0..8_000 {
            let selection = Selection::new(&filter(Some(seed), 0, Some(1)), 8, None);
            firsts[selection.row(0, 0).unwrap() as usize] += 1;
        }
        assert!(firsts.iter().all(|&count| (850..1_150).contains(&count)), "{firsts:?}");
    }

    #[test]
    fn ids_come_first_then_the_shuffle_then_offset_and_limit() {
        let plain = Selection::new(&filter(None, 2, Some(3)), 10, None);
        assert_eq!(rows(&plain, 0), [2, 3, 4]);
        assert_eq!(rows(&plain, 5), [2, 3, 4]);
        assert_eq!(plain.candidates().collect::<Vec<_>>(), [2, 3, 4]);

        let listed = Selection::new(&filter(None, 1, None), 10, Some(vec![1, 5, 9]));
        assert_eq!(rows(&listed, 0), [5, 9]);

        let whole = rows(&Selection::new(&filter(Some(3), 0, None), 3, Some(vec![1, 5, 9])), 2);
        let part = Selection::new(&filter(Some(3), 1, Some(1)), 3, Some(vec![1, 5, 9]));
        assert_eq!(rows(&part, 2), whole[1..2]);
        assert_eq!(part.candidates().collect::<Vec<_>>(), [1, 5, 9]);
    }

    #[test]
    fn past_the_end_there_is_nothing() {
        for filter in [filter(None, 10, None), filter(Some(1), u64::MAX, Some(u64::MAX))] {
            let selection = Selection::new(&filter, 10, None);
            assert!(selection.is_empty());
            assert_eq!((selection.row(0, 0), selection.candidates().count()), (None, 0));
        }
        let most = Selection::new(&filter(None, 0, Some(u64::MAX)), u32::MAX, None);
        assert_eq!((most.len(), most.row(0, u32::MAX - 1)), (u32::MAX, Some(u32::MAX - 1)));
        let shuffled = Selection::new(&filter(Some(1), 0, None), u32::MAX, None);
        assert!(shuffled.row(0, u32::MAX - 1).is_some());
    }

    #[test]
    fn ids_that_no_row_has_are_listed_up_to_the_bound() {
        let ids: Vec<String> = (10..40).map(|n| format!("t{n}")).collect();
        let filter = Filter { ids: Some(ids), ..Filter::default() };
        let mut wanted = WantedIds::of(&filter).unwrap();
        assert!(wanted.wants("t12") && !wanted.wants("t9"));
        let missing = wanted.missing();
        assert_eq!(missing.len(), 29);
        let text = missing_ids(&missing);
        assert!(text.starts_with("no row has the task id `t10`, `t11`, `t13`"), "{text}");
        assert!(text.ends_with("`t30` and 9 more"), "{text}");
    }
}
