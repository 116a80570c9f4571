//! Deliveries that were given up on: looking at them. What is done with them is a command ([`crate::rewinds`]).

use crate::delivery::value::{loaded, uncount};
use crate::stored::stored_as;
use crate::{Error, Pool};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use laneway_wire::{
    DeliveryId, EndpointId, EventId, LaneId, Record, RewindId, TenantId, Timestamp,
};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

/// Rows of a list at most.
pub const MAX_LIMIT: u16 = 10_000;

/// Why deliveries are given up.
pub const CAUSES: [&str; 4] = ["rejected", "expired", "unknown", "erased"];

/// `text` if it is one of [`CAUSES`].
pub fn cause(text: &str) -> Option<String> {
    CAUSES.contains(&text).then(|| text.to_owned())
}

/// Which dead letters are meant; what is not set selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selection {
    /// These alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliveries: Option<Vec<DeliveryId>>,
    /// Of this endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointId>,
    /// Of this lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<LaneId>,
    /// Of this user key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_key: Option<String>,
    /// Of this type; `prefix.*` is everything below the prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// Given up for this, one of [`CAUSES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Given up at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Given up before this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Selection {
    /// Whether its times leave nothing between them: a mistake, which would look like "none".
    pub fn is_backwards(&self) -> bool {
        self.since.zip(self.until).is_some_and(|(since, until)| until <= since)
    }
}

/// Gives dead letters without a user key (of endpoints that order nothing, whose records have none) that of their event,
/// while its row is in the control database's outbox: an erasure of the user finds them afterwards too. Those given up at
/// `since` or later, a thousand; gives how many.
pub async fn dead_letters_name(pool: &Pool, since: Timestamp) -> Result<u64, Error> {
    sqlx::query(
        "WITH named AS (SELECT d.tenant_id, d.delivery_id, o.user_key FROM laneway_control.dead_letters d \
           CROSS JOIN LATERAL (SELECT laneway_control.record_row(d.record) AS id OFFSET 0) r \
           JOIN laneway.outbox o ON o.shard = get_byte(sha256(uuid_send(d.tenant_id)), 0) % 16 AND o.id = r.id \
             AND o.tenant = d.tenant_id AND o.event_id = d.event_id AND o.user_key IS NOT NULL \
           WHERE d.user_key IS NULL AND d.dead_at >= $1 LIMIT 1000) \
         UPDATE laneway_control.dead_letters d SET user_key = n.user_key FROM named n \
         WHERE d.tenant_id = n.tenant_id AND d.delivery_id = n.delivery_id AND d.user_key IS NULL",
    )
    .bind(crate::delivery::value::stored(since))
    .execute(pool.inner())
    .await
    .map(|done| done.rows_affected())
    .map_err(Error::doing("naming dead letters' users"))
}

/// The condition that [`bind_selection!`] gives its eight parameters to, `$2` to `$9`, on `dead_letters d`.
macro_rules! selected {
    () => {
        "($2::uuid[] IS NULL OR d.delivery_id = ANY($2)) AND ($3::uuid IS NULL OR d.endpoint_id = $3) \
         AND ($4::bytea IS NULL OR d.lane = $4) AND ($5::text IS NULL OR d.user_key = $5) \
         AND ($6::text IS NULL OR d.event_type = $6 \
              OR (right($6, 2) = '.*' AND starts_with(d.event_type, left($6, -1)))) \
         AND ($7::text IS NULL OR d.reason = $7) AND ($8::timestamptz IS NULL OR d.dead_at >= $8) \
         AND ($9::timestamptz IS NULL OR d.dead_at < $9)"
    };
}
pub(crate) use selected;

