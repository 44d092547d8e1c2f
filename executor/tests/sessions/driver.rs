//! A driver: starts sessions through the scheduler's side of the wire, and calls the executor's socket.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use executor::census;
use executor::sandbox::container::{Container, ContainerConfig};
use rollout_wire::v1::sandboxes_client::SandboxesClient;
use rollout_wire::v1::{self, act_request::Payload, command, run_command};
use rollout_wire::{CODE_METADATA, HINT_METADATA};
use tonic::Status;
use tonic::transport::Channel;

use crate::yard::{Yard, attempt, order};

pub type HostYard = Yard<Container>;
pub type Test = for<'a> fn(&'a mut Lab) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// How long a broker may take to clean up after its executor: a hang guard.
const CLEAN_UP: Duration = Duration::from_secs(60);
/// Far beyond what any test needs.
const HANG_GUARD: Duration = Duration::from_secs(300);

/// A test table entry from an async function.
#[macro_export]
macro_rules! sessions {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[(&str, $crate::driver::Test)] =
            &[$((stringify!($name), |lab| Box::pin($name(lab)))),*];
    };
}

pub struct Lab {
    pub yard: HostYard,
    pub client: Client,
    samples: u32,
}

pub type Client = SandboxesClient<Channel>;

pub async fn connect(data_dir: &std::path::Path) -> Client {
    let url = format!("unix://{}", data_dir.join("sandboxes.sock").display());
    let channel = tonic::transport::Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    SandboxesClient::new(channel)
}

/// Runs a test on a backend of its own, and requires an empty census at its end.
pub fn run(test: Test) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    // The directory must outlive the broker's clean-up: removed below.
    let kept = dir.keep();
    runtime.block_on(async {
        let yard = host_yard(&data_dir).await;
        let client = connect(&data_dir).await;
        let mut lab = Lab { yard, client, samples: 0 };
        tokio::time::timeout(HANG_GUARD, test(&mut lab)).await.expect("hang guard");
        drop(lab.client);
        lab.yard.end().await;
        let census = census::take(&data_dir).unwrap();
        assert!(census.holds_no_sandbox(), "left while the broker lives: {census}");
    });
    drop(runtime);
    assert_empty(&data_dir);
    census::remove_parents(&data_dir).expect("the parents are empty");
    std::fs::remove_dir_all(kept).unwrap();
}

pub async fn host_yard(data_dir: &std::path::Path) -> HostYard {
    let backend = Container::start(&ContainerConfig { data_dir: data_dir.into() }).expect("a backend");
    let dir = tempfile::tempdir().unwrap();
    Yard::start_on(backend, dir, |config| config.data_dir = data_dir.into()).await
}

