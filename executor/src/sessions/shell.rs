//! Persistent shells: one process a name, whose environment, directory and functions stay from command to
//! command.
//!
//! The shell reads its commands from standard input, one at a time; each runs by `eval` in the shell
//! itself, with /dev/null as its input. Behind it the shell writes a number chosen for this command and
//! its status to a pipe of its own, descriptor 3, which is closed while the command runs. Whatever the
//! command wrote before that is in the pipes by then, and is read to the last byte: nothing but its own
//! bytes is in its output.
//!
//! What runs in a shell is as strong as the shell: it may find the other copy of the pipe and the number,
//! and say that its command ended, or that a later one of the same shell did. It forges its own results
//! and no others: other shells, other actions and the status of the shell process, which is the kernel's
//! word, are out of its reach.
//!
//! A command past its deadline ends the whole shell with everything it started, since what it changed in
//! the shell half way is not undone. The next command of that name begins a new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollout_wire::v1;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::error::{Refusal, SandboxCode};
use super::live::Live;
use super::run::{end_tree, io_failed, refused, set_exit, set_output, start};
use super::streams::{CHUNK_BYTES, Kept, Stream};
use crate::broker::serve::lock;
use crate::clock::wall_now;
use crate::sandbox::driven::{Opened, Opening, Streams, TreeProcess};

/// Shells of one session.
pub(super) const SHELLS_MAX: usize = 16;
/// Commands that wait for one shell.
const QUEUE_MAX: usize = 64;
/// Of what a shell told and nobody asked for; more of it is dropped.
const REPORT_BYTES_MAX: usize = 4096;
/// In order: what an image has.
const SHELLS: [&[&str]; 2] = [&["bash", "--noprofile", "--norc"], &["sh"]];

#[derive(Debug)]
struct Ask {
    text: String,
    timeout: Duration,
    output_max: usize,
    answer: oneshot::Sender<v1::ActResult>,
}

/// The shells of one session, by name.
#[derive(Debug, Default)]
pub(super) struct Shells(Mutex<BTreeMap<String, mpsc::Sender<Ask>>>);

impl Shells {
    /// Runs `text` in the shell of that name, after whatever runs in it.
    pub async fn run(
        &self,
        live: &Arc<Live>,
        name: &str,
        text: &str,
        timeout: Duration,
        output_max: usize,
    ) -> v1::ActResult {
        let (answer, answered) = oneshot::channel();
        let ask = Ask { text: text.to_owned(), timeout, output_max, answer };
        if let Err(refusal) = self.send(live, name, ask) {
            return refused(&refusal);
        }
        // A shell that is gone answers whoever waits; if it panicked, this does.
        let lost = || refused(&Refusal::new(SandboxCode::StartFailed, "its shell ended without a word"));
        answered.await.unwrap_or_else(|_| lost())
    }

    fn send(&self, live: &Arc<Live>, name: &str, ask: Ask) -> Result<(), Refusal> {
        let mut shells = lock(&self.0);
        if !shells.contains_key(name) {
            if shells.len() >= SHELLS_MAX {
                return Err(Refusal::too_many("shells of one session", "SHELLS_MAX", SHELLS_MAX));
            }
            let (sender, asks) = mpsc::channel(QUEUE_MAX);
            live.tasks().spawn(serve(Arc::clone(live), asks));
            shells.insert(name.to_owned(), sender);
        }
        let Some(shell) = shells.get(name) else { return Err(Refusal::ended(&live.name())) };
        shell.try_send(ask).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                Refusal::too_many("commands for one shell", "QUEUE_MAX", QUEUE_MAX)
            }
            mpsc::error::TrySendError::Closed(_) => Refusal::ended(&live.name()),
        })
    }
}

/// Serves the commands of one name, one after the other, until the session ends.
async fn serve(live: Arc<Live>, mut asks: mpsc::Receiver<Ask>) {
    let mut shell: Option<Shell> = None;
    loop {
        let ask = tokio::select! {
            ask = asks.recv() => ask,
            () = ended_between(&mut shell) => {
                shell = None;
                continue;
            }
            () = live.over() => None,
        };
        let Some(ask) = ask else { break };
        let started_at = wall_now();
        let (mut result, goes_on) = match begun(&live, &mut shell).await {
            Ok(shell) => shell.run(&live, &ask).await,
            Err(refusal) => (refused(&refusal), false),
        };
        if !goes_on {
            shell = None;
        }
        (result.started_at_us, result.finished_at_us) = (started_at.0, wall_now().0);
        // Nobody may wait any more; it is done all the same.
        let _ = ask.answer.send(result);
    }
    if let Some(shell) = shell {
        end_tree(shell.process.as_ref()).await;
    }
}

/// Takes and drops what its background processes write between commands; resolves when it ends.
async fn ended_between(shell: &mut Option<Shell>) {
    let Some(shell) = shell else { return std::future::pending().await };
    let Shell { process, stdout, stderr, buffers: [out, err, _], .. } = shell;
    let exit = process.wait();
    tokio::pin!(exit);
    loop {
        tokio::select! {
            _ = &mut exit => return,
            _ = stdout.read(out) => {}
            _ = stderr.read(err) => {}
        }
    }
}

async fn begun<'a>(live: &Arc<Live>, shell: &'a mut Option<Shell>) -> Result<&'a mut Shell, Refusal> {
    if shell.is_none() {
        *shell = Some(Shell::start(live).await?);
    }
    shell.as_mut().ok_or_else(|| Refusal::ended(&live.name()))
}

struct Shell {
    process: Box<dyn TreeProcess>,
    stdin: Stream,
    stdout: Stream,
    stderr: Stream,
    report: Stream,
    buffers: [Vec<u8>; 3],
}

