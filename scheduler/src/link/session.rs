//! One connection of an executor: four small tasks around a stream.
//!
//! ```text
//! stream ─> reader ─┬─ heartbeats ─> latest value (driver) and acknowledger ─┐
//!                   └─ work ─> forwarder ─> inbox of the driver              ├─> stream
//! commands of the driver ─> sender (resolves starts) ────────────────────────┘
//! ```

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use rollout::text::shown;
use rollout_wire::from_wire::WireError;
use rollout_wire::{HELD_ATTEMPTS_MAX, to_wire, v1};
use scheduler_core::{Command, Event};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use super::hello::{Greeting, Reporter, greeting, measured};
use super::service::NodesService;
use super::start::StartOrder;
use super::{Close, NODE_COMMANDS_MAX, Outgoing};
use crate::inbox::{Input, Reported, SessionId};

/// How long a connection may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Batches on their way into the stream.
pub(super) const OUT_BATCHES_MAX: usize = 64;
/// Reports of work that wait for the driver. An executor has at most three unanswered reports per
/// attempt it holds.
const WORK_REPORTS_MAX: usize = 3 * HELD_ATTEMPTS_MAX;
/// Lists of what the executor holds that wait for the driver. One that comes meanwhile is left out: the
/// next one says more.
const HELD_LISTS_MAX: usize = 1;
/// Bytes of such reports of one node; past it nothing more is read from its stream until the
/// driver has taken some.
const WORK_REPORT_BYTES_MAX: usize = 32 << 20;
/// Commands resolved and sent together.
const BATCH_COMMANDS_MAX: usize = 256;
/// Bytes of one batch, unless a single command is larger.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// How long a batch may wait for the stream before the node counts as too slow.
const SEND_STALL_MAX: Duration = Duration::from_secs(30);

/// Characters of a broken stream's message that are kept.
const STATUS_CHARS_MAX: usize = 200;

type Out = mpsc::Sender<Result<v1::CommandBatch, Status>>;

pub(super) async fn run(service: NodesService, mut incoming: Streaming<v1::ReportBatch>, out: Out) {
    let (greeting, rest) = match hello(&mut incoming).await {
        Ok(hello) => hello,
        Err(close) => {
            tracing::info!(code = close.code, reason = close.message, "refused an executor");
            refuse(&out, close).await;
            return;
        }
    };
    let Greeting { node, incarnation, capacity, held, about } = greeting;
    let (outgoing, commands) = mpsc::channel(NODE_COMMANDS_MAX);
    let registered = service.links.register(&node, incarnation, capacity.clone(), about.clone(), outgoing);
    let (session, closed) = match registered {
        Ok(registered) => registered,
        Err(close) => {
            tracing::warn!(%node, %incarnation, code = close.code, reason = close.message, "refused an executor");
            refuse(&out, close).await;
            return;
        }
    };
    let reporter = Reporter { node: node.clone(), incarnation };
    tracing::info!(%node, %incarnation, version = about.version, "executor attached");

    let welcome = v1::Welcome {
        epoch: service.welcome.epoch,
        lease_ttl_ms: service.welcome.lease_ttl.0,
        blobs: service.welcome.blobs.clone(),
        yard: service.welcome.yard.clone(),
    };
    let event = Event::NodeAttached { node: node.clone(), incarnation, capacity, held };
    let live = send(&out, vec![v1::command::Kind::Welcome(welcome)]).await.is_ok()
        && service.inbox.send(Input::Attached { session, event }).await.is_ok();
    let ended = if live {
        serve(&service, session, &reporter, incoming, rest, commands, out.clone(), closed).await
    } else {
        Close { code: "gone", message: "the connection ended".to_owned() }
    };
    service.links.unregister(&node, session);
    tracing::info!(%node, %incarnation, code = ended.code, reason = ended.message, "executor detached");
    refuse(&out, ended).await;
    // A driver that has stopped has no use for it.
    let _ = service.inbox.send(Input::Detached { session, node, incarnation }).await;
}

/// The first report must be a hello; what came behind it in the same batch is kept.
async fn hello(incoming: &mut Streaming<v1::ReportBatch>) -> Result<(Greeting, Vec<v1::Report>), Close> {
    let bad = |message: String| Close { code: "bad_hello", message };
    let first = timeout(HELLO_TIMEOUT, incoming.message()).await;
    let first = first.map_err(|_| bad(format!("no hello within {} s", HELLO_TIMEOUT.as_secs())))?;
    let first = first.map_err(|status| bad(shown(status.message(), STATUS_CHARS_MAX)))?;
    let mut reports = first.map(|batch| batch.reports).unwrap_or_default().into_iter();
    match reports.next().and_then(|report| report.kind) {
        Some(v1::report::Kind::Hello(hello)) => {
            let greeting = greeting(&hello).map_err(|problem| bad(problem.to_string()))?;
            Ok((greeting, reports.collect()))
        }
        _ => Err(bad("the first report is not a hello".to_owned())),
    }
}

