//! What a process has used, by /proc, and commands that have to succeed.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Of /proc/PID/stat: 100 a second in every Linux that Rust runs on.
const TICKS_PER_SECOND: u64 = 100;

/// User and system time that `pid` has used, its threads included.
pub(crate) fn cpu(pid: u32) -> Option<Duration> {
    stat(pid).map(|stat| stat.cpu)
}

/// User and system time of `pid`, its living children, and its children that ended: PostgreSQL with its backends.
pub(crate) fn cpu_with_children(pid: u32) -> Option<Duration> {
    let own = stat(pid)?;
    let children = std::fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let child: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        stat(child).filter(|stat| stat.parent == pid)
    });
    Some(own.cpu + own.ended + children.map(|child| child.cpu).sum::<Duration>())
}

struct Stat {
    parent: u32,
    cpu: Duration,
    /// Of children that ended.
    ended: Duration,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have blanks and parentheses in it: fields are counted from the last one.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |place: usize| fields.get(place)?.parse::<u64>().ok();
    let span = |ticks: u64| Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND);
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        cpu: span(ticks(11)? + ticks(12)?),
        ended: span(ticks(13)? + ticks(14)?),
    })
}

/// Runs a command in `folder` to its end and gives its standard output.
pub(crate) async fn run(program: &str, args: &[&str], folder: &Path) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).stdin(std::process::Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output())
        .await?
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed: {}", error.lines().last().unwrap_or_default());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
