//! The spec of a sandbox: a job of one session, in JSON, as any client could have written it.

use std::collections::BTreeMap;

use rollout::Millis;
use rollout::plan::{JobPlan, ResolvedStep};
use rollout_wire::v1;
use serde_json::{Map, Value, json};

use crate::api::{ApiCode, ApiError};
use crate::jobs::of_sandbox;

/// What a sandbox gets whose client does not say.
pub(super) const TIMEOUT: Millis = Millis(3_600_000);
pub(super) const START_TIMEOUT: Millis = Millis(300_000);
const IMAGE: &str = "host";
/// Of the one step.
const STEP: &str = "sandbox";

/// A field of a spec, and that of `CreateSandboxRequest` it is written from.
const FIELDS: [(&str, &str); 11] = [
    ("resources.request.cpu", "request_cpu"),
    ("resources.request.memory", "request_memory"),
    ("resources.limit.cpu", "limit_cpu"),
    ("resources.limit.memory", "limit_memory"),
    ("resources.limit.disk", "limit_disk"),
    ("resources.limit.pids", "limit_pids"),
    ("session.idle_timeout", "idle_timeout_ms"),
    ("start_timeout", "start_timeout_ms"),
    ("timeout", "timeout_ms"),
    ("idle.park_after", "park_after_ms"),
    ("idle.mode", "idle_mode"),
];

/// The field of a request that a field of the spec is written from.
fn of_path(path: &str) -> &str {
    let field = path.strip_prefix("steps[0].").unwrap_or(path);
    FIELDS.iter().find(|(of_spec, _)| *of_spec == field).map_or(field, |(_, of_request)| *of_request)
}

/// What a check says of a spec, for who wrote a request. Names of one word are left alone: they may be values.
fn in_fields(words: &str) -> String {
    let of_more_words = FIELDS.iter().filter(|(field, _)| field.contains('.'));
    of_more_words.fold(words.replace("`steps[0].", "`"), |words, (field, of_request)| {
        words.replace(&format!("`{field}`"), &format!("`{of_request}`"))
    })
}

/// A spec, and what it means.
pub(super) struct Written {
    pub document: String,
    pub plan: JobPlan,
}

/// Text that stands for itself in a field where lookups are expanded.
fn literal(text: &str) -> Value {
    Value::from(text.replace("${", "$${"))
}

fn time(time: Millis) -> Value {
    Value::from(format!("{}ms", time.0))
}

fn put(map: &mut Map<String, Value>, key: &str, text: &str) {
    if !text.is_empty() {
        map.insert(key.to_owned(), literal(text));
    }
}

/// The step a client asks for; `image` where it names none.
pub(super) fn of_request(request: &v1::CreateSandboxRequest, image: Option<&str>) -> Map<String, Value> {
    let mut step = Map::new();
    let image = Some(request.image.as_str()).filter(|image| !image.is_empty()).or(image);
    step.insert("image".to_owned(), literal(image.unwrap_or(IMAGE)));
    put(&mut step, "user", &request.user);
    put(&mut step, "workdir", &request.workdir);
    let (mut asked, mut limit) = (Map::new(), Map::new());
    put(&mut asked, "cpu", &request.request_cpu);
    put(&mut asked, "memory", &request.request_memory);
    put(&mut limit, "cpu", &request.limit_cpu);
    put(&mut limit, "memory", &request.limit_memory);
    put(&mut limit, "disk", &request.limit_disk);
    if let Some(pids) = request.limit_pids {
        limit.insert("pids".to_owned(), Value::from(pids));
    }
    step.insert("resources".to_owned(), json!({"request": asked, "limit": limit}));
    let env = request.env.iter().map(|(key, value)| (key.clone(), literal(value)));
    step.insert("env".to_owned(), Value::Object(env.collect()));
    let idle_timeout = request.idle_timeout_ms.map_or(rollout::plan::SESSION_IDLE_TIMEOUT, Millis);
    step.insert("session".to_owned(), json!({"idle_timeout": time(idle_timeout)}));
    step.insert("timeout".to_owned(), time(request.timeout_ms.map_or(TIMEOUT, Millis)));
    step.insert("start_timeout".to_owned(), time(request.start_timeout_ms.map_or(START_TIMEOUT, Millis)));
    let mut idle = Map::new();
    put(&mut idle, "mode", &request.idle_mode);
    if let Some(park_after) = request.park_after_ms {
        idle.insert("park_after".to_owned(), time(Millis(park_after)));
    }
    if !idle.is_empty() {
        step.insert("idle".to_owned(), Value::Object(idle));
    }
    step
}

