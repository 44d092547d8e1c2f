//! Processes that outlive the call of their client: each has a name, and a client whose call broke off comes back
//! to it and goes on with the next byte.
//!
//! ```text
//! Exec ──outputs──> Relay (what the client may not have) ──> the call of the client that is there
//! ```
//! It is begun once at most under its name. Nothing of it is on disk: it ends with the executor.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollout_wire::v1::{self, exec_input::Input, exec_output::Output};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use super::actions::check_id;
use super::error::{Refusal, SandboxCode};
use super::exec::{self, Outputs};
use super::live::{Busy, Live};
use super::unread::Unread;
use crate::broker::serve::lock;

/// For a client to come back: it waits up to 60 s for the yard, then 30 s for the node, and looks every 3 s. For as
/// long it may keep a call open after it was told the end.
const CLIENT_AWAY_MAX: Duration = Duration::from_secs(105);
/// Processes of one sandbox that have a name and run, or ended and were not told to their client.
pub(super) const NAMED_EXECS_MAX: usize = 256;
/// Messages on their way to a client that is slower than the process.
const QUEUE_MAX: usize = 4;
/// Clients that come back at once.
const COMING_MAX: usize = 4;

type Said = Result<v1::ExecOutput, Status>;

/// The processes of a session that have a name.
#[derive(Debug, Default)]
pub(super) struct Reached(Mutex<BTreeMap<String, mpsc::Sender<Client>>>);

/// One call of a client.
#[derive(Debug)]
struct Client {
    inputs: Streaming<v1::ExecInput>,
    outputs: mpsc::Sender<Said>,
    /// What came of the output in the calls before.
    received: v1::ExecReceived,
}

/// Dropped, the process is no longer found.
struct Place {
    live: Arc<Live>,
    name: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.live.reached.0).remove(&self.name);
    }
}

/// Begins the process of this name, or goes on with it.
pub(super) async fn exec(
    live: &Arc<Live>,
    mut start: v1::ExecStart,
    inputs: Streaming<v1::ExecInput>,
) -> Result<Outputs, Refusal> {
    check_id("start.exec_id", &start.exec_id)?;
    if start.pty.is_some() {
        return Err(Refusal::bad("start.pty", "a process with an `exec_id` has no terminal"));
    }
    let (resume, name) = (start.resume.take(), start.exec_id.clone());
    let (clients, coming) = mpsc::channel(COMING_MAX);
    let (outputs, queue) = mpsc::channel(QUEUE_MAX);
    let client = Client { inputs, outputs, received: resume.unwrap_or_default() };
    let lost = || {
        let words = format!("no process `{name}` of sandbox {} waits for its client", live.name());
        Refusal::new(SandboxCode::ExecLost, words)
    };
    let begun = {
        let mut reached = lock(&live.reached.0);
        let begun = reached.get(&name).cloned();
        if begun.is_none() {
            if resume.is_some() {
                return Err(lost());
            }
            reached.insert(name.clone(), clients);
        }
        begun
    };
    if let Some(begun) = begun {
        return begun.try_send(client).map(|()| queue).map_err(|_| lost());
    }
    let place = Place { live: Arc::clone(live), name: name.clone() };
    let named =
        Live::permit(&live.limits.named_execs, "processes with a name", "NAMED_EXECS_MAX", NAMED_EXECS_MAX)?;
    // What nobody has heard of yet is not idle: parked, its end would be lost.
    let busy = live.busy()?;
    let (tell, told) = oneshot::channel();
    // Whatever becomes of this call, the process begins, or its place is free again.
    live.tasks().spawn(async move {
        match exec::begin(&place.live, start, None).await {
            Ok(said) => {
                _ = tell.send(Ok(()));
                let unread = Unread::default();
                let relay = Relay {
                    place,
                    said,
                    coming,
                    started: None,
                    unread,
                    ended: None,
                    _busy: busy,
                    _named: named,
                };
                relay.serve(client).await;
            }
            Err(refusal) => _ = tell.send(Err(refusal)),
        }
    });
    told.await.unwrap_or_else(|_gone| Err(Refusal::ended(&live.name())))?;
    Ok(queue)
}

/// Between a process and the calls of its client. Dropped, its process is told that the client is gone.
struct Relay {
    place: Place,
    said: Outputs,
    coming: mpsc::Receiver<Client>,
    started: Option<v1::ExecOutput>,
    unread: Unread,
    /// Its last word.
    ended: Option<Said>,
    _busy: Busy,
    _named: OwnedSemaphorePermit,
}

