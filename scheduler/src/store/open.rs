//! Opening the database: new, ours, damaged, foreign, or too new.

use std::path::Path;

use rand::Rng;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Row};

use super::writer::{CommitHook, Writer};
use super::{BUSY_TIMEOUT, READERS_MAX, Reads, SQLITE_CORRUPT, SQLITE_NOTADB};
use super::{failed, primary_code, statement};
use crate::error::Error;

pub const DATABASE_FILE: &str = "yard.db";

/// Marks a SQLite file as a yard ("ROLY").
const APPLICATION_ID: i64 = 0x524f_4c59;

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// Opens or creates `<data_dir>/yard.db` and takes the next epoch. Nothing is ever deleted: a
/// file that is not a sound database of this or an older version is refused.
pub async fn open(data_dir: &Path, hook: Option<CommitHook>) -> Result<(Writer, Reads, String), Error> {
    let path = data_dir.join(DATABASE_FILE);
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(true)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging();
    inspect(&path).await?;
    let mut connection =
        SqliteConnection::connect_with(&options).await.map_err(failed("opening the database"))?;
    migrate(&path, &mut connection).await?;

    let yard_id = format!("{:016x}", rand::rng().random::<u64>());
    sqlx::query(statement!("common/insert_meta"))
        .bind(yard_id)
        .execute(&mut connection)
        .await
        .map_err(failed("writing the yard id"))?;
    sqlx::query(statement!("common/take_epoch"))
        .execute(&mut connection)
        .await
        .map_err(failed("taking the epoch"))?;
    let meta = sqlx::query(statement!("common/read_meta"))
        .fetch_one(&mut connection)
        .await
        .map_err(failed("reading the epoch"))?;
    let yard_id: String = super::row::text(&meta, "meta", "yard_id", &"the only row")?.to_owned();
    let epoch = super::row::unsigned(&meta, "meta", "epoch", &"the only row")?;
    let seq = super::row::unsigned(&meta, "meta", "commit_seq", &"the only row")?;

    let pool = SqlitePoolOptions::new()
        .max_connections(READERS_MAX)
        .acquire_timeout(BUSY_TIMEOUT)
        .connect_with(options.clone().pragma("query_only", "on"))
        .await
        .map_err(failed("opening the database for reading"))?;
    Ok((Writer::new(options, connection, epoch, seq, hook), Reads { pool }, yard_id))
}

/// Opens `<data_dir>/yard.db` beside whoever owns it: no epoch is taken and no row is written.
pub async fn open_read_only(data_dir: &Path) -> Result<Reads, Error> {
    let path = data_dir.join(DATABASE_FILE);
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .read_only(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging();
    let pool = SqlitePoolOptions::new()
        .max_connections(READERS_MAX)
        .acquire_timeout(BUSY_TIMEOUT)
        .connect_with(options)
        .await
        .map_err(|error| looked(&path, error))?;
    let look = async {
        let id: i64 = sqlx::query("PRAGMA application_id").fetch_one(&pool).await?.try_get(0)?;
        let found = sqlx::query(statement!("common/schema_version")).fetch_one(&pool).await?.try_get(0)?;
        Ok::<(i64, i64), sqlx::Error>((id, found))
    };
    let (id, found) = look.await.map_err(|error| looked(&path, error))?;
    let known = known_version();
    match found {
        _ if id != APPLICATION_ID => Err(foreign(&path, id)),
        _ if found > known => Err(Error::DatabaseTooNew { path, found, known }),
        _ if found < known => Err(Error::DatabaseTooOld { path, found, known }),
        _ => Ok(Reads { pool }),
    }
}

fn known_version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

fn foreign(path: &Path, id: i64) -> Error {
    let problem = format!("its application id is {id}, not {APPLICATION_ID}");
    Error::DatabaseCorrupt { path: path.to_owned(), problem }
}

/// Looks at an existing file before anything is written to it.
async fn inspect(path: &Path) -> Result<(), Error> {
    let damaged = |problem: String| Error::DatabaseCorrupt { path: path.to_owned(), problem };
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(damaged("not a regular file".to_owned())),
        // Empty: a start that was cut before its first write.
        Ok(meta) if meta.len() == 0 => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(Error::DataDir { path: path.to_owned(), source }),
    }
    let options =
        SqliteConnectOptions::new().filename(path).busy_timeout(BUSY_TIMEOUT).disable_statement_logging();
    let look = async {
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let id: i64 = sqlx::query("PRAGMA application_id").fetch_one(&mut connection).await?.try_get(0)?;
        let tables: i64 =
            sqlx::query("SELECT count(*) FROM sqlite_schema").fetch_one(&mut connection).await?.try_get(0)?;
        let verdict: String =
            sqlx::query("PRAGMA quick_check(1)").fetch_one(&mut connection).await?.try_get(0)?;
        connection.close().await?;
        Ok::<_, sqlx::Error>((id, tables, verdict))
    };
    let (id, tables, verdict) = look.await.map_err(|error| looked(path, error))?;
    if id != APPLICATION_ID && tables > 0 {
        return Err(foreign(path, id));
    }
    if verdict == "ok" { Ok(()) } else { Err(damaged(verdict)) }
}

