//! Schedules: rows, their reads, and changes as statements' arguments.

use rollout::schedule::{Overlap, SchedulePlan};
use rollout::{JobId, ScheduleId, Timestamp};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteRow;

use super::fold::{Sheet, StoredFile};
use super::{Reads, failed, row, statement};
use crate::error::Error;

/// A schedule as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleRow {
    pub schedule: ScheduleId,
    /// Empty: none.
    pub project: String,
    /// One of a name in its project.
    pub name: String,
    /// As it is now: it may have been enabled or disabled since the submit.
    pub plan: SchedulePlan,
    pub spec_hash: String,
    /// As asked for; empty: what the spec says.
    pub table_root: String,
    pub idempotency_key: String,
    pub request_hash: String,
    pub created_at: Timestamp,
    /// Fire times up to here are decided.
    pub cursor_at: Timestamp,
    pub last_job: Option<JobId>,
    pub last_fire_at: Option<Timestamp>,
    /// It starts when the last job has ended.
    pub waiting: Option<Fire>,
    /// Fires that started a job.
    pub fired: u64,
    /// Fires left out because the job before ran.
    pub skipped: u64,
    /// Fire times at which no scheduler ran.
    pub missed: u64,
    /// Fires of which no job could be made.
    pub failed: u64,
    /// Of the last fire that started no job; empty: none.
    pub problem: String,
}

/// One fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fire {
    pub at: Timestamp,
    /// Idempotency key of its job.
    pub key: String,
}

/// A schedule as it is put in the place of the one of its id.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSchedule {
    pub row: ScheduleRow,
    pub document: String,
    pub source_name: String,
    pub files: Vec<StoredFile>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ScheduleChange {
    Put(Box<NewSchedule>),
    /// What changes by itself: enabled, and everything from the cursor on.
    Update(Box<ScheduleRow>),
    Remove(ScheduleId),
}

/// The arguments of the statements of schedules, in the order they run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ScheduleWrites {
    /// Those removed or put anew.
    pub files_removed: Sheet,
    pub removed: Sheet,
    pub put: Sheet,
    pub files: Sheet,
    pub updated: Sheet,
}

impl ScheduleWrites {
    pub(super) fn of(changes: &[ScheduleChange]) -> Self {
        let ids = |wanted: fn(&ScheduleChange) -> Option<ScheduleId>| -> Sheet {
            changes.iter().filter_map(wanted).map(|id| json!([id.to_string()])).collect()
        };
        let new = || {
            changes.iter().filter_map(|change| match change {
                ScheduleChange::Put(new) => Some(new.as_ref()),
                ScheduleChange::Update(_) | ScheduleChange::Remove(_) => None,
            })
        };
        Self {
            files_removed: ids(|change| match change {
                ScheduleChange::Put(new) => Some(new.row.schedule),
                ScheduleChange::Remove(id) => Some(*id),
                ScheduleChange::Update(_) => None,
            }),
            removed: ids(|change| match change {
                ScheduleChange::Remove(id) => Some(*id),
                ScheduleChange::Put(_) | ScheduleChange::Update(_) => None,
            }),
            put: new().map(put).collect(),
            files: new().flat_map(files).collect(),
            updated: changes
                .iter()
                .filter_map(|change| match change {
                    ScheduleChange::Update(row) => Some(updated(row)),
                    ScheduleChange::Put(_) | ScheduleChange::Remove(_) => None,
                })
                .collect(),
        }
    }
}

fn put(new: &NewSchedule) -> Value {
    let row = &new.row;
    let mut values = vec![
        json!(row.schedule.to_string()),
        json!(row.project),
        json!(row.name),
        json!(new.document),
        json!(new.source_name),
        json!(row.spec_hash),
        json!(row.table_root),
        json!(row.idempotency_key),
        json!(row.request_hash),
        json!(row.plan.cron.to_string()),
        json!(row.plan.timezone.name()),
        json!(row.plan.overlap.as_str()),
        json!(i32::from(row.plan.catch_up)),
        json!(i32::from(row.plan.enabled)),
        json!(row.created_at.0),
    ];
    values.extend(moving(row));
    Value::Array(values)
}

