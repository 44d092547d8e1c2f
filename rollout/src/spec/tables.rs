//! Every field of a job, once. See `fields.rs` for what an entry decides.

use super::fields::{
    Choice, Expands, Field, Grammar, Known, Object, Shape, choice, choice_later, count, duration, field,
    fixed, list, looked_up, text,
};
use crate::plan::{OUTPUT_PATHS_MAX, STEPS_MAX};
use crate::time::{DURATION_MAX, Millis};

/// The largest shell text (`run`, `outputs[].from`), in bytes.
pub const SHELL_BYTES_MAX: usize = 64 << 10;
/// The most items of `agent.command`.
pub const ARGUMENTS_MAX: usize = 256;
/// The most variables of one step's `env`.
pub const ENV_MAX: usize = 256;
/// The longest value of a variable, or argument of a command, in bytes: the kernel takes 128 KiB
/// with the name and its end.
pub const ARGUMENT_BYTES_MAX: usize = 120 << 10;
/// The most of `env` and command of one step together, in bytes, after lookups.
pub const ARGUMENTS_BYTES_MAX: usize = 1 << 20;
/// The largest `files[].content`, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// The largest sum of `files[].content` of one step, in bytes.
pub const FILES_BYTES_MAX: usize = 16 << 20;
/// The most lookups in one job: each is done for every row and rollout.
pub const JOB_LOOKUPS_MAX: usize = 4_096;
/// The most `files` of one step.
pub const FILES_MAX: usize = 256;
/// The most `inputs` and the most `outputs` of one step.
pub const ARTIFACTS_MAX: usize = 64;
/// The longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// The longest working directory, and the longest part of one: the kernel takes no more.
pub const WORKDIR_BYTES_MAX: usize = 4095;
pub const WORKDIR_PART_BYTES_MAX: usize = 255;
/// Folders of every sandbox that are mounted over: nothing of a step's can be made in them.
pub const MOUNTED_OVER: [&str; 4] = ["proc", "dev", "sys", "usr"];
pub const LABELS_MAX: usize = 32;
pub const LABEL_BYTES_MAX: usize = 256;
pub const MODELS_MAX: usize = 16;
pub const SECRETS_MAX: usize = 64;
/// The largest inline task set.
pub const INLINE_ROWS_MAX: usize = 1_000;
/// The most members of a group.
pub const GROUP_SIZE_MAX: u64 = 1_024;
/// The most rows of one group in one table: a group is one batch of it.
pub const GROUP_ROWS_MAX: usize = 1 << 20;
/// The most ids of `tasks.filter`.
pub const FILTER_IDS_MAX: usize = 10_000;
/// The most `layers` of one step.
pub const LAYERS_MAX: usize = 32;
/// The most passes over a task set.
pub const EPOCHS_MAX: u64 = 1_000;
/// The most rollouts of one job alive at once.
pub const RUNNING_MAX: u64 = 1_000_000;
/// The most columns of `output.columns`.
pub const COLUMNS_MAX: usize = 256;
pub const MATRIX_CELLS_MAX: usize = 256;

const SECOND: Millis = Millis(1_000);
const MINUTE: Millis = Millis(60_000);
const DAY: Millis = Millis(86_400_000);
const WEEK: Millis = Millis(7 * 86_400_000);
const ZERO: Millis = Millis(0);
const COUNT_MAX: u64 = u32::MAX as u64;
const LATER: Shape = Shape::Scalar(Grammar::Url, Expands::Later);

static PLAIN_NAME: Shape = fixed(Grammar::PlainName);
static COLUMN: Shape = fixed(Grammar::Column);
static LABEL: Shape = text(LABEL_BYTES_MAX);
static ROW: Shape = Shape::Row;
static ARGUMENT: Shape = looked_up(Grammar::Text { bytes_max: ARGUMENT_BYTES_MAX }, Known::Run);
static HARBOR_ARGUMENT: Shape =
    Shape::Scalar(Grammar::Text { bytes_max: ARGUMENT_BYTES_MAX }, Expands::Verbatim);
static LAYER: Shape = looked_up(Grammar::Layer, Known::Group);
static URL: Shape = LATER;
static RANGE_END: Shape = fixed(Grammar::Number { min: f64::MIN, max: f64::MAX });
static REWARD: Shape = fixed(Grammar::Number { min: f64::MIN, max: f64::MAX });

