-- What deliver writes, always under the fence of the partition's owner (design section 5).

-- One row per final outcome. Partitioned by the key itself, whose first 48 bits are the event's time: unique and
-- droppable.
CREATE TABLE laneway_control.inbox (
    delivery_id uuid NOT NULL PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    event_id    uuid NOT NULL,
    outcome     smallint NOT NULL, -- 1 delivered, 2 dead-lettered, 3 discarded
    status      smallint,
    attempts    integer NOT NULL,
    took_ms     integer NOT NULL,
    settled_at  timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (delivery_id);
CREATE TABLE laneway_control.inbox_default PARTITION OF laneway_control.inbox DEFAULT;

-- Row exists <=> the lane is parked.
CREATE TABLE laneway_control.parked_lanes (
    lane        bytea NOT NULL PRIMARY KEY CHECK (length(lane) = 16),
    bucket      smallint NOT NULL,
    partition   integer NOT NULL,
    tenant_id   uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    mode        smallint NOT NULL,
    user_key    text,
    reason      text NOT NULL,
    parked_at   timestamptz NOT NULL DEFAULT now(),
    clock_from  timestamptz NOT NULL DEFAULT '-infinity', -- the horizon of events never tried begins here at the earliest
    -- of the head:
    due         timestamptz NOT NULL,
    head_held   timestamptz NOT NULL,  -- first_held of the head
    last_tried  timestamptz,           -- probes take the least recently tried first
    unknown     boolean NOT NULL DEFAULT false,
    unknown_since timestamptz
);
CREATE INDEX parked_lanes_due ON laneway_control.parked_lanes (partition, endpoint_id, due, lane) WHERE NOT unknown;
CREATE INDEX parked_lanes_probe ON laneway_control.parked_lanes (partition, endpoint_id, last_tried NULLS FIRST, lane) WHERE NOT unknown;
CREATE INDEX parked_lanes_held ON laneway_control.parked_lanes (partition, head_held) WHERE NOT unknown;
CREATE INDEX parked_lanes_unknown ON laneway_control.parked_lanes (tenant_id, endpoint_id) WHERE unknown;

CREATE TABLE laneway_control.parked_events (
    bucket      smallint NOT NULL,
    delivery_id uuid NOT NULL,
    lane        bytea NOT NULL,
    generation  bigint NOT NULL,
    moves       integer NOT NULL,
    log_offset  bigint NOT NULL,
    tenant_id   uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    event_id    uuid NOT NULL,
    first_held  timestamptz NOT NULL,
    attempts    integer NOT NULL DEFAULT 0,
    record      bytea NOT NULL, -- the whole record, version inside
    PRIMARY KEY (bucket, delivery_id)
);
CREATE INDEX parked_events_lane ON laneway_control.parked_events (lane, generation, moves, log_offset);
CREATE INDEX parked_events_event ON laneway_control.parked_events (tenant_id, event_id);

-- A number may stand twice: a repeat after a crash carries that of the last recorded attempt plus one (P5).
CREATE TABLE laneway_control.attempts (
    delivery_id uuid NOT NULL,
    id          bigint GENERATED ALWAYS AS IDENTITY,
    tenant_id   uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    number      integer NOT NULL,
    kind        smallint NOT NULL, -- 1 not sent, 2 responded, 3 unknown
    status      smallint,
    class       text NOT NULL,
    took_ms     integer NOT NULL,
    ended_at    timestamptz NOT NULL,
    body        bytea,
    PRIMARY KEY (delivery_id, number, id)
);

CREATE TABLE laneway_control.dead_letters (
    tenant_id   uuid NOT NULL,
    delivery_id uuid NOT NULL,
    event_id    uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    lane        bytea NOT NULL,
    user_key    text,
    event_type  text NOT NULL,
    reason      text NOT NULL,
    attempts    integer NOT NULL,
    first_class text,
    last_class  text,
    last_status smallint,
    record      bytea NOT NULL,
    first_held  timestamptz NOT NULL,
    dead_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, delivery_id)
);
CREATE INDEX dead_letters_recent ON laneway_control.dead_letters (tenant_id, dead_at DESC, delivery_id);

-- Committed before the first byte to an endpoint that does not take a resend (I16); gone with the outcome.
CREATE TABLE laneway_control.intents (
    delivery_id uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    number      integer NOT NULL,
    epoch       bigint NOT NULL,
    deadline    timestamptz NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- Operators write here, the partition's owner applies it in its next settle transaction (5.8).
CREATE TABLE laneway_control.commands (
    command_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    delivery_id uuid NOT NULL,
    lane        bytea NOT NULL,
    bucket      smallint NOT NULL,
    verdict     text NOT NULL CHECK (verdict IN ('delivered', 'not_applied')),
    reason      text NOT NULL CHECK (length(reason) BETWEEN 1 AND 1000),
    actor       text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    applied_at  timestamptz,
    result      text -- applied, or the stable code of a refusal
);
CREATE INDEX commands_open ON laneway_control.commands (bucket, command_id) WHERE applied_at IS NULL;

-- No row: healthy. Changed only by compare-and-set on version; versions come from one sequence.
CREATE SEQUENCE laneway_control.health_versions;
CREATE TABLE laneway_control.endpoint_health (
    endpoint_id uuid PRIMARY KEY,
    version     bigint NOT NULL,
    state       text NOT NULL CHECK (state IN ('degraded', 'recovering')),
    budget      double precision,
    hold_until  timestamptz,
    probe_until timestamptz NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE laneway_control.quarantine (
    generation bigint NOT NULL,
    partition  integer NOT NULL,
    log_offset bigint NOT NULL,
    reason     text NOT NULL,
    raw        bytea NOT NULL,
    raw_bytes  integer NOT NULL, -- of the whole record, raw may be cut
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation, partition, log_offset)
);

-- Daily partitions of the inbox for the UTC days from today - days_behind to today + days_ahead; gives how many it
-- made. A day whose ids already lie in the DEFAULT partition keeps them there. A waiting lock on the inbox would stop
-- every settle transaction, so it gives up after half a second and the next call goes on.
CREATE FUNCTION laneway_control.inbox_make_partitions(days_behind integer, days_ahead integer) RETURNS integer
    LANGUAGE plpgsql AS $$
DECLARE
    day  date;
    name text;
    made integer := 0;
BEGIN
    PERFORM set_config('lock_timeout', '500ms', true);
    IF NOT pg_try_advisory_xact_lock(hashtext('laneway_control.inbox_make_partitions')) THEN
        RETURN 0; -- another instance is at it
    END IF;
    FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date + n FROM generate_series(-days_behind, days_ahead) n LOOP
        name := 'inbox_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('laneway_control.' || name) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE laneway_control.%I (LIKE laneway_control.inbox INCLUDING DEFAULTS)', name);
            EXECUTE format('ALTER TABLE laneway_control.inbox ATTACH PARTITION laneway_control.%I FOR VALUES FROM (%L) TO (%L)',
                name, laneway_control.inbox_bound(day), laneway_control.inbox_bound(day + 1));
            made := made + 1;
        EXCEPTION WHEN check_violation OR lock_not_available THEN
            CONTINUE; -- the block's own CREATE is undone with it
        END;
    END LOOP;
    RETURN made;
END $$;

-- The smallest delivery id of a UTC day: 48 bits of milliseconds, then zeros.
CREATE FUNCTION laneway_control.inbox_bound(day date) RETURNS uuid
    LANGUAGE sql IMMUTABLE AS $$
    SELECT rpad(lpad(to_hex((extract(epoch FROM day::timestamp) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;
