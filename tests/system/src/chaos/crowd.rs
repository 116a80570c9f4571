//! The receivers of a chaos run: each behaves in its own way, and misbehaves on command.

use super::load::REFUSED;
use super::plan::Mischief;
use anyhow::Result;
use laneway_testkit::{Behaviour, Door, Receiver, Request};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A receiver that can be told to misbehave.
pub(super) struct Member {
    pub(super) receiver: Receiver,
    mischief: Arc<RwLock<Option<Mischief>>>,
    hit: Arc<AtomicU64>,
}

/// How it behaves when it is left alone.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// 400 to some events: dead letters. Half of them are taken when they are sent again.
    Refuses,
    /// A tenth of a second for each.
    Slow,
    /// 503 to every tenth request.
    Fails,
    /// Every twentieth request is read and reset.
    Breaks,
}

const MANNERS: [Manner; 4] = [Manner::Refuses, Manner::Slow, Manner::Fails, Manner::Breaks];

impl Member {
    pub(super) async fn start(number: usize) -> Self {
        let receiver = Receiver::start().await;
        let mischief = Arc::new(RwLock::new(None));
        let hit = Arc::new(AtomicU64::new(0));
        let manner = MANNERS[number % MANNERS.len()];
        let (now, count) = (Arc::clone(&mischief), Arc::clone(&hit));
        receiver.set_script(move |request| {
            let now: Option<Mischief> = *now.read().expect("no writer panicked");
            match now.and_then(behaviour) {
                Some(behaviour) => {
                    count.fetch_add(1, Ordering::Relaxed);
                    behaviour
                }
                None => usual(manner, request),
            }
        });
        Self { receiver, mischief, hit }
    }

    /// Begins to misbehave.
    pub(super) fn begin(&self, mischief: Mischief) {
        *self.mischief.write().expect("no reader panicked") = Some(mischief);
        self.hit.store(0, Ordering::Relaxed);
        self.receiver.set_door(match mischief {
            Mischief::Down => Door::Shut,
            Mischief::ResetAtOnce => Door::Reset,
            Mischief::Ignored => Door::Ignore,
            _ => Door::Open,
        });
    }

    /// Behaves again. Whether anybody noticed: a request was treated badly, or the door was found closed.
    pub(super) async fn end(&self) -> Result<bool> {
        let mischief = self.mischief.write().expect("no reader panicked").take();
        let is_door = mischief.is_some_and(|mischief| behaviour(mischief).is_none());
        let noticed =
            if is_door { self.is_closed().await } else { self.hit.load(Ordering::Relaxed) > 0 };
        self.receiver.set_door(Door::Open);
        Ok(noticed)
    }

    /// Whether a request gets no answer now.
    async fn is_closed(&self) -> bool {
        let asked = async {
            let mut stream = TcpStream::connect(self.receiver.address()).await?;
            stream.write_all(b"GET /-/counts HTTP/1.1\r\n\r\n").await?;
            stream.read_u8().await
        };
        let asked = tokio::time::timeout(Duration::from_secs(1), asked).await;
        !matches!(asked, Ok(Ok(_)))
    }
}

/// What is done to a request; none if it is done to connections.
fn behaviour(mischief: Mischief) -> Option<Behaviour> {
    match mischief {
        Mischief::Down | Mischief::ResetAtOnce | Mischief::Ignored => None,
        Mischief::ResetAfterRead => Some(Behaviour::Reset),
        Mischief::CloseAfterRead => Some(Behaviour::Close),
        Mischief::SlowLoris => Some(Behaviour::SlowLoris { status: 200, every_ms: 100 }),
        Mischief::Hang => Some(Behaviour::Hang),
        Mischief::Failing => Some(Behaviour::status(503)),
        Mischief::Slow => Some(Behaviour::delayed(200, Duration::from_millis(1_000))),
        Mischief::ResetInBody => Some(Behaviour::ResetMidBody { status: 200 }),
    }
}

fn usual(manner: Manner, request: &Request) -> Behaviour {
    // The same requests fail in every run: by the characters of the delivery id and the attempt.
    let sum = request.delivery_id().bytes().map(u32::from).sum::<u32>() + request.attempt();
    match manner {
        Manner::Refuses => {
            let refused = request.body.windows(REFUSED.len()).any(|part| part == REFUSED);
            // Half of what is sent again is taken, the rest is given up once more.
            let repented = request.header("x-replay-of").is_some() && sum.is_multiple_of(2);
            Behaviour::status(if refused && !repented { 400 } else { 200 })
        }
        Manner::Slow => Behaviour::delayed(200, Duration::from_millis(100)),
        Manner::Fails => Behaviour::status(if sum.is_multiple_of(10) { 503 } else { 200 }),
        Manner::Breaks if sum.is_multiple_of(20) => Behaviour::Reset,
        Manner::Breaks => Behaviour::ok(),
    }
}
