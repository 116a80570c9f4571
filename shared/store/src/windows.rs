//! What has to be in relation to another process's settings: each tells the control database how long it keeps or tries,
//! and the reconciler compares (C17). The inbox outlives every source's outbox, and an outbox outlives the horizon.

use crate::{Error, Pool};
use std::time::Duration;

/// Rows that were told lately. A source whose relays are away has its outbox all the same; a process that says nothing
/// for hours is not there any more.
macro_rules! lately {
    () => {
        "seen_at >= now() - CASE what WHEN 'outbox' THEN interval '31 days' ELSE interval '3 hours' END"
    };
}

/// What a process tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// How long a source keeps its outbox (`relay.window`).
    Outbox,
    /// How long a deliver process tries (`deliver.horizon`).
    Horizon,
}

impl Window {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::Horizon => "horizon",
        }
    }
}

/// Tells a window of `owner`, a source or a process; to be repeated every hour.
pub async fn window_tell(
    pool: &Pool,
    what: Window,
    owner: &str,
    span: Duration,
) -> Result<(), Error> {
    sqlx::query(concat!(
        "WITH gone AS (DELETE FROM laneway_control.windows WHERE NOT ",
        lately!(),
        " AND (what, owner) <> ($1, $2)) \
         INSERT INTO laneway_control.windows (what, owner, window_ms) VALUES ($1, $2, $3) \
         ON CONFLICT (what, owner) DO UPDATE SET window_ms = excluded.window_ms, seen_at = now()"
    ))
    .bind(what.as_str())
    .bind(owner)
    .bind(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
    .execute(pool.inner())
    .await
    .map(|_| ())
    .map_err(Error::doing("telling a window"))
}

/// Two windows that contradict one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    /// Which: stable, a label.
    pub reason: &'static str,
    /// Whose window.
    pub owner: String,
    /// What it is.
    pub window: Duration,
    /// What it is compared with.
    pub bound: Duration,
}

/// The reasons that there are, each with what it means.
pub const REASONS: [(&str, &str); 3] = [
    (
        "inbox_not_longer_than_outbox",
        "an event may be published again from this source's outbox when its outcome is forgotten: no day of the inbox is removed",
    ),
    ("outbox_shorter_than_horizon", "an event may be lost with the topic while it is still tried"),
    (
        "inbox_shorter_than_horizon",
        "an event's first outcome may be forgotten while it is still tried: no day of the inbox is removed",
    ),
];

/// Compares the windows that were told lately with one another and with `inbox`, how long outcomes are kept.
pub async fn windows_contradict(pool: &Pool, inbox: Duration) -> Result<Vec<Contradiction>, Error> {
    let rows: Vec<(String, String, i64, i64)> = sqlx::query_as(concat!(
        "WITH told AS (SELECT what, owner, window_ms FROM laneway_control.windows WHERE ",
        lately!(),
        "), \
         horizon AS (SELECT max(window_ms) AS ms FROM told WHERE what = 'horizon') \
         SELECT 'inbox_not_longer_than_outbox', owner, window_ms, $1 FROM told WHERE what = 'outbox' AND window_ms >= $1 \
         UNION ALL SELECT 'outbox_shorter_than_horizon', owner, window_ms, ms FROM told, horizon \
           WHERE what = 'outbox' AND window_ms < ms \
         UNION ALL SELECT 'inbox_shorter_than_horizon', owner, window_ms, $1 FROM told \
           WHERE what = 'horizon' AND window_ms > $1 ORDER BY 1, 2"
    ))
    .bind(i64::try_from(inbox.as_millis()).unwrap_or(i64::MAX))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing("comparing windows"))?;
    let span = |ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    Ok(rows
        .into_iter()
        .filter_map(|(reason, owner, window, bound)| {
            let (reason, _) = *REASONS.iter().find(|(known, _)| *known == reason)?;
            Some(Contradiction { reason, owner, window: span(window), bound: span(bound) })
        })
        .collect())
}
