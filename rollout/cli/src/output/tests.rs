//! Every renderer over every kind of data. The inputs hold hostile text on purpose.

use super::{Output, fixtures, json::Json, quiet::Quiet, table::Table};
use crate::summary::Summary;

fn renderers() -> [(&'static str, Box<dyn Output>); 3] {
    [
        ("table", Box::new(Table { now: fixtures::NOW, program: "rollyard".into(), columns: 0 })),
        ("json", Box::new(Json)),
        ("quiet", Box::new(Quiet)),
    ]
}

fn snapshots(kind: &str, render: impl Fn(&dyn Output) -> String) {
    for (name, output) in renderers() {
        let text = render(output.as_ref());
        let safe = text.bytes().all(|b| b == b'\n' || b == b' ' || b.is_ascii_graphic());
        assert!(safe, "{kind} as {name} lets a control character through: {text:?}");
        assert!(text.is_empty() || text.ends_with('\n'), "{kind} as {name}");
        if name == "json" {
            serde_json::from_str::<serde_json::Value>(&text).expect(kind);
        }
        insta::assert_snapshot!(format!("{kind}_{name}"), text);
    }
}

#[test]
fn jobs() {
    snapshots("jobs", |output| output.jobs(&[fixtures::running_job(), fixtures::finished_job()]));
}

#[test]
fn no_jobs_is_a_head_and_an_empty_array() {
    assert_eq!(
        Table { now: fixtures::NOW, program: "rollyard".into(), columns: 0 }.jobs(&[]).lines().count(),
        1
    );
    assert_eq!((Json.jobs(&[]), Quiet.jobs(&[])), ("[]\n".to_owned(), String::new()));
}

#[test]
fn cells() {
    let cell = |name: &str, job, error: Option<&str>| crate::commands::matrix::CellJob {
        cell: name.to_owned(),
        values: [("agent".to_owned(), name.to_owned())].into(),
        job,
        error: error.map(str::to_owned),
        exit_code: u8::from(error.is_some()),
    };
    let cells = [
        cell("agent=a\u{1b}", Some(fixtures::finished_job()), None),
        cell("agent=b", Some(fixtures::held_job()), Some("job_ended")),
        cell("agent=c", None, Some("interrupted")),
    ];
    snapshots("cells", |output| output.cells(&cells));
}

#[test]
fn job() {
    snapshots("job", |output| output.job(&fixtures::held_job()));
    snapshots("measured_job", |output| output.job(&fixtures::measured_job()));
}

#[test]
fn rollouts() {
    snapshots("rollouts", |output| output.rollouts(&[fixtures::rewarded(0.25), fixtures::failed_rollout()]));
}

#[test]
fn steps() {
    snapshots("steps", |output| output.steps(&fixtures::rollout_steps()));
}

#[test]
fn checkpoints() {
    snapshots("checkpoints", |output| output.checkpoints(&fixtures::checkpoints()));
    snapshots("checkpoint", |output| output.checkpoint(&fixtures::checkpoint()));
    snapshots("checkpoint_diff", |output| output.checkpoint_diff(&fixtures::checkpoint_diff()));
}

#[test]
fn collected() {
    snapshots("collected", |output| output.collected(&fixtures::collected()));
}

#[test]
fn sandboxes() {
    use fixtures::sandboxes::{copied, ended, idled, killed, lifecycle, parked, sandbox};
    snapshots("sandboxes", |output| output.sandboxes(&[sandbox(), ended(), idled(), parked()]));
    snapshots("sandbox", |output| output.sandbox(&ended()));
    snapshots("sandbox_idled", |output| output.sandbox(&idled()));
    snapshots("sandbox_parked", |output| output.sandbox(&parked()));
    snapshots("made", |output| output.made(&[sandbox()]));
    snapshots("killed", |output| output.killed(&killed()));
    snapshots("lifecycle", |output| output.lifecycle(&lifecycle()));
    snapshots("copied", |output| output.copied(&copied()));
    snapshots("checkpoint_taken", |output| output.checkpoint_taken("sha256:7\u{1b}"));
}

#[test]
fn retried() {
    snapshots("retried", |output| output.retried(&fixtures::retried()));
}

#[test]
fn exported() {
    snapshots("exported", |output| output.exported(&fixtures::exported()));
}

#[test]
fn nodes() {
    snapshots("nodes", |output| output.nodes(&fixtures::nodes()));
}

#[test]
fn explanation() {
    snapshots("explanation", |output| output.explanation(&fixtures::explanation()));
}

#[test]
fn schedules() {
    let (on, off) = (fixtures::schedule(), fixtures::disabled_schedule());
    snapshots("schedules", |output| output.schedules(&[on.clone(), off.clone()]));
    snapshots("schedule", |output| output.schedule(&on));
    let scheduled = crate::view::Scheduled { schedule: off, replaced: true, warnings: vec![] };
    snapshots("scheduled", |output| output.scheduled(&scheduled));
    let fired = |job: Option<&str>| crate::view::FiredSchedule {
        result: "started".to_owned(),
        job: job.map(str::to_owned),
        schedule: on.clone(),
    };
    snapshots("fired_schedule", |output| output.fired_schedule(&fired(Some("j0000000000007\u{1b}"))));
    snapshots("removed_schedule", |output| output.removed_schedule("c0000000000007\u{1b}"));
    assert_eq!(Quiet.fired_schedule(&fired(None)), "");
}

#[test]
fn submitted() {
    snapshots("submitted", |output| output.submitted(&fixtures::submitted()));
}

#[test]
fn summary() {
    snapshots("summary", |output| output.summary(&fixtures::summary()));
}

#[test]
fn summary_of_a_job_too_large_to_look_into() {
    let large = Summary { detail: None, yard_cpu_ms: None, ..fixtures::summary() };
    insta::assert_snapshot!(
        "summary_large",
        Table { now: fixtures::NOW, program: "rollyard".into(), columns: 0 }.summary(&large)
    );
}

#[test]
fn doctor() {
    snapshots("doctor", |output| output.doctor(&fixtures::doctor()));
}

#[test]
fn at_80_columns_lines_end_at_words() {
    let table = Table { now: fixtures::NOW, program: "rollyard".into(), columns: 80 };
    let texts = [
        table.jobs(&[fixtures::running_job(), fixtures::finished_job()]),
        table.job(&fixtures::held_job()),
        table.rollouts(&[fixtures::rewarded(0.25), fixtures::failed_rollout()]),
        table.steps(&fixtures::rollout_steps()),
        table.nodes(&fixtures::nodes()),
        table.explanation(&fixtures::explanation()),
        table.summary(&fixtures::summary()),
        table.doctor(&fixtures::doctor()),
    ];
    for line in texts.iter().flat_map(|text| text.lines()) {
        // A word that is longer stays whole.
        let word = line.split(' ').map(str::len).max().unwrap_or(0);
        assert!(line.len() <= 80 || word + 14 > 80 || line.contains(" show "), "{} {line}", line.len());
    }
    insta::assert_snapshot!("narrow", texts.join("\n"));
}
