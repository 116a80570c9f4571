//! Looks now and then whether the topic is still the one that the positions belong to.
//!
//! The client goes by the topic's name: after a topic was deleted and made again it may read on at an offset that
//! happens to exist. Offsets tell most such cases; this tells the rest, a look later.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use tokio::runtime::Handle;
use tokio::sync::mpsc::WeakSender;
use uuid::Uuid;

use super::{ConsumerSettings, Event, Shared};
use crate::Admin;

/// A thread that ends with this value.
#[derive(Debug)]
pub(super) struct Watch {
    // Dropped, it ends the thread's wait.
    _stop: Sender<()>,
}

/// What was last told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    Gone,
    Is(Option<Uuid>),
}

impl Watch {
    pub(super) fn start(
        admin: Admin,
        settings: &ConsumerSettings,
        shared: Arc<Shared>,
        events: WeakSender<Event>,
    ) -> Self {
        let (stop, stopped) = channel::<()>();
        let (topic, interval) = (settings.topic.clone(), settings.watch_interval);
        let mut known =
            settings.incarnation.map_or(Known::Nothing, |incarnation| Known::Is(Some(incarnation)));
        let runtime = Handle::current();
        let watch = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                // An answer that does not come says nothing about the topic.
                let Ok(found) = runtime.block_on(admin.describe_topic(&topic)) else { continue };
                shared.desk().answered = true;
                let event = match (known, found) {
                    (Known::Gone, None) => continue,
                    (_, None) => {
                        known = Known::Gone;
                        Event::TopicGone
                    }
                    (known_now, Some(found)) => {
                        known = Known::Is(found.incarnation);
                        if known_now == known || known_now == Known::Nothing {
                            continue;
                        }
                        Event::TopicChanged { incarnation: found.incarnation }
                    }
                };
                let Some(events) = events.upgrade() else { return };
                if events.blocking_send(event).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("laneway-bus-watch".to_owned()).spawn(watch);
        if let Err(error) = thread {
            tracing::error!(%error, "the topic's incarnation is not watched");
        }
        Self { _stop: stop }
    }
}
