//! What sandboxes start from: layers on a node's disk, and the images they come from.
//!
//! [`layers`] owns trees: packing what a sandbox changed, unpacking it again, and the store of
//! layers that are mounted over each other. It knows nothing of sandboxes, networks or the
//! scheduler.

pub mod layers;
