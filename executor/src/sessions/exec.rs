//! A process with its streams, driven live. Nothing is recorded. What the client does not take stays in the
//! pipes, and the process waits; when the client is gone its tree is killed, unless it is to go on alone. Between
//! one that has a name and its client is a relay, which waits for a client that is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollout_wire::v1::{self, exec_input::Input, exec_output::Output, exec_start};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use super::commands;
use super::error::Refusal;
use super::live::{Busy, EXECS_MAX, Live};
use super::reached;
use super::run::{end_tree, io_failed, leave, start};
use super::streams::{CHUNK_BYTES, Stream};
use crate::sandbox::Exit;
use crate::sandbox::driven::{Opened, Opening, Streams, TreeProcess};

/// Messages on their way to a client that is slower than the process.
const QUEUE_MAX: usize = 4;
/// Of one message of standard input.
const STDIN_BYTES_MAX: usize = 64 << 10;
/// Of standard input that the process does not take: past it nothing more of the client is read, and
/// signals behind it wait too.
const STDIN_PENDING_MAX: usize = 1 << 20;
/// At the end of a process, of what is left in its pipes.
const LAST_CHUNKS_MAX: usize = 64;

pub(super) type Outputs = mpsc::Receiver<Result<v1::ExecOutput, Status>>;

struct Exec {
    live: Arc<Live>,
    process: Box<dyn TreeProcess>,
    stdin: Stream,
    /// Of a terminal: its far end, for both directions.
    stdout: Stream,
    stderr: Stream,
    is_terminal: bool,
    deadline: Instant,
    detach: bool,
    outputs: mpsc::Sender<Result<v1::ExecOutput, Status>>,
    /// Room for how it ended: a client that is slow holds up no end, and is told all the same.
    last_word: mpsc::OwnedPermit<Result<v1::ExecOutput, Status>>,
    /// Of a client that is there.
    busy: Option<Busy>,
    _permit: OwnedSemaphorePermit,
}

/// Starts the process; what it does comes through the queue.
pub(super) async fn exec(
    live: &Arc<Live>,
    begin: v1::ExecStart,
    inputs: Streaming<v1::ExecInput>,
) -> Result<Outputs, Refusal> {
    if begin.exec_id.is_empty() {
        return self::begin(live, begin, Some(inputs)).await;
    }
    reached::exec(live, begin, inputs).await
}

/// Without inputs its standard input is at its end.
pub(super) async fn begin(
    live: &Arc<Live>,
    begin: v1::ExecStart,
    inputs: Option<Streaming<v1::ExecInput>>,
) -> Result<Outputs, Refusal> {
    let permit = Live::permit(&live.limits.execs, "processes with streams", "EXECS_MAX", EXECS_MAX)?;
    let busy = Some(live.busy()?);
    let argv = match begin.command {
        None => return Err(Refusal::bad("start.command", "one of shell, argv")),
        Some(exec_start::Command::Shell(text)) => commands::shell_argv(text)?,
        Some(exec_start::Command::Argv(argv)) => commands::checked_argv(argv)?,
    };
    let whole = Duration::from_millis(live.step.timeout.0);
    let timeout = commands::timeout(live, begin.timeout_ms.map_or(whole, Duration::from_millis))?;
    let mut env: BTreeMap<_, _> = begin.env;
    let failed = |error: std::io::Error| io_failed(&error);
    let (mut stdin, mut stdout, mut stderr) = (Stream::none(), Stream::none(), Stream::none());
    let streams = match begin.pty {
        Some(size) => {
            env.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
            let (columns, rows) = checked_size(size)?;
            Streams::Terminal { columns, rows }
        }
        None => {
            let (stdin_end, stdout_end, stderr_end);
            (stdin, stdin_end) = Stream::to_process().map_err(failed)?;
            (stdout, stdout_end) = Stream::from_process().map_err(failed)?;
            (stderr, stderr_end) = Stream::from_process().map_err(failed)?;
            Streams::Pipes { stdin: Some(stdin_end), stdout: stdout_end, stderr: stderr_end }
        }
    };
    let opening = Opening {
        argv,
        env: commands::env(live, env),
        cwd: commands::cwd(live, begin.cwd),
        user: commands::user(live, begin.user),
        streams,
        report: None,
    };
    let Opened { process, pid, terminal } = start(live, opening).await?;
    let is_terminal = terminal.is_some();
    if let Some(terminal) = terminal {
        (stdin, stdout) = Stream::terminal(terminal).map_err(failed)?;
    }
    let (outputs, queue) = mpsc::channel(QUEUE_MAX + 1);
    let Ok(last_word) = outputs.clone().try_reserve_owned() else {
        return Err(Refusal::ended(&live.name()));
    };
    let started = Output::Started(v1::ExecStarted { pid });
    let _there_is_room = outputs.try_send(Ok(v1::ExecOutput { output: Some(started) }));
    let exec = Exec {
        live: Arc::clone(live),
        process,
        stdin,
        stdout,
        stderr,
        is_terminal,
        deadline: Instant::now() + timeout,
        detach: begin.detach,
        outputs,
        last_word,
        busy,
        _permit: permit,
    };
    live.tasks().spawn(exec.serve(inputs));
    Ok(queue)
}

