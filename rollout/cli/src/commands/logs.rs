//! `logs`: what a step wrote. Bytes are exact in a pipe; on a terminal everything that could
//! steer it is escaped.

use std::io::{self, IsTerminal, Write};

use rollout::text::shown;
use rollout::{Name, RolloutId};
use rollout_wire::v1::{LogsChunk, LogsRequest, StepRow};
use serde_json::json;

use super::Context;
use super::jobs::{Target, no_step};
use crate::args::{Logs, OutputFormat, Stream};
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::output::human::size;
use crate::output::json;

pub async fn logs(context: &Context, args: &Logs) -> Result<ExitStatus, Error> {
    let (rollout, step) = match Target::parse(&args.target)? {
        Target::Rollout(rollout) => (rollout, None),
        Target::Step(rollout, step) => (rollout, Some(step)),
        Target::Job(_) => {
            return Err(Error::BadTarget {
                text: args.target.clone(),
                expected: "ROLLOUT or ROLLOUT/STEP; list the rollouts of a job with `rollyard ps JOB`",
            });
        }
    };
    let question = async |client: &Client| print(context, args, client, rollout, step).await;
    context.ask(question, |open| *open).await?;
    Ok(ExitStatus::Success)
}

/// Whether more may come: the step has an attempt that has not ended.
async fn print(
    context: &Context,
    args: &Logs,
    client: &Client,
    rollout: RolloutId,
    step: Option<Name>,
) -> Result<bool, Error> {
    let (rows, _) = client.list_steps(&rollout.to_string()).await?;
    let step = match step {
        Some(step) if rows.iter().any(|row| row.step == step.as_str()) => step.to_string(),
        Some(step) => return Err(no_step(&rollout, step.as_str(), &rows)),
        None => {
            let step = most_telling(&rollout, &rows)?;
            context.talk.say(&format!("step {}", shown(&step, 80)));
            step
        }
    };
    let open = rows.iter().any(|row| row.step == step && row.attempt.is_some() && row.outcome.is_none());
    let request = LogsRequest {
        rollout: rollout.to_string(),
        step,
        attempt: args.attempt,
        stream: args.stream.map(Stream::as_str).unwrap_or_default().to_owned(),
        follow: args.follow,
    };
    let mut chunks = client.done(client.jobs().logs(request).await)?;
    let mut printer = Printer::new(context.format, args.raw);
    while let Some(chunk) = chunks.message().await.map_err(|status| client.failed(status))? {
        printer.print(&chunk).map_err(Error::Stdout)?;
        if chunk.dropped_bytes > 0 && context.format == OutputFormat::Table {
            context.talk.say(&format!(
                "{}: {} more were written and not kept (capture_truncated)",
                shown(&chunk.stream, 16),
                size(chunk.dropped_bytes)
            ));
        }
    }
    Ok(open)
}

/// The first step that failed, else the last that started.
fn most_telling(rollout: &RolloutId, rows: &[StepRow]) -> Result<String, Error> {
    let failed = rows.iter().find(|row| row.outcome.as_ref().is_some_and(|o| o.failure.is_some()));
    let started =
        || rows.iter().filter(|row| row.started_at_us.is_some()).max_by_key(|row| row.started_at_us);
    let row =
        failed.or_else(started).ok_or_else(|| Error::NothingStarted { rollout: rollout.to_string() })?;
    Ok(row.step.clone())
}

/// Writes bytes that come in pieces.
#[derive(Debug)]
pub struct Printer {
    pub json: bool,
    /// For standard output and standard error.
    escape: [bool; 2],
    /// The start of a character whose rest comes with the next chunk.
    cut: [Vec<u8>; 2],
}

impl Printer {
    pub fn new(format: OutputFormat, raw: bool) -> Self {
        let escape = [io::stdout().is_terminal() && !raw, io::stderr().is_terminal() && !raw];
        Self { json: format == OutputFormat::Json, escape, cut: Default::default() }
    }

    fn print(&mut self, chunk: &LogsChunk) -> io::Result<()> {
        let stream = usize::from(chunk.stream == "stderr");
        if self.json {
            let mut stdout = io::stdout().lock();
            return stdout.write_all(as_json(chunk).as_bytes()).and_then(|()| stdout.flush());
        }
        self.bytes(stream, &chunk.data)
    }

