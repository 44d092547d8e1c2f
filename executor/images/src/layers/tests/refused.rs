//! Trees that are refused whole, and what is left out of those that are not.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, SFlag, makedev, mkdirat, mknod};
use rollout::Bytes;
use xattr::FileExt;

use super::{Scratch, bounds, is_root};
use crate::layers::{Bounds, Error, pack_directory, pack_upper};

fn refusal(scratch: &Scratch, bounds: Bounds) -> String {
    let error = scratch.pack_from(0, bounds).unwrap_err();
    assert!(error.of_the_tree(), "{error:?}");
    assert!(!scratch.path("packed").exists(), "nothing is left of a refused tree");
    error.to_string()
}

#[test]
fn what_no_layer_can_hold_is_refused_by_its_kind() {
    if !is_root() {
        return;
    }
    let device = |scratch: &Scratch, kind, major| {
        mknod(&scratch.tree().join("d"), kind, Mode::empty(), makedev(major, 3)).unwrap();
    };
    let mark = |scratch: &Scratch, name: &str, value: &[u8], is_dir: bool| {
        let path = scratch.tree().join("m");
        if is_dir {
            fs::create_dir(&path).unwrap()
        } else {
            fs::write(&path, "").unwrap()
        }
        File::open(path).unwrap().set_xattr(name, value).unwrap();
    };
    type Make<'a> = &'a dyn Fn(&Scratch);
    let cases: [(&str, Make<'_>); 10] = [
        ("`/d` cannot be part of a layer: it is a character device", &|s| device(s, SFlag::S_IFCHR, 1)),
        ("it is a block device", &|s| device(s, SFlag::S_IFBLK, 7)),
        ("`trusted.overlay.redirect`", &|s| mark(s, "trusted.overlay.redirect", b"/etc", true)),
        ("`trusted.overlay.metacopy`", &|s| mark(s, "trusted.overlay.metacopy", b"", false)),
        ("`trusted.overlay.opaque`", &|s| mark(s, "trusted.overlay.opaque", b"x", true)),
        ("carries an overlay mark", &|s| mark(s, "trusted.overlay.opaque", b"y", false)),
        ("`trusted.other`", &|s| mark(s, "trusted.other", b"", false)),
        ("bytes of attributes", &|s| mark(s, "user.a", &[b'a'; 3_100], false)),
        ("bytes of one file", &|s| {
            File::create(s.tree().join("sparse")).unwrap().set_len(9 << 40).unwrap();
        }),
        ("outside of the sandbox's range", &|s| {
            fs::write(s.tree().join("f"), "").unwrap();
            std::os::unix::fs::chown(s.tree().join("f"), Some(65_536), Some(0)).unwrap();
        }),
    ];
    for (words, make) in cases {
        let scratch = Scratch::new();
        make(&scratch);
        let message = refusal(&scratch, bounds());
        assert!(message.contains(words), "{message}");
    }
    // Its twin: an id one lower, and the same nodes in a tree that has no marks.
    let scratch = Scratch::new();
    fs::write(scratch.tree().join("f"), "").unwrap();
    std::os::unix::fs::chown(scratch.tree().join("f"), Some(65_535), Some(0)).unwrap();
    assert_eq!(scratch.pack().unwrap().layer.entries, 1);
    for (name, words) in [("w", "character device"), ("o", "overlay mark")] {
        let scratch = Scratch::new();
        let path = scratch.tree().join(name);
        if name == "w" {
            mknod(&path, SFlag::S_IFCHR, Mode::empty(), 0).unwrap();
        } else {
            fs::create_dir(&path).unwrap();
            File::open(&path).unwrap().set_xattr("trusted.overlay.opaque", b"y").unwrap();
        }
        let plain = pack_directory(&scratch.tree(), "", &scratch.path("packed"), &bounds()).unwrap_err();
        assert!(plain.to_string().contains(words), "{plain}");
        assert_eq!(scratch.pack().unwrap().layer.entries, 1, "in an upper it is a mark");
    }
}

#[test]
fn sockets_and_attributes_of_others_are_left_out_and_counted() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let _listener = UnixListener::bind(scratch.tree().join("socket")).unwrap();
    fs::write(scratch.tree().join("f"), "").unwrap();
    fs::create_dir(scratch.tree().join("d")).unwrap();
    let file = File::open(scratch.tree().join("f")).unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.set_xattr("security.capability", &capability).unwrap();
    file.set_xattr("user.kept", b"1").unwrap();
    file.set_xattr("trusted.overlay.origin", b"x").unwrap();
    let dir = File::open(scratch.tree().join("d")).unwrap();
    dir.set_xattr("user.overlay.opaque", b"y").unwrap();
    let packed = scratch.pack().unwrap();
    let dropped = packed.dropped;
    assert_eq!((dropped.sockets, dropped.overlay_attributes, dropped.security_attributes), (1, 1, 1));
    let out = scratch.unpack(&packed, "out").unwrap();
    let names = |name: &str| {
        File::open(out.join(name))
            .unwrap()
            .list_xattr()
            .unwrap()
            .map(|n| n.into_string().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!((names("f"), names("d")), (vec!["user.kept".to_owned()], vec![]));
    assert!(!out.join("socket").exists());
}

#[test]
fn past_a_bound_a_tree_is_refused_whole_by_its_name() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    for index in 0..20 {
        fs::write(scratch.tree().join(format!("f{index}")), [7; 100]).unwrap();
    }
    let at = |entries, content| Bounds { entries, content: Bytes(content) };
    assert_eq!(scratch.pack_from(0, at(20, 2000)).unwrap().layer.content, Bytes(2000));
    assert!(refusal(&scratch, at(19, 2000)).contains("19 entries"));
    assert!(refusal(&scratch, at(20, 1999)).contains("1999 bytes of content"));
    // Deeper than any path reaches.
    let scratch = Scratch::new();
    let mut dir = std::os::fd::OwnedFd::from(File::open(scratch.tree()).unwrap());
    for _ in 0..5000 {
        mkdirat(&dir, "d", Mode::from_bits_truncate(0o755)).unwrap();
        let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_DIRECTORY;
        dir = nix::fcntl::openat(&dir, "d", flags, Mode::empty()).unwrap();
    }
    drop(dir);
    assert!(refusal(&scratch, bounds()).contains("4095 bytes of one path"));
    let removed = std::process::Command::new("rm").arg("-rf").arg(scratch.tree()).status().unwrap();
    assert!(removed.success());
}

#[test]
fn a_deep_tree_within_the_bound_comes_back() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let mut path = scratch.tree();
    for index in 0..500 {
        path = path.join(format!("d{index}"));
        fs::create_dir(&path).unwrap();
        if index % 50 == 0 {
            fs::write(path.join("a"), "early").unwrap();
            fs::write(path.join("z"), "late").unwrap();
        }
    }
    let packed = scratch.pack().unwrap();
    let out = scratch.unpack(&packed, "out").unwrap();
    assert_eq!(super::facts(&out, 0), super::facts(&scratch.tree(), 0));
}