impl Shell {
    async fn start(live: &Arc<Live>) -> Result<Self, Refusal> {
        let mut last = Refusal::new(SandboxCode::CommandNotStarted, "the image has no shell");
        for argv in SHELLS {
            match Self::start_as(live, argv).await {
                Err(refusal) if refusal.code == SandboxCode::CommandNotStarted => last = refusal,
                other => return other,
            }
        }
        Err(last)
    }

    async fn start_as(live: &Arc<Live>, argv: &[&str]) -> Result<Self, Refusal> {
        let failed = |error: std::io::Error| io_failed(&error);
        let (stdin, stdin_end) = Stream::to_process().map_err(failed)?;
        let (stdout, stdout_end) = Stream::from_process().map_err(failed)?;
        let (stderr, stderr_end) = Stream::from_process().map_err(failed)?;
        let (report, report_end) = Stream::from_process().map_err(failed)?;
        let opening = Opening {
            argv: argv.iter().map(|argument| (*argument).to_owned()).collect(),
            env: live.env.clone(),
            cwd: live.step.workdir.clone(),
            user: live.step.user.clone(),
            streams: Streams::Pipes { stdin: Some(stdin_end), stdout: stdout_end, stderr: stderr_end },
            report: Some(report_end),
        };
        let Opened { process, .. } = start(live, opening).await?;
        let buffers = std::array::from_fn(|_| vec![0; CHUNK_BYTES]);
        Ok(Self { process, stdin, stdout, stderr, report, buffers })
    }

    /// Runs one command; false: the shell is over.
    async fn run(&mut self, live: &Arc<Live>, ask: &Ask) -> (v1::ActResult, bool) {
        let Self { process, stdin, stdout, stderr, report, buffers: [out_buffer, err_buffer, told_buffer] } =
            self;
        let deadline = Instant::now() + ask.timeout;
        let (mut out, mut err) = (Kept::new(ask.output_max), Kept::new(ask.output_max));
        let mut result = v1::ActResult::default();
        // What background processes wrote meanwhile is not this command's.
        for (stream, buffer) in [(&mut *stdout, &mut *out_buffer), (&mut *stderr, &mut *err_buffer)] {
            Kept::new(0).take_now(stream, buffer);
        }
        let nonce = hex::encode(rand::random::<[u8; 16]>());
        let input = script(&ask.text, &nonce);
        let (mut sent, mut told) = (0, Vec::new());
        // None: it went on to its end, and this shell goes on.
        let exit = {
            let exit = process.wait();
            tokio::pin!(exit);
            loop {
                tokio::select! {
                    exit = &mut exit => break Some(exit.ok()),
                    read = stdout.read(out_buffer) => out.take(&out_buffer[..read]),
                    read = stderr.read(err_buffer) => err.take(&err_buffer[..read]),
                    written = stdin.write(&input[sent..]), if sent < input.len() => {
                        // A shell that reads no more is about to end, or its deadline comes.
                        sent += written.unwrap_or(input.len() - sent);
                    }
                    read = report.read(told_buffer) => {
                        told.extend_from_slice(&told_buffer[..read]);
                        if let Some(status) = status_in(&told, &nonce) {
                            result.exit_code = Some(status);
                            break None;
                        }
                        if told.len() > REPORT_BYTES_MAX {
                            told.clear();
                        }
                    }
                    () = sleep_until(deadline) => {
                        result.timed_out = true;
                        break Some(end_tree(process.as_ref()).await);
                    }
                    () = live.over() => {
                        let refusal = Refusal::ended(&live.name());
                        (result.code, result.message) = (refusal.code.as_str().to_owned(), refusal.message);
                        break Some(end_tree(process.as_ref()).await);
                    }
                }
            }
        };
        out.take_now(stdout, out_buffer);
        err.take_now(stderr, err_buffer);
        set_output(&mut result, out, err);
        let goes_on = exit.is_none();
        set_exit(&mut result, exit.flatten().filter(|_| !goes_on));
        (result, goes_on)
    }
}

/// The lines a shell is sent for one command. `command` keeps dash from ending at a syntax error, and a
/// function of the same name from being called; what a traced shell shows of the last line goes nowhere.
fn script(text: &str, nonce: &str) -> Vec<u8> {
    let quoted = text.replace('\'', r"'\''");
    format!(
        "command eval '{quoted}' </dev/null 3>&-\n{{ command printf '%s %s\\n' {nonce} \"$?\" >&3; }} 2>/dev/null\n"
    )
    .into_bytes()
}

/// The status in a whole line that carries the number of this command.
fn status_in(told: &[u8], nonce: &str) -> Option<i32> {
    let lines = told.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    let status = |line: &[u8]| std::str::from_utf8(line).ok()?.strip_prefix(nonce)?.trim().parse().ok();
    lines.filter_map(status).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_taken_from_a_whole_line_with_the_number_of_the_command() {
        for (told, status) in [
            ("n1 0\n", Some(0)),
            ("junk\nn0 3\nn1 7\n", Some(7)),
            ("n1 7", None),
            ("n1 \n", None),
            ("n2 7\n", None),
            ("", None),
        ] {
            assert_eq!(status_in(told.as_bytes(), "n1"), status, "{told:?}");
        }
    }

    #[test]
    fn a_command_is_one_quoted_word_whatever_it_holds() {
        let text = String::from_utf8(script("echo 'it'\"$x\"\n\\", "n1")).unwrap();
        assert!(text.starts_with(r#"command eval 'echo '\''it'\''"$x""#), "{text}");
        assert_eq!(text.matches("n1").count(), 1);
    }
}