static SECRET: Object = Object::new(
    "SecretUse",
    &[field("secret", fixed(Grammar::PlainName), "Name of a secret the job declares.").required()],
);

static ENV_VALUE: Shape = Shape::Either {
    of: &[looked_up(Grammar::Text { bytes_max: ARGUMENT_BYTES_MAX }, Known::Run), Shape::Object(&SECRET)],
    expected: "text, or {secret: NAME}",
};

pub(crate) static JOB: Object = Object::new(
    "Job",
    &[
        field("apiVersion", Shape::Choice(&[choice("rollyard/v1")]), "Version of this format.").required(),
        field("kind", Shape::Choice(&[choice("RolloutJob")]), "What the document describes.").required(),
        field("name", fixed(Grammar::Name), "Name for people; the id is assigned at submit.").required(),
        field("project", text(256), "Tenant path that is charged for the job."),
        field(
            "labels",
            Shape::Map { keys: Grammar::Name, of: &LABEL, max: LABELS_MAX },
            "Search keys, copied to the catalogue.",
        ),
        field(
            "guard",
            Shape::Either {
                of: &[fixed(Grammar::Name), Shape::Object(&GUARD)],
                expected: "a name, or {file: PATH}",
            },
            "Guard rules every step runs under.",
        )
        .later("no `guard`; steps run without network"),
        field("tasks", Shape::Object(&TASKS), "The task set: one group a row.").required(),
        field("group", Shape::Object(&GROUP), "How many samples a row gets."),
        field("admission", Shape::Object(&ADMISSION), "How much of the job runs at once."),
        field("defaults", Shape::Object(&DEFAULTS), "Step fields merged under every step; lists replace."),
        field(
            "models",
            Shape::Map { keys: Grammar::PlainName, of: &MODEL_SHAPE, max: MODELS_MAX },
            "Models that steps may call.",
        )
        .later("no `models`; the agent may only call what is inside its sandbox"),
        field("budget", Shape::Object(&BUDGET), "Ceilings for the whole job.").later("no `budget`"),
        field(
            "secrets",
            Shape::Map { keys: Grammar::PlainName, of: &SECRET_REF_SHAPE, max: SECRETS_MAX },
            "Secrets held by the operator.",
        )
        .later("no `secrets`"),
        field("steps", Shape::List { of: &STEP_SHAPE, min: 1, max: STEPS_MAX }, "The steps of one rollout."),
        field("output", Shape::Object(&OUTPUT), "Where the rows go."),
        field("schedule", Shape::Object(&SCHEDULE), "Run the job again and again, at set times."),
        field("matrix", Shape::Object(&MATRIX), "One job per combination of values."),
        field("timeout", duration(SECOND, DURATION_MAX), "Wall time of the whole job."),
    ],
);

static GUARD: Object = Object::new(
    "GuardFile",
    &[field("file", fixed(Grammar::ClientPath), "File with guard rules.").required()],
);

static TASKS: Object = Object::new(
    "Tasks",
    &[
        field("from", Shape::Object(&SOURCE), "Exactly one source.").required(),
        field(
            "id",
            looked_up(Grammar::Text { bytes_max: PATH_BYTES_MAX }, Known::TaskId),
            "Stable id of a task; default `row-<index>`.",
        ),
        field("split", Shape::Choice(&[choice("train"), choice("eval")]), "Column `split`; default `train`."),
        field("epochs", count(1, EPOCHS_MAX), "Passes over the set; default 1."),
        field("filter", Shape::Object(&FILTER), "Which rows, in which order."),
        field(
            "on_unsupported",
            Shape::Choice(&[choice("error"), choice("skip")]),
            "What to do with Harbor tasks that cannot run here; default `error`.",
        ),
    ],
);

