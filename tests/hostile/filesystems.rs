//! Case 5: ioctls that reach into a filesystem or a terminal.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use executor::sandbox::Backend;
use executor::sandbox::container::{Container, ContainerConfig};

use crate::images::small_root;
use crate::lab::{Done, Held, LOOP_DISK, Lab, said, shell_as, until};
use crate::skips::Skip;

crate::cases![
    "05" no_ioctl_reaches_the_disk_of_a_sandbox_and_its_files_can_be_deleted,
    "05" no_ioctl_reaches_a_file_of_an_image_on_xfs,
];

const IOCTLS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TRY(name, call) do { errno = 0; long r = (long)(call); printf("%s %d\n", name, r < 0 ? errno : 0); } while (0)
int main(int argc, char **argv) {
  static char zero[4096];
  for (int i = 1; i < argc; i++) {
    int fd = open(argv[i], O_RDWR), flags = 0x30;
    if (fd < 0) fd = open(argv[i], O_RDONLY);
    if (fd < 0) { printf("open %d\n", errno); return 1; }
    TRY("setflags", ioctl(fd, 0x40086602, &flags));
    TRY("setflags32", ioctl(fd, 0x40046602, &flags));
    TRY("setflags_high", ioctl(fd, 0xdead000040086602ul, &flags));
    TRY("fssetxattr", ioctl(fd, 0x401c5820, zero));
    TRY("swapext", ioctl(fd, 0xc0c0586d, zero));
    TRY("exchange_range", ioctl(fd, 0x40285881, zero));
    TRY("move_ext", ioctl(fd, 0xc028660f, zero));
    TRY("fitrim", ioctl(fd, 0xc0185879, zero));
    TRY("tiocsti", ioctl(0, 0x5412, "x"));
    TRY("tiocsti_high", ioctl(0, 0xdead000000005412ul, "x"));
    TRY("tioclinux", ioctl(0, 0x541c, "x"));
    TRY("setlease", fcntl(fd, 1024, F_WRLCK));
    TRY("setlease_high", syscall(SYS_fcntl, fd, 0xdead000000000400ul, F_WRLCK));
    printf("allowed\n");
    TRY("getflags", ioctl(fd, 0x80086601, &flags));
    TRY("fionread", ioctl(fd, 0x541b, &flags));
    TRY("getlease", fcntl(fd, 1025));
    close(fd);
  }
  return 0;
}
"#;

async fn attempts(sandbox: &Held, user: &str, files: &str) {
    let output = shell_as(sandbox, user, &format!("/workspace/ioctls {files}")).await;
    let mut expected = "1";
    let mut refused = 0;
    for line in output.stdout.lines() {
        match line.split_once(' ') {
            None => expected = "0",
            Some(("setflags", errno)) => {
                expected = "1";
                assert_eq!(errno, expected, "{user}: {line}");
            }
            Some((_, errno)) => assert_eq!(errno, expected, "{user} {files}: {line}"),
        }
        refused += usize::from(expected == "1");
    }
    assert_eq!(refused, 13 * files.split(' ').count(), "{output:?}");
}

/// Flags of a file, read from the host.
async fn flags(sandbox: &Held, path: &str) -> libc::c_int {
    let (file, _) = sandbox.open_file(path).await.unwrap().expect("a file");
    let mut flags: libc::c_int = 0;
    // SAFETY: FS_IOC_GETFLAGS writes an int.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) };
    assert_eq!(done, 0, "{path}");
    flags & 0x30
}

async fn no_ioctl_reaches_the_disk_of_a_sandbox_and_its_files_can_be_deleted(lab: &Lab) -> Done {
    for disk in [LOOP_DISK, crate::lab::limits().disk] {
        let sandbox = lab.sandbox_with(|spec| spec.limits.disk = disk).await;
        lab.program(&sandbox, "ioctls", IOCTLS).await;
        said(&sandbox, "mkdir d; echo x > f; echo y > d/g").await;
        for user in ["rollout", "0"] {
            attempts(&sandbox, user, "f d/g").await;
        }
        assert_eq!(
            (flags(&sandbox, "f").await, flags(&sandbox, "d/g").await),
            (0, 0),
            "immutable, append-only"
        );
        assert_eq!(said(&sandbox, "rm -r f d && ls").await, "ioctls");
        sandbox.end().await;
    }
    Ok(())
}

/// The mount is made before this backend's broker copies the table of mounts.
async fn no_ioctl_reaches_a_file_of_an_image_on_xfs(lab: &Lab) -> Done {
    let xfs = Xfs::mount(&lab.dir)?;
    let root = small_root(&lab.dir, "xfs/root");
    std::fs::write(root.join("lower"), "of the image\n").unwrap();
    let data_dir = lab.dir.join("second");
    let backend = Container::start(&ContainerConfig { data_dir: data_dir.clone() }).unwrap();
    let mut spec = lab.spec();
    (spec.image, spec.limits.disk) = (format!("dir:{}", root.display()), LOOP_DISK);
    let id = spec.id.clone();
    let sandbox = Held { id, sandbox: backend.create(spec).await.unwrap() };
    lab.program(&sandbox, "ioctls", IOCTLS).await;
    said(&sandbox, "echo x > f").await;
    for user in ["rollout", "0"] {
        attempts(&sandbox, user, "/lower f").await;
    }
    assert_eq!(flags(&sandbox, "f").await, 0);
    assert_eq!(said(&sandbox, "rm f; cat /lower").await, "of the image");
    sandbox.end().await;
    drop(backend);
    crate::lab::nothing_left("the second backend", &data_dir).await.unwrap();
    executor::census::remove_parents(&data_dir).unwrap();
    assert_eq!(std::fs::read_to_string(root.join("lower")).unwrap(), "of the image\n");
    xfs.unmount_clean().await;
    Ok(())
}

/// An xfs of the test's own, in its own mount namespace.
struct Xfs {
    image: std::path::PathBuf,
    point: std::path::PathBuf,
}

impl Xfs {
    fn mount(dir: &Path) -> Result<Self, Skip> {
        let (image, point) = (dir.join("xfs.img"), dir.join("xfs"));
        std::fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        std::fs::create_dir(&point).unwrap();
        let made = Command::new("mkfs.xfs").arg("-q").arg(&image).status();
        let made = made.map_err(|error| Skip(format!("no mkfs.xfs: {error}")))?;
        assert!(made.success(), "{made}");
        if !std::fs::read_to_string("/proc/filesystems").unwrap().lines().any(|line| line.ends_with("\txfs"))
        {
            return Err(Skip("no xfs in this kernel".into()));
        }
        let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&point).status().unwrap();
        assert!(mounted.success(), "{mounted}");
        Ok(Self { image, point })
    }

    async fn unmount_clean(self) {
        let unmounted = Command::new("umount").arg(&self.point).status().unwrap();
        assert!(unmounted.success(), "{unmounted}");
        // The second broker's copy of the mount goes with the broker.
        let image = self.image.display().to_string();
        let in_use = || {
            let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
            devices
                .filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok())
                .any(|file| file.trim_end() == image)
        };
        until("the filesystem is not mounted any more", || !in_use()).await;
        let checked = Command::new("xfs_repair").arg("-n").arg(&self.image).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
    }
}
