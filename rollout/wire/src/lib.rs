//! The wire: generated messages and services, and the only two places that turn them into domain
//! types ([`from_wire`]) and back ([`to_wire`]). Nothing else lives here.

pub mod from_wire;
pub mod to_wire;

/// Generated from `rollout/proto/rollyard/v1`.
#[allow(clippy::all, clippy::pedantic, missing_debug_implementations, unused_qualifications)]
pub mod v1 {
    tonic::include_proto!("rollyard.v1");
}

/// The largest gRPC message either side accepts, in bytes: files of one step (16 MiB) and room.
pub const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// The most attempts one executor holds, and so lists in its hello or in a `Held` report: about 5 MiB
/// of message at the longest ids.
pub const HELD_ATTEMPTS_MAX: usize = 65_536;

/// Metadata keys of an error: the stable code, and what to do.
pub const CODE_METADATA: &str = "rollyard-code";
pub const HINT_METADATA: &str = "rollyard-hint";

/// Metadata key of a node's answer to a pause: the rung it reached, as [`v1::LifecycleReply`] has it.
pub const RUNG_METADATA: &str = "rollyard-rung";
/// The rung of a session that is ended on its node until the next call.
pub const RUNG_PARKED: &str = "parked";