static SOURCE: Object = Object::new(
    "Source",
    &[
        field("inline", Shape::List { of: &ROW, min: 1, max: INLINE_ROWS_MAX }, "Rows as written."),
        field("jsonl", fixed(Grammar::ClientPath), "File with one JSON object a line."),
        field("parquet", fixed(Grammar::ClientPath), "Parquet file."),
        field(
            "columns",
            Shape::List { of: &COLUMN, min: 1, max: COLUMNS_MAX },
            "Parquet columns to read; default all.",
        ),
        field("harbor", fixed(Grammar::ClientPath), "Directory of Harbor tasks."),
        field(
            "agent",
            Shape::Either {
                of: &[list(&HARBOR_ARGUMENT, ARGUMENTS_MAX), Shape::Choice(&[choice("oracle")])],
                expected: "a list of arguments, or `oracle`",
            },
            "Agent of a Harbor source without steps: its command, or each task's solution.",
        ),
        field(
            "shared_as",
            Shape::Choice(&[choice("fresh"), choice("reuse")]),
            "How a shared Harbor environment is graded; default `fresh`: the agent's files in a new sandbox; `reuse`: the agent's sandbox.",
        ),
        field(
            "environment_mode",
            Shape::Choice(&[choice("shared"), choice("separate")]),
            "Harbor tasks of this mode run; default `shared`.",
        ),
        field("feed", Shape::Object(&FEED), "Rows sent while the job runs.")
            .later("a `jsonl` or `inline` source"),
    ],
);

static ARROW_TYPE: Shape = text(128);
static FEED: Object = Object::new(
    "Feed",
    &[field(
        "columns",
        Shape::Map { keys: Grammar::Column, of: &ARROW_TYPE, max: COLUMNS_MAX },
        "Column -> Arrow type.",
    )
    .required()],
);

static TASK_ID: Shape = text(256);
static FILTER: Object = Object::new(
    "Filter",
    &[
        field("limit", count(1, COUNT_MAX), "At most this many rows."),
        field("offset", count(0, COUNT_MAX), "Rows to leave out at the start; default 0."),
        field("ids", Shape::List { of: &TASK_ID, min: 1, max: FILTER_IDS_MAX }, "Only these task ids."),
        field("shuffle_seed", count(0, COUNT_MAX), "Seed of a shuffle, another one in every epoch."),
    ],
);

static GROUP: Object = Object::new(
    "Group",
    &[
        field("size", count(1, GROUP_SIZE_MAX), "Members delivered; default 1."),
        field("min_valid", count(1, GROUP_SIZE_MAX), "Fewest valid rewards for a usable group."),
        field(
            "on_incomplete",
            Shape::Choice(&[choice("deliver"), choice("drop"), choice("refill")]),
            "What happens to a group with too few valid rewards; default `refill`.",
        ),
        field("refill_limit", count(0, 10), "Refill rounds a group; default 2."),
        field("over_sample", count(0, GROUP_SIZE_MAX), "Members started beyond `size`; default 0."),
    ],
);

static ADMISSION: Object = Object::new(
    "Admission",
    &[
        field("max_running", count(1, RUNNING_MAX), "Rollouts alive at once; default 256, or `group.size`."),
        field("priority", count(0, 100), "Order inside the project, larger first; default 50."),
        field("max_staleness", count(0, COUNT_MAX), "Oldest usable weights, in versions.")
            .later("no `max_staleness`"),
        field("batch_groups", count(1, COUNT_MAX), "Groups per trainer step.").later("no `batch_groups`"),
        field("consumer", fixed(Grammar::Name), "Consumer that drives back-pressure.").later("no `consumer`"),
        field("staleness_by", Shape::Choice(&[choice("min"), choice("start")]), "What age counts from.")
            .later("no `staleness_by`"),
        field(
            "burst",
            fixed(Grammar::Bool),
            "Rollouts are best-effort: on processor time nobody else wants, and first down the idle ladder.",
        ),
        field("queue_deadline", duration(SECOND, DURATION_MAX), "Longest wait for admission.")
            .later("no `queue_deadline`"),
    ],
);

static BUDGET: Object = Object::new(
    "Budget",
    &[
        field("tokens", count(1, u64::MAX), "Model tokens."),
        field("usd", fixed(Grammar::Amount), "Money."),
        field("cpu_hours", fixed(Grammar::Amount), "Compute."),
    ],
);

static SECRET_REF_SHAPE: Shape = Shape::Object(&SECRET_REF);
static SECRET_REF: Object =
    Object::new("Secret", &[field("ref", text(256), "Name of the secret at the operator.").required()]);

