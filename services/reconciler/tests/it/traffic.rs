//! The audit while events flow: a writer, the relay's and the owners' writes as the services make them, with a log in
//! memory in the place of the topic.

use crate::world::{LIMIT, World};
use laneway_store::audit::{Finding, Scope, audit, repair};
use laneway_store::relay::{self, Advance, EntryAcks, Lease, OutboxRow, Shard};
use laneway_store::topology::{Acked, marks_raise, topology_ensure};
use laneway_testkit::{sql, wait_for};
use laneway_wire::{EndpointId, LaneId, LaneMode, TenantId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use uuid::Uuid;

const PARTITIONS: u32 = 4;
const SCOPE: Scope =
    Scope { window: Duration::from_secs(3_600), settled: Duration::from_millis(1) };

/// (delivery, event), by partition.
type Log = Arc<Mutex<Vec<Vec<(Uuid, Uuid)>>>>;

struct Flow {
    world: World,
    log: Log,
    /// Records of the topic that no owner takes beyond, by partition.
    stop: Arc<Vec<AtomicI64>>,
    written: Arc<AtomicU64>,
    parts: Vec<JoinHandle<()>>,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.parts.iter().for_each(JoinHandle::abort);
    }
}

impl Flow {
    async fn new() -> Self {
        let world = World::new().await;
        run(
            &world,
            "INSERT INTO laneway_control.subscriptions (tenant_id, subscription_id, endpoint_id, event_type, \
               since_version, created_at) SELECT tenant_id, gen_random_uuid(), endpoint_id, '*', 1, \
               now() - interval '1 day' FROM laneway_control.endpoints",
        )
        .await;
        topology_ensure(&world.pool, "t", "id", PARTITIONS).await.unwrap();
        let leases =
            relay::leases_acquire(&world.pool, "r", &[], 16, Duration::from_secs(3_600)).await;
        let shard = shard_of(&world).await;
        let lease = leases.unwrap().into_iter().find(|lease| lease.shard == shard).unwrap();
        run(&world, "UPDATE laneway.relay_cursors SET generation = 1").await;
        let log: Log = Arc::new(Mutex::new(vec![Vec::new(); PARTITIONS as usize]));
        let stop: Arc<Vec<AtomicI64>> =
            Arc::new((0..PARTITIONS).map(|_| AtomicI64::new(i64::MAX)).collect());
        let written = Arc::new(AtomicU64::new(0));
        let mut flow = Self { world, log, stop, written, parts: Vec::new() };
        flow.parts.push(tokio::spawn(write(
            flow.world.url.clone(),
            flow.world.tenant,
            flow.written.clone(),
        )));
        let reader = Reader {
            pool: flow.world.pool.clone(),
            lease,
            endpoint: flow.world.endpoint,
            log: flow.log.clone(),
        };
        flow.parts.push(tokio::spawn(reader.work()));
        for partition in 0..PARTITIONS as usize {
            let (url, log, stop) = (flow.world.url.clone(), flow.log.clone(), flow.stop.clone());
            let (t, e) = (flow.world.tenant, flow.world.endpoint);
            flow.parts.push(tokio::spawn(settle(url, log, stop, partition, t, e)));
        }
        flow.more(200).await;
        flow
    }

    /// Waits until so many more events were written.
    async fn more(&self, events: u64) {
        let wanted = self.written.load(Ordering::SeqCst) + events;
        wait_for("traffic", LIMIT, || async { self.written.load(Ordering::SeqCst) >= wanted })
            .await;
    }

    async fn audit(&self) -> Vec<Finding> {
        let findings = audit(&self.world.pool, SCOPE).await.unwrap().expect("no other audit");
        findings.into_iter().filter(|finding| finding.count > 0).collect()
    }

    /// The delivery at a place of the log, once its owner has passed it.
    async fn passed(&self, partition: usize, offset: usize) -> (Uuid, Uuid) {
        wait_for("a record that is passed", LIMIT, || async {
            let next = format!(
                "SELECT next_offset FROM laneway_control.partition_owners WHERE partition = {partition}"
            );
            self.world.value(&next).await.parse::<usize>().unwrap() > offset
        })
        .await;
        self.log.lock().unwrap()[partition][offset]
    }
}

