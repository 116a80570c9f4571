-- What the relay keeps beside the outbox: where each shard stands, what it has published, what it could not.

-- One row per shard (design section 4, cursor). The present batch is what s2 sees and s1 does not, above floor_id,
-- in id order; it is done up to last_id. s1 is NULL for the batch after a logical restore: every row up to floor_id.
-- Every change proves the token, which is random and never used twice.
CREATE TABLE laneway.relay_cursors (
    shard                smallint PRIMARY KEY CHECK (shard BETWEEN 0 AND 15),
    system_id            bigint, -- of the server whose transactions s1 and s2 speak of
    s1                   pg_snapshot DEFAULT '1:1:',
    s2                   pg_snapshot NOT NULL DEFAULT '1:1:',
    floor_id             bigint NOT NULL DEFAULT 0,
    last_id              bigint NOT NULL DEFAULT 0,
    entry                bigint NOT NULL DEFAULT 0, -- of relay_history, that the batch belongs to
    generation           bigint NOT NULL DEFAULT 0, -- of the topic, up to which losses have been looked at
    subscription_version bigint NOT NULL DEFAULT 0,
    map_version          bigint NOT NULL DEFAULT 0,
    map_confirmed        bigint NOT NULL DEFAULT 0,
    token                uuid,
    owner                text,
    lease_until          timestamptz
) WITH (fillfactor = 50);
INSERT INTO laneway.relay_cursors (shard) SELECT generate_series(0, 15);

-- Relay processes that are alive share the shards evenly.
CREATE TABLE laneway.relay_members (
    instance text PRIMARY KEY,
    seen_at  timestamptz NOT NULL DEFAULT now()
);

-- What was read together: consecutive batches of at most a minute with the same versions, so that publishing again
-- routes as the first time.
CREATE TABLE laneway.relay_history (
    shard                smallint NOT NULL,
    entry                bigint NOT NULL,
    s1                   pg_snapshot,
    s2                   pg_snapshot NOT NULL,
    floor_id             bigint NOT NULL,
    subscription_version bigint NOT NULL,
    map_version          bigint NOT NULL,
    opened_at            timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, entry)
) WITH (fillfactor = 70);

-- Highest acknowledged offset of an entry's records in each partition; element p + 1 is partition p's, NULL if none.
CREATE TABLE laneway.relay_acks (
    shard      smallint NOT NULL,
    entry      bigint NOT NULL,
    generation bigint NOT NULL,
    acked      bigint[] NOT NULL,
    PRIMARY KEY (shard, entry, generation)
) WITH (fillfactor = 70);

-- Deliveries that the cursor has passed without publishing them. They leave in row order within the lane; one that
-- has left is kept as long as the entry's history, so that a cursor that goes back can hold it again.
CREATE TABLE laneway.relay_held (
    shard           smallint NOT NULL,
    lane            bytea NOT NULL CHECK (length(lane) = 16),
    row_id          bigint NOT NULL,
    endpoint        uuid NOT NULL,
    tenant          uuid NOT NULL,
    mode            smallint NOT NULL,
    reason          text NOT NULL CHECK (reason IN ('hot', 'behind', 'tenant', 'size', 'format')),
    held_at         timestamptz NOT NULL DEFAULT now(),
    left_entry      bigint,
    left_generation bigint,
    left_partition  integer,
    left_offset     bigint,
    PRIMARY KEY (shard, lane, row_id, endpoint)
);
CREATE INDEX relay_held_open ON laneway.relay_held (shard, lane, row_id) WHERE left_entry IS NULL;
CREATE INDEX relay_held_left ON laneway.relay_held (shard, left_entry) WHERE left_entry IS NOT NULL;
