//! Files are reached from outside, beneath the root, whatever runs inside does to the paths.

use std::io::Read as _;

use executor::sandbox::{FileError, FileSource, Listing, Sandbox};

use crate::processes::said;
use crate::subject::Yard;

crate::rules![
    files_have_the_owner_and_mode_they_were_given,
    no_link_and_no_pipe_is_followed,
    a_directory_is_reset_over_what_was_left,
    a_listing_has_a_bound,
];

pub async fn read(sandbox: &dyn Sandbox, path: &str) -> Option<String> {
    let (mut file, _) = sandbox.open_file(path).await.unwrap()?;
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    Some(text)
}

pub fn bytes(text: &str) -> FileSource {
    FileSource::Bytes(text.as_bytes().to_vec())
}

async fn files_have_the_owner_and_mode_they_were_given(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    sandbox.write_file("/in/deep/a", bytes("one"), 0o640, "rollout").await.unwrap();
    sandbox.write_file("b", bytes("two"), 0o755, "root").await.unwrap();
    sandbox.make_dir("/in/made", "rollout").await.unwrap();
    let look = "stat -c '%a %u %g' /in/deep/a /workspace/b /in/made; cat /in/deep/a 2>/dev/null; true";
    assert_eq!(said(&*sandbox, look).await, "640 1000 1000\n755 0 0\n755 1000 1000\none", "modes and owners");
    said(&*sandbox, "echo out > result").await;
    assert_eq!(read(&*sandbox, "result").await.as_deref(), Some("out\n"));
    sandbox.kill_all().await.unwrap();
    assert_eq!(read(&*sandbox, "/workspace/result").await.as_deref(), Some("out\n"));
    assert_eq!(read(&*sandbox, "absent").await, None);
    let stranger = sandbox.write_file("c", bytes("x"), 0o644, "nobody-here").await;
    assert!(matches!(stranger, Err(FileError::UnknownUser { .. })), "{stranger:?}");
    sandbox.destroy().await.unwrap();
}

async fn no_link_and_no_pipe_is_followed(yard: &Yard) {
    let secret = yard.dir.join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let sandbox = yard.sandbox().await;
    let secret = secret.display();
    said(&*sandbox, &format!("ln -s {secret} file; ln -s / root; ln -s /etc d; mkfifo pipe; mkdir dir"))
        .await;
    for path in ["file", "root/etc/hostname", "d/hostname", "pipe", "dir", "/workspace/../etc/hostname"] {
        let opened = sandbox.open_file(path).await;
        assert!(opened.is_err(), "{path} was opened: {opened:?}");
    }
    for path in ["d/planted", "root/etc/planted", "../planted"] {
        let written = sandbox.write_file(path, bytes("x"), 0o644, "rollout").await;
        assert!(written.is_err(), "{path} was written");
    }
    let left = said(&*sandbox, "ls /etc/planted /planted 2>/dev/null; true").await;
    assert_eq!(left, "", "nothing was written through a link");
    // A link where a file comes is replaced, not followed.
    sandbox.write_file("file", bytes("own"), 0o644, "rollout").await.unwrap();
    assert_eq!(said(&*sandbox, "cat file; test ! -L file && echo plain").await, "ownplain");
    assert_eq!(std::fs::read_to_string(yard.dir.join("secret")).unwrap(), "of the host");
    sandbox.destroy().await.unwrap();
}

async fn a_directory_is_reset_over_what_was_left(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    for left in ["ln -s /etc logs", "mkfifo logs", "mkdir -p logs/a/b; touch logs/a/c; chmod 0 logs", "true"]
    {
        said(&*sandbox, left).await;
        sandbox.reset_dir("/workspace/logs", 0o755, "root").await.unwrap();
        let seen = said(&*sandbox, "ls -A logs | wc -l; stat -c %F:%u logs").await;
        assert_eq!(seen, "0\ndirectory:0", "after `{left}`");
        said(&*sandbox, "rmdir logs").await;
    }
    said(&*sandbox, "ls /etc/passwd").await;
    sandbox.destroy().await.unwrap();
}

async fn a_listing_has_a_bound(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    said(&*sandbox, "mkdir d; touch d/a d/b d/c; ln -s d link").await;
    let names = ["a", "b", "c"].map(str::to_owned).to_vec();
    assert_eq!(sandbox.list("/workspace/d", 3).await.unwrap(), Some(Listing::Directory(names)));
    let over = sandbox.list("/workspace/d", 2).await;
    assert!(over.is_err(), "more names than the bound: {over:?}");
    assert_eq!(sandbox.list("/workspace/d/a", 3).await.unwrap(), Some(Listing::File));
    assert_eq!(sandbox.list("/workspace/absent", 3).await.unwrap(), None);
    assert!(sandbox.list("/workspace/link", 3).await.is_err());
    sandbox.destroy().await.unwrap();
}
