//! `cargo run --release -p benches -- NAME [ARGS]`. Format and rules: docs/promises.md.

mod burst;
mod checkpoint;
mod create;
mod density;
mod idle;
mod report;
mod rollout;
mod session;
mod soak;
mod yard;

use anyhow::{Result, bail};

const NAMES: &[&str] = &["burst", "checkpoint", "create", "density", "idle", "rollout", "session", "soak"];

fn main() -> Result<()> {
    // The broker is this executable started again; that comes before anything else.
    executor::broker::run_if_asked();
    let mut args = std::env::args().skip(1);
    let name = args.next();
    let rest: Vec<String> = args.collect();
    match name.as_deref() {
        Some("burst") => burst::main(&rest),
        Some("checkpoint") => checkpoint::main(&rest),
        Some("create") => create::main(&rest),
        Some("density") => density::main(&rest),
        Some("idle") => idle::main(&rest),
        Some("rollout") => rollout::main(&rest),
        Some("session") => session::main(&rest),
        Some("soak") => soak::main(&rest),
        Some(other) => bail!("no bench `{other}`; there are: {}", NAMES.join(", ")),
        None => bail!("usage: benches NAME [ARGS]; there are: {}", NAMES.join(", ")),
    }
}
