use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use images::oci::registry::Client;
use images::oci::{Error, Image, Platform, Source, digest_of, resolve};
use rollout::image::Version;

use crate::proxy::{Fault, Proxy};
use crate::server::{Pushed, Server, reference};

const LAYER_BYTES: usize = 300_000;

/// A registry with an image `a/b:t`, and a proxy before it.
struct Bench {
    server: Server,
    proxy: Proxy,
    pushed: Pushed,
}

async fn bench(fault: Fault) -> Option<Bench> {
    let server = Server::start().await?;
    let pushed = server.push("a/b", "t", LAYER_BYTES).await;
    let proxy = Proxy::start(server.port, fault).await;
    Some(Bench { server, proxy, pushed })
}

impl Bench {
    async fn image(&self, client: &Client) -> Result<Image, Error> {
        let tag = reference(self.proxy.port, "a/b:t");
        let digest = client.resolve(&tag).await?;
        assert_eq!(digest, self.pushed.manifest);
        resolve(&client.repository(&tag), &digest, &Platform::here()).await
    }

    async fn pull(&self, into: &Path) -> Result<(), Error> {
        let client = Client::new(None);
        let image = self.image(&client).await?;
        client.repository(&reference(self.proxy.port, "a/b")).layer(&image.layers[0], into).await
    }

    fn blobs(&self) -> Vec<String> {
        let layer = digest_of(&self.pushed.layer).to_string();
        self.proxy.seen().into_iter().filter(|seen| seen.contains(&layer)).collect()
    }
}

fn place(dir: &tempfile::TempDir) -> std::path::PathBuf {
    dir.path().join("layer")
}

#[tokio::test]
async fn an_image_is_pulled_as_it_was_pushed_and_a_moved_tag_changes_no_digest() {
    let Some(bench) = bench(Fault::None).await else { return };
    let dir = tempfile::tempdir().unwrap();
    bench.pull(&place(&dir)).await.unwrap();
    assert_eq!(std::fs::read(place(&dir)).unwrap(), bench.pushed.layer);
    assert_eq!(bench.blobs().len(), 1);
    let client = Client::new(None);
    let before = bench.image(&client).await.unwrap();
    let moved = bench.server.push("a/b", "other", 10).await;
    let again = bench.server.push("a/b", "t", 20).await;
    let tag = reference(bench.proxy.port, "a/b:t");
    assert_eq!(client.resolve(&tag).await.unwrap(), again.manifest);
    assert_ne!(again.manifest, moved.manifest);
    let pinned = tag.pinned(before.digest);
    assert_eq!(pinned.version, Version::Digest(before.digest));
    assert_eq!(client.resolve(&pinned).await.unwrap(), before.digest);
    let same = resolve(&client.repository(&pinned), &before.digest, &Platform::here()).await.unwrap();
    assert_eq!(same, before);
}

