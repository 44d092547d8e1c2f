//! What every row must satisfy, beyond the column types. The writer checks what it writes; the
//! reader checks what it reads, as no other reader keeps a column's nullability.

use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, AsArray as _, BooleanArray, Float32Array, Int32Array, Int64Array, ListArray,
    StructArray,
};
use arrow::datatypes::{Float32Type, Int16Type, Int32Type, Int64Type, UInt8Type};
use arrow::record_batch::RecordBatch;

use crate::Error;
use crate::schema::{SCHEMA_VERSION, Table};

/// Checks a batch whose columns have the types of `table`.
pub fn check(table: Table, batch: &RecordBatch) -> Result<(), Error> {
    let broken = |row: usize, rule: String| Err(Error::Rule { table, row, rule });
    // As it is built here: its columns were held against this schema then.
    let is_ours = Arc::ptr_eq(&batch.schema(), &table.schema());
    for (at, column) in table.columns().iter().enumerate() {
        let array = if is_ours { batch.columns().get(at) } else { batch.column_by_name(column.name) };
        let Some(array) = array else {
            return broken(0, format!("column {} is missing", column.name));
        };
        if !is_ours && *array.data_type() != column.kind.data_type() {
            return broken(0, format!("column {} is {}", column.name, array.data_type()));
        }
        if !column.nullable && array.logical_null_count() > 0 {
            let nulls = array.logical_nulls();
            let row = nulls.and_then(|n| (0..n.len()).find(|&row| n.is_null(row))).unwrap_or(0);
            return broken(row, format!("column {} is null", column.name));
        }
    }
    let version = array(table, batch, "schema_version")?.as_primitive::<Int16Type>();
    if let Some(row) = version.values().iter().position(|&found| found != SCHEMA_VERSION) {
        return broken(row, format!("schema_version is {}", version.value(row)));
    }
    let seqs = array(table, batch, "seq")?.as_primitive::<Int64Type>();
    if let Some(row) = seqs.values().iter().position(|&seq| seq < 0 || seq != seqs.value(0)) {
        return broken(row, "a record batch holds one group".to_owned());
    }
    if table != Table::Trajectories {
        return Ok(());
    }
    let rows = Rows::of(batch)?;
    for row in 0..batch.num_rows() {
        rows.check(row).or_else(|rule| broken(row, rule.to_owned()))?;
    }
    Ok(())
}

fn array<'b>(table: Table, batch: &'b RecordBatch, name: &str) -> Result<&'b ArrayRef, Error> {
    batch.column_by_name(name).ok_or_else(|| Error::Rule {
        table,
        row: 0,
        rule: format!("column {name} is missing"),
    })
}

struct Rows {
    reward_valid: BooleanArray,
    trainable: BooleanArray,
    superseded: BooleanArray,
    reward: Float32Array,
    prompt_len: Int32Array,
    token_ids: ListArray,
    loss_mask: ListArray,
    logprobs: ListArray,
    policy_spans: ListArray,
}

impl Rows {
    fn of(batch: &RecordBatch) -> Result<Self, Error> {
        let array = |name| array(Table::Trajectories, batch, name);
        Ok(Self {
            reward_valid: array("reward_valid")?.as_boolean().clone(),
            trainable: array("trainable")?.as_boolean().clone(),
            superseded: array("superseded")?.as_boolean().clone(),
            reward: array("reward")?.as_primitive::<Float32Type>().clone(),
            prompt_len: array("prompt_len")?.as_primitive::<Int32Type>().clone(),
            token_ids: array("token_ids")?.as_list::<i32>().clone(),
            loss_mask: array("loss_mask")?.as_list::<i32>().clone(),
            logprobs: array("logprobs")?.as_list::<i32>().clone(),
            policy_spans: array("policy_spans")?.as_list::<i32>().clone(),
        })
    }

    fn check(&self, row: usize) -> Result<(), &'static str> {
        let valid = self.reward_valid.value(row);
        if self.reward.is_null(row) == valid {
            return Err("reward is null exactly where reward_valid is false");
        }
        if valid && !self.reward.value(row).is_finite() {
            return Err("a reward is finite");
        }
        let lists = [&self.token_ids, &self.loss_mask, &self.logprobs, &self.policy_spans];
        let tokens = !self.token_ids.is_null(row);
        if lists.iter().any(|list| list.is_null(row) == tokens) || self.prompt_len.is_null(row) == tokens {
            return Err("the token columns and prompt_len are null together");
        }
        if self.trainable.value(row) && !(valid && tokens && !self.superseded.value(row)) {
            return Err("a trainable row has a valid reward and token columns, and is not superseded");
        }
        if !tokens {
            return Ok(());
        }
        let (mask, logprobs) = (self.loss_mask.value(row), self.logprobs.value(row));
        let spans = self.policy_spans.value(row);
        if self.token_ids.value(row).null_count() + mask.null_count() + logprobs.null_count() > 0 {
            return Err("token lists hold no nulls");
        }
        let mask = mask.as_primitive::<UInt8Type>().values().clone();
        let logprobs = logprobs.as_primitive::<Float32Type>().values().clone();
        if self.token_ids.value_length(row) != self.loss_mask.value_length(row)
            || mask.len() != logprobs.len()
        {
            return Err("the token lists have equal length");
        }
        check_tokens(self.prompt_len.value(row), &mask, &logprobs, spans.as_struct())
    }
}