#[allow(clippy::too_many_arguments)]
async fn serve(
    service: &NodesService,
    session: SessionId,
    reporter: &Reporter,
    incoming: Streaming<v1::ReportBatch>,
    rest: Vec<v1::Report>,
    commands: mpsc::Receiver<Outgoing>,
    out: Out,
    mut closed: watch::Receiver<Option<Close>>,
) -> Close {
    let (work, reports) = mpsc::channel(WORK_REPORTS_MAX);
    let (acknowledge, acknowledged) = watch::channel(None);
    let lists = Arc::new(Semaphore::new(HELD_LISTS_MAX));
    let bytes = Arc::new(Semaphore::new(WORK_REPORT_BYTES_MAX));
    let reader = Reader { service, session, reporter, work, lists, bytes, acknowledge };
    let asked_to_close = async {
        let close = closed.wait_for(Option::is_some).await;
        close
            .ok()
            .and_then(|close| close.clone())
            .unwrap_or(Close { code: "replaced", message: "the session was replaced".to_owned() })
    };
    let mut forwarding = std::pin::pin!(forward(service, reports));
    tokio::select! {
        biased;
        () = service.stop.cancelled() => {
            Close { code: "stopping", message: "the scheduler is stopping".to_owned() }
        }
        close = asked_to_close => close,
        close = reader.read(incoming, rest) => {
            // What was read before the end of the stream counts.
            forwarding.await;
            close
        }
        close = &mut forwarding => close,
        close = acknowledge_beats(acknowledged, &out) => close,
        close = send_commands(service, commands, &out) => close,
    }
}

struct Reader<'a> {
    service: &'a NodesService,
    session: SessionId,
    reporter: &'a Reporter,
    work: mpsc::Sender<Input>,
    /// Whose turn it is to wait for the driver, with a list.
    lists: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    acknowledge: watch::Sender<Option<u64>>,
}

impl Reader<'_> {
    async fn read(self, mut incoming: Streaming<v1::ReportBatch>, rest: Vec<v1::Report>) -> Close {
        let mut reports = rest;
        loop {
            for report in reports {
                if let Err(close) = self.report(report).await {
                    return close;
                }
            }
            reports = match incoming.message().await {
                Ok(Some(batch)) => batch.reports,
                Ok(None) => {
                    return Close { code: "gone", message: "the executor closed the stream".to_owned() };
                }
                Err(status) => {
                    // What cannot be decoded cannot be sent again either.
                    let unreadable = matches!(status.code(), Code::OutOfRange | Code::Internal);
                    let code = if unreadable { "bad_report" } else { "gone" };
                    return Close { code, message: shown(status.message(), STATUS_CHARS_MAX) };
                }
            };
        }
    }

    async fn report(&self, report: v1::Report) -> Result<(), Close> {
        use v1::report::Kind;
        let bad = |problem: WireError| Close { code: "bad_report", message: problem.to_string() };
        let weight = report.encoded_len().clamp(1, WORK_REPORT_BYTES_MAX);
        let event = match report.kind {
            Some(Kind::Heartbeat(beat)) => {
                self.service.links.beat(&self.reporter.node, self.session, measured(&beat));
                self.acknowledge.send_replace(Some(beat.sequence));
                return Ok(());
            }
            Some(Kind::LogData(data)) => {
                return self.service.links.log_data(&self.reporter.node, self.session, data);
            }
            Some(Kind::Started(message)) => self.reporter.started(&message).map_err(bad)?,
            Some(Kind::Ended(message)) => self.reporter.ended(&message).map_err(bad)?,
            Some(Kind::Refused(message)) => self.reporter.refused(&message).map_err(bad)?,
            Some(Kind::Checkpoint(message)) => self.reporter.checkpoint_taken(&message).map_err(bad)?,
            Some(Kind::Held(message)) => {
                let Ok(turn) = self.lists.clone().try_acquire_owned() else {
                    tracing::debug!(node = %self.reporter.node, HELD_LISTS_MAX, "left out a list: another waits");
                    return Ok(());
                };
                let node = self.reporter.node.clone();
                let event = self.reporter.held(&message).map_err(bad)?;
                return self.wait(Input::Held { node, event, turn });
            }
            Some(Kind::Hello(_)) => {
                return Err(Close { code: "bad_report", message: "a second hello".to_owned() });
            }
            None => return Err(Close { code: "bad_report", message: "an unknown report".to_owned() }),
        };
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let bytes = self.bytes.clone().acquire_many_owned(weight).await;
        let bytes = bytes.map_err(|_| Close { code: "stopping", message: "the session ends".to_owned() })?;
        self.wait(Input::Reported(Reported { event, bytes }))
    }

    /// Hands it to those that wait for the driver.
    fn wait(&self, input: Input) -> Result<(), Close> {
        self.work.try_send(input).map_err(|_| Close {
            code: "too_many_reports",
            message: format!("{WORK_REPORTS_MAX} reports wait"),
        })
    }
}

