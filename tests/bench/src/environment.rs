//! What the figures depend on beside the product: machine, versions, and who else uses the machine.

use crate::report::say;
use laneway_system::World;
use laneway_testkit::Stack;
use sqlx::{Connection, PgConnection};
use std::process::Command;

/// Prints machine and versions to standard error.
pub(crate) async fn print(stack: &Stack) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = field("/proc/meminfo", "MemTotal:").map_or(0, |kib| kib / 1024);
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find(|line| line.starts_with("model name")).unwrap_or("unknown processor");
    say(format!("machine: {cores} cores, {memory} MiB, {model}; {}", load()));
    say(format!("kernel: {}", said("uname", &["-sr"])));
    say(format!("PostgreSQL: {}", postgres(stack).await.unwrap_or_else(|error| error.to_string())));
    say(format!("Java of the broker: {}", said("java", &["-version"])));
    if let Ok(binary) = World::binary() {
        say(format!(
            "product: {} ({})",
            said(&binary.display().to_string(), &["--version"]),
            binary.display()
        ));
    }
    say(
        "PostgreSQL, broker, receiver and product share these cores; the broker runs with -Xmx512m",
    );
}

/// The load average, to be printed beside figures.
pub(crate) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let three: Vec<&str> = text.split(' ').take(3).collect();
    format!("load average {}", three.join(" "))
}

/// The number behind `name` in a file of /proc.
pub(crate) fn field(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

async fn postgres(stack: &Stack) -> Result<String, sqlx::Error> {
    let mut connection = PgConnection::connect(stack.database_url()).await?;
    sqlx::query_scalar(
        "SELECT version() || '; fsync ' || current_setting('fsync') || ', synchronous_commit ' \
         || current_setting('synchronous_commit') || ', shared_buffers ' || current_setting('shared_buffers')",
    )
    .fetch_one(&mut connection)
    .await
}

/// The first line that a command says.
fn said(program: &str, args: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(args).output() else {
        return "not installed".to_owned();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
}
