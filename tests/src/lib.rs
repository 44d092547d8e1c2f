//! The lab: what several tests and benches share. Nothing the product links.

pub mod census;
pub mod namespace;
pub mod programs;
