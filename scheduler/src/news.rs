//! Wakes calls that wait for something of a job: that a sandbox of it is ready, or that it ends; or for something of
//! one rollout: that an attempt of it is ready, or ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout::{JobId, RolloutId};
use scheduler_core::Record;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Cheap to clone. Holds an entry for everything that somebody listens to.
#[derive(Debug, Clone, Default)]
pub(crate) struct News(Arc<Mutex<BTreeMap<Subject, Entry>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Job(JobId),
    Rollout(RolloutId),
}

impl From<JobId> for Subject {
    fn from(job: JobId) -> Self {
        Self::Job(job)
    }
}

impl From<RolloutId> for Subject {
    fn from(rollout: RolloutId) -> Self {
        Self::Rollout(rollout)
    }
}

#[derive(Debug, Default)]
struct Entry {
    listeners: usize,
    heard: Arc<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    notify: Notify,
    /// How often something was told.
    told: AtomicU64,
}

/// Somebody who listens.
#[derive(Debug)]
pub(crate) struct Listening {
    news: News,
    subject: Subject,
    heard: Arc<Heard>,
}

impl News {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Subject, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, subject: impl Into<Subject>) -> Listening {
        let subject = subject.into();
        let mut listened = self.lock();
        let entry = listened.entry(subject).or_default();
        entry.listeners += 1;
        Listening { news: self.clone(), subject, heard: entry.heard.clone() }
    }

    /// Of a batch that is stored: one listener of a job for each sandbox that is ready, all for a change of the
    /// job; all listeners of a rollout.
    pub(crate) fn tell(&self, records: &[Record]) {
        let listened = self.lock();
        if listened.is_empty() {
            return;
        }
        let tell = |subject: Subject, notify: fn(&Notify)| {
            if let Some(Entry { heard, .. }) = listened.get(&subject) {
                heard.told.fetch_add(1, Ordering::Relaxed);
                notify(&heard.notify);
            }
        };
        for record in records {
            match record {
                Record::AttemptStarted { attempt, .. } => {
                    tell(attempt.rollout.group.job.into(), Notify::notify_one);
                    tell(attempt.rollout.into(), Notify::notify_waiters);
                }
                Record::AttemptEnded { attempt, .. } => tell(attempt.rollout.into(), Notify::notify_waiters),
                Record::JobState { job, .. } => tell((*job).into(), Notify::notify_waiters),
                _ => {}
            }
        }
    }
}

impl Listening {
    /// What comes after this call is heard.
    pub(crate) fn next(&self) -> Notified<'_> {
        self.heard.notify.notified()
    }

    /// How often something was told of it while somebody listened.
    pub(crate) fn told(&self) -> u64 {
        self.heard.told.load(Ordering::Relaxed)
    }

    /// Lets another listener look, too: what woke this one may be of use to it.
    pub(crate) fn pass_on(&self) {
        self.heard.notify.notify_one();
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut listened = self.news.lock();
        let Some(entry) = listened.get_mut(&self.subject) else { return };
        entry.listeners -= 1;
        if entry.listeners == 0 {
            listened.remove(&self.subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout::state::JobState;
    use rollout::{AttemptId, Generation, StepIndex, Timestamp};

    use super::*;
    use crate::store::only_rollout;

    const JOB: JobId = JobId::from_bits(1);

    fn started() -> Record {
        let attempt = AttemptId { rollout: only_rollout(JOB), step: StepIndex(0), attempt: 0 };
        Record::AttemptStarted { attempt, generation: Generation(1), started_at: Timestamp(1) }
    }

    fn held() -> Record {
        Record::JobState {
            job: JOB,
            state: JobState::Held,
            reason: String::new(),
            hold: None,
            cancel_code: None,
            unrecorded: None,
        }
    }

    #[tokio::test]
    async fn one_listener_hears_of_one_start_and_all_of_a_change() {
        let news = News::default();
        let (first, second) = (news.of(JOB), news.of(JOB));
        let other = news.of(JobId::from_bits(2));
        let mut waiting = [first.next(), second.next(), other.next()].map(Box::pin);
        for waits in &mut waiting {
            assert!(!waits.as_mut().enable());
        }
        news.tell(&[started()]);
        assert_eq!(waiting.each_mut().map(|waits| waits.as_mut().enable()), [true, false, false]);
        news.tell(&[held()]);
        assert_eq!(waiting.each_mut().map(|waits| waits.as_mut().enable()), [true, true, false]);
    }

    #[tokio::test]
    async fn all_listeners_of_a_rollout_hear_of_its_attempts() {
        let news = News::default();
        let rollout = only_rollout(JOB);
        let another = RolloutId { sample: rollout.sample + 1, ..rollout };
        let listeners = [rollout, rollout, another].map(|rollout| news.of(rollout));
        let mut waiting = listeners.each_ref().map(|listener| Box::pin(listener.next()));
        for waits in &mut waiting {
            assert!(!waits.as_mut().enable());
        }
        news.tell(&[held(), started()]);
        assert_eq!(waiting.each_mut().map(|waits| waits.as_mut().enable()), [true, true, false]);
    }

    #[test]
    fn nothing_is_kept_of_jobs_that_nobody_listens_to() {
        let news = News::default();
        let (first, second) = (news.of(JOB), news.of(JOB));
        drop(first);
        assert_eq!(news.lock().len(), 1);
        drop(second);
        assert!(news.lock().is_empty());
    }

    #[test]
    fn listeners_that_end_at_once_leave_nothing() {
        for _ in 0..5_000 {
            let news = News::default();
            let listeners = [news.of(JOB), news.of(JOB)];
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for listener in listeners {
                    scope.spawn(|| {
                        both.wait();
                        drop(listener);
                    });
                }
            });
            assert!(news.lock().is_empty());
        }
    }
}
