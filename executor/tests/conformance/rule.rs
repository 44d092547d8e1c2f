//! A rule is a test over any backend. It panics when it is broken.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::liar::Liar;
use crate::lies::{Breach, Lie};
use crate::subject::{Ability, Started, Subject, Yard, left_at_the_end};

/// A hang guard, far above what any rule needs.
const HANG_GUARD: Duration = Duration::from_secs(200);
/// How long what ended in the background may take to be gone.
pub const CLEAN_UP: Duration = Duration::from_secs(10);
/// For what should happen at once on a busy machine.
pub const SOON: Duration = Duration::from_secs(15);

pub type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

#[derive(Clone, Copy)]
pub struct Rule {
    pub name: &'static str,
    pub run: for<'a> fn(&'a Yard) -> Running<'a>,
    /// What a backend must offer for the rule to be about it.
    pub needs: &'static [Ability],
}

impl Rule {
    pub fn is_of(&self, subject: &Subject) -> bool {
        self.needs.iter().all(|need| subject.refuses.iter().all(|(refused, _)| refused != need))
    }
}

/// Rules out of async functions, with what each needs.
#[macro_export]
macro_rules! rules {
    ($($name:ident $([$($need:ident),*])?),* $(,)?) => {
        pub const RULES: &[$crate::rule::Rule] = &[$($crate::rule::Rule {
            name: stringify!($name),
            run: |yard| Box::pin($name(yard)),
            needs: &[$($($crate::subject::Ability::$need),*)?],
        }),*];
    };
}

/// The backend keeps the rule, and nothing is left afterwards.
pub fn keep(subject: &'static Subject, rule: Rule) {
    if let Some(problem) = run(subject, None, rule) {
        panic!("{}: {problem}", rule.name);
    }
}

/// The rule is broken by the lie, and says what it is about.
pub fn caught(lie: &'static Lie, rule: Rule) -> Result<(), Failed> {
    if !rule.is_of(lie.over) {
        return Err(format!("{} is no rule for {}", rule.name, lie.over.kind).into());
    }
    match run(lie.over, Some(lie.breach), rule) {
        None => Err(format!("{} did not notice", rule.name).into()),
        Some(problem) if problem.contains(lie.says) => Ok(()),
        Some(problem) => Err(format!("{:?} is not in what was said: {problem}", lie.says).into()),
    }
}

/// Runs a rule over a backend of its own; how it was broken.
fn run(subject: &'static Subject, breach: Option<Breach>, rule: Rule) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    let broken = runtime.block_on(async move {
        let Started { backend, left, crash } = (subject.start)(&top);
        let backend = match breach {
            None => backend,
            Some(breach) => Arc::new(Liar { inner: backend, breach }),
        };
        let yard = Yard { subject, backend, left, crash, dir: top, next: AtomicU32::new(0) };
        let kept =
            tokio::time::timeout(HANG_GUARD, tokio::spawn(async move { (rule.run)(&yard).await })).await;
        match kept {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(words(error.into_panic())),
            Err(_) => Some("it hangs".to_owned()),
        }
    });
    drop(runtime);
    let left = gone(dir.path());
    broken.or_else(|| left.map(|left| format!("left after the backend: {left}")))
}

/// Waits for whatever ends the backend's sandboxes; what will not go.
fn gone(dir: &Path) -> Option<String> {
    let deadline = Instant::now() + CLEAN_UP * 3;
    loop {
        let left = left_at_the_end(dir);
        if left.is_none() || Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn words(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => {
            other.downcast::<&str>().map_or_else(|_| "a panic".to_owned(), |text| (*text).to_owned())
        }
    }
}
