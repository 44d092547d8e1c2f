//! Where clients and executors connect: Unix sockets, or loopback addresses. Nothing else until
//! there is TLS.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tonic::transport::server::Connected;

use crate::error::Error;

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    Unix { listener: UnixListener, path: PathBuf },
    Tcp { listener: TcpListener, address: SocketAddr },
}

impl Listener {
    /// Binds `unix:/path`, `/path`, or `IP:port`. Any address but loopback is refused.
    pub async fn bind(address: &str) -> Result<Self, Error> {
        let path = address.strip_prefix("unix:").or_else(|| address.starts_with('/').then_some(address));
        match path {
            Some(path) => Self::bind_unix(address, Path::new(path)).await,
            None => Self::bind_tcp(address).await,
        }
    }

    async fn bind_unix(address: &str, path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Listen { address: address.to_owned(), source };
        if !path.is_absolute() {
            return Err(Error::BadAddress {
                address: address.to_owned(),
                problem: "a socket path must be absolute".to_owned(),
            });
        }
        // A socket file nobody answers on is what a killed scheduler left.
        if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
            && UnixStream::connect(path).await.is_err()
        {
            std::fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        Ok(Self::Unix { listener, path: path.to_owned() })
    }

    async fn bind_tcp(address: &str) -> Result<Self, Error> {
        let parsed: SocketAddr = address.parse().map_err(|problem: std::net::AddrParseError| {
            Error::BadAddress { address: address.to_owned(), problem: problem.to_string() }
        })?;
        if !parsed.ip().is_loopback() {
            return Err(Error::ListenNotLoopback { address: address.to_owned() });
        }
        let failed = |source| Error::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(parsed).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self::Tcp { listener, address })
    }

    /// What a client passes as `--server`.
    pub fn url(&self) -> String {
        match self {
            Self::Unix { path, .. } => format!("unix:{}", path.display()),
            Self::Tcp { address, .. } => format!("http://{address}"),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Unix { listener, .. } => Ok(Connection::Unix(listener.accept().await?.0)),
            Self::Tcp { listener, .. } => {
                let stream = listener.accept().await?.0;
                stream.set_nodelay(true)?;
                Ok(Connection::Tcp(stream))
            }
        }
    }
}

#[derive(Debug)]
pub(crate) enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connected for Connection {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_loopback_and_unix_sockets_are_accepted() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "[2001:db8::1]:1"] {
            let refused = Listener::bind(address).await.unwrap_err();
            assert_eq!(refused.code(), "listen_not_loopback", "{address}");
        }
        for address in ["localhost:0", "unix:relative", "", "127.0.0.1"] {
            assert_eq!(Listener::bind(address).await.unwrap_err().code(), "bad_address", "{address}");
        }
        assert!(Listener::bind("127.0.0.1:0").await.unwrap().url().starts_with("http://127.0.0.1:"));
    }

    #[tokio::test]
    async fn a_socket_left_by_a_killed_scheduler_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("unix:{}/yard.sock", dir.path().display());
        drop(Listener::bind(&address).await.unwrap());
        let live = Listener::bind(&address).await.unwrap();
        assert_eq!(Listener::bind(&address).await.unwrap_err().code(), "listen_failed");
        drop(live);
        let file = dir.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(Listener::bind(file.to_str().unwrap()).await.is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }
}
