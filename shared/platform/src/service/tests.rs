//! A service's ends: asked to, by itself, by failure, by panic, too late.

use super::*;

#[derive(Debug, thiserror::Error)]
#[error("the topic is gone")]
struct Gone {
    source: std::io::Error,
}

fn gone() -> Gone {
    Gone { source: std::io::Error::other("no such partition") }
}

async fn ends<F, Fut>(context: Context, body: F) -> ExitCode
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<(), Gone>>,
{
    live(context, &Admin::default(), body).await
}

#[tokio::test]
async fn a_service_that_was_asked_to_stop_and_drained_ends_well() {
    let context = Context::detached("test");
    let readiness = context.readiness.clone();
    let code = ends(context, |context| async move {
        context.readiness.probe("work").ready();
        assert!(context.readiness.report().ready);
        context.shutdown.cancel();
        tokio::task::yield_now().await;
        Ok(())
    })
    .await;
    assert_eq!(code, ExitCode::Ok);
    assert!(!readiness.report().ready || readiness.report().waiting.is_empty());
}

#[tokio::test]
async fn a_service_that_stops_is_not_ready_while_it_drains() {
    let context = Context::detached("test");
    let code = ends(context, |context| async move {
        context.shutdown.cancel();
        while context.readiness.report().ready {
            tokio::task::yield_now().await;
        }
        Ok(())
    })
    .await;
    assert_eq!(code, ExitCode::Ok);
}

#[tokio::test]
async fn a_service_that_ends_by_itself_or_with_an_error_has_failed() {
    let by_itself = ends(Context::detached("test"), |_| async { Ok(()) }).await;
    assert_eq!(by_itself, ExitCode::Failure);
    let with_an_error = ends(Context::detached("test"), |_| async { Err(gone()) }).await;
    assert_eq!(with_an_error, ExitCode::Failure);
}

#[tokio::test]
async fn the_error_of_a_part_stops_the_whole() {
    let code = ends(Context::detached("test"), |context| async move {
        context.spawn("part", async { Err(gone()) });
        context.shutdown.cancelled().await;
        Ok(())
    })
    .await;
    assert_eq!(code, ExitCode::Failure);
}

#[tokio::test(start_paused = true)]
async fn a_drain_beyond_the_grace_is_a_failure() {
    let code = ends(Context::detached("test"), |context| async move {
        context.shutdown.cancel();
        std::future::pending().await
    })
    .await;
    assert_eq!(code, ExitCode::Failure);
}

#[tokio::test]
async fn an_admin_port_that_is_taken_is_a_failure() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = Admin { listen: taken.local_addr().unwrap() };
    let body = |_| async { Ok::<(), Gone>(()) };
    assert_eq!(live(Context::detached("test"), &admin, body).await, ExitCode::Failure);
}

#[test]
fn an_error_is_told_with_its_causes() {
    assert_eq!(Chain(&gone()).to_string(), "the topic is gone: no such partition");
}

#[test]
fn a_cause_that_was_told_already_is_not_told_again() {
    #[derive(Debug, thiserror::Error)]
    #[error("reading: {source}")]
    struct Talkative {
        source: std::io::Error,
    }
    let source = std::io::Error::other("no such partition");
    assert_eq!(Chain(&Talkative { source }).to_string(), "reading: no such partition");
}

#[test]
fn instances_that_are_made_up_differ_and_are_valid_names() {
    let name = made_up_instance();
    let settings = Service { instance: Some(name), ..Service::default() };
    let mut problems = crate::config::Problems::default();
    crate::config::Validate::validate(&settings, &mut problems);
    assert!(problems.is_empty(), "{problems:?}");
}