/// The step of a fork: that of the sandbox it is made of, without what is in its files already.
pub(super) fn of_fork(step: &ResolvedStep) -> Map<String, Value> {
    let (request, limit) = (&step.resources.request, &step.resources.limit);
    let cpu = |cpu: rollout::MilliCpu| format!("{}m", cpu.0);
    let bytes = |bytes: rollout::Bytes| bytes.0.to_string();
    let env = step.env.iter().map(|(key, value)| (key.clone(), literal(value)));
    let session = step.work.session();
    let idle_timeout = session.map_or(rollout::plan::SESSION_IDLE_TIMEOUT, |session| session.idle_timeout);
    let mut fork = Map::from_iter([
        ("image".to_owned(), literal(&step.image)),
        ("layers".to_owned(), step.layers.iter().map(|layer| literal(layer)).collect()),
        ("user".to_owned(), literal(&step.user)),
        ("workdir".to_owned(), literal(&step.workdir)),
        ("env".to_owned(), Value::Object(env.collect())),
        (
            "resources".to_owned(),
            json!({
                "request": {"cpu": cpu(request.cpu), "memory": bytes(request.memory), "disk": bytes(request.disk)},
                "limit": {
                    "cpu": cpu(limit.cpu), "memory": bytes(limit.memory), "disk": bytes(limit.disk),
                    "pids": limit.pids,
                },
            }),
        ),
        ("session".to_owned(), json!({"idle_timeout": time(idle_timeout)})),
        ("timeout".to_owned(), time(step.timeout)),
        ("start_timeout".to_owned(), time(step.start_timeout)),
    ]);
    if let Some(idle) = &step.idle {
        let idle = json!({"park_after": time(idle.park_after), "mode": idle.mode.as_str()});
        fork.insert("idle".to_owned(), idle);
    }
    fork
}

/// The whole spec, checked as every spec is.
///
/// # Errors
/// The first field that is not as a spec takes it.
pub(super) fn written(
    mut step: Map<String, Value>,
    labels: &BTreeMap<String, String>,
    project: &str,
) -> Result<Written, ApiError> {
    step.insert("name".to_owned(), Value::from(STEP));
    step.insert("retry".to_owned(), json!({"limit": 0}));
    // What a client saves stays until its time is over.
    step.insert("checkpoint".to_owned(), json!({"keep": "all"}));
    let mut document = json!({
        "apiVersion": "rollyard/v1", "kind": "RolloutJob", "name": STEP, "labels": labels,
        "tasks": {"from": {"inline": [{}]}},
        "group": {"size": 1, "on_incomplete": "deliver"},
        "steps": [step],
    });
    if !project.is_empty() {
        document["project"] = Value::from(project);
    }
    let document = document.to_string();
    let checked = rollout::spec::check(&document, STEP);
    if let Some(mut plan) = checked.plan.clone() {
        of_sandbox(&mut plan);
        return Ok(Written { document, plan });
    }
    Err(match checked.errors().next() {
        Some(error) => {
            let refused = ApiError::bad_request(of_path(&error.path), in_fields(&error.message));
            match &error.expected {
                Some(expected) => refused.hint(in_fields(&format!("expected {expected}"))),
                None => refused,
            }
        }
        None => ApiError::new(ApiCode::SpecInvalid, checked.render(&document)),
    })
}

#[cfg(test)]
mod tests {
    use rollout::plan::{IdleMode, IdlePlan, Keep, SessionPlan, Template};
    use rollout::resolve::{self, Lookup};
    use rollout::{GroupId, JobId, RolloutId, StepIndex};

    use super::*;

    fn request() -> v1::CreateSandboxRequest {
        v1::CreateSandboxRequest {
            image: "debian:12".to_owned(),
            request_cpu: "250m".to_owned(),
            limit_memory: "1Gi".to_owned(),
            limit_pids: Some(99),
            labels: BTreeMap::from([("team".to_owned(), "no".to_owned())]),
            env: BTreeMap::from([("A".to_owned(), "${row.x} $${y} \"\u{7}\n".to_owned())]),
            idle_timeout_ms: Some(90_000),
            park_after_ms: Some(5_000),
            ..v1::CreateSandboxRequest::default()
        }
    }

    fn resolved(plan: &JobPlan) -> ResolvedStep {
        let row = Map::new();
        let group = GroupId { job: JobId::from_bits(1), index: 0 };
        let rollout = Some(RolloutId { group, sample: 0, refill: 0 });
        let lookup = Lookup { row: &row, task_id: "row-0", group, epoch: 0, rollout };
        resolve::resolve_step(plan, StepIndex(0), &lookup, &BTreeMap::new()).unwrap()
    }