static MODEL_SHAPE: Shape = Shape::Object(&MODEL);
static MODEL: Object = Object::new(
    "Model",
    &[
        field("endpoint", Shape::Scalar(Grammar::Url, Expands::When(Known::Submit)), "Upstream, OpenAI API."),
        field("endpoints", Shape::List { of: &URL, min: 1, max: 64 }, "Several upstreams."),
        field(
            "name",
            looked_up(Grammar::Text { bytes_max: 256 }, Known::Submit),
            "Name sent upstream; default the key.",
        ),
        field("train", fixed(Grammar::Bool), "Record token ids for training; default true."),
        field("api_key", Shape::Object(&SECRET), "Sent upstream by the proxy."),
        field("sampling", Shape::Object(&SAMPLING), "Used where the call sets nothing."),
        field("max_turns", count(1, COUNT_MAX), "Turns an attempt."),
        field("max_total_tokens", count(1, COUNT_MAX), "Tokens an attempt."),
        field("max_context", count(1, COUNT_MAX), "Tokens of one call."),
        field("price", Shape::Object(&PRICE), "USD per million tokens."),
        field(
            "unavailable_after",
            duration(SECOND, DURATION_MAX),
            "How long an unreachable upstream is waited for.",
        ),
    ],
);

static FREE: Shape = Shape::Row;
static SAMPLING: Object = Object::new(
    "Sampling",
    &[
        field("temperature", fixed(Grammar::Number { min: 0.0, max: 100.0 }), "Sampling temperature."),
        field("top_p", fixed(Grammar::Number { min: 0.0, max: 1.0 }), "Nucleus sampling."),
        field("max_call_tokens", count(1, COUNT_MAX), "Tokens of one call."),
        field("extra_body", FREE, "Added to the request."),
        field("force", fixed(Grammar::Bool), "Override the call."),
    ],
);

static PRICE: Object = Object::new(
    "Price",
    &[
        field("in", fixed(Grammar::Amount), "Input tokens.").required(),
        field("cached", fixed(Grammar::Amount), "Cached input tokens."),
        field("out", fixed(Grammar::Amount), "Output tokens.").required(),
    ],
);

static STEP_FIELDS: &[Field] = &[
    field("name", fixed(Grammar::PlainName), "Unique in the job; no dot.").required(),
    field("needs", list(&PLAIN_NAME, STEPS_MAX), "Steps that must have ended well before this one."),
    field(
        "per",
        Shape::Choice(&[choice("rollout"), choice("group")]),
        "How often the step runs; default `rollout`.",
    ),
    field("run", Shape::Scalar(Grammar::Shell, Expands::Verbatim), "Shell text for `/bin/sh -e`."),
    field("agent", Shape::Object(&AGENT), "Makes the step an agent step."),
    field("models", list(&PLAIN_NAME, MODELS_MAX), "Models the step may call.").later("no `models`"),
    field("grader", Shape::Object(&GRADER), "Makes the step a grader: `run` must give a reward."),
    field("session", Shape::Object(&SESSION), "Makes the step a session: a sandbox driven from outside."),
    field(
        "image",
        looked_up(Grammar::Image, Known::Group),
        "What the sandbox starts from: `host`, or `dir:/path/on/the/node`.",
    ),
    field("layers", list(&LAYER, LAYERS_MAX), "Read-only layers above image and workspace, last on top."),
    field(
        "backend",
        Shape::Choice(&[
            choice("container"),
            choice("fncall"),
            choice_later("microvm", "`container`"),
            choice_later("vm", "`container`"),
        ]),
        "Kind of isolation; default `container`. `fncall`: made ahead, used once.",
    ),
    field("resources", Shape::Object(&RESOURCES), "Request and limit of the sandbox."),
    field(
        "network",
        Shape::Either {
            of: &[NETWORK, Shape::Object(&ALLOW)],
            expected: "`none`; nothing else is available yet",
        },
        "Egress; default `none`.",
    ),
    field("files", list(&FILE_SHAPE, FILES_MAX), "Files written before the step starts."),
    field("mount", list(&MOUNT_SHAPE, 32), "Read-only layers or blobs at a path.")
        .later("no `mount`; small files go into `files`"),
    field(
        "env",
        Shape::Either {
            of: &[
                Shape::Map { keys: Grammar::EnvName, of: &ENV_VALUE, max: ENV_MAX },
                looked_up(Grammar::RowColumn, Known::Group),
            ],
            expected: "a map of variables, or one lookup of a column that holds them",
        },
        "Environment variables.",
    ),
    field("user", looked_up(Grammar::User, Known::Group), "User inside the sandbox; default `rollout`."),
    field(
        "workdir",
        looked_up(Grammar::Workdir, Known::Group),
        "Folder the step starts in; default `/workspace`.",
    ),
    field("inputs", list(&INPUT_SHAPE, ARTIFACTS_MAX), "Outputs of earlier steps, placed as files."),
    field(
        "outputs",
        list(&OUTPUT_DECL_SHAPE, ARTIFACTS_MAX),
        "Files the step leaves for later steps and the rows.",
    ),
    field("from", fixed(Grammar::PlainName), "Step whose workspace this one goes on in, or `image`."),
    field(
        "isolate",
        Shape::Choice(&[choice("fresh"), choice("reuse")]),
        "`fresh`: a new sandbox; `reuse`: the live sandbox of `from`.",
    ),
    field("checkpoint", Shape::Object(&CHECKPOINT), "When the workspace is saved."),
    field(
        "idle",
        Shape::Object(&IDLE),
        "Give resources back while nothing runs; default of agent and session steps, else off.",
    ),
    field("timeout", looked_up(STEP_TIME, Known::Group), "Wall clock of one attempt; default 10m."),
    field("env_timeout", duration(SECOND, WEEK), "As `timeout`, without model wait.")
        .later("no `env_timeout`; `timeout` bounds the step"),
    field(
        "start_timeout",
        looked_up(Grammar::Duration { min: SECOND, max: DAY }, Known::Group),
        "Image and boot; default 5m.",
    ),
    field(
        "grace",
        looked_up(Grammar::Duration { min: ZERO, max: MINUTE }, Known::Group),
        "Between SIGTERM and the kill; default 5s.",
    ),
    field(
        "health_check",
        looked_up(Grammar::RowColumn, Known::Group),
        "One lookup of a column that holds a command which has to succeed before the step starts, or null.",
    ),
    field("retry", Shape::Object(&RETRY), "Tries after infrastructure failures."),
];

