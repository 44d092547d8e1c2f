//! One connection of an executor: four small tasks around a stream.
//!
//! ```text
//! stream ─> reader ─┬─ heartbeats ─> latest value (driver) and acknowledger ─┐
//!                   └─ work ─> forwarder ─> inbox of the driver              ├─> stream
//! commands of the driver ─> sender (resolves starts) ────────────────────────┘
//! ```
//!
//! Only the forwarder waits for the driver, from the attach on: a driver that is stuck, say because
//! the store fails, keeps no heartbeat from being read and acknowledged.

use std::time::Duration;

use rollout::text::shown;
use rollout_wire::{to_wire, v1};
use scheduler_core::{Command, Event};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::close::{Close, CloseCode};
use super::hello::{Greeting, Reporter, greeting};
use super::reader::{Reader, WORK_REPORTS_MAX};
use super::service::NodesService;
use super::start::StartOrder;
use super::{NODE_COMMANDS_MAX, Outgoing, Registered};
use crate::inbox::Input;

/// How long a connection may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Batches on their way into the stream.
pub(super) const OUT_BATCHES_MAX: usize = 64;
/// Commands resolved and sent together.
const BATCH_COMMANDS_MAX: usize = 256;
/// Bytes of one batch, unless a single command is larger.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// How long a batch may wait for the stream before the node counts as too slow.
const SEND_STALL_MAX: Duration = Duration::from_secs(30);

/// Characters of a broken stream's message that are kept.
pub(super) const STATUS_CHARS_MAX: usize = 200;

type Out = mpsc::Sender<Result<v1::CommandBatch, Status>>;

pub(super) async fn run(service: NodesService, mut incoming: Streaming<v1::ReportBatch>, out: Out) {
    let (greeting, rest) = match hello(&mut incoming).await {
        Ok(hello) => hello,
        Err(close) => {
            tracing::info!(code = close.code.as_str(), reason = close.message, "refused an executor");
            refuse(&out, close).await;
            return;
        }
    };
    let Greeting { node, incarnation, capacity, held, about } = greeting;
    let (outgoing, commands) = mpsc::channel(NODE_COMMANDS_MAX);
    let registered = service.links.register(&node, incarnation, capacity.clone(), about.clone(), outgoing);
    let registered = match registered {
        Ok(registered) => registered,
        Err(close) => {
            tracing::warn!(%node, %incarnation, code = close.code.as_str(), reason = close.message, "refused an executor");
            refuse(&out, close).await;
            return;
        }
    };
    let session = registered.session;
    tracing::info!(%node, %incarnation, version = about.version, "executor attached");

    let welcome = v1::Welcome {
        epoch: service.welcome.epoch,
        lease_ttl_ms: service.welcome.lease_ttl.0,
        blobs: service.welcome.blobs.clone(),
        yard: service.welcome.yard.clone(),
    };
    let event = Event::NodeAttached { node: node.clone(), incarnation, capacity, held };
    let attached = Input::Attached { session, event };
    let reporter = Reporter { node: node.clone(), incarnation };
    let ended = match send(&out, vec![v1::command::Kind::Welcome(welcome)]).await {
        Ok(()) => {
            serve(&service, registered, &reporter, attached, incoming, rest, commands, out.clone()).await
        }
        Err(close) => close,
    };
    service.links.unregister(&node, session);
    tracing::info!(%node, %incarnation, code = ended.code.as_str(), reason = ended.message, "executor detached");
    refuse(&out, ended).await;
    // A driver that has stopped has no use for it.
    let _ = service.inbox.send(Input::Detached { session, node, incarnation }).await;
}

/// The first report must be a hello; what came behind it in the same batch is kept.
async fn hello(incoming: &mut Streaming<v1::ReportBatch>) -> Result<(Greeting, Vec<v1::Report>), Close> {
    let bad = |message: String| Close::new(CloseCode::BadHello, message);
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
    registered: Registered,
    reporter: &Reporter,
    attached: Input,
    incoming: Streaming<v1::ReportBatch>,
    rest: Vec<v1::Report>,
    commands: mpsc::Receiver<Outgoing>,
    out: Out,
) -> Close {
    let Registered { session, mut closed, report_bytes } = registered;
    let (work, reports) = mpsc::channel(WORK_REPORTS_MAX);
    let (acknowledge, acknowledged) = watch::channel(None);
    let reader = Reader::new(&service.links, session, reporter, work, report_bytes, acknowledge);
    let mut asked_to_close = std::pin::pin!(async {
        let close = closed.wait_for(Option::is_some).await;
        close.ok().and_then(|close| close.clone()).unwrap_or_else(replaced)
    });
    let mut forwarding = std::pin::pin!(forward(service, attached, reports));
    tokio::select! {
        biased;
        () = service.stop.cancelled() => Close::new(CloseCode::Stopping, "the scheduler is stopping"),
        close = &mut asked_to_close => close,
        close = reader.read(incoming, rest) => {
            if close.code != CloseCode::Gone {
                // What waits is told again after the next attach.
                return close;
            }
            // What was read before the end of the stream counts, unless a newer connection says more.
            tokio::select! {
                biased;
                close = asked_to_close => close,
                _ = forwarding => close,
            }
        }
        close = &mut forwarding => close,
        close = acknowledge_beats(acknowledged, &out) => close,
        close = send_commands(service, commands, &out) => close,
    }
}

fn replaced() -> Close {
    Close::new(CloseCode::Replaced, "the session was replaced")
}

/// The attach, then the reports, in order.
async fn forward(service: &NodesService, attached: Input, mut reports: mpsc::Receiver<Input>) -> Close {
    let mut next = Some(attached);
    while let Some(input) = next {
        if service.inbox.send(input).await.is_err() {
            break;
        }
        next = reports.recv().await;
    }
    Close::new(CloseCode::Stopping, "the scheduler is stopping")
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
    Close::new(CloseCode::Gone, "the reader ended")
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
    replaced()
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
            Outgoing::Core(Command::Identify { image, .. }) => {
                messages.push(v1::command::Kind::Identify(v1::IdentifyImage { image }));
            }
            // Not for a node; the driver does them itself.
            Outgoing::Core(
                Command::Expand { .. }
                | Command::Reopen { .. }
                | Command::Record { .. }
                | Command::Disconnect { .. },
            ) => {}
        }
    }
    messages
}

async fn send(out: &Out, kinds: Vec<v1::command::Kind>) -> Result<(), Close> {
    let commands = kinds.into_iter().map(|kind| v1::Command { kind: Some(kind) }).collect();
    match timeout(SEND_STALL_MAX, out.send(Ok(v1::CommandBatch { commands }))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Close::new(CloseCode::Gone, "the executor closed the stream")),
        Err(_) => Err(Close::new(
            CloseCode::NodeTooSlow,
            format!("the stream took nothing for {} s", SEND_STALL_MAX.as_secs()),
        )),
    }
}

/// The last command of a session that this side ends; the stream may be gone already.
async fn refuse(out: &Out, close: Close) {
    let refuse = v1::Refuse { code: close.code.to_string(), message: close.message };
    let command = v1::Command { kind: Some(v1::command::Kind::Refuse(refuse)) };
    let _ = out.try_send(Ok(v1::CommandBatch { commands: vec![command] }));
}
