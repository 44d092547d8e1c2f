//! A registry of the test's own, on loopback, with an image in it.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use images::oci::digest_of;
use rollout::image::{Digest, ImageRef, RegistryRef};
use serde_json::{Value, json};

const PROGRAM: &str = "docker-registry";
const READY: Duration = Duration::from_secs(30);

/// Ends with the test.
pub struct Server {
    child: Child,
    pub port: u16,
    _dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // By its own handle; it may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An image as it was pushed.
pub struct Pushed {
    pub manifest: Digest,
    pub layer: Vec<u8>,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Server {
    /// None where the program is not installed.
    pub async fn start() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = dir.path().join("config.yml");
        let root = dir.path().join("root");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n",
            root.display()
        );
        std::fs::write(&config, text).unwrap();
        let started = Command::new(PROGRAM)
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                #[expect(clippy::print_stderr, reason = "a test says that it did not run")]
                {
                    eprintln!("SKIPPED: no {PROGRAM}: {error}");
                }
                return None;
            }
        };
        let server = Self { child, port, _dir: dir };
        let deadline = Instant::now() + READY;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "the registry does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some(server)
    }

    /// Pushes an image of one layer, of so many bytes, under a tag.
    pub async fn push(&self, name: &str, tag: &str, bytes: usize) -> Pushed {
        let http = http();
        let base = format!("http://127.0.0.1:{}/v2/{name}", self.port);
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_path("content").unwrap();
        header.set_size(bytes as u64);
        header.set_mode(0o644);
        header.set_cksum();
        // Different in every image, and the same from run to run.
        let content: Vec<u8> =
            (0..bytes).map(|at| u8::try_from((at * 31 + tag.len() + at / 251) % 256).unwrap()).collect();
        builder.append(&header, content.as_slice()).unwrap();
        let layer = builder.into_inner().unwrap();
        let config = json!({"rootfs": {"type": "layers", "diff_ids": [digest_of(&layer)]}, "config": {"Env": ["TAG=".to_owned() + tag]}});
        let config = config.to_string().into_bytes();
        for blob in [&layer, &config] {
            let started = http.post(format!("{base}/blobs/uploads/")).send().await.unwrap();
            let place = started.headers()["location"].to_str().unwrap().to_owned();
            let join = if place.contains('?') { '&' } else { '?' };
            let url = format!("{place}{join}digest={}", digest_of(blob));
            let put = http.put(url).body(blob.clone()).send().await.unwrap();
            assert!(put.status().is_success(), "{put:?}");
        }
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": part("application/vnd.oci.image.config.v1+json", &config),
            "layers": [part("application/vnd.oci.image.layer.v1.tar", &layer)],
        });
        let manifest = manifest.to_string();
        let put = http.put(format!("{base}/manifests/{tag}"));
        let put = put.header("content-type", "application/vnd.oci.image.manifest.v1+json");
        let put = put.body(manifest.clone()).send().await.unwrap();
        assert!(put.status().is_success(), "{put:?}");
        Pushed { manifest: digest_of(manifest.as_bytes()), layer }
    }
}

fn part(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest_of(bytes), "size": bytes.len()})
}

fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// A reference to what is served at `port`.
pub fn reference(port: u16, rest: &str) -> RegistryRef {
    match format!("127.0.0.1:{port}/{rest}").parse() {
        Ok(ImageRef::Registry(reference)) => reference,
        other => panic!("{other:?}"),
    }
}
