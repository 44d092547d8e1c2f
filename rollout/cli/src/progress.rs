//! What a person sees while a job runs: a bar on a terminal, else a line every few seconds.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rollout::text::shown;

use crate::output::human::{count, length};
use crate::talk::Talk;
use crate::view::Job;

/// Between two lines where there is no terminal.
const LINE_PERIOD: Duration = Duration::from_secs(5);
/// The most failure codes named on the line.
const CODES_MAX: usize = 4;

#[derive(Debug)]
pub struct Progress {
    talk: Talk,
    bar: Option<ProgressBar>,
    started: Instant,
    ended_at_start: Option<u64>,
    last_line: Option<Instant>,
    /// Whether steps ran, as of the last line: that they begin is worth a line at once.
    ran: bool,
}

impl Progress {
    pub fn start(talk: Talk) -> Self {
        let bar = Talk::terminal().then(|| {
            let bar = ProgressBar::new(0);
            let template = "{bar:28} {pos}/{len} {msg} {elapsed}";
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.enable_steady_tick(Duration::from_millis(500));
            talk.show_bar(bar.clone());
            bar
        });
        Self { talk, bar, started: Instant::now(), ended_at_start: None, last_line: None, ran: false }
    }

    pub fn update(&mut self, job: &Job) {
        let ended_at_start = *self.ended_at_start.get_or_insert(job.rollouts.ended);
        let elapsed = self.started.elapsed();
        let message = message(job, job.rollouts.ended.saturating_sub(ended_at_start), elapsed);
        if let Some(bar) = &self.bar {
            bar.set_length(job.rollouts.total);
            bar.set_position(job.rollouts.ended);
            bar.set_message(message);
            return;
        }
        let begins = job.steps_running > 0 && !self.ran;
        if begins || job.is_final() || self.last_line.is_none_or(|last| last.elapsed() >= LINE_PERIOD) {
            self.last_line = Some(Instant::now());
            self.ran |= job.steps_running > 0;
            let at = length(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
            let (ended, total) = (count(job.rollouts.ended), count(job.rollouts.total));
            self.talk.say(&format!("{at}  {ended}/{total} rollouts  {message}"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.talk.drop_bar();
    }
}

/// `3.2/s  valid 10  running 8  failed agent_timeout 2, oom_guest 1`
fn message(job: &Job, ended: u64, elapsed: Duration) -> String {
    let mut text = String::new();
    let ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let tenths = ended.saturating_mul(10_000) / ms;
    _ = write!(text, "{}.{}/s  valid {}", tenths / 10, tenths % 10, count(job.rollouts.valid));
    _ = write!(text, "  running {}", count(job.steps_running));
    if job.steps_ready > 0 {
        _ = write!(text, "  waiting {}", count(job.steps_ready));
    }
    if !job.failures.is_empty() {
        let mut failures: Vec<_> = job.failures.iter().collect();
        failures.sort_by_key(|failure| std::cmp::Reverse(failure.rollouts));
        let named: Vec<String> = failures
            .iter()
            .take(CODES_MAX)
            .map(|failure| format!("{} {}", shown(&failure.code, 40), count(failure.rollouts)))
            .collect();
        let more = failures.len().saturating_sub(CODES_MAX);
        let more = if more > 0 { format!(", {more} more codes") } else { String::new() };
        _ = write!(text, "  failed {}{more}", named.join(", "));
    }
    if job.is_held() {
        text += "  HELD";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixtures;

    #[test]
    fn the_line_tells_rate_valid_running_and_failures() {
        let job = fixtures::running_job();
        insta::assert_snapshot!(
            message(&job, 12, Duration::from_millis(3750)),
            @"3.2/s  valid 10  running 8  waiting 3  failed agent_timeout 4, oom_guest 2, step\\u{1b}[2Jx 1"
        );
    }

    #[test]
    fn no_time_at_all_is_no_division_by_zero() {
        assert!(message(&fixtures::running_job(), 0, Duration::ZERO).starts_with("0.0/s"));
    }
}
