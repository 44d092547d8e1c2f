//! The rules of the house, checked: which crate may depend on which, what every error code is
//! owed, where files may live, what is built.

mod builds;
mod cargo;
mod dependencies;
mod errors;
mod layout;
