//! Reports as the core takes them. Every refusal names the field.

use std::net::SocketAddr;

use super::About;
use rollout::failure::Failure;
use rollout::outcome::Outcome;
use rollout::quantity::{QUANTITY_MAX, Request};
use rollout::text::shown;
use rollout::{AttemptId, Bytes, FailureCode, Generation, IncarnationId, MilliCpu, NodeId};
use rollout_wire::from_wire::{self, WireError};
use rollout_wire::{HELD_ATTEMPTS_MAX, v1};
use scheduler_core::Event;
use scheduler_core::event::{Capacity, CreationCredit, Fence, Held, HeldPhase, Measured, RefusalClass};

/// The longest address at which a node serves sandboxes.
const URL_BYTES_MAX: usize = 4096;
/// Kinds of backend one node may offer.
const BACKENDS_MAX: usize = 16;
/// The longest name of an image in a report, in bytes.
const IMAGE_BYTES_MAX: usize = rollout::spec::PATH_BYTES_MAX;
/// Characters of the message of a failure that are kept.
const FAILURE_CHARS_MAX: usize = 4_096;
/// Characters of a version or a message of an executor that are kept.
const TEXT_CHARS_MAX: usize = 512;

#[derive(Debug)]
pub(super) struct Greeting {
    pub node: NodeId,
    pub incarnation: IncarnationId,
    pub capacity: Capacity,
    pub held: Vec<Held>,
    pub about: About,
}

fn wrong(field: &str, problem: impl Into<String>) -> WireError {
    WireError { field: field.to_owned(), problem: shown(&problem.into(), TEXT_CHARS_MAX) }
}

pub(super) fn greeting(hello: &v1::Hello) -> Result<Greeting, WireError> {
    let capacity = from_wire::required("hello.capacity", hello.capacity.as_ref())?;
    for (field, value) in [
        ("hello.capacity.cpu_milli", capacity.cpu_milli),
        ("hello.capacity.memory_bytes", capacity.memory_bytes),
        ("hello.capacity.disk_bytes", capacity.disk_bytes),
        ("hello.capacity.disk_limit_max_bytes", capacity.disk_limit_max_bytes),
    ] {
        if value > QUANTITY_MAX {
            return Err(wrong(field, format!("{value} is above {QUANTITY_MAX}")));
        }
    }
    Ok(Greeting {
        node: NodeId(from_wire::parse("hello.node", &hello.node)?),
        incarnation: from_wire::parse("hello.incarnation", &hello.incarnation)?,
        capacity: Capacity {
            total: Request {
                cpu: MilliCpu(capacity.cpu_milli),
                memory: Bytes(capacity.memory_bytes),
                disk: Bytes(capacity.disk_bytes),
            },
            sandboxes: capacity.sandboxes,
            disk_limit_max: Bytes(capacity.disk_limit_max_bytes),
            // Of a kind that is unknown here nothing can be asked.
            backends: capacity.backends.iter().filter_map(|name| name.parse().ok()).collect(),
        },
        held: held("hello.held", &hello.held)?,
        about: About {
            version: shown(&hello.version, TEXT_CHARS_MAX),
            backends: backends(&capacity.backends)?,
            sandboxes_url: sandboxes_url(&hello.sandboxes_url)?,
        },
    })
}

/// Nothing, a socket of this machine, or a loopback address of it: nobody else is called.
fn sandboxes_url(url: &str) -> Result<String, WireError> {
    let is_socket = url.strip_prefix("unix:").is_some_and(|path| path.starts_with('/'));
    let address = url.strip_prefix("http://").and_then(|address| address.parse::<SocketAddr>().ok());
    let is_loopback = address.is_some_and(|address| address.ip().is_loopback());
    if !url.is_empty() && !is_socket && !is_loopback || url.len() > URL_BYTES_MAX {
        let problem = format!(
            "`{url}` is not unix:/PATH and not http:// and a loopback address, of at most {URL_BYTES_MAX} bytes"
        );
        return Err(wrong("hello.sandboxes_url", problem));
    }
    Ok(url.to_owned())
}

fn backends(names: &[String]) -> Result<Vec<String>, WireError> {
    if names.len() > BACKENDS_MAX {
        return Err(wrong(
            "hello.capacity.backends",
            format!("{} kinds, at most {BACKENDS_MAX}", names.len()),
        ));
    }
    Ok(names.iter().map(|name| shown(name, TEXT_CHARS_MAX)).collect())
}

