//! A real S3 server on loopback, over a directory of the test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

pub const KEY: &str = "test-key";
pub const SECRET: &str = "test-secret";
pub const BUCKET: &str = "yard";

#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    root: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// One bucket, one key.
    pub async fn start(root: &Path) -> Self {
        std::fs::create_dir_all(root.join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(root).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                let service = service.clone();
                tokio::spawn(async move {
                    let builder = Builder::new(TokioExecutor::new());
                    // A client that goes away ends its connection with an error.
                    let _ = builder.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { address, root: root.to_owned(), task }
    }

    /// What a client of the server needs in its environment.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
        ]
    }

    /// The file behind an object.
    pub fn file(&self, key: &str) -> PathBuf {
        self.root.join(BUCKET).join(key)
    }

    /// As if the object had been put then.
    pub fn backdate(&self, key: &str, put_at: SystemTime) {
        let file = std::fs::OpenOptions::new().append(true).open(self.file(key)).unwrap();
        file.set_modified(put_at).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}
