//! A store in an S3 bucket.
//!
//! An object is whole or absent: small blobs are put in one request, larger ones in parts that
//! become an object when the last request says so, and are given up when anything fails before.
//!
//! A bucket has no locks, so a sweep announces what it is about to remove in the object `sweeping`.
//! A writer puts its blob (unless it was put moments ago), then looks whether the blob is announced,
//! then whether it is still there, and puts it again if not. The sweep announces, then looks at the
//! blob's time, then removes it if that is old. Whichever came first, a blob that was put while it
//! was swept is there when its writer returns.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path as Key;
use object_store::prefix::PrefixStore;
use object_store::{
    ClientOptions, MultipartUpload as _, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, RetryConfig,
};
use tokio::time::{Instant, sleep};

use crate::shelves::{Listed, SHELF_BLOBS_MAX};
use crate::{Digest, Error};

/// A blob that was put so lately is not put again.
pub(crate) const FRESH: Duration = Duration::from_secs(30 * 60);
/// Added to an object's time, which servers tell in whole seconds.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// Bytes of a part, and the largest blob that is put in one request.
const PART_BYTES: usize = 8 << 20;
/// Parts on their way at once.
const PARTS_AT_ONCE: usize = 4;
/// Blobs a sweep announces at once.
const ANNOUNCED_MAX: usize = 1_000;
/// Requests of a sweep at once.
const REMOVED_AT_ONCE: usize = 16;
/// How long a writer waits for a sweep that has its blob in hand.
const SWEEP_WAIT_MAX: Duration = Duration::from_secs(60);
const SWEEP_POLL: Duration = Duration::from_millis(200);
/// How often a writer puts a blob that sweeps take.
const PUTS_MAX: u32 = 5;
const SWEEPING: &str = "sweeping";
const OWNER: &str = "owner";

/// What was written of a blob, at its start again and again.
pub(crate) struct Written {
    pub digest: Digest,
    pub size: u64,
    pub bytes: Content,
}

pub(crate) enum Content {
    Memory(Bytes),
    /// Nameless: gone with this process.
    File(File),
}

#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    objects: Arc<dyn ObjectStore>,
}

fn asked(action: &'static str, what: &str) -> impl FnOnce(object_store::Error) -> Error {
    let what = what.to_owned();
    move |source| Error::Bucket { action, what, source }
}