fn held(field: &str, list: &[v1::HeldAttempt]) -> Result<Vec<Held>, WireError> {
    use v1::held_attempt::Phase;
    if list.len() > HELD_ATTEMPTS_MAX {
        return Err(wrong(field, format!("{} attempts, at most {HELD_ATTEMPTS_MAX}", list.len())));
    }
    let (attempt, phase) = (format!("{field}.attempt"), format!("{field}.phase"));
    let entry = |message: &v1::HeldAttempt| {
        Ok(Held {
            attempt: from_wire::attempt(&attempt, message.attempt.as_ref())?,
            generation: Generation(message.generation),
            phase: match message.phase() {
                Phase::Running => HeldPhase::Running,
                Phase::Ended => HeldPhase::Ended,
                Phase::Kept => HeldPhase::Kept,
                Phase::Unspecified => return Err(wrong(&phase, "unspecified")),
            },
        })
    };
    list.iter().map(entry).collect()
}

pub(super) fn measured(beat: &v1::Heartbeat) -> Measured {
    Measured {
        memory_available: Bytes(beat.memory_available_bytes),
        disk_available: Bytes(beat.disk_available_bytes),
        load_milli: beat.load_milli,
        sandboxes: beat.sandboxes,
        held: beat.held,
        credit: CreationCredit { burst: beat.creation_burst, per_s_milli: beat.creations_per_s_milli },
    }
}

/// Who reports.
#[derive(Debug, Clone)]
pub(super) struct Reporter {
    pub node: NodeId,
    pub incarnation: IncarnationId,
}

impl Reporter {
    fn at(&self, generation: u64) -> Fence {
        Fence { node: self.node.clone(), incarnation: self.incarnation, generation: Generation(generation) }
    }

    pub(super) fn held(&self, message: &v1::Held) -> Result<Event, WireError> {
        let held = held("held.held", &message.held)?;
        Ok(Event::Held { node: self.node.clone(), incarnation: self.incarnation, held })
    }

    pub(super) fn started(&self, message: &v1::AttemptStarted) -> Result<Event, WireError> {
        Ok(Event::AttemptStarted {
            at: self.at(message.generation),
            attempt: from_wire::attempt("started.attempt", message.attempt.as_ref())?,
            started_at: from_wire::timestamp("started.started_at_us", message.started_at_us)?,
        })
    }

    pub(super) fn ended(&self, message: &v1::AttemptEnded) -> Result<Event, WireError> {
        let attempt = from_wire::attempt("ended.attempt", message.attempt.as_ref())?;
        let outcome = from_wire::required("ended.outcome", message.outcome.as_ref());
        // Told again after every attach, a refused end would keep the attempt open for ever.
        let mut outcome =
            outcome.and_then(from_wire::outcome).unwrap_or_else(|problem| self.unknown(attempt, &problem));
        if let Some(failure) = &mut outcome.failure {
            failure.message = rollout::text::shown_line(&failure.message, FAILURE_CHARS_MAX);
        }
        let at = self.at(message.generation);
        // Of a failure too: what the core does not know of it cannot release.
        Ok(Event::AttemptEnded { at, attempt, outcome: Box::new(outcome), kept: message.kept })
    }

    /// It has ended, and what is said about it cannot be.
    fn unknown(&self, attempt: AttemptId, problem: &WireError) -> Outcome {
        tracing::warn!(node = %self.node, %attempt, %problem, "the end of an attempt cannot be read");
        let message = format!("node {} reported an end that cannot be: {problem}", self.node);
        super::start::unmeasured(Failure::new(FailureCode::OutcomeUnknown, message))
    }

    pub(super) fn checkpoint_taken(&self, message: &v1::CheckpointTaken) -> Result<Event, WireError> {
        let taken = from_wire::required("checkpoint.checkpoint", message.checkpoint.as_ref())?;
        Ok(Event::CheckpointTaken {
            at: self.at(message.generation),
            attempt: from_wire::attempt("checkpoint.attempt", message.attempt.as_ref())?,
            checkpoint: Box::new(from_wire::checkpoint("checkpoint.checkpoint", taken)?),
        })
    }

    pub(super) fn identified(&self, message: &v1::ImageIdentified) -> Result<Event, WireError> {
        from_wire::bounded("identified.image", &message.image, IMAGE_BYTES_MAX)?;
        let digest = message.digest.as_deref();
        from_wire::bounded("identified.digest", digest.unwrap_or_default(), from_wire::TEXT_BYTES_MAX)?;
        Ok(Event::ImageIdentified {
            node: self.node.clone(),
            incarnation: self.incarnation,
            image: message.image.clone(),
            digest: message.digest.clone(),
        })
    }

