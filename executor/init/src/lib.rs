//! The language between the executor and the PID 1 of a sandbox, and the sockets it travels on.
//!
//! One message is one SEQPACKET datagram ([`packet`]), coded by hand ([`message`]) so that the
//! static init stays small and both ends share one bound on everything. This crate decides
//! nothing about sandboxes and depends on no sibling: the binary beside it is all it serves.

pub mod message;
pub mod packet;

/// The descriptor of its channel in a fresh init.
pub const CHANNEL_FD: i32 = 3;
