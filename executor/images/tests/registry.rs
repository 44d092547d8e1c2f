//! Images of a real registry, through a proxy that does what networks and registries do. Needs
//! docker-registry (Debian's package); each test says when it is skipped.

#[path = "registry/proxy.rs"]
mod proxy;
#[path = "registry/pulls.rs"]
mod pulls;
#[path = "registry/server.rs"]
mod server;