    #[test]
    fn a_request_is_a_job_of_one_session_that_nobody_claims() {
        let Written { plan, .. } = written(of_request(&request(), None), &request().labels, "a/b").unwrap();
        assert!(plan.is_sandbox());
        assert_eq!((plan.project.as_deref(), plan.labels["team"].as_str()), (Some("a/b"), "no"));
        let [step] = plan.steps.as_slice() else { panic!("one step") };
        let session = SessionPlan {
            idle_timeout: Millis(90_000),
            max_actions: None,
            takes_reward: false,
            unclaimed: true,
        };
        assert_eq!(step.work.session(), Some(&session));
        assert_eq!(step.idle, Some(IdlePlan { park_after: Millis(5_000), mode: IdleMode::Freeze }));
        assert_eq!((step.retry.limit, step.checkpoint.keep), (0, Keep::All));
        assert_eq!(step.image, Template::literal("debian:12"));
        let resolved = resolved(&plan);
        assert_eq!(resolved.env["A"], request().env["A"], "nothing of it is looked up");
        assert_eq!((resolved.timeout, resolved.start_timeout), (TIMEOUT, START_TIMEOUT));
        let (request, limit) = (resolved.resources.request, resolved.resources.limit);
        assert_eq!((request.cpu.0, limit.memory.0, limit.pids), (250, 1 << 30, 99));
    }

    #[test]
    fn how_far_an_idle_sandbox_goes_down_is_as_in_a_spec() {
        let idle = |idle_mode: &str, park_after_ms| {
            let request =
                v1::CreateSandboxRequest { idle_mode: idle_mode.to_owned(), park_after_ms, ..request() };
            let first = resolved(&written(of_request(&request, None), &BTreeMap::new(), "").unwrap().plan);
            let fork = resolved(&written(of_fork(&first), &BTreeMap::new(), "").unwrap().plan);
            assert_eq!(fork, first);
            first.idle.map(|idle| (idle.mode, idle.park_after.0))
        };
        assert_eq!(idle("", None), Some((IdleMode::Freeze, 30_000)));
        assert_eq!(idle("checkpoint", None), Some((IdleMode::Checkpoint, 30_000)));
        assert_eq!(idle("checkpoint", Some(1_000)), Some((IdleMode::Checkpoint, 1_000)));
        assert_eq!(idle("freeze", Some(1_000)), Some((IdleMode::Freeze, 1_000)));
    }

    #[test]
    fn a_fork_has_the_step_of_what_it_is_made_of() {
        let first = resolved(&written(of_request(&request(), None), &BTreeMap::new(), "").unwrap().plan);
        let again = resolved(&written(of_fork(&first), &BTreeMap::new(), "").unwrap().plan);
        assert_eq!(again, first);
    }

    #[test]
    fn what_a_spec_does_not_take_is_refused_by_its_field() {
        type Break = fn(&mut v1::CreateSandboxRequest);
        let cases: [(&str, Break); 8] = [
            ("`limit_memory`", |r| r.limit_memory = "1GB".to_owned()),
            ("`timeout_ms`", |r| r.timeout_ms = Some(8 * 86_400_000)),
            ("`start_timeout_ms`", |r| r.start_timeout_ms = Some(8 * 86_400_000)),
            ("`idle_timeout_ms`", |r| r.idle_timeout_ms = Some(1)),
            ("`park_after_ms`", |r| r.park_after_ms = Some(1)),
            ("`idle_mode`", |r| r.idle_mode = "park".to_owned()),
            ("`image`", |r| r.image = "${row.image}".to_owned()),
            ("`labels", |r| drop(r.labels.insert("a b".to_owned(), String::new()))),
        ];
        for (field, break_it) in cases {
            let mut bad = request();
            break_it(&mut bad);
            let refused = written(of_request(&bad, None), &bad.labels, "").err().unwrap();
            assert_eq!(refused.code, ApiCode::BadRequest);
            assert!(refused.message.contains(field), "{field}: {}", refused.message);
        }
    }

    #[test]
    fn fields_are_named_as_a_request_has_them() {
        for (path, expected) in [
            ("steps[0].resources.limit.memory", "limit_memory"),
            ("steps[0].timeout", "timeout_ms"),
            ("steps[0].image", "image"),
            ("labels", "labels"),
        ] {
            assert_eq!(of_path(path), expected);
        }
        for (words, expected) in [
            ("`resources.limit.cpu` of at least the request", "`limit_cpu` of at least the request"),
            ("`steps[0].session.idle_timeout` is 1ms", "`idle_timeout_ms` is 1ms"),
            ("user `timeout` of resources.limit.cpu", "user `timeout` of resources.limit.cpu"),
        ] {
            assert_eq!(in_fields(words), expected);
        }
        let fields = v1::CreateSandboxRequest::default();
        let debug = format!("{fields:?}");
        for (_, field) in FIELDS {
            assert!(debug.contains(&format!("{field}:")), "{field}");
        }
    }
}
