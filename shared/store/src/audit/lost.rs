//! What is lost, under live traffic too: a delivery has no outcome and waits nowhere, *and* whoever would give it one
//! has gone past it. A row's record is passed when its shard's cursor has, and when the owners of the partitions that it
//! can be in have passed every record of the history's entries up to its own. What is behind a cursor or an owner is
//! late, which other alerts tell, and not lost.

/// Parts that the checks share, in front of them; what one does not name is not computed. `present` is the topic's
/// generation, `next` the owners' positions; `unpassed` is, for each shard and partition, the first entry of the history
/// of which a record is not passed: what its `s1` sees belongs to entries before it. Offsets that a later loss took count
/// for nothing, as in the relay's care of old partitions.
pub(super) const SHARED: &str = "\
present AS MATERIALIZED (SELECT coalesce(max(generation), 0) AS generation FROM laneway_control.topic_generations), \
next AS MATERIALIZED (SELECT w.partition, w.next_offset, w.epoch, w.state, w.updated_at \
  FROM laneway_control.partition_owners w JOIN present USING (generation)), \
pending AS MATERIALIZED (SELECT a.shard, a.entry, p.partition, h.s1, h.floor_id, h.opened_at \
  FROM laneway.relay_acks a JOIN laneway.relay_history h USING (shard, entry) \
  CROSS JOIN LATERAL (SELECT (u.n - 1)::int AS partition, u.acked \
    FROM unnest(a.acked) WITH ORDINALITY AS u (acked, n) WHERE u.acked IS NOT NULL) p \
  LEFT JOIN next ON next.partition = p.partition \
  WHERE p.acked >= coalesce(next.next_offset, 0) \
    AND NOT EXISTS (SELECT FROM laneway_control.topic_fences f \
      WHERE f.generation > a.generation AND f.partition = p.partition AND f.first_lost <= p.acked)), \
unpassed AS MATERIALIZED (SELECT DISTINCT ON (shard, partition) shard, partition, s1, floor_id \
  FROM pending ORDER BY shard, partition, entry), \
map AS MATERIALIZED (SELECT array_agg(partition ORDER BY bucket) AS partitions, max(moves) > 0 AS moved \
  FROM laneway_control.bucket_map)";

/// First deliveries without an outcome and a place where they wait.
macro_rules! first {
    () => {
        "SELECT o.tenant, o.event_id, e.endpoint_id, o.user_key, o.id AS row_id, o.shard, o.xid, false AS again, \
           laneway_control.first_delivery_id(o.event_id, e.endpoint_id) AS delivery_id \
         FROM laneway.outbox o \
         JOIN laneway_control.endpoints e ON e.tenant_id = o.tenant AND e.state <> 'deleted' \
         WHERE o.rewind IS NULL \
           AND o.created_at >= now() - $1 * interval '1 ms' AND o.created_at < now() - $2 * interval '1 ms' \
           AND EXISTS (SELECT FROM laneway_control.subscriptions s WHERE s.tenant_id = o.tenant \
             AND s.endpoint_id = e.endpoint_id AND s.until_version IS NULL \
             AND s.created_at < o.created_at - interval '1 minute' \
             AND (s.event_type IN ('*', o.type) OR (right(s.event_type, 2) = '.*' \
               AND starts_with(o.type, left(s.event_type, -1))))) \
           AND NOT EXISTS (SELECT FROM laneway_control.inbox i \
             WHERE i.delivery_id = laneway_control.first_delivery_id(o.event_id, e.endpoint_id)) \
           AND NOT EXISTS (SELECT FROM laneway_control.parked_events p WHERE p.tenant_id = o.tenant \
             AND p.event_id = o.event_id AND p.endpoint_id = e.endpoint_id)"
    };
}
pub(super) use first;

