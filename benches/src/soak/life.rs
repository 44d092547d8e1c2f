//! One sandbox: made, driven by one of several plans, and mostly ended.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_wire::{CODE_METADATA, v1};
use tonic::{Code, Status};

use super::{IDLE, LABEL, Mark, NUMBER, Run, Seen};
use crate::yard::{shell, small};

/// How long a call is repeated while parts of the yard are away: a hang guard.
const PATIENCE: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(50);
/// Of those that idle out.
const IDLE_MS: u64 = 2_000;
/// Codes of a call that may be sent again: the sandbox is neither there nor gone.
const LATER: &[&str] =
    &["node_lost", "sandbox_not_ready", "stopping", "store_busy", "too_many_calls", "too_many_sandbox_calls"];
/// Codes of a call on a sandbox that has ended.
const OVER: &[&str] = &["sandbox_ended", "sandbox_gone"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Work,
    KilledAtWork,
    OutOfMemory,
    Forked,
    Paused,
    PausedAndResumedAtOnce,
    LeftIdle,
    Left,
}

const PLANS: [Plan; 8] = [
    Plan::Work,
    Plan::KilledAtWork,
    Plan::OutOfMemory,
    Plan::Forked,
    Plan::Paused,
    Plan::PausedAndResumedAtOnce,
    Plan::LeftIdle,
    Plan::Left,
];

/// How a call ended that was not answered as asked.
#[derive(Debug)]
enum Cut {
    /// The sandbox has ended.
    Over,
    /// An action was in flight when its executor died: whether it was done is not known.
    Unknown,
    /// Something else, which should not be.
    Wrong(String),
}

impl Cut {
    /// Whether it is what was done to the yard since then: a sandbox may be lost with its broker, and an
    /// action breaks off with its executor too.
    fn is_due(&self, run: &Run, since: Mark) -> bool {
        match self {
            Self::Over => run.may_be_lost_since(since),
            Self::Unknown => run.may_break_off_since(since),
            Self::Wrong(_) => false,
        }
    }
}

/// The stable code of a refusal; empty: the connection broke.
fn code(status: &Status) -> String {
    let code = status.metadata().get(CODE_METADATA).and_then(|code| code.to_str().ok());
    code.unwrap_or_default().to_owned()
}

fn is_broken(status: &Status) -> bool {
    code(status).is_empty()
        && matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal)
}

