//! Layers: trees of changes, their identity, their packed form and their place on a node.
//!
//! A layer exists in two forms with one id. On a node it is a *directory* that overlayfs takes as
//! a lower as it is: owners as the sandbox numbers them (0..65536), deletions as overlay marks
//! (`c 0,0` nodes, `trusted.overlay.opaque`). In the blob store it is *packed*: a tar with neutral
//! marks, compressed. The id is the sha256 of the canonical manifest, which both forms have.