    /// For people; stream 1 is standard error.
    pub fn bytes(&mut self, stream: usize, data: &[u8]) -> io::Result<()> {
        let escaped;
        let bytes = if self.escape[stream] {
            escaped = escape(&mut self.cut[stream], data);
            escaped.as_bytes()
        } else {
            data
        };
        if stream == 1 {
            return io::stderr().lock().write_all(bytes);
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush())
    }
}

/// One object a line; bytes that are not UTF-8 come as hex, so that nothing is lost.
fn as_json(chunk: &LogsChunk) -> String {
    let dropped = chunk.dropped_bytes;
    json::line(&match std::str::from_utf8(&chunk.data) {
        Ok(text) => json!({ "stream": chunk.stream, "text": text, "dropped_bytes": dropped }),
        Err(_) => {
            json!({ "stream": chunk.stream, "hex": hex::encode(&chunk.data), "dropped_bytes": dropped })
        }
    })
}

/// Letters of any script, line ends and tabs stay; controls, format characters and what is no
/// text are escaped.
fn escape(cut: &mut Vec<u8>, data: &[u8]) -> String {
    let mut bytes = std::mem::take(cut);
    bytes.extend_from_slice(data);
    let mut out = String::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (text, bad) = match std::str::from_utf8(rest) {
            Ok(text) => (text, None),
            Err(error) => {
                let text = std::str::from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default();
                (text, Some(error.error_len()))
            }
        };
        for c in text.chars() {
            if c == '\n' || c == '\t' || c == ' ' || c.is_alphanumeric() || c.is_ascii_graphic() {
                out.push(c);
            } else {
                out.extend(c.escape_unicode());
            }
        }
        rest = &rest[text.len()..];
        match bad {
            Some(Some(length)) => {
                rest[..length].iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
                rest = &rest[length..];
            }
            Some(None) => {
                *cut = rest.to_vec();
                break;
            }
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use rollout_wire::v1::{Failure, Outcome};

    use super::*;

    #[test]
    fn a_terminal_gets_letters_and_no_commands() {
        let mut cut = Vec::new();
        assert_eq!(
            escape(&mut cut, "ok é 日\t\u{1b}[2J\r\u{202e}\n".as_bytes()),
            "ok é 日\t\\u{1b}[2J\\u{d}\\u{202e}\n"
        );
        assert_eq!(escape(&mut cut, b"\xff\x9b."), "\\xff\\x9b.");
    }

    #[test]
    fn a_character_cut_by_chunks_is_put_together() {
        let mut cut = Vec::new();
        let bytes = "é日".as_bytes();
        let text: String = bytes.iter().map(|byte| escape(&mut cut, &[*byte])).collect();
        assert_eq!((text.as_str(), cut.len()), ("é日", 0));
    }

    #[test]
    fn json_loses_no_byte() {
        let chunk =
            |data: &[u8]| LogsChunk { stream: "stdout".into(), data: data.to_vec(), dropped_bytes: 0 };
        assert_eq!(
            as_json(&chunk(b"a\n")),
            "{\"dropped_bytes\":0,\"stream\":\"stdout\",\"text\":\"a\\n\"}\n"
        );
        assert_eq!(as_json(&chunk(b"\xff")), "{\"dropped_bytes\":0,\"hex\":\"ff\",\"stream\":\"stdout\"}\n");
    }

    #[test]
    fn without_a_step_the_first_failure_is_shown_else_the_last_start() {
        let rollout: RolloutId = "j0000000000007-g0-s1".parse().expect("an id");
        let row = |step: &str, started_at_us, failed| StepRow {
            step: step.into(),
            started_at_us,
            outcome: Some(Outcome { failure: failed, ..Outcome::default() }),
            ..StepRow::default()
        };
        let failure = Some(Failure::default());
        let rows = [row("a", Some(1), None), row("b", Some(2), failure), row("c", Some(3), None)];
        assert_eq!(most_telling(&rollout, &rows).expect("a step"), "b");
        assert_eq!(
            most_telling(&rollout, &[row("a", Some(1), None), row("b", None, None)]).expect("a step"),
            "a"
        );
        assert_eq!(most_telling(&rollout, &[]).expect_err("nothing").code(), "not_started");
    }
}
