//! Builds the static init of sandboxes and hands its path to `include_bytes!`.
//!
//! A nested cargo, because a static binary needs flags that nothing else here may get. It has a
//! target directory of its own: sharing one would wait for the lock this very build holds.
//!
//! With musl where the toolchain has it (`rustup target add <arch>-unknown-linux-musl`): glibc asks
//! the processor 68 questions before `main`, and a hypervisor answers each of them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let target = init_target();
    for watched in ["init/src", "init/Cargo.toml", "build.rs"] {
        println!("cargo:rerun-if-changed={watched}");
    }

    let target_dir = out_dir.join("init");
    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    cargo
        .args(["build", "--locked", "--package", "sandbox-init", "--bin", "sandbox-init"])
        .args(["--profile", "init", "--target", &target, "--target-dir"])
        .arg(&target_dir)
        .arg("--manifest-path")
        .arg(manifest_dir.join("init/Cargo.toml"))
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    // What the outer cargo chose for its own crates: wrappers (clippy), flags, directories.
    for inherited in [
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET_DIR",
        "CLIPPY_ARGS",
        "CLIPPY_CONF_DIR",
    ] {
        cargo.env_remove(inherited);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "building sandbox-init failed: {status}");
    let init = target_dir.join(&target).join("init").join("sandbox-init");
    println!("cargo:rustc-env=SANDBOX_INIT={}", init.display());
}

/// The musl twin of the target if its standard library is installed, else the target itself.
fn init_target() -> String {
    let target = env::var("TARGET").expect("set by cargo");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    let musl = format!("{arch}-unknown-linux-musl");
    let printed = Command::new(env::var_os("RUSTC").expect("set by cargo"))
        .args(["--print", "target-libdir", "--target", &musl])
        .output()
        .expect("rustc runs");
    let libdir = String::from_utf8_lossy(&printed.stdout);
    if printed.status.success() && Path::new(libdir.trim()).is_dir() {
        return musl;
    }
    println!(
        "cargo:warning=init is built with glibc and starts up to 0.7 ms later in every sandbox; \
         `rustup target add {musl}`, then build again"
    );
    target
}
