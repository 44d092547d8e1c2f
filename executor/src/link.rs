//! The link to the scheduler: one bidirectional stream, attached again whenever it breaks.
//!
//! Heartbeats have a task and a queue of their own and go first: neither a burst of reports nor a
//! slow disk can starve them. What a broken link loses is told again by the agent after the next
//! attach, so nothing is buffered across links.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, PollNext, Stream, StreamExt as _, select_with_strategy};
use rand::Rng as _;
use rollout::{IncarnationId, Millis};
use rollout_wire::v1::nodes_client::NodesClient;
use rollout_wire::{MESSAGE_BYTES_MAX, v1};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::capacity::Vitals;
use crate::clock::boot_now;
use crate::lease::{Heartbeats, Lease};
use crate::messages::{self, Command};
use crate::storage::{Storage, StorageError, chain};
use crate::{Config, Endpoint, Error};

/// Reports that wait for the link. A scheduler that lets them pile up is attached to anew.
pub(crate) const REPORT_QUEUE_MAX: usize = 8_192;
/// Commands that wait for the agent.
pub(crate) const COMMAND_QUEUE_MAX: usize = 1_024;
/// Reports of one message: with the largest of each it stays below the wire's message bound. A list
/// of what is held is larger and has a message of its own.
const REPORTS_PER_MESSAGE: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// At the end: for the scheduler to take the last reports.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What the agent hears from the link.
#[derive(Debug)]
pub(crate) enum FromLink {
    /// The link wants to attach. Answered when this incarnation may serve.
    Opening(oneshot::Sender<Opening>),
    Up(Session),
    Down,
    Command(Command),
}

/// Who attaches, with what.
#[derive(Debug)]
pub(crate) struct Opening {
    pub incarnation: IncarnationId,
    pub hello: v1::Hello,
}

/// An attached link, for the agent.
#[derive(Debug)]
pub(crate) struct Session {
    /// Whose hello was welcomed.
    pub incarnation: IncarnationId,
    pub reports: mpsc::Sender<v1::Report>,
    pub storage: Storage,
    /// Cancel it to have the link broken and attached again.
    pub closed: CancellationToken,
}

