//! Sets of group numbers, as ranges: a job's millions of groups close nearly in order.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A set of seqs (0 or larger). Its text form is `1-256,300`; the empty set is the empty text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeqSet {
    /// First to last of each range; ranges neither touch nor overlap.
    ranges: BTreeMap<i64, i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a set of seqs such as 1-256,300")]
pub struct BadSeqSet;

impl SeqSet {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many seqs.
    pub fn len(&self) -> u64 {
        self.ranges().map(|(first, last)| last.abs_diff(first) + 1).sum()
    }

    pub fn first(&self) -> Option<i64> {
        self.ranges.first_key_value().map(|(&first, _)| first)
    }

    pub fn last(&self) -> Option<i64> {
        self.ranges.last_key_value().map(|(_, &last)| last)
    }

    /// First and last of each range, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.ranges.iter().map(|(&first, &last)| (first, last))
    }

    /// Ascending.
    pub fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        self.ranges().flat_map(|(first, last)| first..=last)
    }

    pub fn contains(&self, seq: i64) -> bool {
        self.ranges.range(..=seq).next_back().is_some_and(|(_, &last)| last >= seq)
    }

    pub fn insert(&mut self, seq: i64) {
        self.insert_range(seq, seq);
    }

    /// Adds `first..=last`; nothing if `first > last`.
    pub fn insert_range(&mut self, mut first: i64, mut last: i64) {
        if first > last {
            return;
        }
        while let Some((&start, &end)) = self.ranges.range(..=last.saturating_add(1)).next_back() {
            if end < first.saturating_sub(1) {
                break;
            }
            first = first.min(start);
            last = last.max(end);
            self.ranges.remove(&start);
        }
        self.ranges.insert(first, last);
    }

    pub fn extend(&mut self, other: &Self) {
        other.ranges().for_each(|(first, last)| self.insert_range(first, last));
    }

    /// What both sets hold.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::new();
        let (mut left, mut right) = (self.ranges().peekable(), other.ranges().peekable());
        while let (Some(&(a_first, a_last)), Some(&(b_first, b_last))) = (left.peek(), right.peek()) {
            both.insert_range(a_first.max(b_first), a_last.min(b_last));
            if a_last <= b_last {
                left.next();
            } else {
                right.next();
            }
        }
        both
    }
}

impl FromIterator<i64> for SeqSet {
    fn from_iter<I: IntoIterator<Item = i64>>(seqs: I) -> Self {
        let mut set = Self::new();
        seqs.into_iter().for_each(|seq| set.insert(seq));
        set
    }
}

impl fmt::Display for SeqSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.ranges().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        Ok(())
    }
}

impl FromStr for SeqSet {
    type Err = BadSeqSet;
    fn from_str(text: &str) -> Result<Self, BadSeqSet> {
        let mut set = Self::new();
        if text.is_empty() {
            return Ok(set);
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| digits.parse::<i64>().map_err(|_| BadSeqSet);
            set.insert_range(number(first)?, number(last)?);
        }
        // Only the form this type writes is read.
        if set.to_string() == text { Ok(set) } else { Err(BadSeqSet) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn sets() -> impl Strategy<Value = (BTreeSet<i64>, SeqSet)> {
        prop::collection::vec((0i64..60, 0i64..6), 0..20).prop_map(|parts| {
            let (mut naive, mut set) = (BTreeSet::new(), SeqSet::new());
            for (first, more) in parts {
                naive.extend(first..=first + more);
                set.insert_range(first, first + more);
            }
            (naive, set)
        })
    }

    proptest! {
        #[test]
        fn a_set_of_ranges_behaves_like_a_set_of_numbers((a, a_set) in sets(), (b, b_set) in sets()) {
            prop_assert_eq!(a_set.iter().collect::<Vec<_>>(), a.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(a_set.len(), a.len() as u64);
            prop_assert_eq!((a_set.first(), a_set.last()), (a.first().copied(), a.last().copied()));
            for seq in -1..70 {
                prop_assert_eq!(a_set.contains(seq), a.contains(&seq));
            }
            let both: Vec<_> = a.intersection(&b).copied().collect();
            prop_assert_eq!(a_set.intersection(&b_set).iter().collect::<Vec<_>>(), both);
            prop_assert_eq!(a_set.to_string().parse::<SeqSet>(), Ok(a_set.clone()));
            // One form per set: ranges that touch are one.
            let ranges: Vec<_> = a_set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
            prop_assert_eq!(a.iter().copied().rev().collect::<SeqSet>(), a_set);
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in
            [",", "1-", "-1", "2-1", "1,2", "2,1", "01", "1-2-3", "x", "1, 3", "+1", "99999999999999999999"]
        {
            assert_eq!(text.parse::<SeqSet>(), Err(BadSeqSet), "{text}");
        }
    }
}
