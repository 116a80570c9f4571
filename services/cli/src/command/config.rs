//! What the services would run with, and whether they would.

use super::services::{Everything, Runnable};
use crate::args::{ConfigCommand, ServiceName};
use crate::failure::{Failure, Result};
use crate::output::{Format, Output};
use laneway_platform::ExitCode;
use laneway_platform::config::{ConfigErrors, Loaded, Origins, load};
use serde_json::{Map, Value};

/// `laneway config …`
pub(super) fn run(command: ConfigCommand, origins: &Origins, output: Output) -> Result {
    let (service, show) = match command {
        ConfigCommand::Check { service } => (service, false),
        ConfigCommand::Show { service } => (service, true),
    };
    let mut shown = Vec::new();
    match service {
        Some(ServiceName::Relay) => shown.push(one::<laneway_relay::Settings>(origins)?),
        Some(ServiceName::Deliver) => shown.push(one::<laneway_deliver::Settings>(origins)?),
        Some(ServiceName::Reconciler) => shown.push(one::<laneway_reconciler::Settings>(origins)?),
        Some(ServiceName::Api) => shown.push(one::<laneway_api::Settings>(origins)?),
        None => {
            let all = Everything::load(origins)?;
            shown.extend([
                part(&all.relay),
                part(&all.deliver),
                part(&all.reconciler),
                part(&all.api),
            ]);
        }
    }
    if !show {
        output.say("the configuration is valid");
        return Ok(());
    }
    match output.format {
        Format::Json => {
            let mut all = Map::new();
            for part in shown {
                let settings = part.settings.map_err(|error| {
                    Failure::new(ExitCode::Failure, format!("cannot be shown: {error}"))
                })?;
                all.insert(part.name.to_owned(), settings);
            }
            output.json(&Value::Object(all))
        }
        Format::Table => {
            let whole = shown.len() > 1;
            for part in shown {
                if whole {
                    output.line(&format!("# ---- {} ----", part.name))?;
                }
                output.line(&part.text)?;
            }
            Ok(())
        }
    }
}

/// One service's settings, ready to be shown.
struct Part {
    name: &'static str,
    text: String,
    settings: serde_json::Result<Value>,
}

fn one<S: Runnable>(origins: &Origins) -> std::result::Result<Part, ConfigErrors> {
    load::<S>(origins).map(|loaded| part(&loaded))
}

fn part<S: Runnable>(loaded: &Loaded<S>) -> Part {
    Part { name: S::NAME, text: loaded.show(), settings: serde_json::to_value(&loaded.settings) }
}
