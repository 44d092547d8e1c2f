//! Which rows a copy has. A filter speaks of trajectories; the rows of other tables follow the
//! trajectory they belong to, and those of a whole group follow any of its members.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::rc::Rc;

use arrow::array::{AsArray as _, BooleanArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use rollout::plan::Split;

use super::Error;
use crate::manifest::ShardLine;
use crate::read::{TableReader, texts};
use crate::schema::Table;
use crate::seqs::SeqSet;

/// Shards of `trajectories` whose ids are remembered while another table is copied: tables are
/// sealed in step, so that one or two do.
const SHARDS_REMEMBERED_MAX: usize = 16;

/// The rows to keep. The default keeps all but superseded ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Selection {
    /// Only trajectories that a trainer may learn from.
    pub trainable: bool,
    /// Only trajectories with a valid reward.
    pub valid: bool,
    pub split: Option<Split>,
    /// Those that a refill replaced, too.
    pub superseded: bool,
}

impl Selection {
    const EVERYTHING: Self = Self { trainable: false, valid: false, split: None, superseded: true };

    /// Of a batch of `trajectories`.
    fn keeps(self, batch: &RecordBatch) -> Vec<bool> {
        let flag = |name: &str| batch.column_by_name(name).and_then(|column| column.as_boolean_opt());
        let (trainable, valid, superseded) = (flag("trainable"), flag("reward_valid"), flag("superseded"));
        let set = |column: Option<&BooleanArray>, row: usize| column.is_some_and(|flags| flags.value(row));
        let splits = texts(batch, "split");
        let keep = |row: usize| {
            (!self.trainable || set(trainable, row))
                && (!self.valid || set(valid, row))
                && (self.superseded || !set(superseded, row))
                && self.split.is_none_or(|split| splits.get(row) == Some(&Some(word(split))))
        };
        (0..batch.num_rows()).map(keep).collect()
    }
}

fn word(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Eval => "eval",
    }
}

/// The kept trajectories of the groups of one shard.
type Kept = BTreeMap<i64, BTreeSet<String>>;

pub(super) struct Selector {
    selection: Selection,
    /// None where nothing is looked up.
    trajectories: Option<TableReader>,
    shards: Vec<(ShardLine, SeqSet)>,
    remembered: RefCell<VecDeque<(usize, Rc<Kept>)>>,
}

impl Selector {
    pub(super) fn open(job_dir: &Path, selection: Selection) -> Result<Self, Error> {
        let none = Self { selection, trajectories: None, shards: Vec::new(), remembered: RefCell::default() };
        if selection == Selection::EVERYTHING {
            return Ok(none);
        }
        let dir = job_dir.join(Table::Trajectories.as_str());
        let reader = TableReader::open(&dir).map_err(|source| Error::CannotRead { source })?;
        // Lines that contradict themselves are refused as the manifest is read.
        let shards =
            reader.shards().iter().filter_map(|line| Some((line.clone(), line.seq_set()?))).collect();
        Ok(Self { trajectories: Some(reader), shards, ..none })
    }

    pub(super) fn select(&self, table: Table, batch: &RecordBatch) -> Result<RecordBatch, Error> {
        if self.trajectories.is_none() || batch.num_rows() == 0 {
            return Ok(batch.clone());
        }
        let keep = match table {
            Table::Trajectories => self.selection.keeps(batch),
            _ => self.follow(batch)?,
        };
        if keep.iter().all(|&keep| keep) {
            return Ok(batch.clone());
        }
        filter_record_batch(batch, &BooleanArray::from(keep))
            .map_err(|source| Error::CannotRead { source: crate::Error::Build { table, source } })
    }

    /// Of a batch of another table: one group.
    fn follow(&self, batch: &RecordBatch) -> Result<Vec<bool>, Error> {
        let seqs = batch.column_by_name("seq").and_then(|column| column.as_primitive_opt::<Int64Type>());
        let Some(seq) = seqs.and_then(|seqs| seqs.values().first().copied()) else {
            return Ok(vec![false; batch.num_rows()]);
        };
        // A refilled group has rows in more than one shard.
        let mut shards = Vec::new();
        for at in 0..self.shards.len() {
            if self.shards[at].1.contains(seq) {
                shards.push(self.kept(at)?);
            }
        }
        let of_group: Vec<&BTreeSet<String>> = shards.iter().filter_map(|kept| kept.get(&seq)).collect();
        let keep = |id: Option<&str>| match id {
            Some(id) => of_group.iter().any(|ids| ids.contains(id)),
            None => of_group.iter().any(|ids| !ids.is_empty()),
        };
        Ok(texts(batch, "trajectory_id").into_iter().map(keep).collect())
    }

    fn kept(&self, at: usize) -> Result<Rc<Kept>, Error> {
        if let Some((_, kept)) = self.remembered.borrow().iter().find(|(known, _)| *known == at) {
            return Ok(kept.clone());
        }
        let mut kept = Kept::new();
        if let Some(reader) = &self.trajectories {
            let batches = reader.read(&self.shards[at].0).map_err(|source| Error::CannotRead { source })?;
            for (batch, seq) in batches.iter().zip(self.shards[at].1.iter()) {
                let ids = texts(batch, "trajectory_id").into_iter().zip(self.selection.keeps(batch));
                let ids = ids.filter(|(_, keep)| *keep).filter_map(|(id, _)| id.map(str::to_owned));
                kept.entry(seq).or_default().extend(ids);
            }
        }
        let kept = Rc::new(kept);
        let mut remembered = self.remembered.borrow_mut();
        if remembered.len() == SHARDS_REMEMBERED_MAX {
            remembered.pop_front();
        }
        remembered.push_back((at, kept.clone()));
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray};

    use super::*;

    #[test]
    fn replaced_rows_are_kept_only_if_asked_for() {
        let flags = |flags: [bool; 3]| Arc::new(BooleanArray::from(flags.to_vec())) as ArrayRef;
        let batch = RecordBatch::try_from_iter([
            ("trainable", flags([false, true, false])),
            ("reward_valid", flags([true, true, false])),
            ("superseded", flags([true, false, false])),
            ("split", Arc::new(StringArray::from(vec!["train", "eval", "train"])) as ArrayRef),
        ])
        .unwrap();
        let selection = Selection::default();
        assert_eq!(selection.keeps(&batch), [false, true, true]);
        assert_eq!(Selection::EVERYTHING.keeps(&batch), [true, true, true]);
        assert_eq!(Selection { valid: true, ..Selection::EVERYTHING }.keeps(&batch), [true, true, false]);
        assert_eq!(Selection { trainable: true, ..selection }.keeps(&batch), [false, true, false]);
        assert_eq!(Selection { split: Some(Split::Train), ..selection }.keeps(&batch), [false, false, true]);
    }
}
