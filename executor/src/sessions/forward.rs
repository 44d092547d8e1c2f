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

/// Messages on their way to a client that is slower than the sandbox.
const QUEUE_MAX: usize = 4;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) type Outputs = mpsc::Receiver<Result<v1::ForwardOutput, Status>>;

fn output(output: Output) -> v1::ForwardOutput {
    v1::ForwardOutput { output: Some(output) }
}

/// Connects; what comes from the port comes through the queue.
pub(super) async fn forward(
    live: &Arc<Live>,
    port: u32,
    inputs: Streaming<v1::ForwardInput>,
) -> Result<Outputs, Refusal> {
    let permit = Live::permit(&live.limits.forwards, "forwarded connections", "FORWARDS_MAX", FORWARDS_MAX)?;
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| Refusal::bad("port", "1 to 65535"))?;
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
    let (outputs, queue) = mpsc::channel(QUEUE_MAX);
    let _there_is_room = outputs.try_send(Ok(output(Output::Opened(true))));
    live.tasks().spawn(serve(Arc::clone(live), connection, inputs, outputs, permit));
    Ok(queue)
}

async fn serve(
    live: Arc<Live>,
    mut connection: TcpStream,
    mut inputs: Streaming<v1::ForwardInput>,
    outputs: mpsc::Sender<Result<v1::ForwardOutput, Status>>,
    _permit: OwnedSemaphorePermit,
) {
    let (mut from, mut to) = connection.split();
    let down = async {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let Ok(room) = outputs.reserve().await else { return };
            match from.read(&mut buffer).await {
                Ok(0) | Err(_) => return room.send(Ok(output(Output::Closed(true)))),
                Ok(read) => {
                    live.touch();
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
                    live.touch();
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
            () = &mut down => None,
            done = &mut up => match done {
                Ok(()) => {
                    down.await;
                    None
                }
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
