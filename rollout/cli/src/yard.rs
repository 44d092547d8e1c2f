//! Where a yard of this machine is found.

use std::path::Path;

use crate::client::YardUrl;
use crate::error::Error;

/// The socket of a yard, in its data directory.
pub const SOCKET: &str = "yard.sock";

pub fn socket_url(data_dir: &Path) -> Result<YardUrl, Error> {
    YardUrl::parse(&format!("unix:{}", data_dir.join(SOCKET).display()))
}