#[tokio::test]
async fn a_registry_that_is_too_busy_is_asked_again_when_it_says() {
    for (status, retry_after) in [("429 Too Many Requests", "1"), ("503 Service Unavailable", "1")] {
        let Some(bench) = bench(Fault::Status { times: 2, status, retry_after }).await else { return };
        let dir = tempfile::tempdir().unwrap();
        let began = Instant::now();
        bench.pull(&place(&dir)).await.unwrap();
        assert!(began.elapsed() >= Duration::from_secs(2), "it waited as it was told: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_registry_that_says_come_back_tomorrow_is_told_so_at_once() {
    let fault = Fault::Status { times: 9, status: "429 Too Many Requests", retry_after: "86400" };
    let Some(bench) = bench(fault).await else { return };
    let dir = tempfile::tempdir().unwrap();
    let error = bench.pull(&place(&dir)).await.unwrap_err();
    assert!(error.is_passing(), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("429 Too Many Requests") && text.contains("1 tries"), "{text}");
}

#[tokio::test]
async fn a_cut_download_goes_on_where_it_stopped() {
    let Some(bench) = bench(Fault::Cut { times: 3, bytes: 70_000 }).await else { return };
    let dir = tempfile::tempdir().unwrap();
    // The first of the three cuts is spent on the small configuration, which it does not shorten.
    bench.pull(&place(&dir)).await.unwrap();
    assert_eq!(std::fs::read(place(&dir)).unwrap(), bench.pushed.layer);
    let ranges: Vec<_> = bench
        .blobs()
        .iter()
        .filter_map(|seen| seen.split_once("bytes=").map(|(_, range)| range.to_owned()))
        .collect();
    assert_eq!(ranges, ["70000-", "140000-"]);
}

#[tokio::test]
async fn where_ranges_are_not_known_a_cut_download_begins_again() {
    let Some(bench) = bench(Fault::NoRanges { times: 3, bytes: 70_000 }).await else { return };
    let dir = tempfile::tempdir().unwrap();
    bench.pull(&place(&dir)).await.unwrap();
    assert_eq!(std::fs::read(place(&dir)).unwrap(), bench.pushed.layer);
}

#[tokio::test]
async fn wrong_bytes_are_refused_by_their_digest_and_not_kept() {
    let Some(bench) = bench(Fault::None).await else { return };
    let client = Client::new(None);
    let image = bench.image(&client).await.unwrap();
    bench.proxy.set(Fault::Flip);
    let dir = tempfile::tempdir().unwrap();
    let repository = client.repository(&reference(bench.proxy.port, "a/b"));
    let error = repository.layer(&image.layers[0], &place(&dir)).await.unwrap_err();
    assert!(
        matches!(error, Error::WrongDigest { expected, .. } if expected == image.layers[0].blob),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let error = resolve(&repository, &image.digest, &Platform::here()).await.unwrap_err();
    assert!(
        matches!(error, Error::WrongDigest { expected, .. } if expected == image.config_digest),
        "{error}"
    );
}

#[tokio::test]
async fn a_layer_longer_than_its_manifest_says_is_cut_off() {
    let Some(bench) = bench(Fault::None).await else { return };
    let client = Client::new(None);
    let mut layer = bench.image(&client).await.unwrap().layers[0].clone();
    layer.size = 1000;
    let dir = tempfile::tempdir().unwrap();
    let repository = client.repository(&reference(bench.proxy.port, "a/b"));
    let error = repository.layer(&layer, &place(&dir)).await.unwrap_err();
    assert!(matches!(error, Error::Bound { limit: 1000, .. }), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_slow_registry_is_waited_for() {
    let Some(bench) = bench(Fault::Slow(Duration::from_millis(20))).await else { return };
    let dir = tempfile::tempdir().unwrap();
    bench.pull(&place(&dir)).await.unwrap();
    assert_eq!(std::fs::read(place(&dir)).unwrap(), bench.pushed.layer);
}

#[tokio::test]
async fn what_a_registry_does_not_have_is_told_in_its_words() {
    let Some(bench) = bench(Fault::None).await else { return };
    let client = Client::new(None);
    let error = client.resolve(&reference(bench.proxy.port, "a/b:none")).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }) && !error.is_passing(), "{error:?}");
    assert!(error.to_string().contains("a/b/manifests/none"), "{error}");
    assert!(error.to_string().contains("MANIFEST_UNKNOWN"), "{error}");
}

#[tokio::test]
async fn a_token_is_asked_for_with_the_login_of_the_docker_configuration() {
    let login = base64::engine::general_purpose::STANDARD.encode("me:secret");
    let Some(bench) = bench(Fault::Guarded("bWU6c2VjcmV0")).await else { return };
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    let host = format!("127.0.0.1:{}", bench.proxy.port);
    std::fs::write(&config, format!(r#"{{"auths":{{"{host}":{{"auth":"{login}"}}}}}}"#)).unwrap();
    let client = Client::new(Some(config.clone()));
    bench.image(&client).await.unwrap();
    let tokens = bench.proxy.seen().iter().filter(|seen| seen.contains("/token")).count();
    assert_eq!(tokens, 1, "one token for the repository");
    let refused = bench.image(&Client::new(None)).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { status: 401, .. }) && !refused.to_string().contains("secret"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_redirect_away_from_this_machine_is_not_followed() {
    let Some(bench) = bench(Fault::Redirect("http://192.0.2.1/x")).await else { return };
    let error = bench.image(&Client::new(None)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains("192.0.2.1"), "{error}");
}