/// The condition of a command over dead letters: those that are selected, open and, unless it discards (`$10`), can be
/// sent. What may have been applied and was given up is sent again only by who names it, or its cause.
macro_rules! meant {
    () => {
        concat!(
            crate::dead_letters::selected!(),
            " AND d.state = 'open' AND ($10 OR ((d.reason <> 'unknown' OR $7 = 'unknown' OR $2 IS NOT NULL) \
              AND EXISTS (SELECT FROM laneway_control.endpoints e \
                WHERE e.tenant_id = $1 AND e.endpoint_id = d.endpoint_id AND e.state <> 'deleted')))"
        )
    };
}
pub(crate) use meant;

macro_rules! bind_selection {
    ($query:expr, $selection:expr) => {{
        let selection: &crate::dead_letters::Selection = $selection;
        let ids = selection.deliveries.as_ref();
        $query
            .bind(ids.map(|ids| ids.iter().map(|id| id.as_uuid()).collect::<Vec<_>>()))
            .bind(selection.endpoint.map(|id| id.as_uuid()))
            .bind(selection.lane.map(|lane| lane.as_bytes().to_vec()))
            .bind(selection.user_key.as_deref())
            .bind(selection.event_type.as_deref())
            .bind(selection.cause.as_deref())
            .bind(selection.since.map(crate::delivery::value::stored))
            .bind(selection.until.map(crate::delivery::value::stored))
    }};
}
pub(crate) use bind_selection;

/// What has become of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits for a person.
    Open,
    /// It was sent again, as another delivery.
    Rewound,
    /// A person has said that it is not to be sent. There is no way back.
    Discarded,
    /// Its payload was erased while it was open: there is nothing left to send.
    Erased,
}

stored_as!(State { Open = "open", Rewound = "rewound", Discarded = "discarded", Erased = "erased" });

/// A delivery that was given up on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its place among all dead letters: in a lane, its lane's order.
    pub place: i64,
    /// Whose it is.
    pub tenant: TenantId,
    /// The delivery.
    pub delivery: DeliveryId,
    /// Its event.
    pub event: EventId,
    /// Where it should have gone.
    pub endpoint: EndpointId,
    /// Its lane.
    pub lane: LaneId,
    /// Its lane's user key.
    pub user_key: Option<String>,
    /// Type of the event.
    pub event_type: String,
    /// Why it was given up, a stable code.
    pub cause: String,
    /// Attempts.
    pub attempts: u32,
    /// What the first attempt came to.
    pub first_class: Option<String>,
    /// What the last attempt came to.
    pub last_class: Option<String>,
    /// Status of the last answer.
    pub last_status: Option<u16>,
    /// When deliver first held it.
    pub first_held: Timestamp,
    /// When it was given up.
    pub dead_at: Timestamp,
    /// What has become of it.
    pub state: State,
    /// The command that closed it.
    pub rewind: Option<RewindId>,
    /// The delivery that repeats it.
    pub rewound_to: Option<DeliveryId>,
    /// When it was closed.
    pub closed_at: Option<Timestamp>,
}

/// Dead letters, newest first: of `tenant`, or of all; those with a place below `before`; [`MAX_LIMIT`] at most.
pub async fn dead_letters_list(
    pool: &Pool,
    tenant: Option<TenantId>,
    selection: &Selection,
    state: Option<State>,
    before: Option<i64>,
    limit: u16,
) -> Result<Vec<DeadLetter>, Error> {
    let query = sqlx::query(concat!(
        "SELECT d.place, d.tenant_id, d.delivery_id, d.event_id, d.endpoint_id, d.lane, d.user_key, d.event_type, \
           d.reason, d.attempts, d.first_class, d.last_class, d.last_status, d.first_held, d.dead_at, d.state, \
           d.rewind_id, d.rewound_to, d.closed_at \
         FROM laneway_control.dead_letters d WHERE ($1::uuid IS NULL OR d.tenant_id = $1) AND ",
        selected!(),
        " AND ($10::text IS NULL OR d.state = $10) AND ($11::bigint IS NULL OR d.place < $11) \
         ORDER BY d.place DESC LIMIT $12"
    ))
    .bind(tenant.map(|id| id.as_uuid()));
    bind_selection!(query, selection)
        .bind(state.map(State::as_str))
        .bind(before)
        .bind(i64::from(limit.min(MAX_LIMIT)))
        .fetch_all(pool.inner())
        .await
        .map_err(Error::doing("listing dead letters"))?
        .iter()
        .map(read)
        .collect()
}

