//! The language between the executor and the PID 1 of a sandbox, and the sockets it travels on.
//!
//! One message is one SEQPACKET datagram ([`packet`]), coded by hand ([`message`]) so that the
//! static init stays small and both ends share one bound on everything. Before it serves, init is
//! told what it is to become ([`birth`]). What it asks of the kernel for that, the executor asks too
//! ([`kernel`]). This crate decides nothing about sandboxes and depends on no sibling.

pub mod birth;
pub mod kernel;
pub mod message;
pub mod packet;

/// The descriptor of its channel in a fresh init. None below it is open.
pub const CHANNEL_FD: i32 = 3;