const STEP_TIME: Grammar = Grammar::Duration { min: SECOND, max: WEEK };
const NETWORK: Shape = Shape::Choice(NETWORKS);
static NETWORKS: &[Choice] = &[choice("none"), choice_later("public", "`none`, or no `network`")];

static STEP_SHAPE: Shape = Shape::Object(&STEP);
pub(crate) static STEP: Object = Object::new("Step", STEP_FIELDS);
pub(crate) static DEFAULTS: Object = Object {
    name: "Defaults",
    fields: STEP_FIELDS,
    without: &["name", "needs", "from", "run", "agent", "grader", "session", "inputs", "outputs"],
    without_why: "belongs to one step and cannot be a default",
};

static AGENT: Object = Object::new(
    "Agent",
    &[
        field(
            "command",
            Shape::List { of: &ARGUMENT, min: 1, max: ARGUMENTS_MAX },
            "Program and arguments, run without a shell.",
        )
        .required(),
        field(
            "resume",
            fixed(Grammar::Bool),
            "The agent can start again from a workspace saved while it ran.",
        ),
    ],
);

static SESSION: Object = Object::new(
    "Session",
    &[
        field(
            "idle_timeout",
            duration(SECOND, DURATION_MAX),
            "Longest time without a call of its driver; default 5m.",
        ),
        field("max_actions", count(1, COUNT_MAX), "Most recorded actions; default no limit."),
    ],
);

pub(crate) static GRADER: Object = Object::new(
    "Grader",
    &[
        field(
            "reward_file",
            fixed(Grammar::SandboxPath),
            "File with the reward; default reward.json, then reward.txt, in /logs/verifier.",
        ),
        field("reward", text(256), "Key of the reward file that is the reward."),
        field("range", Shape::List { of: &RANGE_END, min: 2, max: 2 }, "Lowest and highest reward allowed."),
        field(
            "exit",
            Shape::Map { keys: Grammar::ExitCode, of: &REWARD, max: 256 },
            "Exit code -> reward, instead of a reward file.",
        ),
        field("regrades", count(0, 10), "Further tries after a failure of the grader; default 1."),
        field(
            "on_agent_timeout",
            Shape::Choice(&[choice("grade"), choice("zero"), choice("invalid")]),
            "After the agent's deadline; default `grade`.",
        ),
        field(
            "on_timeout",
            Shape::Choice(&[choice("invalid"), choice("zero")]),
            "After the grader's own deadline; default `invalid`.",
        ),
        field(
            "channel",
            Shape::Choice(&[choice("file"), choice_later("fd", "`file`, or no `channel`")]),
            "How the reward is given; default `file`.",
        ),
    ],
);