/// What is kept of a record that cannot be read: it was damaged, is of a version that this build does not know, or was
/// erased unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable {
    /// Why not, a stable code.
    pub code: &'static str,
    /// Bytes that are kept.
    pub bytes: usize,
}

/// One dead letter and the record that could not be delivered; of `tenant`, or of all.
pub async fn dead_letter_get(
    pool: &Pool,
    tenant: Option<TenantId>,
    delivery: DeliveryId,
) -> Result<Option<(DeadLetter, Result<Record, Unreadable>)>, Error> {
    const DOING: &str = "reading a dead letter";
    // Without a tenant no index leads to it: a person asks, once in a while.
    let row = sqlx::query(
        "SELECT d.place, d.tenant_id, d.delivery_id, d.event_id, d.endpoint_id, d.lane, d.user_key, d.event_type, \
           d.reason, d.attempts, d.first_class, d.last_class, d.last_status, d.first_held, d.dead_at, d.state, \
           d.rewind_id, d.rewound_to, d.closed_at, d.record \
         FROM laneway_control.dead_letters d WHERE ($1::uuid IS NULL OR d.tenant_id = $1) AND d.delivery_id = $2 \
         LIMIT 1",
    )
    .bind(tenant.map(|id| id.as_uuid()))
    .bind(delivery.as_uuid())
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let Some(row) = row else { return Ok(None) };
    let record: Vec<u8> = row.try_get(19).map_err(Error::doing(DOING))?;
    let bytes = record.len();
    let record = Record::decode(&Bytes::from(record))
        .map_err(|error| Unreadable { code: error.code(), bytes });
    Ok(Some((read(&row)?, record)))
}

fn read(row: &PgRow) -> Result<DeadLetter, Error> {
    const DOING: &str = "reading a dead letter";
    let texts =
        || -> Result<(Vec<u8>, String), sqlx::Error> { Ok((row.try_get(5)?, row.try_get(15)?)) };
    let (lane, state) = texts().map_err(Error::doing(DOING))?;
    let lane = crate::delivery::value::lane(&lane)?;
    let state = State::parse(&state)
        .ok_or(Error::Stored { what: "state of a dead letter", value: state })?;
    let read = || -> Result<DeadLetter, sqlx::Error> {
        let time = |index| row.try_get::<DateTime<Utc>, _>(index).map(loaded);
        let uuid = |index| row.try_get::<Option<Uuid>, _>(index);
        let status: Option<i16> = row.try_get(12)?;
        Ok(DeadLetter {
            place: row.try_get(0)?,
            tenant: TenantId::from_uuid(row.try_get(1)?),
            delivery: DeliveryId::from_uuid(row.try_get(2)?),
            event: EventId::from_uuid(row.try_get(3)?),
            endpoint: EndpointId::from_uuid(row.try_get(4)?),
            lane,
            user_key: row.try_get(6)?,
            event_type: row.try_get(7)?,
            cause: row.try_get(8)?,
            attempts: uncount(row.try_get(9)?),
            first_class: row.try_get(10)?,
            last_class: row.try_get(11)?,
            last_status: status.and_then(|status| u16::try_from(status).ok()),
            first_held: time(13)?,
            dead_at: time(14)?,
            state,
            rewind: uuid(16)?.map(RewindId::from_uuid),
            rewound_to: uuid(17)?.map(DeliveryId::from_uuid),
            closed_at: row.try_get::<Option<DateTime<Utc>>, _>(18)?.map(loaded),
        })
    };
    read().map_err(Error::doing(DOING))
}
