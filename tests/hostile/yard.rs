//! A whole yard in this process: the real scheduler, the real executor on the container backend,
//! and jobs from text to sealed tables.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datasets::read::TableReader;
use executor::sandbox::container::{Container, ContainerConfig};
use executor::{Endpoint, Handle as ExecutorHandle};
use hyper_util::rt::TokioIo;
use libtest_mimic::Failed;
use rollout_wire::v1;
use rollout_wire::v1::jobs_client::JobsClient;
use scheduler::{Listener, Scheduler};
use tests::census::Census;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::lab::{Done, HANG_GUARD};
use crate::skips;

pub type Case = for<'a> fn(&'a Yard) -> Pin<Box<dyn Future<Output = Done> + 'a>>;

/// As `cases!`, for cases that need a yard.
#[macro_export]
macro_rules! yard_cases {
    ($($number:literal $name:ident),* $(,)?) => {
        pub const CASES: &[(&str, $crate::yard::Case)] =
            &[$((concat!("case_", $number, "_", stringify!($name)), |yard| Box::pin($name(yard)))),*];
    };
}

/// A row as text by column; null is absent.
pub type Row = BTreeMap<String, String>;

#[derive(Debug)]
pub struct Yard {
    pub dir: PathBuf,
    data_dir: PathBuf,
    blobs: blobs::BlobStore,
    executor: ExecutorHandle,
    scheduler: scheduler::Handle,
    stop: CancellationToken,
}

/// A finished job's rows.
#[derive(Debug)]
pub struct Rows {
    pub trajectories: Vec<Row>,
    pub steps: Vec<Row>,
    pub artifacts: Vec<Row>,
    /// Bytes that all attempts of the first rollout wrote to standard output, kept or not.
    pub stdout_written: u64,
}

const HONEST: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: honest
tasks: {from: {inline: [{n: "6"}]}}
group: {size: 1}
defaults: {image: host, timeout: 30s, resources: {memory: 128Mi, disk: 16Mi, pids: 64}}
steps:
  - {name: work, agent: {command: [sh, -c, "echo ok > answer"]}, outputs: [{name: answer, path: answer}]}
  - {name: grade, needs: [work], grader: {}, inputs: [{artifact: work.answer, path: /in/answer}],
     run: 'grep -qx ok /in/answer && echo 1 > /logs/verifier/reward.txt'}
"#;

pub fn run(name: &str, case: Case) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let dir = tempfile::tempdir()?;
    let top = dir.path().canonicalize()?;
    let done = runtime.block_on(async {
        let yard = Yard::start(&top).await?;
        yard.serves().await;
        let before = crate::lab::before(name, &yard.data_dir).await?.without_descriptors_of("executor");
        let done = tokio::time::timeout(HANG_GUARD, case(&yard)).await;
        let done = done.map_err(|_| Failed::from(format!("{name}: it hangs")))?;
        yard.serves().await;
        settled(name, &before, &yard.data_dir).await?;
        let data_dir = yard.data_dir.clone();
        yard.end().await?;
        crate::lab::nothing_left(name, &data_dir).await?;
        executor::census::remove_parents(&data_dir)?;
        Ok::<_, Failed>(done)
    })?;
    drop(runtime);
    dir.close()?;
    match done {
        Ok(()) => Ok(()),
        Err(skip) => skips::judge(name, &skip),
    }
}