impl Bucket {
    /// The bucket and the prefix of `s3://bucket/prefix`. Keys, region and endpoint come from the
    /// usual variables: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
    /// `AWS_REGION`, `AWS_ENDPOINT_URL`, ... Nothing is asked of the server.
    pub(crate) fn open(bucket: &str, prefix: &str) -> Result<Self, Error> {
        // Without one the client cannot be made. Another that is installed does as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry =
            RetryConfig { max_retries: 5, retry_timeout: Duration::from_secs(60), ..RetryConfig::default() };
        let from_env = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
        let endpoint = from_env.get_config_value(&AmazonS3ConfigKey::Endpoint).unwrap_or_default();
        let options = ClientOptions::new().with_allow_http(is_loopback(&endpoint)).with_timeout(PART_TIMEOUT);
        let builder = match std::env::var("AWS_ALLOW_HTTP") {
            Ok(_) => from_env,
            Err(_) => from_env.with_client_options(options),
        };
        let objects = builder.build().map_err(Error::Open)?;
        Ok(Self { objects: Arc::new(PrefixStore::new(objects, prefix)) })
    }

    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        self.objects.clone()
    }

    /// When the blob of that size was last put; none if there is no such blob.
    async fn put_at(&self, digest: &Digest, size: Option<u64>) -> Result<Option<SystemTime>, Error> {
        match self.objects.head(&digest.location().into()).await {
            Ok(meta) if size.is_none_or(|size| size == meta.size) => Ok(Some(meta.last_modified.into())),
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(Error::Read { sha256: digest.to_string(), source }),
        }
    }

    async fn is_fresh(&self, digest: &Digest, size: Option<u64>) -> Result<bool, Error> {
        let put_at = self.put_at(digest, size).await?;
        Ok(put_at.is_some_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < FRESH)))
    }

    /// Stores the blob, so that no sweep that looks at it from now on finds it old.
    pub(crate) async fn put(&self, mut written: Written) -> Result<(), Error> {
        let (digest, size) = (written.digest.clone(), written.size);
        for _ in 0..PUTS_MAX {
            if !self.is_fresh(&digest, Some(size)).await? {
                self.upload(&mut written).await?;
            }
            if !self.wait_for_sweep(&digest).await? && self.put_at(&digest, Some(size)).await?.is_some() {
                return Ok(());
            }
        }
        Err(Error::Swept { sha256: digest.to_string() })
    }

    /// The size of the blob if it is there and was put lately.
    pub(crate) async fn size_if_fresh(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        if !self.is_fresh(digest, None).await? || self.wait_for_sweep(digest).await? {
            return Ok(None);
        }
        match self.objects.head(&digest.location().into()).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(Error::Read { sha256: digest.to_string(), source }),
        }
    }

    async fn upload(&self, written: &mut Written) -> Result<(), Error> {
        let key = Key::from(written.digest.location());
        let name = written.digest.to_string();
        let file = match &mut written.bytes {
            Content::Memory(bytes) => {
                let put = self.objects.put(&key, PutPayload::from_bytes(bytes.clone())).await;
                return put.map(drop).map_err(asked("put blob", &name));
            }
            Content::File(file) => file,
        };
        let staged = |source| Error::Staged { source };
        file.seek(SeekFrom::Start(0)).map_err(staged)?;
        let mut reader = file.try_clone().map_err(staged)?;
        let mut parts = self.objects.put_multipart(&key).await.map_err(asked("begin blob", &name))?;
        let mut sent = stream::FuturesUnordered::new();
        let uploaded = async {
            loop {
                let part;
                (reader, part) = next_part(reader).await?;
                if part.is_empty() {
                    break;
                }
                if sent.len() == PARTS_AT_ONCE {
                    sent.try_next().await.map_err(asked("put a part of blob", &name))?;
                }
                sent.push(parts.put_part(PutPayload::from_bytes(part)));
            }
            while sent.try_next().await.map_err(asked("put a part of blob", &name))?.is_some() {}
            parts.complete().await.map(drop).map_err(asked("complete blob", &name))
        };
        let uploaded = uploaded.await;
        if uploaded.is_err() {
            drop(sent);
            // Parts without an end cost space until the bucket's own rules remove them.
            if let Err(error) = parts.abort().await {
                tracing::warn!(blob = name, %error, "the parts of an unfinished blob stay in the bucket");
            }
        }
        uploaded
    }

    /// Waits while a sweep has announced the blob. Whether one had.
    async fn wait_for_sweep(&self, digest: &Digest) -> Result<bool, Error> {
        let until = Instant::now() + SWEEP_WAIT_MAX;
        let mut is_announced = false;
        while self.announced().await?.contains(digest) {
            is_announced = true;
            if Instant::now() >= until {
                return Err(Error::Swept { sha256: digest.to_string() });
            }
            sleep(SWEEP_POLL).await;
        }
        Ok(is_announced)
    }

    async fn announced(&self) -> Result<BTreeSet<Digest>, Error> {
        let found = match self.objects.get(&SWEEPING.into()).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(BTreeSet::new()),
            Err(error) => return Err(asked("read", SWEEPING)(error)),
        };
        let bytes = match found.bytes().await {
            Ok(bytes) => bytes,
            Err(object_store::Error::NotFound { .. }) => return Ok(BTreeSet::new()),
            Err(error) => return Err(asked("read", SWEEPING)(error)),
        };
        Ok(String::from_utf8_lossy(&bytes).lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// The blobs whose digest begins with `shelf`, page by page.
    pub(crate) async fn list(&self, shelf: u8) -> Result<Vec<Listed>, Error> {
        let first = format!("{shelf:02x}");
        let mut objects = self.objects.list(Some(&format!("sha256/{first}").into()));
        let mut listed = Vec::new();
        while let Some(meta) = objects.try_next().await.map_err(asked("list shelf", &first))? {
            let rest = meta.location.filename().unwrap_or_default();
            let Ok(digest) = format!("{first}{rest}").parse() else { continue };
            if listed.len() == SHELF_BLOBS_MAX {
                return Err(Error::ShelfTooFull { shelf: first, blobs_max: SHELF_BLOBS_MAX });
            }
            listed.push(Listed { digest, size: meta.size, put_at: meta.last_modified.into() });
        }
        Ok(listed)
    }

    /// Removes those of `digests` that were put before `before`; which ones that were. One sweep at
    /// a time, which is the owner's.
    pub(crate) async fn remove(&self, digests: &[Digest], before: SystemTime) -> Result<Vec<Digest>, Error> {
        let mut removed = Vec::new();
        for some in digests.chunks(ANNOUNCED_MAX) {
            let lines: String = some.iter().map(|digest| format!("{digest}\n")).collect();
            let announced = self.objects.put(&SWEEPING.into(), lines.into()).await;
            announced.map_err(asked("write", SWEEPING))?;
            let each = stream::iter(some.to_vec()).map(|digest| self.remove_one(digest, before));
            let gone: Result<Vec<_>, Error> = each.buffer_unordered(REMOVED_AT_ONCE).try_collect().await;
            // Also after a failure: writers wait for it.
            self.end_sweep().await?;
            removed.extend(gone?.into_iter().flatten());
        }
        Ok(removed)
    }

    async fn remove_one(&self, digest: Digest, before: SystemTime) -> Result<Option<Digest>, Error> {
        let Some(put_at) = self.put_at(&digest, None).await? else { return Ok(None) };
        if put_at + CLOCK_STEP >= before {
            return Ok(None);
        }
        match self.objects.delete(&digest.location().into()).await {
            Ok(()) => Ok(Some(digest)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(asked("remove blob", digest.as_str())(error)),
        }
    }

    async fn end_sweep(&self) -> Result<(), Error> {
        match self.objects.delete(&SWEEPING.into()).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(asked("remove", SWEEPING)(error)),
        }
    }

    /// Writes down who owns the store, unless somebody does; the owner. What a sweep that was killed
    /// announced is withdrawn if that is the same.
    pub(crate) async fn claim(&self, owner: &str) -> Result<String, Error> {
        let found = match self.owner().await? {
            Some(found) => found,
            None => {
                let payload = || PutPayload::from(owner.to_owned());
                match self.objects.put_opts(&OWNER.into(), payload(), PutMode::Create.into()).await {
                    Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
                    // A server without conditions: the last of two that start at once has it.
                    Err(
                        object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. },
                    ) => {
                        let put = self.objects.put(&OWNER.into(), payload()).await;
                        put.map_err(asked("write", OWNER))?;
                    }
                    Err(error) => return Err(asked("write", OWNER)(error)),
                }
                self.owner().await?.unwrap_or_default()
            }
        };
        if found == owner {
            self.end_sweep().await?;
        }
        Ok(found)
    }

    /// Who owns the store, if somebody does.
    pub(crate) async fn owner(&self) -> Result<Option<String>, Error> {
        match self.objects.get(&OWNER.into()).await {
            Ok(found) => {
                let bytes = found.bytes().await.map_err(asked("read", OWNER))?;
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(asked("read", OWNER)(error)),
        }
    }
}

