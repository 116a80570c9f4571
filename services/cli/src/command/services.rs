//! The services, each read from the same configuration and run as this process.

use crate::failure::{Failure, Result};
use laneway_platform::ExitCode;
use laneway_platform::config::{ConfigErrors, Loaded, Origins, Problems, Validate, load};
use laneway_platform::service::{self, Context, Process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::future::Future;

/// What all services have in common, so that they are run in one way.
pub(crate) trait Runnable: DeserializeOwned + Serialize + Validate + Clone {
    /// How the service is called.
    const NAME: &'static str;

    /// The settings of its process.
    fn process(&self) -> Process;

    /// Works until the context says stop.
    fn work(
        self,
        context: Context,
    ) -> impl Future<Output = std::result::Result<(), impl Error + Send + Sync + 'static>> + Send;
}

macro_rules! runnable {
    ($service:ident, $name:literal) => {
        impl Runnable for $service::Settings {
            const NAME: &'static str = $name;

            fn process(&self) -> Process {
                Self::process(self)
            }

            fn work(
                self,
                context: Context,
            ) -> impl Future<Output = std::result::Result<(), impl Error + Send + Sync + 'static>> + Send
            {
                $service::run(self, context)
            }
        }
    };
}
runnable!(laneway_relay, "relay");
runnable!(laneway_deliver, "deliver");
runnable!(laneway_reconciler, "reconciler");
runnable!(laneway_api, "api");

/// Runs the service `S` as this process, from its configuration to its exit code.
pub(super) async fn run<S: Runnable>(origins: &Origins) -> Result {
    let settings = load::<S>(origins)?.settings;
    let process = settings.process();
    match service::run(S::NAME, &process, |context| settings.work(context)).await {
        ExitCode::Ok => Ok(()),
        // The log has said why.
        code => Err(Failure::silent(code)),
    }
}

/// The settings of every service, for commands that are about all of them.
#[derive(Debug)]
pub(crate) struct Everything {
    pub(crate) relay: Loaded<laneway_relay::Settings>,
    pub(crate) deliver: Loaded<laneway_deliver::Settings>,
    pub(crate) reconciler: Loaded<laneway_reconciler::Settings>,
    pub(crate) api: Loaded<laneway_api::Settings>,
}

impl Everything {
    /// What one service keeps because of another (C17). Running services compare theirs through the database.
    fn compare_windows(&self, problems: &mut Problems) {
        let keep = &self.reconciler.settings.reconciler.keep;
        let window = self.relay.settings.relay.window;
        let horizon = self.deliver.settings.deliver.horizon;
        let answers = self.api.settings.api.idempotency_retention;
        let text = humantime::format_duration;
        if window < horizon {
            let says =
                format!("{} is shorter than deliver.horizon, {}", text(window), text(horizon));
            problems.report("relay.window", says);
        }
        for (name, other) in [("relay.window", window), ("deliver.horizon", horizon)] {
            if keep.inbox <= other {
                let (inbox, other) = (text(keep.inbox), text(other));
                problems.report(
                    "reconciler.keep.inbox",
                    format!("{inbox} is not longer than {name}, {other}"),
                );
            }
        }
        if keep.idempotency_keys < answers {
            let says = format!(
                "{} is shorter than api.idempotency_retention, {}",
                text(keep.idempotency_keys),
                text(answers)
            );
            problems.report("reconciler.keep.idempotency_keys", says);
        }
    }

    /// Reads all of them.
    ///
    /// # Errors
    /// The problems of all, each once.
    pub(crate) fn load(origins: &Origins) -> std::result::Result<Self, ConfigErrors> {
        match (load(origins), load(origins), load(origins), load(origins)) {
            (Ok(relay), Ok(deliver), Ok(reconciler), Ok(api)) => {
                let all = Self { relay, deliver, reconciler, api };
                let mut found = Problems::default();
                all.compare_windows(&mut found);
                all.reconciler.refuse(found)?;
                Ok(all)
            }
            (relay, deliver, reconciler, api) => {
                let errors = [relay.err(), deliver.err(), reconciler.err(), api.err()];
                let merged = errors.into_iter().flatten().reduce(ConfigErrors::merge);
                Err(merged.unwrap_or_else(|| unreachable!("one of them failed")))
            }
        }
    }
}
