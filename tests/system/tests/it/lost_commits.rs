//! Commits whose outcome nobody is told: the connection to the database ends between COMMIT and its reply.

use crate::support::{Scene, drained, load};
use anyhow::{Context, Result};
use laneway_client::NewEvent;
use laneway_system::{EndpointOptions, Options};
use laneway_testkit::Stack;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// One COMMIT in so many loses its reply.
const CUT_EVERY: u64 = 12;
/// The message of PostgreSQL's protocol.
const COMMIT: &[u8] = b"Q\x00\x00\x00\x0bCOMMIT\x00";
const POSTED: usize = 60;

/// What passes through the way to the database.
#[derive(Default)]
struct Way {
    cuts: AtomicBool,
    commits: AtomicU64,
    cut: AtomicU64,
}

/// A way to `upstream` at an address of its own.
async fn way_to(upstream: String) -> Result<(String, Arc<Way>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let way = Arc::new(Way::default());
    let shared = Arc::clone(&way);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&upstream).await else { continue };
            let (from, to_client) = client.into_split();
            let (back, to_server) = server.into_split();
            let ends = Arc::new(AtomicBool::new(false));
            let ways = (Arc::clone(&shared), Arc::clone(&shared));
            tokio::spawn(forth(from, to_server, ways.0, Arc::clone(&ends)));
            tokio::spawn(and_back(back, to_client, ways.1, ends));
        }
    });
    Ok((address, way))
}

async fn forth(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Arc<Way>,
    ends: Arc<AtomicBool>,
) {
    let mut some = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut some).await {
        if way.cuts.load(Ordering::Relaxed)
            && some[..read].windows(COMMIT.len()).any(|part| part == COMMIT)
            && way.commits.fetch_add(1, Ordering::Relaxed) % CUT_EVERY == CUT_EVERY - 1
        {
            ends.store(true, Ordering::Release);
        }
        if to.write_all(&some[..read]).await.is_err() {
            return;
        }
    }
}

/// The first reply after the COMMIT that was chosen says that it is durable, and goes no further.
async fn and_back(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Arc<Way>,
    ends: Arc<AtomicBool>,
) {
    let mut some = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut some).await {
        if ends.load(Ordering::Acquire) {
            way.cut.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if to.write_all(&some[..read]).await.is_err() {
            return;
        }
    }
}

/// P8: an event is found again by its key, an outcome is recorded again and changes nothing, no lane is stuck.
#[tokio::test(flavor = "multi_thread")]
async fn p8_commits_whose_replies_are_lost_are_found_again_and_done_once() -> Result<()> {
    let stack = Stack::shared().await;
    let upstream = stack.database_url().split(['@', '/']).nth(3).context("a database URL")?;
    let (address, way) = way_to(upstream.to_owned()).await?;
    let options = Options { postgres_via: Some(address), ..Options::default() };
    let mut scene = Scene::on(stack, options, vec![EndpointOptions::default(); 2]).await?;
    scene.services(2).await?;
    way.cuts.store(true, Ordering::Relaxed);
    let loading = load(&scene, 1_000, Duration::from_millis(10));
    let client = scene.world.client()?;
    let mut lost = 0;
    for number in 0..POSTED {
        let payload = RawValue::from_string("{}".to_owned())?;
        let event =
            NewEvent { r#type: "load.posted", key: Some("u"), payload: &payload, dedupe_key: None };
        let key = format!("key-{number}");
        while let Err(error) = client.event_create(&key, &event).await {
            assert!(error.is_transient(), "{error:?}");
            lost += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(loading.await?, 0);
    drained(&scene).await?;
    assert!(lost >= 1, "an answer of the API was lost");
    let cut = way.cut.load(Ordering::Relaxed);
    assert!(cut >= 20, "{cut} commits lost their replies");
    let posted = "SELECT count(*) FROM laneway.outbox WHERE type = 'load.posted'";
    assert_eq!(scene.world.app.number(posted).await?, POSTED as i64, "one event for one key");
    let verdict = scene.judged().await;
    assert_eq!(verdict.number("duplicates"), 0.0, "{}", verdict.line());
    Ok(())
}
