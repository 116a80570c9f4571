-- What the audit compares under live traffic, what it repairs, and the ways to old rows.
SET LOCAL lock_timeout = '10s';

-- The bucket of a lane, as `LaneId::of` and `bucket` make it: modes 1 user, 2 total, 3 none.
CREATE FUNCTION laneway_control.lane_bucket(endpoint uuid, mode integer, key bytea) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (((get_byte(h.lane, 6) & 3) << 8) | get_byte(h.lane, 7))::smallint
    FROM (SELECT sha256('laneway.lane.1'::bytea || uuid_send(endpoint) || set_byte('\x00'::bytea, 0, mode) || key)
                 AS lane) h
$$;

-- Deliveries that the audit missed and that were published again: by which row, the newest.
CREATE TABLE laneway_control.repairs (
    delivery_id uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    event_id    uuid NOT NULL,
    shard       smallint NOT NULL,
    row_id      bigint NOT NULL,
    xid         xid8 NOT NULL,
    times       integer NOT NULL DEFAULT 1,
    repaired_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX repairs_repaired ON laneway_control.repairs (repaired_at);

-- Whose position says whether an intent is orphaned; NULL in those of earlier versions.
ALTER TABLE laneway_control.intents ADD COLUMN partition integer;

-- No two revisions of authorities are ever the same, also not of one that was removed and set again: what is cached by
-- them (clients with the credential) is never another's.
CREATE SEQUENCE laneway_control.authority_revisions;
SELECT setval('laneway_control.authority_revisions', 1000 + (SELECT coalesce(max(revision), 0) FROM laneway_control.authorities));
ALTER TABLE laneway_control.authorities
    ALTER COLUMN revision SET DEFAULT nextval('laneway_control.authority_revisions');

-- How long each source keeps its outbox, and each deliver process tries: they say it again and again. What has to be in
-- relation to others' settings is compared by the reconciler.
CREATE TABLE laneway_control.windows (
    what      text NOT NULL CHECK (what IN ('outbox', 'horizon')),
    owner     text NOT NULL, -- the source, the deliver process
    window_ms bigint NOT NULL,
    seen_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (what, owner)
);

-- Ways to what is over: nothing that is open is in them, so that they cost nothing where events flow.
CREATE INDEX dead_letters_closed ON laneway_control.dead_letters (closed_at) WHERE state <> 'open';
CREATE INDEX commands_applied ON laneway_control.commands (applied_at) WHERE applied_at IS NOT NULL;
CREATE INDEX rewinds_finished ON laneway_control.rewinds (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX erasures_finished ON laneway_control.erasures (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX quarantine_created ON laneway_control.quarantine USING brin (created_at) WITH (autosummarize = on);
CREATE INDEX dead_letters_dead ON laneway_control.dead_letters USING brin (dead_at) WITH (autosummarize = on);

-- What was given up, for the audit. Days that are there already get none: reading them whole would hold up every settle
-- transaction. New ones get it with ATTACH.
CREATE INDEX inbox_given_up ON ONLY laneway_control.inbox (settled_at) WHERE outcome = 2;
-- Ids from the far past or future, which no day holds.
CREATE INDEX inbox_default_settled ON laneway_control.inbox_default USING brin (settled_at) WITH (autosummarize = on);

-- Parked lanes of a user key: an erasure looks for them again and again.
CREATE INDEX parked_lanes_user ON laneway_control.parked_lanes (tenant_id, user_key);

-- Young unknowns: the reconciler looks for them twice a second.
CREATE INDEX parked_lanes_unknown_since ON laneway_control.parked_lanes (unknown_since) WHERE unknown;

-- Parked deliveries from `low` to `high`: the key begins with the bucket, and 1,024 looks into it are cheaper than
-- another index on what is written in an outage.
CREATE FUNCTION laneway_control.parked_between(low uuid, high uuid) RETURNS SETOF uuid
    LANGUAGE sql STABLE AS $$
    SELECT e.delivery_id FROM generate_series(0, 1023) AS b (bucket) CROSS JOIN LATERAL (
        SELECT p.delivery_id FROM laneway_control.parked_events p
        WHERE p.bucket = b.bucket::smallint AND p.delivery_id >= low AND p.delivery_id <= high OFFSET 0) e
$$;