/// Repeats a call until it is answered; the yard makes out what it was asked before.
async fn answered<T, F>(run: &Run, what: &str, mut call: impl FnMut() -> F) -> Result<T, Cut>
where
    F: Future<Output = Result<tonic::Response<T>, Status>>,
{
    let begun = Instant::now();
    loop {
        let status = match call().await {
            Ok(reply) => return Ok(reply.into_inner()),
            Err(status) => status,
        };
        let code = code(&status);
        run.count(&format!("{what}: {}", if code.is_empty() { "broken" } else { &code }));
        if OVER.contains(&code.as_str()) {
            return Err(Cut::Over);
        }
        if !(is_broken(&status) || LATER.contains(&code.as_str())) {
            return Err(Cut::Wrong(format!("{what}: {code}: {}", status.message())));
        }
        if begun.elapsed() > PATIENCE {
            return Err(Cut::Wrong(format!("{what}: no answer in {PATIENCE:?}: {}", status.message())));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A sandbox that this worker has.
struct Held<'a> {
    run: &'a Run,
    number: String,
    id: String,
    /// Of its actions.
    next: usize,
}

/// Lives the life of sandbox `n`, and notes what became of it.
pub async fn live(run: &Run, n: usize) {
    let mut rng = StdRng::seed_from_u64(run.seed.wrapping_mul(1_000_003).wrapping_add(n as u64));
    let plan = PLANS[rng.random_range(0..PLANS.len())];
    let mark = run.mark();
    let number = n.to_string();
    let mut request = small(&format!("soak-{n}"), &run.image);
    request.labels = [(LABEL.to_owned(), run.seed.to_string()), (NUMBER.to_owned(), number.clone())].into();
    if plan == Plan::LeftIdle {
        request.labels.insert(IDLE.to_owned(), "yes".to_owned());
    }
    request.limit_memory = "48Mi".to_owned();
    request.idle_timeout_ms = Some(if plan == Plan::LeftIdle { IDLE_MS } else { 600_000 });
    let made = create(run, &request).await;
    let (id, is_killed) = match made {
        Ok(sandbox) => {
            let mut held = Held { run, number: number.clone(), id: sandbox.id.clone(), next: 0 };
            let cut = held.follow(plan, &mut rng).await;
            let is_left = matches!(plan, Plan::LeftIdle | Plan::Left);
            match cut {
                Ok(()) => {}
                Err(Cut::Wrong(what)) => run.wrong(format!("{number} ({plan:?}, {}): {what}", sandbox.id)),
                Err(cut) if cut.is_due(run, mark) => {}
                Err(Cut::Over) if plan == Plan::LeftIdle => {}
                Err(cut) => run.wrong(format!("{number} ({plan:?}, {}): {cut:?} undisturbed", sandbox.id)),
            }
            if !is_left {
                held.kill().await;
            }
            (Some(sandbox.id), !is_left)
        }
        Err(what) => {
            if !run.may_be_lost_since(mark) {
                run.wrong(format!("{number} ({plan:?}) was not made, undisturbed: {what}"));
            }
            (None, false)
        }
    };
    run.see(&number, Seen { id, may_be_lost: run.may_be_lost_since(mark), is_killed });
}

/// Whether a sandbox can be made and works.
pub async fn probe(run: &Run, k: usize) -> bool {
    let (number, mark) = (format!("probe-{k}"), run.mark());
    let mut request = small(&format!("soak-{number}"), &run.image);
    request.labels = [(LABEL.to_owned(), run.seed.to_string()), (NUMBER.to_owned(), number.clone())].into();
    let (id, works) = match create(run, &request).await {
        Ok(sandbox) => {
            let mut held = Held { run, number: number.clone(), id: sandbox.id.clone(), next: 0 };
            let works = held.line().await.is_ok();
            held.kill().await;
            (Some(sandbox.id), works)
        }
        Err(_) => (None, false),
    };
    run.see(&number, Seen { id, may_be_lost: run.may_be_lost_since(mark), is_killed: true });
    works
}

/// A ready sandbox, or the code of why there is none.
async fn create(run: &Run, request: &v1::CreateSandboxRequest) -> Result<v1::Sandbox, String> {
    let begun = Instant::now();
    loop {
        let status = match run.client.sandboxes.clone().create(request.clone()).await {
            Ok(reply) => return Ok(reply.into_inner()),
            Err(status) => status,
        };
        let code = code(&status);
        run.count(&format!("create: {}", if code.is_empty() { "broken" } else { &code }));
        let ended = ["sandbox_not_started", "sandbox_start_timeout"].contains(&code.as_str());
        if ended || OVER.contains(&code.as_str()) {
            return Err(format!("{code}: {}", status.message()));
        }
        if !(is_broken(&status) || LATER.contains(&code.as_str())) || begun.elapsed() > PATIENCE {
            run.wrong(format!("create {}: {code}: {}", request.idempotency_key, status.message()));
            return Err(code);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Held<'_> {
    async fn follow(&mut self, plan: Plan, rng: &mut StdRng) -> Result<(), Cut> {
        match plan {
            Plan::Work | Plan::Left | Plan::LeftIdle => {
                for _ in 0..rng.random_range(1..4) {
                    self.line().await?;
                }
                Ok(())
            }
            Plan::KilledAtWork => self.killed_at_work(rng.random_range(0..300)).await,
            Plan::OutOfMemory => {
                let reply = self.act("tail /dev/zero").await?;
                let result = reply.result.unwrap_or_default();
                if result.exit_code == Some(0) {
                    return Err(Cut::Wrong("it ran out of memory and ended well".to_owned()));
                }
                self.line().await
            }
            Plan::Forked => self.fork(rng.random_range(1..3)).await,
            Plan::Paused => {
                self.line().await?;
                self.pause().await?;
                self.line().await
            }
            Plan::PausedAndResumedAtOnce => {
                for _ in 0..rng.random_range(1..4) {
                    self.race(rng).await?;
                }
                self.line().await
            }
        }
    }

    /// One action of the next id.
    async fn act(&mut self, text: &str) -> Result<v1::ActReply, Cut> {
        let action = format!("a-{}", self.next);
        self.next += 1;
        self.send(&shell(&self.id, &action, text)).await
    }

    async fn send(&self, request: &v1::ActRequest) -> Result<v1::ActReply, Cut> {
        let client = &self.run.client.sandboxes;
        let reply = answered(self.run, "act", || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.act(request).await }
        })
        .await?;
        if reply.state == "unknown" {
            return Err(Cut::Unknown);
        }
        match reply.result.as_ref().map_or("", |result| result.code.as_str()) {
            "" => Ok(reply),
            code if OVER.contains(&code) => Err(Cut::Over),
            code => Err(Cut::Wrong(format!("act: {code}: {reply:?}"))),
        }
    }

    /// Writes a line of its own, and counts it: 1, and 1 again when the same action is asked for again.
    async fn line(&mut self) -> Result<(), Cut> {
        let (action, number) = (format!("a-{}", self.next), &self.number);
        let text = format!("echo {number}/{action} >> lines; grep -cx {number}/{action} lines");
        self.next += 1;
        let request = shell(&self.id, &action, &text);
        for _ in 0..2 {
            let reply = self.send(&request).await?;
            let result = reply.result.clone().unwrap_or_default();
            if result.stdout != b"1\n" || result.exit_code != Some(0) {
                return Err(Cut::Wrong(format!("{action}: {reply:?}")));
            }
        }
        Ok(())
    }

    async fn killed_at_work(&mut self, after_ms: u64) -> Result<(), Cut> {
        let other = Held { run: self.run, number: self.number.clone(), id: self.id.clone(), next: 0 };
        let kill = async {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            other.kill().await;
        };
        let (answer, ()) = tokio::join!(self.act("sleep 100; echo late"), kill);
        match answer {
            Err(Cut::Over | Cut::Unknown) => Ok(()),
            Err(wrong) => Err(wrong),
            Ok(reply) => {
                let result = reply.result.clone().unwrap_or_default();
                if result.exit_code == Some(0) || !result.stdout.is_empty() {
                    return Err(Cut::Wrong(format!("it was killed and ended well: {reply:?}")));
                }
                Ok(())
            }
        }
    }

    async fn fork(&mut self, count: u32) -> Result<(), Cut> {
        let begun = self.run.mark();
        let mark = format!("mark of {}", self.number);
        self.act(&format!("echo {mark} > mark")).await?;
        let labels = |run: &Run, number: &str| {
            let pairs =
                [(LABEL, run.seed.to_string()), (NUMBER, number.to_owned()), ("fork", "yes".to_owned())];
            pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
        };
        let request = v1::ForkSandboxRequest {
            sandbox: self.id.clone(),
            count,
            idempotency_key: format!("soak-{}-fork", self.number),
            labels: labels(self.run, &format!("{}-fork", self.number)),
        };
        let client = &self.run.client.sandboxes;
        let reply = answered(self.run, "fork", || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.fork(request).await }
        })
        .await;
        let reply = match reply {
            // One of the new ones did not start, or the old one was away.
            Err(Cut::Wrong(_)) if self.run.may_be_lost_since(begun) => return Err(Cut::Over),
            other => other?,
        };
        if reply.sandboxes.len() != count as usize {
            return Err(Cut::Wrong(format!("{count} forks were asked for: {reply:?}")));
        }
        for sandbox in reply.sandboxes {
            let number = format!("{}-fork", self.number);
            let mut fork = Held { run: self.run, number, id: sandbox.id.clone(), next: 0 };
            let told = match fork.act("cat mark").await {
                Ok(reply) => {
                    let result = reply.result.clone().unwrap_or_default();
                    let is_right = result.stdout == format!("{mark}\n").into_bytes();
                    if is_right {
                        fork.line().await
                    } else {
                        Err(Cut::Wrong(format!("of a fork: {reply:?}")))
                    }
                }
                Err(cut) => Err(cut),
            };
            fork.kill().await;
            match told {
                Ok(()) => {}
                Err(cut) if cut.is_due(self.run, begun) => {}
                Err(cut) => return Err(Cut::Wrong(format!("fork {}: {cut:?}", sandbox.id))),
            }
        }
        self.line().await
    }

    async fn pause(&self) -> Result<(), Cut> {
        let client = &self.run.client.sandboxes;
        let request = v1::PauseSandboxRequest { sandbox: self.id.clone(), ..Default::default() };
        let reply = answered(self.run, "pause", || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.pause(request).await }
        })
        .await?;
        self.run.count(&format!("paused: {}", reply.rung));
        Ok(())
    }

    async fn resume(&self) -> Result<(), Cut> {
        let client = &self.run.client.sandboxes;
        let request = v1::ResumeSandboxRequest { sandbox: self.id.clone(), ..Default::default() };
        answered(self.run, "resume", || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.resume(request).await }
        })
        .await
        .map(drop)
    }

    /// Pauses and resumes it at once, while it works.
    async fn race(&mut self, rng: &mut StdRng) -> Result<(), Cut> {
        let late = |rng: &mut StdRng| Duration::from_millis(rng.random_range(0..20));
        let waits = [late(rng), late(rng), late(rng)];
        let other = Held { run: self.run, number: self.number.clone(), id: self.id.clone(), next: 0 };
        let pauses_and_resumes = async {
            let (first, second, third) = tokio::join!(
                async {
                    tokio::time::sleep(waits[0]).await;
                    other.pause().await
                },
                async {
                    tokio::time::sleep(waits[1]).await;
                    other.resume().await
                },
                async {
                    tokio::time::sleep(waits[2]).await;
                    other.pause().await
                },
            );
            // An action that was paused goes on when somebody says so, or with the next call.
            first.and(second).and(third).and(other.resume().await)
        };
        let (others, line) = tokio::join!(pauses_and_resumes, self.line());
        line.and(others)
    }

    /// Ends it; that it has ended already is as good.
    async fn kill(&self) {
        let client = &self.run.client.sandboxes;
        let request = v1::KillSandboxesRequest {
            sandboxes: vec![self.id.clone()],
            reason: "soak".to_owned(),
            ..v1::KillSandboxesRequest::default()
        };
        let reply = answered(self.run, "kill", || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.kill(request).await }
        })
        .await;
        match reply {
            Err(Cut::Wrong(what)) => self.run.wrong(format!("{}: {what}", self.id)),
            Ok(reply) if !reply.failed.is_empty() => {
                self.run.wrong(format!("kill of {}: {:?}", self.id, reply.failed));
            }
            _ => {}
        }
    }
}