fn updated(row: &ScheduleRow) -> Value {
    let mut values = vec![json!(row.schedule.to_string()), json!(i32::from(row.plan.enabled))];
    values.extend(moving(row));
    Value::Array(values)
}

fn moving(row: &ScheduleRow) -> [Value; 10] {
    [
        json!(row.cursor_at.0),
        json!(row.last_job.map(|job| job.to_string())),
        json!(row.last_fire_at.map(|at| at.0)),
        json!(row.waiting.as_ref().map(|fire| fire.at.0)),
        json!(row.waiting.as_ref().map(|fire| &fire.key)),
        json!(row.fired),
        json!(row.skipped),
        json!(row.missed),
        json!(row.failed),
        json!(row.problem),
    ]
}

fn files(new: &NewSchedule) -> impl Iterator<Item = Value> {
    let id = new.row.schedule.to_string();
    new.files.iter().map(move |file| json!([id, file.path, file.sha256, file.size]))
}

const TABLE: &str = "schedules";

fn read(row: &SqliteRow) -> Result<ScheduleRow, Error> {
    let schedule: ScheduleId = row::parsed(row, TABLE, "schedule", &"unknown")?;
    let text = |column| row::text(row, TABLE, column, &schedule).map(str::to_owned);
    let time = |column| Ok(row::optional_signed(row, TABLE, column, &schedule)?.map(Timestamp));
    let count = |column| row::unsigned::<u64>(row, TABLE, column, &schedule);
    let at = Timestamp(row::signed(row, TABLE, "cursor_at", &schedule)?);
    let plan = SchedulePlan {
        cron: row::parsed(row, TABLE, "cron", &schedule)?,
        timezone: row::parsed(row, TABLE, "timezone", &schedule)?,
        enabled: count("enabled")? != 0,
        overlap: row::word(TABLE, "overlap", &schedule, &text("overlap")?, &Overlap::ALL, Overlap::as_str)?,
        catch_up: count("catch_up")? != 0,
    };
    let last_job = row::optional_text(row, TABLE, "last_job", &schedule)?;
    let last_job = last_job.map(|job| job.parse().map_err(|e| row::wrong(TABLE, "last_job", &schedule, e)));
    let waiting_key = row::optional_text(row, TABLE, "waiting_key", &schedule)?;
    Ok(ScheduleRow {
        project: text("project")?,
        name: text("name")?,
        plan,
        spec_hash: text("spec_hash")?,
        table_root: text("table_root")?,
        idempotency_key: text("idempotency_key")?,
        request_hash: text("request_hash")?,
        created_at: Timestamp(row::signed(row, TABLE, "created_at", &schedule)?),
        cursor_at: at,
        last_job: last_job.transpose()?,
        last_fire_at: time("last_fire_at")?,
        waiting: time("waiting_at")?.zip(waiting_key).map(|(at, key)| Fire { at, key }),
        fired: count("fired")?,
        skipped: count("skipped")?,
        missed: count("missed")?,
        failed: count("failed")?,
        problem: text("problem")?,
        schedule,
    })
}

impl Reads {
    /// By project and name.
    pub async fn schedules(&self) -> Result<Vec<ScheduleRow>, Error> {
        let rows = sqlx::query(statement!("common/list_schedules")).fetch_all(&self.pool).await;
        rows.map_err(failed("listing schedules"))?.iter().map(read).collect()
    }

