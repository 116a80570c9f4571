-- Erasure of one project's or one user key's payloads (C17): a job that goes on where it was, whoever works on it.
SET LOCAL lock_timeout = '10s';
CREATE TABLE laneway_control.erasures (
    tenant_id    uuid NOT NULL REFERENCES laneway_control.projects,
    erasure_id   uuid NOT NULL,
    user_key     text, -- of the whole project if it is NULL
    reason       text NOT NULL CHECK (length(reason) BETWEEN 1 AND 1000),
    actor        text NOT NULL,
    before       timestamptz NOT NULL, -- what was written before this, in whole milliseconds as records say it
    snapshot     pg_snapshot,          -- taken after `before`: whoever wrote before it began before this ends
    phase        smallint NOT NULL DEFAULT 0 CHECK (phase BETWEEN 0 AND 3), -- sweep, wait, sweep again, done
    place        uuid,                 -- of a sweep: attempts up to this delivery are done
    row_id       bigint NOT NULL DEFAULT 0, -- rows of the outbox up to this one are done
    generation   bigint,               -- of the topic that `marks` speak of
    marks        jsonb,                -- by partition: what the owners have to pass, taken when all rows were published
    waits        text,                 -- what it waits for: writers, relay, deliver, lanes
    rows_erased  bigint NOT NULL DEFAULT 0,
    dead_letters bigint NOT NULL DEFAULT 0,
    attempts     bigint NOT NULL DEFAULT 0,
    results      bigint NOT NULL DEFAULT 0,
    retry_at     timestamptz NOT NULL DEFAULT now(),
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    finished_at  timestamptz,
    PRIMARY KEY (tenant_id, erasure_id)
);
-- One at a time for the same: a second command joins the first.
CREATE UNIQUE INDEX erasures_open ON laneway_control.erasures (tenant_id, coalesce(user_key, '')) WHERE phase < 3;

ALTER TABLE laneway_control.dead_letters
    ADD COLUMN erased_at timestamptz, -- since when its record has no payload
    DROP CONSTRAINT dead_letters_state_check,
    ADD CONSTRAINT dead_letters_state_is_known CHECK (state IN ('open', 'rewound', 'discarded', 'erased')) NOT VALID;
CREATE INDEX dead_letters_unerased ON laneway_control.dead_letters (tenant_id, user_key) WHERE erased_at IS NULL;

ALTER TABLE laneway_control.commands
    ADD COLUMN before timestamptz, -- of `erase`: what was written before this
    DROP CONSTRAINT commands_verdict_check,
    ADD CONSTRAINT commands_verdict_is_known CHECK (verdict IN ('delivered', 'not_applied', 'erase')) NOT VALID;

-- A record without its payload, and when its row was written, milliseconds (see laneway_wire::record).
CREATE FUNCTION laneway_control.record_head(record bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substring(record FROM 1 FOR 5 + (get_byte(record, 1) << 24) + (get_byte(record, 2) << 16)
                                           + (get_byte(record, 3) << 8) + get_byte(record, 4))
$$;
CREATE FUNCTION laneway_control.record_written(record bytea) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (convert_from(substring(laneway_control.record_head(record) FROM 6), 'UTF8')::jsonb ->> 'a')::bigint
$$;
CREATE FUNCTION laneway_control.record_is_erased(record bytea) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce((convert_from(substring(laneway_control.record_head(record) FROM 6), 'UTF8')::jsonb ->> 'x')::boolean, false)
$$;