    pub(super) fn refused(&self, message: &v1::AttemptRefused) -> Result<Event, WireError> {
        use v1::attempt_refused::Class;
        Ok(Event::AttemptRefused {
            at: self.at(message.generation),
            attempt: from_wire::attempt("refused.attempt", message.attempt.as_ref())?,
            class: match message.class() {
                Class::Busy => RefusalClass::Busy,
                Class::NeverFits => RefusalClass::NeverFits,
                Class::Unhealthy => RefusalClass::Unhealthy,
                Class::SandboxGone => RefusalClass::SandboxGone,
                Class::CheckpointBad => RefusalClass::CheckpointBad,
                Class::Unspecified => return Err(wrong("refused.class", "unspecified")),
            },
            message: shown(&message.message, TEXT_CHARS_MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> v1::Hello {
        v1::Hello {
            node: "n1".to_owned(),
            incarnation: IncarnationId::from_bits(1).to_string(),
            capacity: Some(v1::Capacity { cpu_milli: 1000, ..v1::Capacity::default() }),
            ..v1::Hello::default()
        }
    }

    #[test]
    fn a_bad_hello_is_refused_with_the_field_by_name() {
        assert!(greeting(&hello()).is_ok());
        let held = v1::HeldAttempt {
            attempt: Some(v1::AttemptRef { rollout: "j0000000000007-g0-s0".to_owned(), step: 0, attempt: 0 }),
            generation: 1,
            phase: 0,
        };
        type Break = Box<dyn Fn(&mut v1::Hello)>;
        let url = |url: &'static str| Box::new(move |h: &mut v1::Hello| h.sandboxes_url = url.to_owned());
        for good in ["unix:/run/sandboxes.sock", "http://127.0.0.1:9", "http://[::1]:9"] {
            let mut hello = hello();
            url(good)(&mut hello);
            assert_eq!(greeting(&hello).unwrap().about.sandboxes_url, good);
        }
        let cases: [(&str, Break); 9] = [
            ("hello.sandboxes_url", url("unix:sandboxes.sock")),
            ("hello.sandboxes_url", url("http://192.0.2.1:9")),
            ("hello.sandboxes_url", url("https://127.0.0.1:9")),
            ("hello.node", Box::new(|h| h.node = "../x".to_owned())),
            ("hello.incarnation", Box::new(|h| h.incarnation = "j0000000000001".to_owned())),
            ("hello.capacity", Box::new(|h| h.capacity = None)),
            ("hello.capacity.cpu_milli", Box::new(|h| h.capacity.as_mut().unwrap().cpu_milli = u64::MAX)),
            ("hello.held.phase", Box::new(move |h| h.held = vec![held.clone()])),
            (
                "hello.held.attempt",
                Box::new(|h| h.held = vec![v1::HeldAttempt { phase: 1, ..v1::HeldAttempt::default() }]),
            ),
        ];
        for (field, break_it) in cases {
            let mut bad = hello();
            break_it(&mut bad);
            assert_eq!(greeting(&bad).unwrap_err().field, field);
        }
    }

    #[test]
    fn a_list_is_bounded_like_that_of_a_hello() {
        let reporter =
            Reporter { node: NodeId("n1".parse().unwrap()), incarnation: IncarnationId::from_bits(1) };
        let held = v1::HeldAttempt {
            attempt: Some(v1::AttemptRef { rollout: "j0000000000007-g0-s0".to_owned(), step: 0, attempt: 0 }),
            generation: 1,
            phase: 1,
        };
        let list = |len| v1::Held { held: vec![held.clone(); len] };
        assert!(matches!(reporter.held(&list(HELD_ATTEMPTS_MAX)), Ok(Event::Held { held, .. })
            if held.len() == HELD_ATTEMPTS_MAX));
        let refused = reporter.held(&list(HELD_ATTEMPTS_MAX + 1)).unwrap_err();
        assert_eq!(
            (refused.field.as_str(), refused.problem.as_str()),
            ("held.held", "65537 attempts, at most 65536")
        );
        let refused =
            reporter.held(&v1::Held { held: vec![v1::HeldAttempt { phase: 0, ..held }] }).unwrap_err();
        assert_eq!(refused.field, "held.held.phase");
    }
}