fn checked_size(size: v1::PtySize) -> Result<(u16, u16), Refusal> {
    match (u16::try_from(size.columns), u16::try_from(size.rows)) {
        (Ok(columns), Ok(rows)) => Ok((columns, rows)),
        _ => Err(Refusal::bad("pty", "at most 65535 columns and rows")),
    }
}

/// Why the serving of a process stopped.
enum Stop {
    Ended(Option<Exit>),
    TimedOut,
    /// The client is gone, or broke the rules of the call.
    ClientGone(Option<Refusal>),
    SessionOver,
}

impl Exec {
    async fn serve(mut self, inputs: Option<Streaming<v1::ExecInput>>) {
        let mut stop = self.attended(inputs).await;
        if let Stop::ClientGone(None) = &stop
            && self.detach
        {
            self.busy = None;
            stop = self.alone().await;
        }
        let (exit, timed_out) = match stop {
            Stop::Ended(exit) => (exit, false),
            Stop::TimedOut => (end_tree(self.process.as_ref()).await, true),
            Stop::ClientGone(refusal) => {
                end_tree(self.process.as_ref()).await;
                if let Some(refusal) = refusal {
                    self.last_word.send(Err(refusal.into()));
                }
                return;
            }
            Stop::SessionOver => {
                end_tree(self.process.as_ref()).await;
                let refusal = Refusal::ended(&self.live.name());
                self.last_word.send(Err(refusal.into()));
                return;
            }
        };
        self.send_last().await;
        let (mut exit_code, mut signal) = (None, None);
        match exit {
            Some(Exit::Code(code)) => exit_code = Some(code),
            Some(Exit::Signal(number)) => signal = Some(number),
            None => {}
        }
        let ended = Output::Ended(v1::ExecEnded { exit_code, signal, timed_out });
        self.last_word.send(Ok(v1::ExecOutput { output: Some(ended) }));
        if !self.is_terminal {
            leave(&self.live, self.stdout, self.stderr);
        }
    }