/// Only what SQLite says of the bytes makes a database damaged. A full disk, a wrong owner or a
/// lock held by another process is no reason to move a sound file aside.
fn looked(path: &Path, error: sqlx::Error) -> Error {
    match primary_code(&error) {
        Some(SQLITE_CORRUPT | SQLITE_NOTADB) => {
            Error::DatabaseCorrupt { path: path.to_owned(), problem: error.to_string() }
        }
        _ => failed("inspecting the database")(error),
    }
}

async fn migrate(path: &Path, connection: &mut SqliteConnection) -> Result<(), Error> {
    // A pragma takes no parameter; the id is a constant of this file.
    sqlx::query("PRAGMA application_id = 1380928601")
        .execute(&mut *connection)
        .await
        .map_err(failed("marking the database"))?;
    let known = known_version();
    MIGRATIONS.run(connection).await.map_err(|error| match error {
        MigrateError::VersionMissing(found) if found > known => {
            Error::DatabaseTooNew { path: path.to_owned(), found, known }
        }
        MigrateError::VersionMissing(found) | MigrateError::VersionMismatch(found) => {
            Error::DatabaseCorrupt {
                path: path.to_owned(),
                problem: format!("its schema {found} is not ours"),
            }
        }
        MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
            failed("migrating the database")(source)
        }
        other => failed("migrating the database")(sqlx::Error::Migrate(Box::new(other))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pragma_writes_the_application_id() {
        assert_eq!(APPLICATION_ID, 1_380_928_601);
    }

    #[tokio::test]
    async fn every_statement_file_prepares() {
        use sqlx::{AssertSqlSafe, Executor, SqlSafeStr};
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _reads, _) = open(dir.path(), None).await.unwrap();
        let connection = writer.connection().await.unwrap();
        let mut prepared = 0;
        for folder in ["common", "sqlite"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("queries").join(folder);
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let text = std::fs::read_to_string(&path).unwrap();
                let prepare = connection.prepare(AssertSqlSafe(text).into_sql_str()).await;
                assert!(prepare.is_ok(), "{}: {:?}", path.display(), prepare.err());
                prepared += 1;
            }
        }
        assert!(prepared > 40, "{prepared}");
    }

    #[tokio::test]
    async fn damaged_foreign_and_newer_databases_are_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DATABASE_FILE);
        std::fs::write(&path, b"this is no database, it is a letter to somebody else entirely").unwrap();
        assert_eq!(open(dir.path(), None).await.unwrap_err().code(), "database_corrupt");
        assert!(std::fs::read(&path).unwrap().starts_with(b"this is no database"));

        std::fs::remove_file(&path).unwrap();
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut foreign = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::query("CREATE TABLE theirs (x)").execute(&mut foreign).await.unwrap();
        foreign.close().await.unwrap();
        assert_eq!(open(dir.path(), None).await.unwrap_err().code(), "database_corrupt");

        std::fs::remove_file(&path).unwrap();
        let (mut writer, reads, _) = open(dir.path(), None).await.unwrap();
        sqlx::query("INSERT INTO _sqlx_migrations SELECT 99991231000000, description, installed_on, success, checksum, execution_time FROM _sqlx_migrations LIMIT 1")
            .execute(writer.connection().await.unwrap())
            .await
            .unwrap();
        reads.pool.close().await;
        drop(writer);
        assert_eq!(open(dir.path(), None).await.unwrap_err().code(), "database_too_new");
    }

    #[tokio::test]
    async fn each_start_takes_the_next_epoch_and_keeps_the_yard() {
        let dir = tempfile::tempdir().unwrap();
        let (first, _r, yard) = open(dir.path(), None).await.unwrap();
        let epoch = first.epoch();
        drop(first);
        let (second, _r, same_yard) = open(dir.path(), None).await.unwrap();
        assert_eq!((second.epoch(), same_yard), (epoch + 1, yard));
    }

    #[tokio::test]
    async fn a_full_disk_met_while_looking_is_not_called_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DATABASE_FILE);
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut small = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::query("PRAGMA max_page_count = 1").execute(&mut small).await.unwrap();
        let full = sqlx::query("CREATE TABLE t AS SELECT zeroblob(100000)").execute(&mut small).await;
        let refused = looked(&path, full.unwrap_err());
        assert_eq!(refused.code(), "store_full", "{refused:?}");
        assert_eq!(refused.hint(), Some("free space on the file system of the data directory"));
    }

    #[tokio::test]
    async fn a_database_that_cannot_be_opened_is_not_called_damaged() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path(), None).await.unwrap());
        // What a wrong owner or mode does, and works for root too: the log is no file.
        let log = dir.path().join("yard.db-wal");
        if log.exists() {
            std::fs::remove_file(&log).unwrap();
        }
        std::fs::create_dir(&log).unwrap();
        let refused = open(dir.path(), None).await.unwrap_err();
        assert_eq!(refused.code(), "store_failed", "{refused:?}");
        assert!(refused.hint().is_some_and(|hint| !hint.contains("aside")), "{:?}", refused.hint());
    }

    /// Holds that earlier versions kept as words.
    #[tokio::test]
    async fn holds_kept_as_words_become_what_they_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words.db");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut old = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::query("CREATE TABLE jobs (state TEXT, reason TEXT)").execute(&mut old).await.unwrap();
        let told = "rows are missing: g0 is odd; it is tried again at the next start";
        let rows = [
            ("held", told.to_owned(), Some("unrecorded"), "", Some("g0 is odd")),
            ("held", "too_big_for_yard: a".to_owned(), Some("no_node"), "too_big_for_yard: a", None),
            ("held", format!("bulk; {told}"), Some("breaker"), "bulk", Some("g0 is odd")),
            ("cancelling", told.to_owned(), None, told, None),
        ];
        for (state, reason, ..) in &rows {
            let insert = sqlx::query("INSERT INTO jobs VALUES ($1, $2)").bind(state).bind(reason);
            insert.execute(&mut old).await.unwrap();
        }
        let migration = MIGRATIONS.iter().find(|m| m.description == "holds").expect("it is there");
        sqlx::raw_sql(migration.sql.clone()).execute(&mut old).await.unwrap();
        type Read = (Option<String>, String, Option<String>);
        let read: Vec<Read> = sqlx::query_as("SELECT hold, reason, unrecorded FROM jobs ORDER BY rowid")
            .fetch_all(&mut old)
            .await
            .unwrap();
        for ((.., hold, reason, unrecorded), read) in rows.iter().zip(read) {
            let read = (read.0.as_deref(), read.1.as_str(), read.2.as_deref());
            assert_eq!(read, (*hold, *reason, *unrecorded));
        }
    }
}