static RESOURCES: Object = Object::new(
    "Resources",
    &[
        field("request", Shape::Object(&REQUEST), "What is packed on a node."),
        field("limit", Shape::Object(&LIMIT), "What the kernel enforces."),
        field("cpu", CPU, "Request and limit alike."),
        field("memory", SIZE, "Request and limit alike."),
        field("disk", SIZE, "Request and limit alike."),
        field("pids", PIDS, "Limit of processes and threads."),
        field("gpus", count(0, 1024), "GPUs.").later("no `gpus`"),
    ],
);
const CPU: Shape = looked_up(Grammar::Cpu, Known::Group);
const SIZE: Shape = looked_up(Grammar::Bytes, Known::Group);
const PIDS: Shape = count(1, 4_194_304);

static REQUEST: Object = Object::new(
    "Request",
    &[
        field("cpu", CPU, "Default 500m, or the limit if that is lower."),
        field("memory", SIZE, "Default 512Mi, or the limit if that is lower."),
        field("disk", SIZE, "Default the limit."),
    ],
);
static LIMIT: Object = Object::new(
    "Limit",
    &[
        field("cpu", CPU, "Default 2."),
        field("memory", SIZE, "Default 2Gi."),
        field("disk", SIZE, "Default 256Mi."),
        field("pids", PIDS, "Default 1024."),
    ],
);

static EGRESS: Shape = text(128);
static ALLOW: Object = Object::new(
    "Network",
    &[field("allow", list(&EGRESS, 64), "Egress ids of the guard rules.").later("`network: none`")],
);

static FILE_SHAPE: Shape = Shape::Object(&FILE);
static FILE: Object = Object::new(
    "File",
    &[
        field("path", looked_up(Grammar::SandboxPath, Known::Run), "Absolute path in the sandbox.")
            .required(),
        field(
            "content",
            looked_up(Grammar::Text { bytes_max: FILE_BYTES_MAX }, Known::Run),
            "Text of the file.",
        ),
        field("from", fixed(Grammar::ClientPath), "File beside the spec, uploaded at submit."),
        field("mode", fixed(Grammar::Mode), "Octal permission bits; default 0644."),
    ],
);

static MOUNT_SHAPE: Shape = Shape::Object(&MOUNT);
static MOUNT: Object = Object::new(
    "Mount",
    &[
        field(
            "source",
            Shape::Scalar(Grammar::Text { bytes_max: PATH_BYTES_MAX }, Expands::Later),
            "OCI layer or blob by digest.",
        )
        .required(),
        field("path", fixed(Grammar::SandboxPath), "Absolute path in the sandbox.").required(),
        field("read_only", fixed(Grammar::Bool), "Always true."),
    ],
);

static INPUT_SHAPE: Shape = Shape::Object(&INPUT);
static INPUT: Object = Object::new(
    "Input",
    &[
        field("artifact", fixed(Grammar::Artifact), "`step.output` of an earlier step.").required(),
        field("path", fixed(Grammar::SandboxPath), "Absolute path in the sandbox.").required(),
    ],
);

static TREE_PATH: Shape = looked_up(Grammar::SandboxPath, Known::Group);
static OUTPUT_DECL_SHAPE: Shape = Shape::Object(&OUTPUT_DECL);
static OUTPUT_DECL: Object = Object::new(
    "StepOutput",
    &[
        field("name", fixed(Grammar::PlainName), "Unique in the step; no dot.").required(),
        field("path", fixed(Grammar::OutputPath), "The file; relative to `workdir` or absolute."),
        field(
            "paths",
            Shape::Either {
                of: &[
                    Shape::List { of: &TREE_PATH, min: 1, max: OUTPUT_PATHS_MAX },
                    looked_up(Grammar::RowColumn, Known::Group),
                ],
                expected: "a list of paths, or one lookup of a column that holds it",
            },
            "Files and directories, packed as one artifact; as an input they go below its `path`.",
        ),
        field(
            "from",
            Shape::Scalar(Grammar::Shell, Expands::Verbatim),
            "Shell text whose standard output is the file.",
        ),
        field(
            "media_type",
            fixed(Grammar::MediaType),
            "Default `application/octet-stream`, with `from` `text/plain`.",
        ),
        field("max_bytes", Shape::Scalar(Grammar::Bytes, Expands::Later), "Largest size; default 16Mi."),
    ],
);