/// The same of rewinds.
macro_rules! again {
    () => {
        "SELECT * FROM (SELECT DISTINCT ON (r.delivery_id) r.tenant_id AS tenant, r.event_id, r.endpoint_id, o.user_key, \
           o.id AS row_id, o.shard, o.xid, true AS again, r.delivery_id \
         FROM laneway_control.rewound r \
         JOIN laneway_control.endpoints e ON e.endpoint_id = r.endpoint_id AND e.state <> 'deleted' \
         LEFT JOIN laneway.outbox o ON o.rewind IS NOT NULL AND o.rewind ->> 'delivery' = r.delivery_id::text \
           AND o.tenant = r.tenant_id AND o.created_at >= now() - $1 * interval '1 ms' \
           AND (o.rewind ->> 'number')::int > 0 \
         WHERE r.created_at >= now() - $1 * interval '1 ms' AND r.created_at < now() - $2 * interval '1 ms' \
           AND NOT EXISTS (SELECT FROM laneway_control.inbox i WHERE i.delivery_id = r.delivery_id) \
           AND NOT EXISTS (SELECT FROM laneway_control.parked_events p WHERE p.tenant_id = r.tenant_id \
             AND p.event_id = r.event_id AND p.delivery_id = r.delivery_id) \
         ORDER BY r.delivery_id, o.id) g"
    };
}
pub(super) use again;

/// Lost deliveries as a query, of those that `$missing` gives: `again` for rewinds. `$1` is the window, `$2` what is
/// settled.
///
/// Where a delivery is published: the row that repaired it, else its own. A lane's mode is not known any more, so that
/// each of the three that it can have had counts. When buckets have moved, each can be behind in any partition.
macro_rules! lost {
    ($($missing:expr),+) => {
        concat!(
            "(WITH missing AS MATERIALIZED (",
            $($missing),+,
            "), \
         placed AS MATERIALIZED (SELECT m.tenant, m.event_id, m.endpoint_id, m.delivery_id, m.again, m.row_id, \
             coalesce(r.times, 0) AS times, coalesce(r.shard, m.shard) AS shard, coalesce(r.row_id, m.row_id) AS place, \
             coalesce(r.xid, m.xid) AS xid, ARRAY[ \
               map.partitions[1 + laneway_control.lane_bucket(m.endpoint_id, 1, convert_to(m.user_key, 'UTF8'))], \
               map.partitions[1 + laneway_control.lane_bucket(m.endpoint_id, 2, '')], \
               map.partitions[1 + laneway_control.lane_bucket(m.endpoint_id, 3, uuid_send(m.delivery_id))]] AS partitions, \
             map.moved \
           FROM missing m CROSS JOIN map LEFT JOIN laneway_control.repairs r USING (delivery_id)) \
         SELECT l.* FROM placed l LEFT JOIN laneway.relay_cursors c ON c.shard = l.shard \
         WHERE l.place IS NULL OR ( \
           c.generation = (SELECT generation FROM present) \
           AND CASE WHEN c.s1 IS NULL THEN l.place <= c.floor_id AND l.place <= c.last_id \
             ELSE l.place <= c.floor_id OR pg_visible_in_snapshot(l.xid, c.s1) \
               OR pg_visible_in_snapshot(l.xid, c.s2) AND l.place <= c.last_id END \
           AND NOT EXISTS (SELECT FROM laneway.relay_held h LEFT JOIN next n ON n.partition = h.left_partition \
             WHERE h.shard = l.shard AND h.row_id = l.place AND h.endpoint = l.endpoint_id \
               AND (h.left_entry IS NULL OR h.left_offset >= coalesce(n.next_offset, 0))) \
           AND NOT EXISTS (SELECT FROM unpassed u \
             WHERE u.shard = l.shard AND (l.moved OR u.partition = ANY (l.partitions)) \
               AND (u.s1 IS NULL OR l.place > u.floor_id AND NOT pg_visible_in_snapshot(l.xid, u.s1)))))"
        )
    };
}
pub(super) use lost;
