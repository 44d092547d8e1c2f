//! A system call that may go on for as long as others work against it, ended from outside: a signal
//! reaches the thread that is in it.

use std::io;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use crate::broker::serve::lock;

/// Does nothing but interrupt.
const SIGNAL: libc::c_int = libc::SIGUSR2;
/// One signal may come just before the call begins.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The thread that is in the call, and whether it has to leave.
#[derive(Debug, Default)]
struct State {
    thread: Option<libc::pid_t>,
    is_over: bool,
}

/// Runs `call` on a thread that may block. If the future is dropped, the call is interrupted: it gets
/// EINTR. Call within a tokio runtime.
pub async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    listen();
    let state = Arc::new(Mutex::new(State::default()));
    let _interrupted = Interrupted(Arc::clone(&state));
    let run = move || {
        {
            let mut state = lock(&state);
            if state.is_over {
                return Err(io::ErrorKind::Interrupted.into());
            }
            // SAFETY: no memory involved.
            state.thread = Some(unsafe { libc::gettid() });
        }
        let _within = Within(&state);
        call()
    };
    tokio::task::spawn_blocking(run).await.map_err(io::Error::other)?
}

/// A thread in the call. It leaves however the call ends.
struct Within<'a>(&'a Mutex<State>);

impl Drop for Within<'_> {
    fn drop(&mut self) {
        let mut state = lock(self.0);
        (state.thread, state.is_over) = (None, true);
    }
}

struct Interrupted(Arc<Mutex<State>>);

impl Drop for Interrupted {
    fn drop(&mut self) {
        lock(&self.0).is_over = true;
        let state = Arc::clone(&self.0);
        if interrupt(&state)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                while interrupt(&state) {
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            });
        }
    }
}

/// Whether the call still goes on.
fn interrupt(state: &Mutex<State>) -> bool {
    let state = lock(state);
    let Some(thread) = state.thread else { return false };
    // SAFETY: no memory involved. The thread takes its number back under this lock before it does
    // anything else.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
    true
}

/// A handler, since what is ignored interrupts nothing; without SA_RESTART. It ends at an exec.
fn listen() {
    extern "C" fn nothing(_: libc::c_int) {}
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing, so nothing in it can be unsafe in a signal's context.
        if let Err(error) = unsafe { sigaction(Signal::SIGUSR2, &action) } {
            tracing::warn!(%error, "long calls to the kernel cannot be interrupted");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_nobody_waits_for_is_interrupted() {
        let (told, ended) = tokio::sync::oneshot::channel();
        let call = blocking(move || {
            // SAFETY: no memory involved.
            let left = unsafe { libc::sleep(600) };
            let _nobody_waits = told.send(left);
            Ok(())
        });
        assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
        let left = tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it ends").unwrap();
        assert!(left > 0, "it slept to its end");
    }

    #[tokio::test]
    async fn no_signal_follows_a_call_that_panicked() {
        let call = blocking::<()>(|| panic!("a fault of the call"));
        assert_eq!(call.await.unwrap_err().kind(), io::ErrorKind::Other);
        let runtime = tokio::runtime::Handle::current();
        assert_eq!(runtime.metrics().num_alive_tasks(), 0, "a thread of the pool is signalled for ever");
    }

    #[tokio::test]
    async fn a_call_that_is_waited_for_gives_its_result() {
        assert_eq!(blocking(|| Ok(7)).await.unwrap(), 7);
    }
}