static CHECKPOINT: Object = Object::new(
    "Checkpoint",
    &[
        field("after", fixed(Grammar::Bool), "Save when the step has ended."),
        field("every", fixed(Grammar::Trigger), "Save in between."),
        field(
            "keep",
            Shape::Either {
                of: &[Shape::Choice(&[choice("last"), choice("all")]), count(1, 1_000)],
                expected: "`last`, `all` or a whole number",
            },
            "Which of them to keep.",
        ),
        field(
            "key",
            looked_up(Grammar::Text { bytes_max: PATH_BYTES_MAX }, Known::Plan),
            "Shares one result over groups, epochs and jobs of the project.",
        ),
    ],
);

static IDLE: Object = Object::new(
    "Idle",
    &[
        field("park_after", duration(SECOND, DURATION_MAX), "Time without a running command; default 30s."),
        field(
            "mode",
            Shape::Choice(&[choice("freeze"), choice("checkpoint")]),
            "`freeze` keeps its processes, `checkpoint` its files only; default `freeze`.",
        ),
    ],
);

static RETRY: Object = Object::new(
    "Retry",
    &[
        field("limit", count(0, 10), "Tries after the first; default 3."),
        field("backoff", duration(ZERO, DAY), "First wait, doubled each time; default 5s."),
        field("max_backoff", duration(ZERO, DAY), "Longest wait; default 5m."),
    ],
);

static INCLUDE: Shape = Shape::Choice(&[
    choice("messages"),
    choice("tokens"),
    choice("turns"),
    choice("artifacts"),
    choice_later("events", "the list without `events`"),
    choice_later("tensors", "the list without `tensors`"),
]);
static OUTPUT: Object = Object::new(
    "Output",
    &[
        field(
            "table",
            looked_up(Grammar::Table, Known::Submit),
            "Folder the tables are written to; default `./out` on one machine.",
        ),
        field("shard", Shape::Object(&SHARD), "When a file is sealed."),
        field("include", list(&INCLUDE, 6), "Tables and columns to write; default the first four."),
        field("columns", list(&COLUMN, COLUMNS_MAX), "Task columns copied into column `task_row`."),
        field("retain", Shape::Object(&RETAIN), "How long what the job leaves is kept."),
    ],
);
static SHARD: Object = Object::new(
    "Shard",
    &[
        field("rows", count(1, 1_000_000), "Default 256."),
        field("bytes", Shape::Scalar(Grammar::Bytes, Expands::Later), "Default 64Mi."),
        field("flush", duration(SECOND, DAY), "Default 30s."),
    ],
);
static RETAIN: Object = Object::new(
    "Retain",
    &[
        field(
            "committed",
            duration(ZERO, DURATION_MAX),
            "Shards all consumers have committed; default 7d. There are no consumers yet: no shard is deleted.",
        ),
        field(
            "failed_workspaces",
            duration(ZERO, DURATION_MAX),
            "Checkpoints of rollouts that did not end well, after those ended; default 24h.",
        ),
        field(
            "checkpoints",
            duration(ZERO, DURATION_MAX),
            "All other checkpoints, after the job ended; default 7d.",
        ),
    ],
);

static SCHEDULE: Object = Object::new(
    "Schedule",
    &[
        field("cron", fixed(Grammar::Cron), "Minute, hour, day of month, month, day of week.").required(),
        field("timezone", fixed(Grammar::Timezone), "IANA name; default UTC."),
        field("enabled", fixed(Grammar::Bool), "Default true."),
        field(
            "overlap",
            Shape::Choice(&[choice("skip"), choice("queue"), choice("replace")]),
            "If the job before still runs; default `skip`.",
        ),
        field("catch_up", fixed(Grammar::Bool), "Run missed fire times; default false."),
    ],
);

static CELL_VALUE: Shape = text(LABEL_BYTES_MAX);
static CELL_VALUES: Shape = Shape::List { of: &CELL_VALUE, min: 1, max: MATRIX_CELLS_MAX };
static CELL: Shape = Shape::Map { keys: Grammar::Name, of: &CELL_VALUE, max: 16 };
static MATRIX: Object = Object::new(
    "Matrix",
    &[
        field(
            "values",
            Shape::Map { keys: Grammar::Name, of: &CELL_VALUES, max: 16 },
            "Key -> values; the product gives the jobs.",
        )
        .required(),
        field("exclude", list(&CELL, MATRIX_CELLS_MAX), "Combinations to leave out."),
        field("max_parallel", count(1, 256), "Jobs at once."),
        field("fail_fast", fixed(Grammar::Bool), "Cancel the others when one fails; default false."),
    ],
);