async fn forward(service: &NodesService, mut reports: mpsc::Receiver<Input>) -> Close {
    while let Some(report) = reports.recv().await {
        if service.inbox.send(report).await.is_err() {
            break;
        }
    }
    Close { code: "stopping", message: "the scheduler is stopping".to_owned() }
}

/// Acknowledges the latest heartbeat; one that was overtaken needs no answer.
async fn acknowledge_beats(mut beats: watch::Receiver<Option<u64>>, out: &Out) -> Close {
    while beats.changed().await.is_ok() {
        let Some(sequence) = *beats.borrow_and_update() else { continue };
        let ack = v1::command::Kind::HeartbeatAck(v1::HeartbeatAck { sequence });
        if let Err(close) = send(out, vec![ack]).await {
            return close;
        }
    }
    Close { code: "gone", message: "the reader ended".to_owned() }
}

async fn send_commands(service: &NodesService, mut commands: mpsc::Receiver<Outgoing>, out: &Out) -> Close {
    let mut drained = Vec::with_capacity(BATCH_COMMANDS_MAX);
    while commands.recv_many(&mut drained, BATCH_COMMANDS_MAX).await > 0 {
        let messages = resolve(service, std::mem::take(&mut drained)).await;
        let mut batch = Vec::new();
        let mut bytes = 0;
        for message in messages {
            let size = message.encoded_len();
            if bytes + size > BATCH_BYTES_MAX && !batch.is_empty() {
                if let Err(close) = send(out, std::mem::take(&mut batch)).await {
                    return close;
                }
                bytes = 0;
            }
            bytes += size;
            batch.push(message);
        }
        if !batch.is_empty()
            && let Err(close) = send(out, batch).await
        {
            return close;
        }
    }
    Close { code: "replaced", message: "the session was replaced".to_owned() }
}

/// Commands as messages, in order. A start that cannot be resolved ends its attempt instead.
async fn resolve(service: &NodesService, commands: Vec<Outgoing>) -> Vec<v1::command::Kind> {
    let orders: Vec<StartOrder> = commands.iter().filter_map(StartOrder::of).collect();
    let mut starts = service.starts.resolve(&orders).await.into_iter();
    let mut messages = Vec::with_capacity(commands.len());
    for command in commands {
        match command {
            Outgoing::ReadLog(read) => messages.push(v1::command::Kind::ReadLog(read)),
            Outgoing::Core(Command::Start { to, attempt, .. }) => match starts.next() {
                Some(Ok(start)) => messages.push(v1::command::Kind::Start(start)),
                Some(Err(failure)) => {
                    tracing::warn!(%attempt, code = %failure.code, reason = failure.message, "cannot start");
                    let event = super::start::never_started(to, attempt, failure);
                    // A driver that has stopped places it again after its restart.
                    let _ = service.inbox.send(Input::Event(event)).await;
                }
                None => {}
            },
            Outgoing::Core(Command::Kill { to, attempt, code, reason }) => {
                messages.push(v1::command::Kind::Kill(v1::KillAttempt {
                    attempt: Some(to_wire::attempt(attempt)),
                    generation: to.generation.0,
                    code: code.to_string(),
                    reason,
                }));
            }
            Outgoing::Core(Command::Release { to, attempt }) => {
                messages.push(v1::command::Kind::Release(v1::ReleaseSandbox {
                    attempt: Some(to_wire::attempt(attempt)),
                    generation: to.generation.0,
                }));
            }
            Outgoing::Core(Command::AckEnded { to, attempt }) => {
                messages.push(v1::command::Kind::EndedAck(v1::EndedAck {
                    attempt: Some(to_wire::attempt(attempt)),
                    generation: to.generation.0,
                }));
            }
            // Not for a node; the driver does them itself.
            Outgoing::Core(Command::Expand { .. } | Command::Record { .. } | Command::Disconnect { .. }) => {}
        }
    }
    messages
}

async fn send(out: &Out, kinds: Vec<v1::command::Kind>) -> Result<(), Close> {
    let commands = kinds.into_iter().map(|kind| v1::Command { kind: Some(kind) }).collect();
    match timeout(SEND_STALL_MAX, out.send(Ok(v1::CommandBatch { commands }))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Close { code: "gone", message: "the executor closed the stream".to_owned() }),
        Err(_) => Err(Close {
            code: "node_too_slow",
            message: format!("the stream took nothing for {} s", SEND_STALL_MAX.as_secs()),
        }),
    }
}

/// The last command of a session that this side ends; the stream may be gone already.
async fn refuse(out: &Out, close: Close) {
    let refuse = v1::Refuse { code: close.code.to_owned(), message: close.message };
    let command = v1::Command { kind: Some(v1::command::Kind::Refuse(refuse)) };
    let _ = out.try_send(Ok(v1::CommandBatch { commands: vec![command] }));
}
