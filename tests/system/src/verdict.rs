//! Hands everything that a run left behind to the judge, which shares no code with the product.

use crate::world::World;
use anyhow::{Context, Result};
use laneway_checker::{Inputs, Source};
use laneway_testkit::{Provider, Receiver};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// The lease of these worlds.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// What the judge said of a world, and where what it read lies.
#[derive(Debug)]
pub struct Verdict {
    verdict: laneway_checker::Verdict,
    dir: PathBuf,
}

impl Verdict {
    /// Reads journals, source rows, final states and faults of `world` and has them judged.
    ///
    /// # Errors
    /// When something cannot be read. A bad history is a verdict.
    pub async fn of(world: &World, receivers: &[Receiver]) -> Result<Self> {
        let options = laneway_checker::Options { lease: LEASE, ..Default::default() };
        Self::by(world, receivers, &[], &options).await
    }

    /// As [`Verdict::of`] when all has drained, where answers may be later than the endpoints' `deadline`, every lost lease is in the fault
    /// journal, and some endpoints are `providers`: nobody is asked about a request sooner than `quiet` after it was read.
    ///
    /// # Errors
    /// As [`Verdict::of`].
    pub async fn with_effects(
        world: &World,
        receivers: &[Receiver],
        providers: &[Provider],
        deadline: Duration,
        quiet: Duration,
    ) -> Result<Self> {
        let (deadline, quiet) = (Some(deadline), Some(quiet));
        let options = laneway_checker::Options {
            deadline,
            quiet,
            lease: LEASE,
            leases_told: true,
            finals_whole: true,
            ..laneway_checker::Options::default()
        };
        Self::by(world, receivers, providers, &options).await
    }

    async fn by(
        world: &World,
        receivers: &[Receiver],
        providers: &[Provider],
        options: &laneway_checker::Options,
    ) -> Result<Self> {
        let rows = world
            .app
            .rows(
                "SELECT o.id, o.event_id AS event, o.tenant, o.type, o.user_key AS key, \
                 encode(sha256(o.payload), 'hex') AS sha256, \
                 (extract(epoch FROM o.created_at) * 1000)::bigint AS created_ms, \
                 o.rewind || jsonb_build_object('command', w.rewind_id) AS rewind FROM laneway.outbox o \
                 LEFT JOIN laneway_control.rewound w ON w.delivery_id = (o.rewind->>'delivery')::uuid ORDER BY o.id",
            )
            .await?;
        let finals = world
            .app
            .rows(
                "SELECT i.event_id AS event, i.endpoint_id AS endpoint, i.delivery_id AS delivery, \
                 (extract(epoch FROM i.settled_at) * 1000)::bigint AS at_ms, \
                 (ARRAY['delivered', 'dead_lettered', 'discarded'])[i.outcome] AS outcome, \
                 EXISTS (SELECT FROM laneway_control.commands c WHERE c.delivery_id = i.delivery_id \
                   AND c.verdict = 'delivered' AND c.result = 'applied') AS resolved FROM laneway_control.inbox i \
                 UNION ALL SELECT event_id, endpoint_id, delivery_id, 0, 'held', false FROM laneway_control.parked_events",
            )
            .await?;
        let subscriptions = world.endpoints().iter().map(|made| {
            json!({"endpoint": made.id, "tenant": world.tenant, "path": made.path,
                   "patterns": [made.event_type], "order": made.ordering})
        });
        let mut journals = Vec::new();
        let all = receivers.iter().chain(providers.iter().map(Provider::receiver));
        for (number, receiver) in all.enumerate() {
            let entries = receiver.journal().entries();
            journals.push(write(world, &format!("journal-{number}"), entries.iter())?);
        }
        let inputs = Inputs {
            journals,
            rows: write(world, "rows", rows.iter())?,
            subscriptions: write(world, "subscriptions", subscriptions)?,
            finals: write(world, "finals", finals.iter())?,
            faults: write(world, "faults", world.faults.all().iter())?,
            ledger: write(world, "ledger", providers.iter().flat_map(Provider::ledger))?,
        };
        let verdict = laneway_checker::check(&inputs, options)?;
        Ok(Self { verdict, dir: world.dir.clone() })
    }

    /// The figures as one JSON object, with how many other checks do not hold.
    pub fn line(&self) -> Value {
        let mut line = serde_json::to_value(&self.verdict.figures).unwrap_or_default();
        let other = self.verdict.violations.iter().map(|violation| violation.count).sum::<u64>();
        line["violations"] = json!(other);
        line
    }

    /// One of the figures.
    ///
    /// Panics when there is no such figure.
    pub fn number(&self, figure: &str) -> f64 {
        self.line()[figure].as_f64().unwrap_or_else(|| panic!("no figure {figure}"))
    }

    /// Whether every check holds.
    pub fn holds(&self) -> bool {
        self.verdict.holds()
    }

    /// The checks that do not hold, each with its smallest witness, for people.
    pub fn breaches(&self) -> String {
        self.verdict.violations.iter().fold(String::new(), |mut text, violation| {
            let _ = writeln!(text, "{} ×{}: {}", violation.check, violation.count, violation.says);
            for line in &violation.witness {
                let _ = writeln!(text, "    {line}");
            }
            text
        })
    }

    /// Panics with the witnesses unless every check holds.
    pub fn assert_clean(&self) {
        let (line, breaches, dir) = (self.line(), self.breaches(), self.dir.display());
        assert!(self.holds(), "{line}\n{breaches}inputs in {dir}");
    }
}

fn write<T: Serialize>(
    world: &World,
    name: &str,
    lines: impl Iterator<Item = T>,
) -> Result<Source> {
    let mut text = String::new();
    for line in lines {
        text.push_str(&serde_json::to_string(&line)?);
        text.push('\n');
    }
    let path = world.dir.join(format!("{name}.ndjson"));
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(Source::Path(path))
}
