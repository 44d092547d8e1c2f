//! Every column of every table, in file order: scalars, then token lists, then JSON text, so that
//! a reader that wants the scalars reads little.

use crate::schema::{Column, Kind};

const STATUS: &[&str] = &["completed", "truncated", "aborted", "failed", "cancelled"];
const STOP_REASON: &[&str] = &[
    "stop",
    "max_turns",
    "max_actions",
    "max_total_tokens",
    "context_overflow",
    "tool_stopped",
    "agent_timeout",
    "agent_exit",
    "oom_guest",
    "disk_quota",
    "pids_limit",
    "too_many_branches",
    "refused",
    "stale",
    "cancelled",
    "straggler",
    "job_timeout",
    "queue_deadline",
    "budget_exhausted",
];
const DOMAIN: &[&str] =
    &["agent", "task", "grader", "model_endpoint", "sandbox", "node", "network", "storage", "scheduler"];
const CLOSED_AS: &[&str] = &["full", "short", "dropped", "cancelled"];
const SPLIT: &[&str] = &["train", "eval"];
const STEP_KIND: &[&str] = &["run", "agent", "grader", "session"];
const LOGPROBS_KIND: &[&str] = &["raw", "processed"];

const fn must(name: &'static str, kind: Kind, doc: &'static str) -> Column {
    Column::required(name, kind, doc)
}
const fn may(name: &'static str, kind: Kind, doc: &'static str) -> Column {
    Column::nullable(name, kind, doc)
}

const VERSION: Column = must("schema_version", Kind::Int16, "1");
const SEQ: Column =
    must("seq", Kind::Int64, "one number per group, growing within a job; the same in every row and table");
const TRAJECTORY_ID: Column = must("trajectory_id", Kind::Text, "the rollout's id");

pub(crate) const TRAJECTORIES: &[Column] = &[
    VERSION,
    SEQ,
    TRAJECTORY_ID,
    must("job_id", Kind::Text, "the job"),
    must("task_id", Kind::Text, "the task row"),
    must("group_id", Kind::Text, "one expansion of one task row; its samples share it"),
    must("sample_index", Kind::Int32, "from 0"),
    must("group_size", Kind::Int32, "samples asked for"),
    must("attempt", Kind::Int32, "the try of the step that produced this row, from 0; 0 if none started"),
    must("group_valid", Kind::Int32, "members with a valid reward when the group closed"),
    must("group_epoch", Kind::Int32, "pass over the task set, from 0"),
    must("refill_round", Kind::Int32, "refill round that made this member, from 0"),
    must("group_closed_as", Kind::Dict8, "how the group ended").one_of(CLOSED_AS),
    must("superseded", Kind::Bool, "replaced by a refill; never trained on"),
    must("branch_index", Kind::Int16, "from 0"),
    must("branch_count", Kind::Int16, "more than 1 after a rewritten history or a second model"),
    may("role", Kind::Dict8, "the job's model that sampled the branch; null without a model call"),
    must("split", Kind::Dict8, "what the task is for").one_of(SPLIT),
    must("status", Kind::Dict8, "how the rollout ended").one_of(STATUS),
    may("stop_reason", Kind::Dict8, "why it stopped there").one_of(STOP_REASON),
    may("failure_domain", Kind::Dict8, "who is to blame; null without a failure").one_of(DOMAIN),
    may("failure_code", Kind::Text, "stable code, see errors.md"),
    may("failure_message", Kind::Text, "what happened, at most 4 KiB"),
    must("reward_valid", Kind::Bool, "whether `reward` is a grade: false for every infrastructure failure"),
    must("trainable", Kind::Bool, "reward valid and token columns recorded from a model being trained"),
    may("reward", Kind::Float32, "the grader's reward; null exactly where `reward_valid` is false"),
    may("prompt_len", Kind::Int32, "tokens before the first sampled one"),
    may("policy_version_min", Kind::Int64, "oldest weights that sampled"),
    may("policy_version_max", Kind::Int64, "newest weights that sampled"),
    may("policy_run", Kind::Int64, "the training run the versions count in"),
    may("logprobs_kind", Kind::Dict8, "before or after the sampling processors").one_of(LOGPROBS_KIND),
    may("policy_id", Kind::Dict16, "model or adapter name and hash"),
    may("tokenizer_hash", Kind::Dict16, "never mixed within a record batch"),
    may("advantage", Kind::Float32, "normally null: the trainer computes it"),
    must("n_turns", Kind::Int32, "recorded model calls"),
    must("n_tool_calls", Kind::Int32, "recorded tool calls"),
    must("n_tool_errors", Kind::Int32, "of those, failed ones"),
    may(
        "guard_flags",
        Kind::Int64,
        "bits: 0 protected file touched, 1 credential misuse, 2 egress denied, 3 cut, 4 the grader saw the agent's workspace; null = not measured",
    ),
    may("denied_count", Kind::Int32, "denied by guard rules; null = not measured"),
    may("protected_touched", Kind::Bool, "bit 0 of `guard_flags`"),
    may("credential_misuse", Kind::Bool, "bit 1 of `guard_flags`"),
    must("image_digest", Kind::Dict16, "what the sandbox was based on; empty if none was made"),
    must("spec_hash", Kind::Dict16, "of the job document"),
    must("task_hash", Kind::Dict16, "of the task row's canonical JSON"),
    must("rules_hash", Kind::Dict16, "of the guard rules; of the built-in empty ones without any"),
    may("ckpt_start", Kind::Text, "checkpoint id"),
    may("ckpt_end", Kind::Text, "checkpoint id"),
    must("node_id", Kind::Dict16, "node of the attempt that produced this row; empty if none started"),
    must("yard_id", Kind::Dict16, "the yard"),
    must("executor_version", Kind::Dict16, "of the last attempt"),
    must("created_at", Kind::Time, "admitted"),
    must("started_at", Kind::Time, "first start of a command"),
    must("finished_at", Kind::Time, "ended; equal to the other two if cancelled before the start"),
    may("dur_queue_ms", Kind::Int64, "waiting for a node, over the last attempt of every step"),
    may("dur_boot_ms", Kind::Int64, "making sandboxes, over the last attempt of every step"),
    may("dur_model_ms", Kind::Int64, "waiting for models; null = not measured"),
    may("dur_env_ms", Kind::Int64, "running, over the last attempt of every step but graders"),
    may("dur_grade_ms", Kind::Int64, "running, over the last attempt of every grader"),
    may("token_ids", Kind::Int32List, "prompt and response, flat"),
    may("loss_mask", Kind::Uint8List, "same length; 1 = sampled and trainable"),
    may("logprobs", Kind::Float32List, "same length; 0.0 where the mask is 0"),
    may("policy_spans", Kind::PolicySpans, "which weights sampled which tokens"),
    may("reward_components", Kind::RewardComponents, "the other keys of the grader's reward file"),
    may("metrics", Kind::Metrics, "named numbers"),
    may("messages", Kind::Messages, "OpenAI shape; arguments stay a JSON string"),
    may("tools", Kind::Json, "tool definitions"),
    may("sampling", Kind::Json, "temperature, top_p and the like"),
    may("extra", Kind::Json, "what has no column of its own, such as `zero_activity`"),
    may("task_row", Kind::Json, "the task columns named by `output.columns`"),
];