async fn run(world: &World, statement: &str) {
    sql(&world.url, statement).await.unwrap();
}

async fn shard_of(world: &World) -> Shard {
    let tenant = world.tenant.as_uuid();
    let shard = format!("SELECT get_byte(sha256(uuid_send('{tenant}'::uuid)), 0) % 16");
    Shard(world.value(&shard).await.parse().unwrap())
}

async fn write(url: String, tenant: TenantId, written: Arc<AtomicU64>) {
    let t = tenant.as_uuid();
    loop {
        let n = written.fetch_add(5, Ordering::SeqCst);
        let emit = format!(
            "SELECT laneway.emit('{t}', 'order.created', 'k' || (n % 37), '{{}}') FROM generate_series({n}, {n} + 4) n"
        );
        sql(&url, &emit).await.unwrap();
    }
}

struct Reader {
    pool: laneway_store::Pool,
    lease: Lease,
    endpoint: EndpointId,
    log: Log,
}

impl Reader {
    async fn work(self) {
        let shards = [self.lease.shard];
        loop {
            let seen = relay::poll(&self.pool, &shards, None).await.unwrap();
            if seen.fresh.is_empty() {
                tokio::time::sleep(Duration::from_millis(3)).await;
                continue;
            }
            // Short entries, so that there are many.
            let age = Duration::from_millis(30);
            let opened = relay::batch_open(&self.pool, &self.lease, &seen.snapshot, 1, 1, age);
            let cursor = opened.await.unwrap().expect("our lease");
            let shard = self.lease.shard;
            let bounds = relay::batch_bounds(&self.pool, shard, &cursor).await.unwrap();
            let mut after = 0;
            loop {
                let read =
                    relay::batch_page(&self.pool, shard, &cursor, bounds, after, 50, 1_000_000);
                let page = read.await.unwrap();
                let Some(last) = page.rows.last() else { break };
                after = last.id;
                self.publish(&page.rows, cursor.entry).await;
            }
        }
    }

    async fn publish(&self, rows: &[OutboxRow], entry: u64) {
        let stored = relay::acks_of(&self.pool, self.lease.shard, entry, 1, PARTITIONS).await;
        let mut acks: EntryAcks = stored.unwrap();
        let mut acked: BTreeMap<u32, Acked> = BTreeMap::new();
        for row in rows {
            let delivery = row.delivery_id(self.endpoint);
            let lane = LaneId::of(self.endpoint, LaneMode::User, row.user_key.as_deref(), delivery);
            let partition = u32::from(lane.bucket().number()) % PARTITIONS;
            let mut log = self.log.lock().unwrap();
            let records = &mut log[partition as usize];
            let offset = i64::try_from(records.len()).unwrap();
            records.push((delivery.as_uuid(), row.event.as_uuid()));
            acks.acked[partition as usize] = Some(offset);
            let mark =
                acked.entry(partition).or_insert(Acked { partition, low: offset, high: offset });
            mark.high = offset;
        }
        let acked: Vec<Acked> = acked.into_values().collect();
        marks_raise(&self.pool, 1, &acked).await.unwrap().expect("an open generation");
        let last_id = rows.last().unwrap().id;
        let advance = Advance { last_id, acks: &acks, held: &[] };
        assert!(relay::batch_advance(&self.pool, &self.lease, &advance).await.unwrap());
    }
}

