//! The rules of the house, checked: which crate may depend on which, what every error code is
//! owed, where files may live.

mod dependencies;
mod errors;
mod layout;
