//! What only some machines allow: cgroups that freeze and throttle, a file system that fills up, and a library that
//! moves a process's wall clock. The machine's own clock is never touched.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const CGROUPS: &str = "/sys/fs/cgroup";
/// Of a period of 100 ms, in µs: a tenth of a processor.
const QUOTA: &str = "10000";
/// The database's file system while it is well, and how much of it is left when it is full.
const DISK_BYTES: u64 = 2 << 30;
const LEFT_BYTES: u64 = 64 << 10;

/// A cgroup (v1) of one controller with one process in it; the process leaves it and it goes when dropped.
#[derive(Debug)]
pub struct Cgroup {
    controller: &'static str,
    folder: PathBuf,
    pid: u32,
}

impl Cgroup {
    /// Whether there is such a controller and it may be used.
    pub fn can(controller: &str) -> bool {
        let probe = Path::new(CGROUPS).join(format!("{controller}/laneway-{}", std::process::id()));
        std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe)).is_ok()
    }

    fn with(controller: &'static str, pid: u32) -> Result<Self> {
        let folder = Path::new(CGROUPS).join(format!("{controller}/laneway-{pid}"));
        std::fs::create_dir(&folder)?;
        let group = Self { controller, folder, pid };
        group.write("cgroup.procs", &pid.to_string())?;
        Ok(group)
    }

    /// The process runs no instruction until this is dropped.
    ///
    /// # Errors
    /// When the controller may not be used.
    pub fn freeze(pid: u32) -> Result<Self> {
        let group = Self::with("freezer", pid)?;
        group.write("freezer.state", "FROZEN")?;
        Ok(group)
    }

    /// The process gets a tenth of a processor until this is dropped.
    ///
    /// # Errors
    /// When the controller may not be used.
    pub fn throttle(pid: u32) -> Result<Self> {
        let group = Self::with("cpu", pid)?;
        group.write("cpu.cfs_quota_us", QUOTA)?;
        Ok(group)
    }

    /// Whether it had an effect: the process is frozen, or was throttled.
    pub fn had_effect(&self) -> bool {
        let read = |file| std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        if self.controller == "freezer" {
            return read("freezer.state").trim() == "FROZEN";
        }
        read("cpu.stat")
            .lines()
            .any(|line| line.strip_prefix("nr_throttled ").is_some_and(|count| count.trim() != "0"))
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if self.controller == "freezer" {
            let _ = self.write("freezer.state", "THAWED");
        }
        let root = Path::new(CGROUPS).join(self.controller).join("cgroup.procs");
        let _ = std::fs::write(root, self.pid.to_string());
        // The kernel takes a moment to see that it is empty.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// A tmpfs at a folder, with what was in the folder; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Moves what is in `folder` onto a tmpfs there. Whoever uses it has to be down.
    ///
    /// # Errors
    /// When nothing may be mounted.
    pub fn mount(folder: &Path) -> Result<Self> {
        let folder = folder.canonicalize()?;
        let owner = run("stat", &["-c", "%u:%g", &text(&folder)])?;
        let (aside, here) = (format!("{}.aside", text(&folder)), text(&folder));
        let options = format!("size={DISK_BYTES},mode=700");
        run("mv", &[&here, &aside])?;
        std::fs::create_dir(&folder)?;
        if let Err(error) = run("mount", &["-t", "tmpfs", "-o", &options, "laneway-chaos", &here]) {
            run("rmdir", &[&here])?;
            run("mv", &[&aside, &here])?;
            return Err(error);
        }
        let disk = Self { folder };
        run("cp", &["-a", &format!("{aside}/."), &here])?;
        run("chown", &[owner.trim(), &here])?;
        run("rm", &["-rf", &aside])?;
        Ok(disk)
    }

    /// Leaves next to no room.
    ///
    /// # Errors
    /// When it cannot be mounted anew, as in [`SmallDisk::empty`].
    pub fn fill(&self) -> Result<()> {
        let used = run("df", &["--output=used", "-B1", &text(&self.folder)])?;
        let used: u64 =
            used.lines().last().and_then(|line| line.trim().parse().ok()).context("df")?;
        self.resize(used + LEFT_BYTES)
    }

    /// Makes room again.
    ///
    /// # Errors
    /// When it cannot be mounted anew.
    pub fn empty(&self) -> Result<()> {
        self.resize(DISK_BYTES)
    }

    fn resize(&self, bytes: u64) -> Result<()> {
        let options = format!("remount,size={bytes}");
        run("mount", &["-o", &options, &text(&self.folder)]).map(drop)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: whoever still has a file open there keeps it.
        let _ = run("umount", &["-l", &text(&self.folder)]);
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().context(program.to_owned())?;
    if !output.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The library that moves wall clocks, where it is installed.
pub(super) fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?;
    let files =
        folders.filter_map(Result::ok).map(|of| of.path().join("faketime/libfaketimeMT.so.1"));
    files.into_iter().find(|file| file.is_file())
}

/// What a process whose clock is read from `file` is started with.
pub(super) fn clock_envs(library: &Path, file: &Path) -> [(&'static str, String); 4] {
    [
        ("LD_PRELOAD", text(library)),
        ("FAKETIME_TIMESTAMP_FILE", text(file)),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// What the library leaves behind when its process is killed.
pub(super) fn forget_clock(pid: u32) {
    for kind in ["sem", "shm"] {
        for path in [
            format!("/dev/shm/sem.faketime_{kind}_{pid}"),
            format!("/dev/shm/faketime_{kind}_{pid}"),
        ] {
            let _ = std::fs::remove_file(path);
        }
    }
}