/// The scheduler's own descriptors (database, clients) come and go in this process: the
/// executor's are counted by the cases without a yard.
async fn settled(name: &str, before: &Census, data_dir: &Path) -> Result<(), Failed> {
    let mut difference = None;
    for _ in 0..2_000 {
        difference = before.difference(&Census::take(data_dir)?.without_descriptors_of("executor"));
        if difference.is_none() {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    Err(Failed::from(format!("{name}: the census differs:\n{}", difference.unwrap_or_default())))
}

impl Yard {
    async fn start(dir: &Path) -> Result<Self, Failed> {
        let (data_dir, socket) = (dir.join("executor"), dir.join("yard.sock"));
        let stop = CancellationToken::new();
        let config = scheduler::Config::new(dir.join("scheduler"), "yard".parse()?);
        let listener = Listener::bind(&format!("unix:{}", socket.display())).await?;
        let scheduler = Scheduler::start(config, vec![listener], stop.clone()).await?;
        let blobs = blobs::BlobStore::open(&format!("file://{}/scheduler/blobs", dir.display()))?;
        let backend = Arc::new(Container::start(&ContainerConfig { data_dir: data_dir.clone() })?);
        let mut config = executor::Config::new("node-1".parse()?, &data_dir, Endpoint::Unix(socket));
        config.reserves = executor::config::Reserves { memory: rollout::Bytes(0), disk: rollout::Bytes(0) };
        let executor = executor::serve(config, backend, stop.child_token())?;
        Ok(Self { dir: dir.to_owned(), data_dir, blobs, executor, scheduler, stop })
    }

    async fn end(self) -> Result<(), Failed> {
        self.executor.shut_down();
        self.executor.join().await?;
        self.stop.cancel();
        self.scheduler.wait().await?;
        Ok(())
    }

    pub async fn client(&self) -> JobsClient<Channel> {
        let socket = self.dir.join("yard.sock");
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://yard");
        JobsClient::new(endpoint.connect_with_connector(connector).await.expect("the scheduler listens"))
    }

    /// An honest job is rewarded.
    async fn serves(&self) {
        let rows = self.run(HONEST).await;
        assert_eq!(rows.trajectories[0].get("reward").map(String::as_str), Some("1.0"), "{rows:?}");
    }

    /// Runs a job to its end and reads what was sealed.
    pub async fn run(&self, document: &str) -> Rows {
        let job = self.submit(document).await;
        self.finished(&job).await;
        let mut client = self.client().await;
        let tables = self.dir.join("tables");
        let read = |table| rows(&tables.join(&job).join(table));
        let trajectories = read("trajectories");
        let rollout = trajectories[0]["trajectory_id"].clone();
        let listed = client.list_steps(v1::ListStepsRequest { rollout }).await.unwrap().into_inner();
        let outputs = listed.steps.into_iter().filter_map(|step| step.outcome?.stdout);
        let stdout_written = outputs.map(|stdout| stdout.written_bytes).sum();
        Rows { trajectories, steps: read("steps"), artifacts: read("artifacts"), stdout_written }
    }

    /// The id of a job that was taken.
    pub async fn submit(&self, document: &str) -> String {
        let mut client = self.client().await;
        let request = v1::SubmitRequest {
            document: document.to_owned(),
            source_name: "case.yaml".to_owned(),
            table_root: self.dir.join("tables").display().to_string(),
            idempotency_key: format!("k{:x}", rand::random::<u64>()),
            ..v1::SubmitRequest::default()
        };
        let reply = client.submit(request).await.expect("the job is taken").into_inner();
        reply.job.expect("a job").id
    }

    /// Waits for the end of a job.
    pub async fn finished(&self, job: &str) {
        let request = v1::GetRequest { job: job.to_owned() };
        let mut stream = self.client().await.watch(request).await.unwrap().into_inner();
        while let Some(seen) = stream.message().await.expect("the scheduler lives") {
            if seen.finished_at_us.is_some() {
                break;
            }
        }
    }

    pub async fn blob(&self, sha256: &str) -> Vec<u8> {
        self.blobs.get(sha256, 1 << 30).await.expect("the blob is there").to_vec()
    }
}

impl Rows {
    /// The one rollout's reward, and its failure's code and domain.
    pub fn verdict(&self) -> (Option<f64>, Option<&str>, Option<&str>) {
        let [row] = &self.trajectories[..] else { panic!("{} rollouts", self.trajectories.len()) };
        let text = |name| row.get(name).map(String::as_str);
        (text("reward").map(|reward| reward.parse().unwrap()), text("failure_code"), text("failure_domain"))
    }

    pub fn step(&self, name: &str) -> &Row {
        let found = self.steps.iter().rfind(|row| row.get("step_name").is_some_and(|known| known == name));
        found.unwrap_or_else(|| panic!("no step {name}: {:?}", self.steps))
    }
}

/// Every row the reader takes, which checks shards and rules; scalars as text.
fn rows(dir: &Path) -> Vec<Row> {
    let mut found = Vec::new();
    for batch in TableReader::open(dir).expect("a table").batches() {
        let batch = batch.expect("a valid batch");
        for at in 0..batch.num_rows() {
            let mut row = Row::new();
            for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                if column.is_null(at) {
                    continue;
                }
                if let Ok(text) = cast(column, &DataType::Utf8) {
                    row.insert(field.name().clone(), text.as_string::<i32>().value(at).to_owned());
                }
            }
            found.push(row);
        }
    }
    found
}