#[test]
fn holes_of_a_tebibyte_are_neither_read_nor_stored() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let file = File::create(scratch.tree().join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"data", 1 << 39).unwrap();
    let began = Instant::now();
    let packed = scratch.pack().unwrap();
    assert!(packed.layer.content < Bytes(64 << 20) && packed.layer.packed < Bytes(1 << 20), "{packed:?}");
    let out = scratch.unpack(&packed, "out").unwrap();
    assert_eq!(fs::metadata(out.join("sparse")).unwrap().len(), 1 << 40);
    // A tebibyte read or hashed would take a quarter of an hour.
    assert!(began.elapsed() < Duration::from_secs(120));
}

#[test]
fn no_byte_of_another_file_is_packed_while_a_name_is_being_swapped() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    fs::write(scratch.path("secret"), "secret bytes").unwrap();
    fs::create_dir(scratch.path("outside")).unwrap();
    fs::write(scratch.path("outside/secret"), "secret bytes").unwrap();
    let (file, dir) = (scratch.tree().join("p"), scratch.tree().join("q"));
    let done = AtomicBool::new(false);
    let (mut whole, mut changed) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = fs::write(&file, "own bytes");
                let _ = fs::remove_file(&file);
                let _ = symlink(scratch.path("secret"), &file);
                let _ = fs::remove_file(&file);
                let _ = mknod(&file, SFlag::S_IFIFO, Mode::from_bits_truncate(0o600), 0);
                let _ = fs::remove_file(&file);
                let _ = fs::create_dir(&dir);
                let _ = fs::remove_dir(&dir);
                let _ = symlink(scratch.path("outside"), &dir);
                let _ = fs::remove_file(&dir);
            }
        });
        let until = Instant::now() + Duration::from_secs(60);
        while (whole < 200 || changed < 20) && Instant::now() < until {
            match scratch.pack() {
                Ok(packed) => {
                    whole += 1;
                    let tar = zstd::decode_all(File::open(&packed.file).unwrap()).unwrap();
                    assert!(!tar.windows(12).any(|bytes| bytes == b"secret bytes"));
                }
                Err(Error::Changed { .. } | Error::Io { .. }) => changed += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(whole >= 200 && changed >= 20, "{whole} whole, {changed} refused");
}

#[test]
fn packing_ends_soon_when_it_is_told_to() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    for index in 0..2000 {
        fs::write(scratch.tree().join(format!("f{index}")), [7; 1000]).unwrap();
    }
    let root = File::open(scratch.tree()).unwrap();
    let stop = AtomicBool::new(true);
    let stopped = pack_upper(root.as_fd(), 0, &[], &scratch.path("packed"), &bounds(), &stop);
    assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
    assert!(!scratch.path("packed").exists());
}