#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("cannot connect")]
    Connect(#[source] tonic::transport::Error),
    #[error("the scheduler answered {:?}: {}", .0.code(), .0.message())]
    Status(Box<tonic::Status>),
    #[error("refused by the scheduler: {code}: {message}")]
    Refused { code: String, message: String },
    #[error("the scheduler closed the link")]
    Closed,
    #[error("the scheduler closed the connection")]
    Hangup,
    #[error("the connection to the scheduler broke")]
    Broken(#[source] Box<tonic::Status>),
    #[error("no answer within {}s", CONNECT_TIMEOUT.as_secs())]
    TimedOut,
    #[error("the scheduler's first command is not a welcome")]
    NoWelcome,
    #[error("a welcome that cannot be right: {problem}")]
    BadWelcome { problem: &'static str },
    #[error("the yard's blob store cannot be used")]
    Storage(#[source] StorageError),
    #[error("the link was given up: heartbeats are not acknowledged, or reports pile up")]
    GivenUp,
    #[error("the agent ended")]
    AgentEnded,
}

impl From<tonic::Status> for LinkError {
    /// A status with a source was made here, out of what the connection said; the scheduler's own
    /// words come without one.
    fn from(status: tonic::Status) -> Self {
        use std::io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof,
        };
        let Some(first) = std::error::Error::source(&status) else { return Self::Status(Box::new(status)) };
        let hung_up = std::iter::successors(Some(first), |&error| error.source())
            .filter_map(|error| error.downcast_ref::<std::io::Error>())
            .any(|error| {
                matches!(
                    error.kind(),
                    BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof
                )
            });
        if hung_up { Self::Hangup } else { Self::Broken(Box::new(status)) }
    }
}

impl LinkError {
    /// Passes by itself: the last connection of this executor, or one of its name that ends, is in
    /// the way until the scheduler has seen its end.
    fn may_pass(&self) -> bool {
        let Self::Refused { code, .. } = self else { return false };
        matches!(code.as_str(), "node_name_taken" | "too_many_nodes" | "replaced" | "stopping" | "gone")
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    endpoint: tonic::transport::Endpoint,
    shown: String,
    heartbeat_every: Duration,
    agent: mpsc::Sender<FromLink>,
    vitals: watch::Receiver<Vitals>,
    lease: watch::Sender<Option<Lease>>,
}

impl Link {
    pub fn new(
        config: &Config,
        agent: mpsc::Sender<FromLink>,
        vitals: watch::Receiver<Vitals>,
        lease: watch::Sender<Option<Lease>>,
    ) -> Result<Self, Error> {
        let shown = config.scheduler.to_string();
        let endpoint = tonic::transport::Endpoint::from_shared(match &config.scheduler {
            Endpoint::Unix(path) => format!("unix://{}", path.display()),
            Endpoint::Http(address) => format!("http://{address}"),
        })
        .map_err(Error::Endpoint)?
        .connect_timeout(CONNECT_TIMEOUT);
        Ok(Self { endpoint, shown, heartbeat_every: config.heartbeat_every, agent, vitals, lease })
    }

    /// Attaches, and attaches again, until `token`; the agent has ended by then. What it reported
    /// last still reaches the scheduler.
    pub async fn run(self, token: CancellationToken) {
        let mut backoff = BACKOFF_MIN;
        let mut is_known_down = false;
        // Why it was not attached last: said again only when that changes.
        let mut refused = String::new();
        loop {
            let mut was_up = false;
            let ended = tokio::select! {
                ended = self.attach(&mut was_up, &token) => ended,
                () = overdue(&token) => return,
            };
            if was_up {
                (backoff, is_known_down) = (BACKOFF_MIN, false);
                refused.clear();
                if self.agent.send(FromLink::Down).await.is_err() {
                    return;
                }
            }
            let error = chain(&ended);
            match ended {
                LinkError::AgentEnded => return,
                ended if ended.may_pass() => {
                    if refused != error {
                        tracing::warn!(scheduler = %self.shown, %error, "not attached yet, trying again");
                        refused = error;
                    }
                }
                LinkError::Refused { .. } | LinkError::BadWelcome { .. } | LinkError::Storage(_) => {
                    tracing::error!(scheduler = %self.shown, %error, "not attached");
                    backoff = BACKOFF_MAX;
                }
                _ if is_known_down => tracing::debug!(scheduler = %self.shown, %error, "still not attached"),
                _ => tracing::warn!(scheduler = %self.shown, %error, "link down, attaching again"),
            }
            is_known_down = true;
            let jittered = backoff.mul_f64(rand::rng().random_range(0.5..1.0));
            backoff = (backoff * 2).min(BACKOFF_MAX);
            tokio::select! {
                () = tokio::time::sleep(jittered) => {}
                () = token.cancelled() => return,
            }
        }
    }

    /// One link, from connect to its end.
    async fn attach(&self, was_up: &mut bool, token: &CancellationToken) -> LinkError {
        match self.try_attach(was_up, token).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn try_attach(
        &self,
        was_up: &mut bool,
        token: &CancellationToken,
    ) -> Result<std::convert::Infallible, LinkError> {
        let connecting = timeout(CONNECT_TIMEOUT, self.endpoint.connect()).await;
        let channel = connecting.map_err(|_| LinkError::TimedOut)?.map_err(LinkError::Connect)?;
        let (reply, opening) = oneshot::channel();
        self.agent.send(FromLink::Opening(reply)).await.map_err(|_| LinkError::AgentEnded)?;
        let Opening { incarnation, hello } = opening.await.map_err(|_| LinkError::AgentEnded)?;

        let (heartbeat_sender, heartbeat_queue) = mpsc::channel(1);
        let (reports, report_queue) = mpsc::channel(REPORT_QUEUE_MAX);
        let hello_at = boot_now();
        let outbound = outbound(hello, heartbeat_queue, report_queue);
        let welcoming = timeout(CONNECT_TIMEOUT, welcome(channel, outbound)).await;
        let (mut inbound, welcome) = welcoming.map_err(|_| LinkError::TimedOut)??;
        if welcome.lease_ttl_ms == 0 {
            return Err(LinkError::BadWelcome { problem: "a lease of no length" });
        }
        let storage = Storage::open(&welcome.blobs).await.map_err(LinkError::Storage)?;

        let ttl = Millis(welcome.lease_ttl_ms);
        let heartbeats = Arc::new(Heartbeats::welcomed(incarnation, ttl, hello_at, self.lease.clone()));
        let closed = CancellationToken::new();
        let _closed_at_the_end = closed.clone().drop_guard();
        let session = Session { incarnation, reports, storage, closed: closed.clone() };
        self.agent.send(FromLink::Up(session)).await.map_err(|_| LinkError::AgentEnded)?;
        *was_up = true;
        tracing::info!(
            scheduler = %self.shown, yard = %welcome.yard, epoch = welcome.epoch, %incarnation, %ttl, "attached"
        );

        // Tasks of this link end with it.
        let mut tasks = JoinSet::new();
        let beating = beat(
            heartbeats.clone(),
            self.heartbeat_every,
            self.vitals.clone(),
            heartbeat_sender,
            closed.clone(),
        );
        tasks.spawn(beating);
        // Acknowledgements must not queue behind commands, so commands have a task of their own.
        let (commands, mut command_queue) = mpsc::channel(COMMAND_QUEUE_MAX);
        let agent = self.agent.clone();
        tasks.spawn(async move {
            while let Some(command) = command_queue.recv().await {
                if agent.send(FromLink::Command(command)).await.is_err() {
                    return;
                }
            }
        });
        loop {
            let batch = tokio::select! {
                batch = inbound.message() => batch?.ok_or(LinkError::Closed)?,
                () = closed.cancelled() => return Err(LinkError::GivenUp),
                () = token.cancelled() => {
                    // Our side of the stream ends behind the last report; the scheduler has taken
                    // everything when it ends its own.
                    tasks.shutdown().await;
                    while inbound.message().await?.is_some() {}
                    return Err(LinkError::AgentEnded);
                }
            };
            for command in batch.commands {
                let read = match command.kind {
                    Some(v1::command::Kind::HeartbeatAck(ack)) => {
                        heartbeats.acknowledge(ack.sequence);
                        continue;
                    }
                    Some(v1::command::Kind::Refuse(v1::Refuse { code, message })) => {
                        return Err(LinkError::Refused { code, message });
                    }
                    Some(v1::command::Kind::Start(start)) => messages::start(&start),
                    Some(v1::command::Kind::Kill(kill)) => messages::kill(&kill),
                    Some(v1::command::Kind::Release(release)) => messages::release(&release),
                    Some(v1::command::Kind::EndedAck(ack)) => messages::acknowledge(&ack),
                    Some(v1::command::Kind::ReadLog(read)) => messages::read_log(read),
                    Some(v1::command::Kind::Identify(identify)) => messages::identify(identify),
                    Some(v1::command::Kind::Welcome(_)) | None => continue,
                };
                match read {
                    // A full queue is a stalled agent: without the commands it would drift from
                    // what the scheduler believes, after a new attach it does not.
                    Ok(command) => commands.try_send(command).map_err(|_| LinkError::GivenUp)?,
                    Err(error) => tracing::error!(%error, "command not understood"),
                }
            }
        }
    }
}

async fn overdue(token: &CancellationToken) {
    token.cancelled().await;
    tokio::time::sleep(LEAVE_TIMEOUT).await;
}

/// Everything sent on one link: the hello, then heartbeats before reports.
fn outbound(
    hello: v1::Hello,
    heartbeats: mpsc::Receiver<v1::Report>,
    reports: mpsc::Receiver<v1::Report>,
) -> impl Stream<Item = v1::ReportBatch> + Send + 'static {
    let hello = v1::Report { kind: Some(v1::report::Kind::Hello(hello)) };
    let heartbeats = ReceiverStream::new(heartbeats).map(|beat| vec![beat]);
    let reports = ReceiverStream::new(reports).ready_chunks(REPORTS_PER_MESSAGE);
    let reports = reports.flat_map(|reports| stream::iter(lists_apart(reports)));
    let after = select_with_strategy(heartbeats, reports, |_: &mut ()| PollNext::Left);
    stream::once(async { vec![hello] }).chain(after).map(|reports| v1::ReportBatch { reports })
}

/// The same reports in the same order, each list of what is held in a message of its own.
fn lists_apart(reports: Vec<v1::Report>) -> Vec<Vec<v1::Report>> {
    let is_list = |report: &v1::Report| matches!(report.kind, Some(v1::report::Kind::Held(_)));
    let mut messages: Vec<Vec<v1::Report>> = Vec::new();
    for report in reports {
        match messages.last_mut() {
            Some(message) if !is_list(&report) && !message.last().is_some_and(is_list) => {
                message.push(report)
            }
            _ => messages.push(vec![report]),
        }
    }
    messages
}

async fn welcome(
    channel: Channel,
    outbound: impl Stream<Item = v1::ReportBatch> + Send + 'static,
) -> Result<(tonic::Streaming<v1::CommandBatch>, v1::Welcome), LinkError> {
    let mut client = NodesClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut inbound = client.attach(outbound).await?.into_inner();
    let first = inbound.message().await?.ok_or(LinkError::Closed)?;
    match first.commands.into_iter().next().and_then(|command| command.kind) {
        Some(v1::command::Kind::Welcome(welcome)) => Ok((inbound, welcome)),
        Some(v1::command::Kind::Refuse(v1::Refuse { code, message })) => {
            Err(LinkError::Refused { code, message })
        }
        _ => Err(LinkError::NoWelcome),
    }
}

/// Sends heartbeats until the link is closed, and closes it when they stay unanswered.
async fn beat(
    heartbeats: Arc<Heartbeats>,
    every: Duration,
    vitals: watch::Receiver<Vitals>,
    queue: mpsc::Sender<v1::Report>,
    closed: CancellationToken,
) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(sequence) = heartbeats.send(boot_now()) else { return closed.cancel() };
        let Vitals { measured, sandboxes, held, credit } = *vitals.borrow();
        let heartbeat = v1::Heartbeat {
            sequence,
            memory_available_bytes: measured.memory_available.0,
            disk_available_bytes: measured.disk_available.0,
            load_milli: measured.load_milli,
            sandboxes,
            held,
            creation_burst: credit.burst,
            creations_per_s_milli: credit.per_s_milli,
        };
        let report = v1::Report { kind: Some(v1::report::Kind::Heartbeat(heartbeat)) };
        if queue.send(report).await.is_err() {
            return closed.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_breaks_is_told_in_words_of_its_own() {
        use std::io::{Error as IoError, ErrorKind};
        let status = |source: IoError| {
            let mut status =
                tonic::Status::unknown("h2 protocol error: error reading a body from connection");
            status.set_source(Arc::new(source));
            status
        };
        let cut = LinkError::from(status(ErrorKind::BrokenPipe.into()));
        assert_eq!(chain(&cut), "the scheduler closed the connection");
        let other = LinkError::from(status(IoError::other("keep-alive timed out")));
        assert!(chain(&other).starts_with("the connection to the scheduler broke: "), "{}", chain(&other));
        let said = LinkError::from(tonic::Status::unavailable("full"));
        assert!(matches!(said, LinkError::Status(_)), "{said:?}");
    }

    #[test]
    fn only_a_refusal_that_passes_by_itself_is_no_error() {
        let refused = |code: &str| LinkError::Refused { code: code.into(), message: String::new() };
        assert!(refused("node_name_taken").may_pass());
        assert!(!refused("bad_hello").may_pass());
        assert!(!LinkError::NoWelcome.may_pass());
    }

    #[test]
    fn a_list_has_a_message_of_its_own_and_its_place_among_the_reports() {
        use v1::report::Kind;
        let report = |kind| v1::Report { kind: Some(kind) };
        let ended = |step| {
            let attempt = Some(v1::AttemptRef { step, ..v1::AttemptRef::default() });
            report(Kind::Ended(v1::AttemptEnded { attempt, ..v1::AttemptEnded::default() }))
        };
        let list = || report(Kind::Held(v1::Held::default()));
        let reports = vec![ended(0), ended(1), list(), ended(2), list(), list()];
        let messages = lists_apart(reports.clone());
        assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1, 1, 1]);
        assert_eq!(messages.concat(), reports);
        assert!(lists_apart(Vec::new()).is_empty());
    }
}