/// Outcomes and position in one transaction, as an owner writes them. What is acknowledged only.
async fn settle(
    url: String,
    log: Log,
    stop: Arc<Vec<AtomicI64>>,
    partition: usize,
    tenant: TenantId,
    endpoint: EndpointId,
) {
    let mut next = 0usize;
    loop {
        let most = stop[partition].load(Ordering::SeqCst);
        let end = usize::try_from(most).unwrap_or(usize::MAX).min(next + 7);
        let taken: Vec<(Uuid, Uuid)> = {
            let log = log.lock().unwrap();
            log[partition].iter().take(end).skip(next).copied().collect()
        };
        if taken.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        next += taken.len();
        let (t, e) = (tenant.as_uuid(), endpoint.as_uuid());
        let rows: Vec<String> =
            taken.iter().map(|(d, v)| format!("('{d}', '{t}', '{e}', '{v}', 1, 1, 5)")).collect();
        let settle = format!(
            "BEGIN; INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, \
               took_ms) VALUES {} ON CONFLICT DO NOTHING; \
             UPDATE laneway_control.partition_owners SET next_offset = {next} WHERE partition = {partition}; COMMIT",
            rows.join(", ")
        );
        sql(&url, &settle).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn under_live_traffic_nothing_sound_is_found_and_what_is_broken_is() {
    let flow = Flow::new().await;
    for _ in 0..20 {
        flow.more(40).await;
        assert_eq!(flow.audit().await, []);
    }
    // An owner stands still: late is not lost, and does not hide what is lost elsewhere.
    flow.stop[1].store(0, Ordering::SeqCst);
    flow.more(200).await;
    assert_eq!(flow.audit().await, []);
    let (delivery, event) = flow.passed(2, 5).await;
    let gone = format!("DELETE FROM laneway_control.inbox WHERE delivery_id = '{delivery}'");
    run(&flow.world, &gone).await;
    let found = flow.audit().await;
    let named: Vec<_> = found.iter().map(|finding| (finding.check, finding.count)).collect();
    assert_eq!(named, [("outcome_missing", 1)]);
    assert!(found[0].examples[0].contains(&event.to_string()), "{found:?}");
    // A repeat of an event, which somebody removed from the outbox.
    let (t, e) = (flow.world.tenant.as_uuid(), flow.world.endpoint.as_uuid());
    let rewound = format!(
        "INSERT INTO laneway_control.rewound (tenant_id, event_id, endpoint_id, number, delivery_id, of_delivery, rewind_id) \
         VALUES ('{t}', '{event}', '{e}', 1, gen_random_uuid(), '{delivery}', gen_random_uuid())"
    );
    run(&flow.world, &rewound).await;
    flow.more(40).await;
    let found = flow.audit().await;
    let named: Vec<_> = found.iter().map(|finding| finding.check).collect();
    assert_eq!(named, ["outcome_missing", "rewind_missing"]);
}

/// With an intent: of an owner that has gone on, of one that is behind, and of one that holds it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_intent_is_orphaned_when_its_partition_has_gone_past_it() {
    let flow = Flow::new().await;
    flow.stop[1].store(0, Ordering::SeqCst);
    flow.more(200).await;
    let intent = |partition: u32, epoch: u32| {
        format!(
            "INSERT INTO laneway_control.intents (delivery_id, tenant_id, endpoint_id, number, epoch, deadline, partition) \
             SELECT gen_random_uuid(), tenant_id, endpoint_id, 1, {epoch}, now() - interval '1 s', {partition} \
             FROM laneway_control.endpoints"
        )
    };
    run(&flow.world, &intent(1, 7)).await;
    flow.more(100).await;
    assert_eq!(flow.audit().await, [], "its record is in the topic");
    run(&flow.world, &intent(2, 7)).await;
    wait_for("an intent that was gone past", LIMIT, || async {
        let found = flow.audit().await;
        found.iter().any(|finding| finding.check == "intent_orphaned" && finding.count == 1)
    })
    .await;
    run(
        &flow.world,
        "UPDATE laneway_control.partition_owners SET state = 'owned', epoch = 7, updated_at = now() + interval '1 h' \
         WHERE partition = 1",
    )
    .await;
    let found = flow.audit().await;
    assert_eq!((found[0].check, found[0].count), ("intent_orphaned", 2), "its owner lives on");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_published_again_once_and_ends() {
    let flow = Flow::new().await;
    let missing = [(0, 3), (2, 4), (3, 5), (3, 6)];
    let mut deliveries = Vec::new();
    for (partition, offset) in missing {
        deliveries.push(flow.passed(partition, offset).await.0);
    }
    let list = deliveries.iter().map(|d| format!("'{d}'")).collect::<Vec<_>>().join(", ");
    run(&flow.world, &format!("DELETE FROM laneway_control.inbox WHERE delivery_id IN ({list})"))
        .await;
    // One was answered with success all the same, one is a dead letter: neither may be sent again.
    let (t, e) = (flow.world.tenant.as_uuid(), flow.world.endpoint.as_uuid());
    let (answered, dead) = (deliveries[2], deliveries[3]);
    run(
        &flow.world,
        &format!(
            "INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, status, class, \
               took_ms, ended_at) VALUES ('{answered}', '{t}', '{e}', 2, 2, 204, 'delivered', 5, now()); \
             INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, event_type, \
               reason, attempts, record, first_held, dead_at) VALUES ('{t}', '{dead}', '{dead}', '{e}', '', 'a', 'rejected', \
               1, '', now(), now() - interval '1 day')"
        ),
    )
    .await;
    let count = |findings: &[Finding], check: &str| {
        findings.iter().filter(|f| f.check == check).map(|f| (f.count, f.repaired)).next()
    };
    // Nobody but a person can say what became of a request to such an endpoint.
    run(&flow.world, "UPDATE laneway_control.endpoints SET on_unknown = 'hold'").await;
    let mut findings = flow.audit().await;
    repair(&flow.world.pool, SCOPE, "ann", &mut findings).await.unwrap();
    assert_eq!(count(&findings, "outcome_missing"), Some((4, 0)));
    run(&flow.world, "UPDATE laneway_control.endpoints SET on_unknown = 'resend'").await;
    // Its owner stands still, so that what is published again waits.
    flow.stop[0].store(0, Ordering::SeqCst);
    flow.stop[2].store(0, Ordering::SeqCst);
    repair(&flow.world.pool, SCOPE, "ann", &mut findings).await.unwrap();
    assert_eq!(count(&findings, "outcome_missing"), Some((4, 2)));
    flow.more(100).await;
    let mut findings = flow.audit().await;
    assert_eq!(count(&findings, "outcome_missing"), Some((2, 0)), "two wait in the topic");
    repair(&flow.world.pool, SCOPE, "ann", &mut findings).await.unwrap();
    assert_eq!(count(&findings, "outcome_missing"), Some((2, 0)), "and are not published twice");
    flow.stop[0].store(i64::MAX, Ordering::SeqCst);
    flow.stop[2].store(i64::MAX, Ordering::SeqCst);
    let settled = format!(
        "SELECT count(*)::text FROM laneway_control.inbox WHERE delivery_id IN ('{}', '{}')",
        deliveries[0], deliveries[1]
    );
    wait_for("both outcomes", LIMIT, || async { flow.world.value(&settled).await == "2" }).await;
    let published = "SELECT count(*)::text FROM laneway.outbox WHERE rewind IS NOT NULL";
    assert_eq!(flow.world.value(published).await, "2");
    let told = "SELECT string_agg(actor || ' ' || jsonb_array_length(detail -> 'deliveries'), ',') \
                FROM laneway_control.audit_log WHERE action = 'delivery.republish'";
    assert_eq!(flow.world.value(told).await, "ann 2");
    // Lost again: found and published once more.
    run(
        &flow.world,
        &format!("DELETE FROM laneway_control.inbox WHERE delivery_id = '{}'", deliveries[0]),
    )
    .await;
    wait_for("an owner that has passed the repeat", LIMIT, || {
        let audited = flow.audit();
        async move { count(&audited.await, "outcome_missing") == Some((3, 0)) }
    })
    .await;
    let mut findings = flow.audit().await;
    repair(&flow.world.pool, SCOPE, "ann", &mut findings).await.unwrap();
    assert_eq!(count(&findings, "outcome_missing"), Some((3, 1)));
}