/// Of one request: a part at 128 KiB/s.
const PART_TIMEOUT: Duration = Duration::from_secs(64);

/// Up to [`PART_BYTES`] from where the file stands.
async fn next_part(mut file: File) -> Result<(File, Bytes), Error> {
    let read = tokio::task::spawn_blocking(move || {
        let mut part = Vec::with_capacity(PART_BYTES);
        let read = (&mut file).take(PART_BYTES as u64).read_to_end(&mut part);
        read.map(|_| (file, Bytes::from(part))).map_err(|source| Error::Staged { source })
    });
    read.await.map_err(Error::Runtime)?
}

/// A file without a name, for a blob whose digest is not known yet.
pub(crate) fn spill(file: Option<File>, bytes: &[u8]) -> Result<File, Error> {
    let staged = |source| Error::Staged { source };
    let mut file = file.map_or_else(tempfile::tempfile, Ok).map_err(staged)?;
    file.write_all(bytes).map_err(staged)?;
    Ok(file)
}

fn is_loopback(endpoint: &str) -> bool {
    let authority = endpoint.strip_prefix("http://").unwrap_or_default();
    let host = authority.split('/').next().unwrap_or_default();
    let host = match host.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => host,
        _ => host,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The bucket and the prefix of what follows `s3://`; none if it is not one.
pub(crate) fn parts(rest: &str) -> Option<(&str, &str)> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_end_matches('/');
    let name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let plain = |part: &str| {
        let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(known)
    };
    let good = (3..=63).contains(&bucket.len()) && bucket.bytes().all(name);
    (good && (prefix.is_empty() || prefix.split('/').all(plain))).then_some((bucket, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_and_a_plain_prefix_are_taken_and_nothing_else() {
        assert_eq!(parts("runs"), Some(("runs", "")));
        assert_eq!(parts("runs/a/b.c/"), Some(("runs", "a/b.c")));
        for bad in ["", "r", "RUNS/x", "runs//x", "runs/../x", "runs/a b", "user:key@runs/x", "runs/x?y=1"] {
            assert_eq!(parts(bad), None, "{bad}");
        }
    }

    #[test]
    fn plain_http_is_for_this_machine() {
        for (endpoint, loopback) in [
            ("http://127.0.0.1:9000", true),
            ("http://[::1]:9000/", true),
            ("http://localhost", true),
            ("http://127.0.0.1.example.org", false),
            ("http://10.0.0.1:9000", false),
            ("https://127.0.0.1", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(endpoint), loopback, "{endpoint}");
        }
    }
}
