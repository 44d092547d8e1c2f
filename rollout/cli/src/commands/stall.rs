//! A job that stands still says why, without being asked.

use std::cell::RefCell;
use std::time::Duration;

use rollout::text::shown;
use rollout_wire::v1::ExplainRequest;

use super::Context;
use crate::client::Client;
use crate::view::Job;

/// Nothing running and nothing ending for this long is worth a word.
const STALL_AFTER: Duration = Duration::from_secs(5);
/// Characters of a sentence that are shown.
const LINE_CHARS_MAX: usize = 400;
/// Sentences of an explanation that are shown.
const LINES_MAX: usize = 3;

/// What the progress shows, as of the last change.
#[derive(Debug, Default)]
pub struct Seen {
    /// Rollouts that ended, steps that run.
    last: RefCell<(u64, u64)>,
}

impl Seen {
    pub fn note(&self, job: &Job) {
        *self.last.borrow_mut() = (job.rollouts.ended, job.steps_running);
    }

    /// Never returns. Each new explanation is said once.
    pub async fn explain_stalls(&self, context: &Context, client: &Client, job: &str) {
        let (mut before, mut said) = (None, String::new());
        loop {
            tokio::time::sleep(STALL_AFTER).await;
            let now = *self.last.borrow();
            let stalled = now.1 == 0 && before == Some(now);
            before = Some(now);
            if !stalled {
                continue;
            }
            let request = ExplainRequest { target: job.to_owned() };
            // A yard that cannot answer now is what the watch itself reports.
            let Ok(reply) = client.jobs().explain(request).await else { continue };
            let lines = reply.into_inner().lines;
            let text: Vec<String> =
                lines.iter().take(LINES_MAX).map(|line| shown(line, LINE_CHARS_MAX)).collect();
            // Waits are counted down in the text; the reason is what is new or not.
            let reason: String = text.join("\n").chars().filter(|c| !c.is_ascii_digit()).collect();
            if reason != said {
                context.talk.say(&format!("nothing runs:\n  {}", text.join("\n  ")));
                said = reason;
            }
        }
    }
}