/// What came of a call.
enum Call {
    /// It broke off.
    Broken,
    /// Another one of the same client.
    Replaced(Box<Client>),
    /// The client has all it wants.
    Done,
}

impl Relay {
    async fn serve(mut self, first: Client) {
        let mut client = Some(Box::new(first));
        let mut away_since = Instant::now();
        loop {
            let call = match client.take() {
                Some(client) => self.attend(*client).await,
                None => self.wait(away_since + CLIENT_AWAY_MAX).await,
            };
            match call {
                Call::Broken => away_since = Instant::now(),
                Call::Replaced(next) => client = Some(next),
                Call::Done => return,
            }
        }
    }

    /// Nobody is there.
    async fn wait(&mut self, until: Instant) -> Call {
        let live = Arc::clone(&self.place.live);
        loop {
            tokio::select! {
                () = live.over() => return Call::Done,
                client = self.coming.recv() => return client.map_or(Call::Done, |client| Call::Replaced(client.into())),
                said = self.said.recv(), if self.takes() => self.take(said),
                () = sleep_until(until) => {
                    tracing::debug!(sandbox = %live.id(), process = self.place.name, "its client does not come back");
                    return Call::Done;
                }
            }
        }
    }

    async fn attend(&mut self, client: Client) -> Call {
        let Client { mut inputs, outputs, received } = client;
        let refuse = |refusal: Refusal| _ = outputs.try_send(Err(refusal.into()));
        if let Err(refusal) = self.unread.again(received) {
            refuse(refusal);
            return Call::Broken;
        }
        let live = Arc::clone(&self.place.live);
        let (mut has_inputs, mut is_greeted, mut is_told) = (true, false, false);
        let mut told_at = Instant::now();
        loop {
            let has_more = self.started.is_some() && !is_greeted
                || self.unread.has_more()
                || self.ended.is_some() && !is_told;
            if is_told && !has_inputs {
                return Call::Done;
            }
            tokio::select! {
                biased;
                () = live.over() => {
                    refuse(Refusal::ended(&live.name()));
                    return Call::Done;
                }
                Some(next) = self.coming.recv() => return Call::Replaced(next.into()),
                input = inputs.message(), if has_inputs => match input {
                    Err(_broken) => return Call::Broken,
                    Ok(None) => has_inputs = false,
                    Ok(Some(input)) => match input.input {
                        Some(Input::HangUp(true)) => return Call::Done,
                        Some(Input::Received(received)) => {
                            if let Err(refusal) = self.unread.received(received) {
                                refuse(refusal);
                                return Call::Broken;
                            }
                        }
                        Some(Input::CloseStdin(_) | Input::HangUp(false)) => {}
                        _ => {
                            let words = "a process with an `exec_id` takes `received` and `hang_up` only";
                            refuse(Refusal::bad("input", words));
                            return Call::Broken;
                        }
                    },
                },
                () = outputs.closed() => return Call::Broken,
                Ok(room) = outputs.reserve(), if has_more => {
                    live.touch();
                    if let Some(started) = self.started.clone().filter(|_| !is_greeted) {
                        is_greeted = true;
                        room.send(Ok(started));
                    } else if let Some(output) = self.unread.next() {
                        room.send(Ok(output));
                    } else if let Some(ended) = &self.ended {
                        (is_told, told_at) = (true, Instant::now());
                        room.send(ended.clone());
                        // It is over, and there is nothing to come back for.
                        if ended.is_err() {
                            return Call::Done;
                        }
                    }
                }
                said = self.said.recv(), if self.takes() => self.take(said),
                () = sleep_until(told_at + CLIENT_AWAY_MAX), if is_told => return Call::Done,
            }
        }
    }

    fn takes(&self) -> bool {
        self.ended.is_none() && self.unread.has_room()
    }

    fn take(&mut self, said: Option<Said>) {
        match said {
            Some(Ok(v1::ExecOutput { output: Some(Output::Stdout(bytes)) })) => self.unread.push(true, bytes),
            Some(Ok(v1::ExecOutput { output: Some(Output::Stderr(bytes)) })) => {
                self.unread.push(false, bytes)
            }
            Some(Ok(started @ v1::ExecOutput { output: Some(Output::Started(_)) })) => {
                self.started = Some(started);
            }
            Some(last) => self.ended = Some(last),
            None => self.ended = Some(Err(Refusal::ended(&self.place.live.name()).into())),
        }
    }
}