pub fn assert_empty(data_dir: &std::path::Path) {
    let deadline = Instant::now() + CLEAN_UP;
    loop {
        let census = census::take(data_dir).unwrap();
        if census.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left: {census}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An order of a small session.
pub fn session(sample: u32) -> v1::StartAttempt {
    let mut order = order("session", "");
    order.attempt = Some(attempt(sample, 0));
    let step = order.step.as_mut().unwrap();
    step.command = None;
    step.session = Some(v1::SessionStep {
        idle_timeout_ms: 600_000,
        max_actions: None,
        takes_reward: true,
        unclaimed: false,
    });
    let resources = step.resources.as_mut().unwrap();
    (resources.request_memory_bytes, resources.limit_memory_bytes) = (128 << 20, 128 << 20);
    (resources.request_disk_bytes, resources.limit_disk_bytes) = (16 << 20, 16 << 20);
    resources.limit_pids = 64;
    order
}

/// A sandbox that is driven.
#[derive(Clone)]
pub struct Driven {
    pub client: Client,
    pub name: String,
    pub claim: String,
}

impl Lab {
    pub fn sample(&mut self) -> u32 {
        self.samples += 1;
        self.samples
    }

    /// One that a client created: nobody has to claim it.
    pub async fn sandbox(&mut self) -> Driven {
        self.sandbox_with(|_| {}).await
    }

    pub async fn sandbox_with(&mut self, change: impl FnOnce(&mut v1::Step)) -> Driven {
        let mut order = session(self.sample());
        order.step.as_mut().unwrap().session.as_mut().unwrap().unclaimed = true;
        change(order.step.as_mut().unwrap());
        self.started(order, "").await
    }

    /// A session step, claimed.
    pub async fn session_with(&mut self, change: impl FnOnce(&mut v1::Step)) -> Driven {
        let mut order = session(self.sample());
        change(order.step.as_mut().unwrap());
        let driven = self.started(order, "").await;
        let rollout = driven.name.split('@').next().unwrap().to_owned();
        let claimed = self.claim(&rollout, "driver").await.expect("it is free");
        assert_eq!((claimed.sandbox.as_str(), claimed.step.as_str()), (driven.name.as_str(), "solve"));
        Driven { claim: claimed.claim, ..driven }
    }

    pub async fn started(&mut self, order: v1::StartAttempt, claim: &str) -> Driven {
        let rollout = order.attempt.clone().unwrap().rollout;
        self.yard.send(command::Kind::Start(order)).await;
        self.yard.started().await;
        let name = format!("{rollout}@node-1");
        Driven { client: self.client.clone(), name, claim: claim.to_owned() }
    }

    pub async fn claim(&mut self, rollout: &str, driver: &str) -> Option<v1::Session> {
        let request = v1::ClaimSessionRequest {
            driver: driver.to_owned(),
            ttl_ms: 600_000,
            rollout: rollout.to_owned(),
            ..v1::ClaimSessionRequest::default()
        };
        self.client.claim(request).await.unwrap().into_inner().session
    }

    /// Ends it by its driver's word, and gives its outcome.
    pub async fn finish(&mut self, driven: &Driven) -> v1::Outcome {
        self.finish_with(driven, None, "").await.expect("it can be finished");
        self.yard.ended().await.outcome.unwrap()
    }

    pub async fn finish_with(
        &mut self,
        driven: &Driven,
        reward: Option<f64>,
        problem: &str,
    ) -> Result<(), Status> {
        let request = v1::FinishSessionRequest {
            sandbox: driven.name.clone(),
            claim: driven.claim.clone(),
            reward,
            turn_rewards: Vec::new(),
            problem: problem.to_owned(),
        };
        self.client.finish(request).await.map(drop)
    }
}

pub fn shell(text: &str) -> Payload {
    let command = Some(run_command::Command::Shell(text.to_owned()));
    Payload::Run(v1::RunCommand { command, ..v1::RunCommand::default() })
}

pub fn in_shell(name: &str, text: &str, timeout_ms: Option<u64>) -> Payload {
    let command = Some(run_command::Command::Shell(text.to_owned()));
    let in_shell = name.to_owned();
    Payload::Run(v1::RunCommand { command, in_shell, timeout_ms, ..v1::RunCommand::default() })
}

impl Driven {
    pub fn request(&self, id: &str, payload: Payload) -> v1::ActRequest {
        v1::ActRequest {
            sandbox: self.name.clone(),
            claim: self.claim.clone(),
            action_id: id.to_owned(),
            payload: Some(payload),
        }
    }

    pub async fn act(&self, id: &str, payload: Payload) -> Result<v1::ActReply, Status> {
        let request = self.request(id, payload);
        self.client.clone().act(request).await.map(tonic::Response::into_inner)
    }

    /// The result of a new action.
    pub async fn done(&self, id: &str, payload: Payload) -> v1::ActResult {
        let reply = self.act(id, payload).await.expect("it is done");
        assert_eq!((reply.state.as_str(), reply.repeated), ("done", false), "{reply:?}");
        reply.result.unwrap()
    }

    /// What a script that must succeed writes to its standard output.
    pub async fn said(&self, id: &str, script: &str) -> String {
        let result = self.done(id, shell(script)).await;
        assert_eq!(result.exit_code, Some(0), "{script}: {result:?}");
        String::from_utf8(result.stdout).unwrap().trim_end().to_owned()
    }

    pub async fn stat(&self, path: &str) -> Result<v1::FileInfo, Status> {
        let request = v1::StatFileRequest {
            sandbox: self.name.clone(),
            claim: self.claim.clone(),
            path: path.to_owned(),
        };
        self.client.clone().stat_file(request).await.map(tonic::Response::into_inner)
    }
}

/// The stable code of a refusal.
pub fn code(status: &Status) -> &str {
    let text = |key: &str| status.metadata().get(key).map(|value| value.to_str().unwrap());
    assert!(text(HINT_METADATA).is_none_or(|hint| !hint.is_empty()));
    text(CODE_METADATA).unwrap_or_else(|| panic!("no code: {status:?}"))
}

pub fn failure(outcome: &v1::Outcome) -> &str {
    outcome.failure.as_ref().map_or("", |failure| &failure.code)
}
