//! stub
mod clock;
pub mod error;
mod listener;
mod lock;
mod rows;
pub mod store;
pub use error::Error;