    /// While the client is there.
    async fn attended(&mut self, mut inputs: Option<Streaming<v1::ExecInput>>) -> Stop {
        let Self { live, process, stdin, stdout, stderr, deadline, outputs, .. } = self;
        let exit = process.wait();
        tokio::pin!(exit);
        let mut buffers = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
        let (mut pending, mut sent) = (Vec::new(), 0usize);
        let (mut has_inputs, mut closes) = (inputs.is_some(), inputs.is_none());
        loop {
            let writes = sent < pending.len() && !stdin.is_over();
            if !writes && closes {
                stdin.close();
            }
            tokio::select! {
                exit = &mut exit => return Stop::Ended(exit.ok()),
                () = sleep_until(*deadline) => return Stop::TimedOut,
                () = live.over() => return Stop::SessionOver,
                () = outputs.closed() => return Stop::ClientGone(None),
                is_there = next_output(outputs, stdout, stderr, &mut buffers) => {
                    if !is_there {
                        return Stop::ClientGone(None);
                    }
                    live.touch();
                }
                written = stdin.write(&pending[sent..]), if writes => {
                    live.touch();
                    match written {
                        Ok(written) => sent += written,
                        // The process closed its input: what comes now is for nobody.
                        Err(_) => {
                            stdin.close();
                            (pending, sent) = (Vec::new(), 0);
                        }
                    }
                }
                input = next_input(&mut inputs), if has_inputs && pending.len() - sent < STDIN_PENDING_MAX => {
                    live.touch();
                    let input = match input {
                        Ok(input) => input,
                        Err(_broken) => return Stop::ClientGone(None),
                    };
                    let Some(input) = input else {
                        // No more comes; the client still listens.
                        (has_inputs, closes) = (false, true);
                        continue;
                    };
                    match input.input {
                        Some(Input::Stdin(bytes)) if bytes.len() > STDIN_BYTES_MAX => {
                            let words = format!("at most {STDIN_BYTES_MAX} bytes a message");
                            return Stop::ClientGone(Some(Refusal::bad("stdin", words)));
                        }
                        Some(Input::Stdin(bytes)) => {
                            // Another client may have paused it.
                            if let Err(refusal) = live.wake().await {
                                return Stop::ClientGone(Some(refusal));
                            }
                            pending.drain(..sent);
                            sent = 0;
                            if !stdin.is_over() {
                                pending.extend(bytes);
                            }
                        }
                        Some(Input::CloseStdin(closed)) => closes |= closed,
                        Some(Input::Resize(size)) => {
                            let size = match checked_size(size) {
                                Ok(size) => size,
                                Err(refusal) => return Stop::ClientGone(Some(refusal)),
                            };
                            // Of what is no terminal, nothing.
                            if let Err(error) = stdout.resize(size.0, size.1) {
                                tracing::debug!(%error, "terminal not resized");
                            }
                        }
                        Some(Input::Signal(signal)) => {
                            if !(1..=64).contains(&signal) {
                                return Stop::ClientGone(Some(Refusal::bad("signal", "1 to 64")));
                            }
                            if let Err(error) = process.signal(signal).await {
                                tracing::debug!(%error, "signal not sent");
                            }
                        }
                        Some(Input::HangUp(hangs_up)) => {
                            if hangs_up {
                                return Stop::ClientGone(None);
                            }
                        }
                        Some(Input::Start(_) | Input::Received(_)) | None => {
                            let words = "`start` is the first input, and no other; `received` needs its `exec_id`";
                            let refusal = Refusal::bad("input", words);
                            return Stop::ClientGone(Some(refusal));
                        }
                    }
                }
            }
        }
    }

    /// When the client is gone and the process goes on: what it writes is dropped.
    async fn alone(&mut self) -> Stop {
        let Self { live, process, stdin, stdout, stderr, deadline, .. } = self;
        stdin.close();
        tokio::select! {
            exit = process.wait() => Stop::Ended(exit.ok()),
            () = sleep_until(*deadline) => Stop::TimedOut,
            () = live.over() => Stop::SessionOver,
            _never = async { tokio::join!(stdout.drain(), stderr.drain(), std::future::pending::<()>()) } => {
                Stop::SessionOver
            }
        }
    }

    /// What is in the pipes when the process is gone.
    async fn send_last(&mut self) {
        let mut buffer = vec![0; CHUNK_BYTES];
        for is_stdout in [true, false] {
            for _ in 0..LAST_CHUNKS_MAX {
                let stream = if is_stdout { &mut self.stdout } else { &mut self.stderr };
                let Some(read) = stream.read_now(&mut buffer) else { break };
                let message = chunk(is_stdout, &buffer[..read]);
                tokio::select! {
                    sent = self.outputs.send(Ok(message)) => if sent.is_err() { return },
                    () = self.live.over() => return,
                }
            }
        }
    }
}

async fn next_input(inputs: &mut Option<Streaming<v1::ExecInput>>) -> Result<Option<v1::ExecInput>, Status> {
    match inputs {
        Some(inputs) => inputs.message().await,
        None => std::future::pending().await,
    }
}

fn chunk(is_stdout: bool, bytes: &[u8]) -> v1::ExecOutput {
    let bytes = bytes.to_vec();
    v1::ExecOutput { output: Some(if is_stdout { Output::Stdout(bytes) } else { Output::Stderr(bytes) }) }
}

/// Moves the next output, once there is room for it; false: the client is gone. Dropped, it has moved
/// nothing.
async fn next_output(
    outputs: &mpsc::Sender<Result<v1::ExecOutput, Status>>,
    stdout: &mut Stream,
    stderr: &mut Stream,
    buffers: &mut [Vec<u8>; 2],
) -> bool {
    let Ok(room) = outputs.reserve().await else { return false };
    let [out, err] = buffers;
    let message = tokio::select! {
        read = stdout.read(out) => (read > 0).then(|| chunk(true, &out[..read])),
        read = stderr.read(err) => (read > 0).then(|| chunk(false, &err[..read])),
    };
    if let Some(message) = message {
        room.send(Ok(message));
    }
    true
}
