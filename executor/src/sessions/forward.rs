//! Bytes to and from a TCP port of a sandbox's loopback. Neither side is read further than the other takes.

use std::sync::Arc;

use rollout_wire::v1::{self, forward_input::Input, forward_output::Output};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Duration, timeout};
use tonic::{Status, Streaming};

use super::error::{Refusal, SandboxCode};
use super::live::{FORWARDS_MAX, Live};
use super::streams::CHUNK_BYTES;
use crate::ceilings::descriptors;

/// Messages on their way to a client that is slower than the sandbox.
const QUEUE_MAX: usize = 4;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) type Outputs = mpsc::Receiver<Result<v1::ForwardOutput, Status>>;

fn output(output: Output) -> v1::ForwardOutput {
    v1::ForwardOutput { output: Some(output) }
}

/// Of a connection, and with those that make it: the namespace, the way there, a socket of each kind.
const FILES_PER_FORWARD: u32 = 1;
const FILES_TO_CONNECT: u32 = 4;

/// What a forwarded connection counts against, for as long as it lives.
struct Held {
    _of_the_session: OwnedSemaphorePermit,
    _of_the_executor: descriptors::Held,
}

/// Connects; what comes from the port comes through the queue.
pub(super) async fn forward(
    live: &Arc<Live>,
    claim: String,
    port: u32,
    inputs: Streaming<v1::ForwardInput>,
) -> Result<Outputs, Refusal> {
    let permit = Live::permit(&live.limits.forwards, "forwarded connections", "FORWARDS_MAX", FORWARDS_MAX)?;
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| Refusal::bad("port", "1 to 65535"))?;
    let mut files = descriptors::take(FILES_TO_CONNECT)?;
    let connection = {
        let lent = live.lend().await?;
        let driven = lent.driven()?;
        let connecting = async {
            let refused = |words: String| Refusal::new(SandboxCode::PortRefused, words);
            match timeout(CONNECT_TIMEOUT, driven.connect(port)).await {
                Ok(Ok(connection)) => Ok(connection),
                Ok(Err(error)) => Err(refused(format!("port {port} of the sandbox: {error}"))),
                Err(_) => {
                    let after = CONNECT_TIMEOUT.as_secs();
                    Err(refused(format!("port {port} of the sandbox took no connection within {after}s")))
                }
            }
        };
        live.unless_over(connecting).await?
    };
    drop(files.split((FILES_TO_CONNECT - FILES_PER_FORWARD) as usize));
    let held = Held { _of_the_session: permit, _of_the_executor: files };
    let (outputs, queue) = mpsc::channel(QUEUE_MAX);
    let _there_is_room = outputs.try_send(Ok(output(Output::Opened(true))));
    live.tasks().spawn(serve(Arc::clone(live), claim, connection, inputs, outputs, held));
    Ok(queue)
}

async fn serve(
    live: Arc<Live>,
    claim: String,
    mut connection: TcpStream,
    mut inputs: Streaming<v1::ForwardInput>,
    outputs: mpsc::Sender<Result<v1::ForwardOutput, Status>>,
    _held: Held,
) {
    let (mut from, mut to) = connection.split();
    let down = async {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let Ok(room) = outputs.reserve().await else { return Ok(()) };
            match from.read(&mut buffer).await {
                Ok(0) | Err(_) => {
                    room.send(Ok(output(Output::Closed(true))));
                    return Ok(());
                }
                Ok(read) => {
                    // What it says now is for who drives the session now.
                    live.check_claim(&claim)?;
                    room.send(Ok(output(Output::Data(buffer[..read].to_vec()))));
                }
            }
        }
    };
    let up = async {
        loop {
            let input = match inputs.message().await {
                Ok(Some(input)) => input.input,
                // No more comes.
                Ok(None) => break,
                Err(_broken) => return Err(None),
            };
            match input {
                Some(Input::Data(data)) if data.len() > CHUNK_BYTES => {
                    return Err(Some(Refusal::bad("data", format!("at most {CHUNK_BYTES} bytes a message"))));
                }
                Some(Input::Data(data)) => {
                    live.check_claim(&claim).map_err(Some)?;
                    // Whoever listens may stand still.
                    live.wake().await.map_err(Some)?;
                    // The port takes no more; what it still says is told.
                    if to.write_all(&data).await.is_err() {
                        break;
                    }
                }
                Some(Input::Close(true)) => break,
                Some(Input::Close(false)) => {}
                Some(Input::Open(_)) | None => {
                    return Err(Some(Refusal::bad("input", "`open` is the first input, and no other")));
                }
            }
        }
        let _closed_already = to.shutdown().await;
        Ok(())
    };
    let both = async {
        tokio::pin!(down, up);
        tokio::select! {
            done = &mut down => done.err(),
            done = &mut up => match done {
                Ok(()) => down.await.err(),
                Err(refusal) => refusal,
            },
        }
    };
    let refusal = tokio::select! {
        refusal = both => refusal,
        () = outputs.closed() => None,
        () = live.over() => Some(Refusal::ended(&live.name())),
    };
    if let Some(refusal) = refusal {
        let _gone = outputs.try_send(Err(refusal.into()));
    }
}
