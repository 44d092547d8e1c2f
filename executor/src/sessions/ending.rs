//! How a session ends. Whoever decides first does; nobody else is told that it went otherwise.

use rollout::outcome::Reward;
use tokio::sync::watch;

/// How a session was ended by a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ending {
    Finished { reward: Option<Reward> },
    GivenUp { problem: String },
    ActionsSpent { actions: u64 },
}

#[derive(Debug, Clone, PartialEq)]
enum Decided {
    Call(Ending),
    /// A deadline, a kill, silence, or a sandbox that died.
    Runner,
}

/// The one decision.
#[derive(Debug)]
pub(crate) struct End(watch::Sender<Option<Decided>>);

impl Default for End {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl End {
    /// A call ends the session. False: it was decided before, otherwise.
    pub(super) fn by_call(&self, ending: Ending) -> bool {
        self.decide(&Decided::Call(ending))
    }

    /// Its runner ends the session.
    ///
    /// # Errors
    /// How a call had ended it before.
    pub(crate) fn by_runner(&self) -> Result<(), Ending> {
        self.decide(&Decided::Runner);
        self.called().map_or(Ok(()), Err)
    }

    /// Whether it is what was decided.
    fn decide(&self, how: &Decided) -> bool {
        let mut is_so = true;
        self.0.send_if_modified(|current| match current {
            None => {
                *current = Some(how.clone());
                true
            }
            Some(current) => {
                is_so = current == how;
                false
            }
        });
        is_so
    }

    fn called(&self) -> Option<Ending> {
        match &*self.0.borrow() {
            Some(Decided::Call(ending)) => Some(ending.clone()),
            Some(Decided::Runner) | None => None,
        }
    }

    /// Resolves when a call ended it.
    pub(crate) async fn by_any_call(&self) -> Ending {
        let mut decided = self.0.subscribe();
        loop {
            if let Some(ending) = self.called() {
                return ending;
            }
            // The sender is `self`.
            let _ = decided.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_decides_first_does_and_the_others_are_told() {
        let finished = |value| Ending::Finished { reward: Some(Reward { value, components: Vec::new() }) };
        let end = End::default();
        assert!(end.by_call(finished(1.0)));
        assert!(end.by_call(finished(1.0)), "the same again");
        assert!(!end.by_call(finished(0.0)));
        assert_eq!(end.by_runner(), Err(finished(1.0)), "a deadline comes too late");
        assert_eq!(end.by_any_call().await, finished(1.0));
        let end = End::default();
        assert_eq!(end.by_runner(), Ok(()));
        assert!(!end.by_call(finished(1.0)), "a call comes too late");
        assert_eq!(end.by_runner(), Ok(()));
    }
}
