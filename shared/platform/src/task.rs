//! Supervised tasks: a panic in any of them ends the process, because a service that lost a part of itself must not
//! look alive (layout.md, "A service").

use futures_util::FutureExt;
use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Cancelled when a supervised task panicked; [`crate::service::run`] then ends the process with a non-zero code.
pub(crate) fn panicked() -> &'static CancellationToken {
    static PANICKED: OnceLock<CancellationToken> = OnceLock::new();
    PANICKED.get_or_init(CancellationToken::new)
}

/// Runs `future` on the runtime as a task of that `name`, in the caller's span.
///
/// A panic is logged with the name and ends the process if it runs a service; the handle reports it too. Dropping
/// the handle does not stop the task. For a task whose error must end the service, use
/// [`crate::service::Context::spawn`].
#[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let supervised = async move {
        match AssertUnwindSafe(future).catch_unwind().await {
            Ok(output) => output,
            Err(panic) => {
                tracing::error!(task = name, message = text(&*panic), "a task panicked");
                panicked().cancel();
                std::panic::resume_unwind(panic)
            }
        }
    };
    tokio::spawn(supervised.in_current_span())
}

/// Runs blocking work (DNS, files, a C library's flush) on the blocking pool and waits for it; a panic in it is
/// passed on to the caller.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(output) => output,
        // Blocking work is never aborted, so the only other end is a panic.
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("not a text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_gives_back_what_its_future_gives() {
        assert_eq!(spawn("answer", async { 42 }).await.unwrap(), 42);
        assert_eq!(blocking(|| 7).await, 7);
    }

    #[test]
    fn a_panic_says_its_text() {
        assert_eq!(text(&"lost"), "lost");
        assert_eq!(text(&String::from("lost too")), "lost too");
        assert_eq!(text(&3), "not a text");
    }
}
