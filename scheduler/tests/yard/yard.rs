//! One scheduler in a directory of its own, on a runtime of its own, so that it can be killed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use datasets::read::{Summary, summary};
use hyper_util::rt::TokioIo;
use rollout_wire::v1;
use rollout_wire::v1::jobs_client::JobsClient;
use scheduler::store::CommitHook;
use scheduler::{Config, Error, Handle, Listener, ScheduleClock, Scheduler};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

/// A guard against hangs only.
pub const HANG: Duration = Duration::from_secs(60);

pub struct Yard {
    pub dir: PathBuf,
    pub hook: Option<CommitHook>,
    pub blobs: Option<String>,
    pub reconcile_every: Duration,
    pub client_stall: Duration,
    pub reader_stall: Duration,
    pub clock: ScheduleClock,
}

pub struct Running {
    pub stop: CancellationToken,
    pub handle: Handle,
}

impl Yard {
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            hook: None,
            blobs: None,
            reconcile_every: Duration::from_millis(200),
            client_stall: Duration::from_secs(30),
            reader_stall: Duration::from_secs(3_600),
            clock: ScheduleClock::default(),
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("yard.sock")
    }

    pub fn tables(&self) -> PathBuf {
        self.dir.join("tables")
    }

    pub async fn try_start(&self) -> Result<Running, Error> {
        let config = config(self);
        let listener = Listener::bind(&format!("unix:{}", self.socket().display())).await?;
        let stop = CancellationToken::new();
        let handle = Scheduler::start(config, vec![listener], stop.clone()).await?;
        Ok(Running { stop, handle })
    }

    pub async fn start(&self) -> Running {
        self.try_start().await.expect("the scheduler starts")
    }

    pub async fn client(&self) -> JobsClient<Channel> {
        JobsClient::new(channel(&self.socket()).await)
    }

    /// Takes no more than a little ahead of its reader, whatever the transport would like.
    pub async fn narrow_client(&self) -> JobsClient<Channel> {
        JobsClient::new(self.narrow_channel().await)
    }

    pub async fn narrow_channel(&self) -> Channel {
        let narrow = Endpoint::from_static("http://yard").initial_stream_window_size(65_535);
        connect(&self.socket(), narrow).await
    }

    pub fn summary(&self, job: &str) -> Summary {
        summary(&self.tables().join(job)).expect("the tables are readable")
    }
}

fn config(yard: &Yard) -> Config {
    let mut config = Config::new(yard.dir.join("data"), "yard".parse().unwrap());
    config.blobs = yard.blobs.clone();
    config.commit_hook = yard.hook.clone();
    config.reconcile_every = yard.reconcile_every;
    config.client_stall = yard.client_stall;
    config.reader_stall = yard.reader_stall;
    config.schedule_clock = yard.clock.clone();
    config
}

impl Running {
    pub async fn stop(self) {
        self.stop.cancel();
        self.handle.wait().await.expect("a clean end");
    }
}

/// Waits until somebody listens there: a scheduler may be on its way up.
pub async fn channel(socket: &Path) -> Channel {
    connect(socket, Endpoint::from_static("http://yard")).await
}

async fn connect(socket: &Path, endpoint: Endpoint) -> Channel {
    let socket = socket.to_owned();
    let connect = async {
        loop {
            let path = socket.clone();
            let connector = tower::service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            match endpoint.connect_with_connector(connector).await {
                Ok(channel) => return channel,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(HANG, connect).await.expect("a scheduler listens")
}

pub const HELLO: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: hello
tasks: {from: {inline: [{n: "6", want: "42"}, {n: "7", want: "49"}]}}
group: {size: 4, on_incomplete: deliver}
defaults: {image: host, timeout: 30s}
steps:
  - {name: work, env: {N: "${row.n}"}, run: "echo $((N * 7)) > answer", outputs: [{name: answer, path: answer}]}
  - {name: grade, needs: [work], env: {WANT: "${row.want}"}, grader: {reward_file: /logs/verifier/reward.txt},
     inputs: [{artifact: work.answer, path: /in/answer}],
     run: 'if grep -qx "$WANT" /in/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'}
"#;

/// Rollouts of [`HELLO`].
pub const HELLO_ROLLOUTS: u64 = 8;

pub fn hello(yard: &Yard, key: &str) -> v1::SubmitRequest {
    v1::SubmitRequest {
        document: HELLO.to_owned(),
        source_name: "hello.yaml".to_owned(),
        table_root: yard.tables().display().to_string(),
        idempotency_key: key.to_owned(),
        ..v1::SubmitRequest::default()
    }
}

/// Watches a job until it is final, over as many schedulers as that takes.
pub async fn finished(yard: &Yard, job: &str) -> v1::Job {
    let watch = async {
        loop {
            let mut client = yard.client().await;
            let request = v1::GetRequest { job: job.to_owned() };
            let Ok(stream) = client.watch(request).await else { continue };
            let mut stream = stream.into_inner();
            while let Ok(Some(job)) = stream.message().await {
                if job.finished_at_us.is_some() {
                    return job;
                }
            }
        }
    };
    tokio::time::timeout(HANG, watch).await.expect("the job ends")
}

pub fn code(status: &tonic::Status) -> &str {
    let code = status.metadata().get(rollout_wire::CODE_METADATA);
    code.and_then(|code| code.to_str().ok()).unwrap_or_default()
}