pub(crate) const TURNS: &[Column] = &[
    VERSION,
    SEQ,
    TRAJECTORY_ID,
    must("branch_index", Kind::Int16, "from 0"),
    must("turn", Kind::Int32, "from 0"),
    may("tok_start", Kind::Int32, "offset into `token_ids`; null without token columns"),
    may("tok_len", Kind::Int32, "tokens of the turn"),
    may("sampled_len", Kind::Int32, "of those, sampled ones"),
    may("model_name", Kind::Dict8, "as requested"),
    may("finish_reason", Kind::Dict8, "as reported"),
    may("policy_version", Kind::Int64, "weights that sampled it"),
    may("reward", Kind::Float32, "of this turn"),
    may("cost_usd", Kind::Float64, "as reported"),
    must("started_at", Kind::Time, "request taken"),
    must("dur_ms", Kind::Int64, "until the last byte"),
    may("prompt_tokens", Kind::Int32, "as reported"),
    may("completion_tokens", Kind::Int32, "as reported"),
    may("cached_tokens", Kind::Int32, "as reported"),
    may("error_code", Kind::Text, "why the call failed"),
    may("http_status", Kind::Int16, "of the model endpoint"),
    may("ckpt_before", Kind::Text, "checkpoint id"),
    may("capture_truncated", Kind::Bool, "stored output was cut; null when the turn made no action"),
    may("feedback_truncated", Kind::Bool, "the model was shown less than was captured"),
];