    /// The spec as submitted, and the name it came under.
    pub async fn schedule_document(&self, schedule: ScheduleId) -> Result<Option<(String, String)>, Error> {
        let found = sqlx::query(statement!("common/schedule_document"))
            .bind(schedule.to_string())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("reading the spec of a schedule"))?;
        let read = |row: &SqliteRow| {
            let text = |column| row::text(row, TABLE, column, &schedule).map(str::to_owned);
            Ok((text("document")?, text("source_name")?))
        };
        found.as_ref().map(read).transpose()
    }

    pub async fn schedule_files(&self, schedule: ScheduleId) -> Result<Vec<StoredFile>, Error> {
        let rows = sqlx::query(statement!("common/schedule_files"))
            .bind(schedule.to_string())
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading the client files of a schedule"))?;
        let file = |row: &SqliteRow| {
            Ok(StoredFile {
                path: row::text(row, "schedule_files", "path", &schedule)?.to_owned(),
                sha256: row::text(row, "schedule_files", "sha256", &schedule)?.to_owned(),
                size: row::unsigned(row, "schedule_files", "size", &schedule)?,
            })
        };
        rows.iter().map(file).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{self, Batch};

    fn row(bits: u64, name: &str) -> ScheduleRow {
        let plan = SchedulePlan {
            cron: "*/5 1 * * mon".parse().unwrap(),
            timezone: "Europe/Berlin".parse().unwrap(),
            enabled: true,
            overlap: Overlap::Queue,
            catch_up: true,
        };
        ScheduleRow {
            schedule: ScheduleId::from_bits(bits),
            project: String::new(),
            name: name.to_owned(),
            plan,
            spec_hash: "h".to_owned(),
            table_root: "/t".to_owned(),
            idempotency_key: "k".to_owned(),
            request_hash: "r".to_owned(),
            created_at: Timestamp(1),
            cursor_at: Timestamp(2),
            last_job: None,
            last_fire_at: None,
            waiting: None,
            fired: 0,
            skipped: 0,
            missed: 0,
            failed: 0,
            problem: String::new(),
        }
    }

    fn new(row: &ScheduleRow, path: &str) -> ScheduleChange {
        let file = StoredFile { path: path.to_owned(), sha256: "s".to_owned(), size: 3 };
        ScheduleChange::Put(Box::new(NewSchedule {
            row: row.clone(),
            document: "d".to_owned(),
            source_name: "n".to_owned(),
            files: vec![file],
        }))
    }

    #[tokio::test]
    async fn a_schedule_is_put_updated_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, reads, _) = store::open(dir.path(), None).await.unwrap();
        let mut commit = async |change| {
            let batch = Batch { schedules: vec![change], ..Batch::default() };
            assert!(!batch.is_empty());
            writer.commit(&batch, Timestamp(9)).await.map(|()| reads.clone())
        };
        let mut one = row(1, "one");
        let reads = commit(new(&one, "a")).await.unwrap();
        commit(new(&row(2, "two"), "b")).await.unwrap();
        assert_eq!(reads.schedules().await.unwrap(), [one.clone(), row(2, "two")]);

        one.plan.enabled = false;
        one.last_job = Some(JobId::from_bits(7));
        one.last_fire_at = Some(Timestamp(5));
        one.waiting = Some(Fire { at: Timestamp(6), key: "w".to_owned() });
        (one.fired, one.skipped, one.missed, one.failed) = (1, 2, 3, 4);
        one.problem = "p".to_owned();
        commit(ScheduleChange::Update(Box::new(one.clone()))).await.unwrap();
        assert_eq!(reads.schedules().await.unwrap()[0], one);

        commit(new(&one, "c")).await.unwrap();
        let files = reads.schedule_files(one.schedule).await.unwrap();
        assert_eq!(files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["c"]);
        let document = reads.schedule_document(one.schedule).await.unwrap();
        assert_eq!(document, Some(("d".to_owned(), "n".to_owned())));

        // A second of the same name is no schedule, and an update of none is none.
        assert!(commit(new(&row(3, "one"), "d")).await.is_err());
        assert!(commit(ScheduleChange::Update(Box::new(row(3, "three")))).await.is_err());
        commit(ScheduleChange::Remove(one.schedule)).await.unwrap();
        assert_eq!(reads.schedules().await.unwrap(), [row(2, "two")]);
        assert_eq!(reads.schedule_files(one.schedule).await.unwrap(), []);
    }
}