fn check_tokens(
    prompt_len: i32,
    mask: &[u8],
    logprobs: &[f32],
    spans: &StructArray,
) -> Result<(), &'static str> {
    let prompt_len = match usize::try_from(prompt_len) {
        Ok(len) if len <= mask.len() => len,
        _ => return Err("prompt_len is within the tokens"),
    };
    if mask.iter().any(|&bit| bit > 1) || mask[..prompt_len].contains(&1) {
        return Err("loss_mask is 0 or 1, and 0 before prompt_len");
    }
    if mask.iter().zip(logprobs).any(|(&bit, &logprob)| bit == 0 && logprob != 0.0) {
        return Err("logprobs are 0.0 where loss_mask is 0");
    }
    let part = |name| {
        spans.column_by_name(name).cloned().unwrap_or_else(|| Arc::new(Int64Array::from(vec![0i64; 0])))
    };
    let (starts, lens, versions) = (part("start"), part("len"), part("version"));
    let whole = spans.null_count() + starts.null_count() + lens.null_count() + versions.null_count() == 0;
    let (Some(starts), Some(lens), true) =
        (starts.as_primitive_opt::<Int32Type>(), lens.as_primitive_opt::<Int32Type>(), whole)
    else {
        return Err("policy spans have a start, a length and a version");
    };
    // Spans that are sorted and disjoint, lie on sampled tokens only and are as long in sum as
    // there are sampled tokens, cover exactly those.
    let (mut end, mut covered) = (0, 0);
    for (&start, &len) in starts.values().iter().zip(lens.values()) {
        let (Ok(start), Ok(len)) = (usize::try_from(start), usize::try_from(len)) else {
            return Err("policy spans lie within the tokens");
        };
        if start < end || len == 0 {
            return Err("policy spans are sorted, disjoint and not empty");
        }
        end = start + len;
        if !mask.get(start..end).is_some_and(|sampled| sampled.iter().all(|&bit| bit == 1)) {
            return Err("policy spans cover sampled tokens only");
        }
        covered += len;
    }
    if covered != mask.iter().filter(|&&bit| bit == 1).count() {
        return Err("policy spans cover every sampled token");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schema::Kind;
    use arrow::datatypes::DataType;

    fn spans_of(spans: &[(i32, i32)]) -> StructArray {
        let DataType::List(item) = Kind::PolicySpans.data_type() else { unreachable!() };
        let DataType::Struct(fields) = item.data_type() else { unreachable!() };
        let int =
            |of: fn(&(i32, i32)) -> i32| Arc::new(spans.iter().map(of).collect::<Int32Array>()) as ArrayRef;
        let versions = Arc::new(Int64Array::from(vec![3i64; spans.len()])) as ArrayRef;
        StructArray::new(fields.clone(), vec![int(|s| s.0), int(|s| s.1), versions], None)
    }

    /// The rules, said per token.
    fn naive(prompt_len: i32, mask: &[u8], logprobs: &[f32], spans: &[(i32, i32)]) -> bool {
        let mut covered = vec![0; mask.len()];
        for &(start, len) in spans {
            for at in start..start + len {
                match usize::try_from(at).ok().and_then(|at| covered.get_mut(at)) {
                    Some(times) => *times += 1,
                    None => return false,
                }
            }
        }
        let ordered = spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0);
        let each = |(at, &bit): (usize, &u8)| {
            let in_prompt = i32::try_from(at).unwrap() < prompt_len;
            (bit == 0 || (bit == 1 && !in_prompt)) && covered[at] == bit && (bit == 1 || logprobs[at] == 0.0)
        };
        let within = (0..=i32::try_from(mask.len()).unwrap()).contains(&prompt_len);
        within && ordered && spans.iter().all(|s| s.1 > 0) && mask.iter().enumerate().all(each)
    }

    /// Prompt length, mask, logprobs, spans.
    type TokenRow = (i32, Vec<u8>, Vec<f32>, Vec<(i32, i32)>);

    /// Rows that keep every rule, and then up to one change.
    fn rows() -> impl Strategy<Value = TokenRow> {
        (0usize..4, prop::collection::vec(0u8..2, 0..8), prop::option::of((0usize..6, 0i32..10, -2i32..4)))
            .prop_map(|(prompt, tail, change)| {
                let mut mask = [vec![0; prompt], tail].concat();
                let mut logprobs: Vec<f32> =
                    mask.iter().map(|&bit| if bit == 1 { -0.5 } else { 0.0 }).collect();
                let mut spans: Vec<(i32, i32)> = Vec::new();
                for at in (0..mask.len()).filter(|&at| mask[at] == 1) {
                    let at = i32::try_from(at).unwrap();
                    match spans.last_mut() {
                        Some((start, len)) if *start + *len == at && at % 3 > 0 => *len += 1,
                        _ => spans.push((at, 1)),
                    }
                }
                let mut prompt_len = i32::try_from(prompt).unwrap();
                if let Some((what, at, by)) = change {
                    let index = usize::try_from(at).unwrap();
                    match what {
                        0 => prompt_len += by,
                        1 => mask.get_mut(index).into_iter().for_each(|bit| *bit ^= 1),
                        2 => logprobs.get_mut(index).into_iter().for_each(|logprob| *logprob -= 1.0),
                        3 => spans.get_mut(index).into_iter().for_each(|span| span.0 += by),
                        4 => spans.get_mut(index).into_iter().for_each(|span| span.1 += by),
                        _ => spans.push((at, 1)),
                    }
                }
                (prompt_len, mask, logprobs, spans)
            })
    }

    proptest! {
        #[test]
        fn token_rules_agree_with_their_per_token_form((prompt_len, mask, logprobs, spans) in rows()) {
            let expected = naive(prompt_len, &mask, &logprobs, &spans);
            let found = check_tokens(prompt_len, &mask, &logprobs, &spans_of(&spans));
            prop_assert_eq!(found.is_ok(), expected, "{:?}", found);
        }
    }
}
