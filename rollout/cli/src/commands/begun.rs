//! Waiting for sandboxes that were asked for: why it takes long, and what is left after Ctrl-C.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use rollout::JobId;
use rollout_wire::CODE_METADATA;
use rollout_wire::v1::{CreateSandboxRequest, ExplainRequest, GetSandboxRequest, KillSandboxesRequest};
use tokio::time::Instant;

use super::Context;
use crate::args::OutputFormat;
use crate::client::Client;
use crate::error::Error;
use crate::interrupt::Signals;

/// What takes longer is explained.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// How often it is asked then whether the reason is another one.
const NEXT_WORD: Duration = Duration::from_secs(3);
/// How long what was begun may take to show itself after Ctrl-C; then the request is taken back.
const SHOWN_MAX: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// No checkpoint has this name: a request for it creates nothing.
const NO_CHECKPOINT: &str = "none";
const KEY_IN_USE: &str = "idempotency_request_mismatch";

/// A call to the yard that answers when sandboxes are ready.
pub type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// The keys of sandboxes that were asked for.
#[derive(Debug)]
pub struct Begun<'a> {
    pub context: &'a Context,
    pub client: &'a Client,
    pub keys: Vec<String>,
    /// What the yard is at before there is anything to explain.
    pub first: Option<String>,
    /// Nobody else knows the keys, so that all of it was begun here.
    pub is_own: bool,
}

impl Begun<'_> {
    /// The answer of `call`. What waits is explained; at Ctrl-C it is ended.
    pub async fn wait<T>(&self, mut call: Call<'_, T>) -> Result<T, Error> {
        let mut signals = Signals::listen()?;
        let mut said = Vec::new();
        let mut next = Instant::now() + FIRST_WORD;
        loop {
            let explain = async {
                tokio::time::sleep_until(next).await;
                self.why().await
            };
            tokio::select! {
                reply = &mut call => return reply,
                () = signals.any() => break,
                lines = explain => {
                    if lines != said && !lines.is_empty() && self.context.format != OutputFormat::Json {
                        self.context.talk.say(&lines.join("\n"));
                        said = lines;
                    }
                }
            }
            next = Instant::now() + NEXT_WORD;
        }
        if !self.is_own {
            self.context.talk.say("what was begun goes on: the same --idempotency-key gives it again");
            return Err(Error::Interrupted);
        }
        self.context.talk.say("interrupted: ending what was begun");
        tokio::select! {
            ended = self.end(call) => ended?,
            () = signals.any() => {}
        }
        Err(Error::Interrupted)
    }

    /// Why the first of them that is not ready is not.
    async fn why(&self) -> Vec<String> {
        let mut is_stored = false;
        for key in &self.keys {
            let Some(job) = self.job_of(key).await else { continue };
            is_stored = true;
            let sandbox = name(job);
            let Ok(told) = self.client.sandboxes().get(GetSandboxRequest { sandbox: sandbox.clone() }).await
            else {
                continue;
            };
            if !matches!(told.into_inner().state.as_str(), "waiting" | "starting") {
                continue;
            }
            let request = ExplainRequest { target: job.to_string() };
            // What cannot be explained is waited for all the same.
            let Ok(reply) = self.client.jobs().explain(request).await else { continue };
            let mut lines = vec![format!("waiting for {sandbox}:")];
            let shown = |line: &String| format!("  {}", rollout::text::shown(line, 400));
            lines.extend(reply.into_inner().lines.iter().map(shown));
            return lines;
        }
        self.first.iter().filter(|_| !is_stored).cloned().collect()
    }

    /// The job of a key, once it is stored: the yard names it when it refuses another request.
    async fn job_of(&self, key: &str) -> Option<JobId> {
        let other = CreateSandboxRequest {
            idempotency_key: key.to_owned(),
            checkpoint: NO_CHECKPOINT.to_owned(),
            ..CreateSandboxRequest::default()
        };
        let refused = self.client.sandboxes().create(other).await.err()?;
        let code = refused.metadata().get(CODE_METADATA)?.to_str().ok()?;
        if code != KEY_IN_USE {
            return None;
        }
        refused.message().split_whitespace().find_map(|word| word.parse().ok())
    }

    async fn end<T>(&self, call: Call<'_, T>) -> Result<(), Error> {
        let mut call = Some(call);
        let mut ended: BTreeSet<String> = BTreeSet::new();
        let until = Instant::now() + SHOWN_MAX;
        loop {
            // Nothing more is begun when the call is over: this look is the last.
            let is_last = call.is_none();
            let mut jobs = BTreeMap::new();
            for key in self.keys.iter().filter(|key| !ended.contains(*key)) {
                if let Some(job) = self.job_of(key).await {
                    jobs.insert(key.clone(), name(job));
                }
            }
            if !jobs.is_empty() {
                let request = KillSandboxesRequest {
                    sandboxes: jobs.values().cloned().collect(),
                    reason: "interrupted".to_owned(),
                    ..KillSandboxesRequest::default()
                };
                let reply = self.client.done(self.client.sandboxes().kill(request).await)?;
                for one in reply.killed {
                    self.context.talk.say(&format!("ended {}", rollout::text::shown(&one, 200)));
                }
                ended.extend(jobs.into_keys());
            }
            if is_last || ended.len() == self.keys.len() {
                return Ok(());
            }
            let is_over = match &mut call {
                _ if Instant::now() >= until => true,
                Some(call) => tokio::time::timeout(LOOK_AGAIN, call).await.is_ok(),
                None => true,
            };
            if is_over {
                call = None;
            }
        }
    }
}

/// A sandbox of a client is the one rollout of its job.
fn name(job: JobId) -> String {
    format!("{job}-g0-s0")
}
