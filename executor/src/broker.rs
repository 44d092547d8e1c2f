//! The broker: a small process that makes and ends sandboxes for one executor.
//!
//! A child inherits every descriptor and a copy of the mount table of its parent, so the parent of
//! sandboxes is not the executor but this: few threads, few descriptors, few mounts, no tokio. It
//! is the same executable, started again under another name. An executor that ends in order has
//! everything destroyed at once. One that is killed leaves its sandboxes with the broker, for the next
//! executor of the same build, until the lease they ran under is over; then the broker destroys them.
//! If the broker dies, the kernel kills every init it started.
//!
//! It decides nothing: what to make is in the request, and every request has one reply.

mod blank;
pub(crate) mod build;
mod child;
pub mod client;
mod device_tree;
mod networks;
mod orphaned;
mod pools;
pub mod protocol;
pub(crate) mod provision;
pub(crate) mod ranges;
pub(crate) mod serve;
mod teardown;

use std::os::fd::OwnedFd;

use sandbox_init::birth::INIT_ID;

use crate::keeper;
pub use pools::{BLANKS_AHEAD, NETWORKS_AHEAD};

/// Users and groups of a sandbox are numbered below this.
pub const IDS_MAX: u32 = INIT_ID;
const _: () = assert!(INIT_ID == ranges::RANGE_LEN - 1);

/// `argv[0]` of a broker.
pub const MARK: &str = "rollyard-broker";

/// Becomes the broker, or a [keeper](crate::keeper), if this process was started as one, and then
/// never returns. Call it first thing in `main` of every program that starts a container backend.
pub fn run_if_asked() {
    let role = match std::env::args_os().next() {
        Some(name) if name == MARK => "broker",
        Some(name) if name == keeper::MARK => "keeper",
        _ => return,
    };
    // The socket to the executor comes as standard input: no descriptor number to agree on.
    let Ok(socket) = dup_stdin() else { std::process::exit(2) };
    if outlive_requests_to_end().is_err() {
        std::process::exit(2);
    }
    let ended = match role {
        "broker" => serve::run(socket).map_err(|error| error.to_string()),
        _ => keeper::run(&socket).map_err(|error| error.to_string()),
    };
    let code = match ended {
        Ok(()) => 0,
        Err(error) => {
            // There is no subscriber in this process: its standard error is the executor's.
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "rollyard {role}: {error}");
            1
        }
    };
    std::process::exit(code);
}

/// Whoever asks a whole service to end (a supervisor, a shell) asks these too. They end in their
/// own time: an executor that ends first hands back what its sandboxes run. Handlers, since they end at
/// an exec: an ignored signal would be ignored by every step too.
fn outlive_requests_to_end() -> nix::Result<()> {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler does nothing, so nothing in it can be unsafe in a signal's context.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

fn dup_stdin() -> std::io::Result<OwnedFd> {
    use std::os::fd::AsFd;
    std::io::stdin().as_fd().try_clone_to_owned()
}
