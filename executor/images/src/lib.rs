//! What sandboxes start from: layers on a node's disk, and the images they come from.
//!
//! [`layers`] owns trees: packing what a sandbox changed, unpacking it again, unpacking what others
//! packed, and the store of layers that are mounted over each other. [`oci`] owns images: their
//! manifests, where they lie (a layout, an archive, a registry) and how their layers get here. It
//! knows nothing of sandboxes or the scheduler.

pub mod layers;
pub mod oci;