pub(crate) const STEPS: &[Column] = &[
    VERSION,
    SEQ,
    must("group_id", Kind::Text, "the group"),
    may("trajectory_id", Kind::Text, "the rollout; null for a step of the whole group"),
    must("step_name", Kind::Text, "as in the job"),
    must("attempt", Kind::Int32, "from 0; every attempt has a row"),
    must("kind", Kind::Dict8, "what the step does").one_of(STEP_KIND),
    must("node_id", Kind::Dict16, "where it ran; empty if it found its result under its `key`"),
    may("exit_code", Kind::Int32, "from the kernel; null if the process never ran or died by a signal"),
    may("signal", Kind::Int16, "that killed it"),
    must("oom", Kind::Bool, "the kernel killed a process at the sandbox's memory limit"),
    must("timed_out", Kind::Bool, "the executor's deadline ended it"),
    must("capture_truncated", Kind::Bool, "stdout or stderr passed its cap"),
    may("failure_domain", Kind::Dict8, "who is to blame; null without a failure").one_of(DOMAIN),
    may("failure_code", Kind::Text, "stable code, see errors.md"),
    may("queue_ms", Kind::Int64, "ready until taken by a node"),
    may("boot_ms", Kind::Int64, "taken until the sandbox was ready"),
    may("run_ms", Kind::Int64, "command started until ended"),
    may("parked_ms", Kind::Int64, "parked while running"),
    may("ckpt_ms", Kind::Int64, "taking checkpoints"),
    may("cpu_ms", Kind::Int64, "CPU time; null = not measured, never 0"),
    may("rss_peak_bytes", Kind::Int64, "memory peak, cached files too; null = not measured"),
    may("disk_peak_bytes", Kind::Int64, "writable layer peak; null = not measured"),
    may("net_egress_bytes", Kind::Int64, "sent; null = not measured"),
    may("ckpt_in", Kind::Text, "checkpoint id"),
    may("ckpt_out", Kind::Text, "checkpoint id"),
    may(
        "stdout_artifact",
        Kind::Text,
        "`sha256:<hex>` in the yard's blob store; null if nothing was written",
    ),
    may("stderr_artifact", Kind::Text, "alike"),
    may(
        "memory_held_peak_bytes",
        Kind::Int64,
        "anonymous memory and files in memory, the most that was seen; null = not measured",
    ),
];

pub(crate) const ARTIFACTS: &[Column] = &[
    VERSION,
    SEQ,
    TRAJECTORY_ID,
    must("step_name", Kind::Text, "the step that made it; of its last attempt"),
    must("name", Kind::Text, "as declared"),
    must("media_type", Kind::Text, "as declared"),
    must("sha256", Kind::Text, "64 hex digits"),
    must("uri", Kind::Text, "`sha256:<hex>` in the yard's blob store"),
    must("size", Kind::Int64, "bytes"),
    may("inline", Kind::Binary, "the bytes, where there are at most 64 KiB (and 64 MiB in the whole group)"),
];

pub(crate) const EVENTS: &[Column] = &[
    VERSION,
    SEQ,
    TRAJECTORY_ID,
    must("event_seq", Kind::Int32, "from 0 within the trajectory"),
    must("ts", Kind::Time, "when"),
    must("kind", Kind::Dict8, "what"),
    must("payload", Kind::Json, "the rest"),
];

pub(crate) const TENSORS: &[Column] = &[
    VERSION,
    SEQ,
    TRAJECTORY_ID,
    must("branch_index", Kind::Int16, "from 0"),
    must("name", Kind::Text, "what it is"),
    must("dtype", Kind::Text, "numpy name"),
    must("shape", Kind::Int64List, "dimensions"),
    must("data", Kind::Binary, "row-major bytes"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rollout::failure::FailureCode;
    use rollout::{Domain, JobId};

    use super::*;
    use crate::schema::{META_JOB, META_SCHEMA, Table};

    #[test]
    fn names_are_unique_and_classes_are_in_order() {
        for table in Table::ALL {
            let names: BTreeSet<_> = table.columns().iter().map(|c| c.name).collect();
            assert_eq!(names.len(), table.columns().len(), "{table}");
            assert_eq!(table.columns()[..2], [VERSION, SEQ]);
        }
        let class = |column: &Column| match column.kind {
            Kind::Json => 2,
            Kind::Int32List | Kind::Uint8List | Kind::Float32List | Kind::PolicySpans => 1,
            Kind::RewardComponents | Kind::Metrics | Kind::Messages => 1,
            _ => 0,
        };
        assert!(TRAJECTORIES.is_sorted_by_key(class));
    }

    #[test]
    fn every_word_of_the_failure_table_is_a_dictionary_value() {
        for code in FailureCode::ALL {
            let consequence = code.consequence();
            assert!(DOMAIN.contains(&consequence.domain.as_str()), "{code}");
            assert!(STATUS.contains(&consequence.status.as_str()), "{code}");
            assert!(consequence.stop_reason.is_none_or(|word| STOP_REASON.contains(&word)), "{code}");
        }
        assert_eq!(DOMAIN, Domain::ALL.map(Domain::as_str));
    }

    #[test]
    fn shards_carry_their_schema_and_job_as_metadata() {
        let job = JobId::from_bits(5).to_string();
        let schema = Table::Steps.schema_with([(META_JOB, job.clone())]);
        assert_eq!(schema.metadata()[META_SCHEMA], "steps/1");
        assert_eq!(schema.metadata()[META_JOB], job);
    }
}
