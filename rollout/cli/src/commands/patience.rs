//! Bearing with a yard that does not answer: it may be starting again.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::talk::Talk;

/// The longest silence of a yard that a command with something to wait for bears.
pub const SILENCE_MAX: Duration = Duration::from_mins(1);
/// The longest time that a node may be away, for a command that bears with that.
const NODE_AWAY_MAX: Duration = Duration::from_secs(30);
/// The first pause between two tries. Each is twice the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// A silence that is over by then is not worth a word.
const SAY_AFTER: Duration = Duration::from_secs(1);

/// One silence after the other.
#[derive(Debug)]
pub struct Patience<'a> {
    talk: &'a Talk,
    with_nodes: bool,
    silence: Option<Silence>,
}

#[derive(Debug)]
struct Silence {
    since: Instant,
    max: Duration,
    next_pause: Duration,
    said: bool,
}

impl<'a> Patience<'a> {
    pub const fn new(talk: &'a Talk) -> Self {
        Self { talk, with_nodes: false, silence: None }
    }

    /// Also with a node that is away, for 30 s.
    pub const fn with_nodes(talk: &'a Talk) -> Self {
        Self { talk, with_nodes: true, silence: None }
    }

    /// The yard answered.
    pub fn answered(&mut self) {
        if self.silence.take().is_some_and(|silence| silence.said) {
            self.talk.say("the yard answers again");
        }
    }

    /// How long to wait before the next try. An error that is an answer is given back, and so is the
    /// one after [`SILENCE_MAX`].
    pub fn pause(&mut self, error: Error) -> Result<Duration, Error> {
        self.pause_at(Instant::now(), error)
    }

    fn pause_at(&mut self, now: Instant, error: Error) -> Result<Duration, Error> {
        let max = match () {
            () if error.is_silence() => SILENCE_MAX,
            () if self.with_nodes && error.may_pass() => NODE_AWAY_MAX,
            () => return Err(error),
        };
        // The yard came back, and its node is yet to come: each has its own time.
        let silence = self.silence.take().filter(|silence| silence.max == max);
        let silence = self.silence.insert(silence.unwrap_or(Silence {
            since: now,
            max,
            next_pause: PAUSE_FIRST,
            said: false,
        }));
        let left = max.saturating_sub(now - silence.since);
        if left.is_zero() {
            return Err(error);
        }
        if !silence.said && now - silence.since >= SAY_AFTER {
            silence.said = true;
            let (who, most) = (if max == SILENCE_MAX { "yard" } else { "node" }, max.as_secs());
            self.talk.say(&format!(
                "the {who} does not answer: waiting up to {most} s for it ({})",
                rollout::text::shown(&error.to_string(), 300)
            ));
        }
        tracing::debug!(%error, "the yard does not answer");
        let pause = silence.next_pause.min(left);
        silence.next_pause = (silence.next_pause * 2).min(PAUSE_MAX);
        Ok(pause)
    }

    /// The answer to a request that may be sent again, since the yard takes it once however often it
    /// arrives.
    pub async fn through<T>(
        &mut self,
        mut request: impl AsyncFnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            match request().await {
                Ok(answer) => {
                    self.answered();
                    return Ok(answer);
                }
                Err(error) => tokio::time::sleep(self.pause(error)?).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence() -> Error {
        Error::Broken { url: "unix:/y".into(), message: "gone".into() }
    }

    /// Tries, and how long they went on, while nobody answers.
    fn tries(patience: &mut Patience<'_>, begin: Instant) -> (u32, Duration) {
        let (mut now, mut tries) = (begin, 0);
        while let Ok(pause) = patience.pause_at(now, silence()) {
            now += pause;
            tries += 1;
        }
        (tries, now - begin)
    }

    #[test]
    fn a_silence_is_borne_for_its_longest_and_no_longer() {
        let talk = Talk::default();
        let (tries, lasted) = tries(&mut Patience::new(&talk), Instant::now());
        assert_eq!(lasted, SILENCE_MAX);
        assert!((20..40).contains(&tries), "the pauses grow: {tries} tries");
    }

    #[test]
    fn every_answer_begins_a_new_silence() {
        let (talk, begin) = (Talk::default(), Instant::now());
        let mut patience = Patience::new(&talk);
        let first = tries(&mut patience, begin);
        assert!(patience.pause_at(begin + first.1, silence()).is_err());
        patience.answered();
        assert_eq!(tries(&mut patience, begin + first.1), first);
    }

    #[test]
    fn what_the_yard_refuses_is_not_asked_again() {
        let talk = Talk::default();
        let refused = Patience::new(&talk).pause(Error::MatrixWaits);
        assert!(matches!(refused, Err(Error::MatrixWaits)));
    }

    #[tokio::test]
    async fn a_request_is_sent_until_it_is_answered() {
        let (talk, mut sent) = (Talk::default(), 0);
        let answer = Patience::new(&talk)
            .through(async || {
                sent += 1;
                if sent < 3 { Err(silence()) } else { Ok(sent) }
            })
            .await;
        assert_eq!(answer.expect("answered"), 3);
    }
}
