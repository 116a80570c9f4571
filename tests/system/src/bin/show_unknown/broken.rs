//! Promises broken by hand in the database while events flow: the audit finds them and names them.

use crate::Cases;
use anyhow::{Context, Result};
use laneway_system::World;
use laneway_testkit::{Behaviour, Receiver, wait_for};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// What is younger is not looked at; more than the owners' signs of life are apart.
const SETTLED: &str = "10s";

/// Plays it, under live traffic of its own.
pub(crate) async fn play(world: &mut World, receiver: &Receiver, cases: &mut Cases) -> Result<()> {
    // A lane that is parked, and others that flow.
    receiver.set_script(|request| match contains(&request.body, b"parked") {
        true => Behaviour::retry_after(503, "600"),
        false => Behaviour::ok(),
    });
    let writer = tokio::spawn(write(world.app.pool().clone(), world.tenant.as_uuid()));
    let played = breaking(world, cases).await;
    if writer.is_finished() {
        writer.await??;
        anyhow::bail!("the writer has ended");
    }
    writer.abort();
    played
}

fn contains(body: &[u8], text: &[u8]) -> bool {
    body.windows(text.len()).any(|part| part == text)
}

/// Fifty events a second of twenty users, for ever.
async fn write(pool: sqlx::PgPool, tenant: uuid::Uuid) -> Result<()> {
    for n in 0_u64.. {
        sqlx::query(
            "SELECT laneway.emit($1, 'charge.made', 'live-' || $2, convert_to('{\"key\":\"live-' || $2 || '\"}', 'UTF8'))",
        )
        .bind(tenant)
        .bind((n % 20).to_string())
        .execute(&pool)
        .await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn breaking(world: &mut World, cases: &mut Cases) -> Result<()> {
    let lost = world.app.emit("charge.made", Some("lost"), br#"{"key":"lost"}"#).await?;
    wait_for("an event that is delivered", LIMIT, || async {
        let gone = "SELECT count(*) FROM laneway_control.inbox i JOIN laneway.outbox o USING (event_id) \
                    WHERE o.user_key = 'lost'";
        world.app.number(gone).await.is_ok_and(|gone| gone == 1)
    })
    .await;
    // With one behind its head.
    for _ in 0..2 {
        world.app.emit("charge.made", Some("parked"), br#"{"key":"parked"}"#).await?;
    }
    let parked = "SELECT count(*) FROM laneway_control.parked_events e JOIN laneway_control.parked_lanes l USING (lane) \
                  WHERE l.user_key = 'parked'";
    wait_for("a parked lane", LIMIT, || async {
        world.app.number(parked).await.is_ok_and(|parked| parked == 2)
    })
    .await;
    let old = "SELECT count(*) FROM laneway.outbox \
               WHERE created_at > now() - interval '12 s' AND user_key IN ('lost', 'parked')";
    wait_for("rows that are old enough", LIMIT, || async {
        world.app.number(old).await.is_ok_and(|young| young == 0)
    })
    .await;
    let (sound, found) = audit(world)?;
    cases.check("a sound database passes the audit", sound, &named(&found).join(", "));

    let row = format!("DELETE FROM laneway_control.inbox WHERE event_id = '{lost}'");
    execute(world, &row).await?;
    // Under live traffic something of the row's minute of the relay's history is always on its way, until that is over.
    let began = std::time::Instant::now();
    let (mut sound, mut found) = audit(world)?;
    while sound && began.elapsed() < LIMIT {
        tokio::time::sleep(Duration::from_secs(1)).await;
        (sound, found) = audit(world)?;
    }
    let event = laneway_wire::EventId::from_uuid(lost).as_uuid().to_string();
    let named_it = examples(&found, "outcome_missing").contains(&event);
    cases.check(
        "a row that was deleted is found and named",
        !sound && named(&found) == ["outcome_missing"] && named_it,
        &examples(&found, "outcome_missing"),
    );

    let head = "INSERT INTO laneway_control.parked_events (bucket, delivery_id, lane, generation, moves, log_offset, \
                  tenant_id, endpoint_id, event_id, first_held, attempts, record) \
                SELECT e.bucket, gen_random_uuid(), e.lane, e.generation, e.moves, e.log_offset, e.tenant_id, \
                  e.endpoint_id, gen_random_uuid(), e.first_held, e.attempts, e.record \
                FROM laneway_control.parked_events e JOIN laneway_control.parked_lanes l USING (lane) \
                WHERE l.user_key = 'parked' ORDER BY e.log_offset LIMIT 1";
    execute(world, head).await?;
    let (sound, found) = audit(world)?;
    let lane = world
        .app
        .rows("SELECT encode(lane, 'hex') AS lane FROM laneway_control.parked_lanes WHERE user_key = 'parked'")
        .await?;
    let lane = lane.first().and_then(|row| row["lane"].as_str()).context("a lane")?;
    let two = examples(&found, "two_heads");
    cases.check("a second head is found and named", !sound && two.contains(lane), &two);
    Ok(())
}

async fn execute(world: &World, sql: &str) -> Result<()> {
    let done = sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())).execute(world.app.pool()).await?;
    anyhow::ensure!(done.rows_affected() == 1, "one row was to be broken: {sql}");
    Ok(())
}

/// Whether the command was content, and what it printed.
fn audit(world: &World) -> Result<(bool, Value)> {
    let args = ["-o", "json", "audit", "--window", "24h", "--settled", SETTLED];
    let mut output = tokio::task::block_in_place(|| world.cli_output(&args))?;
    while output.status.code() == Some(5) {
        // A reconciler is at it.
        output = tokio::task::block_in_place(|| world.cli_output(&args))?;
    }
    let found = serde_json::from_slice(&output.stdout).context("the audit's findings")?;
    Ok((output.status.success(), found))
}

fn rows(found: &Value) -> impl Iterator<Item = &Value> {
    found.as_array().into_iter().flatten()
}

/// The checks that found something.
fn named(found: &Value) -> Vec<&str> {
    let broken = |row: &&Value| row["count"].as_u64() != Some(0);
    rows(found).filter(broken).filter_map(|row| row["check"].as_str()).collect()
}

fn examples(found: &Value, check: &str) -> String {
    let row = rows(found).find(|row| row["check"] == check);
    let examples = row.and_then(|row| row["examples"].as_array());
    let examples = examples.into_iter().flatten().filter_map(Value::as_str);
    examples.collect::<Vec<_>>().join("; ")
}
