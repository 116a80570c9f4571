-- A stored record that cannot be read keeps nobody else's from being erased, listed or sent; and an erasure of one user key
-- finds what it means by the key's events, whatever else the outbox holds.
SET LOCAL lock_timeout = '10s';

-- The head of a record as JSON; NULL if it is none. A subtransaction, which no parallel worker may have.
CREATE FUNCTION laneway_control.record_json(record bytea) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE PARALLEL UNSAFE AS $$
BEGIN
    RETURN convert_from(substring(laneway_control.record_head(record) FROM 6), 'UTF8')::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END
$$;
-- Of what is no record: all of it is the head, and nothing the payload.
CREATE OR REPLACE FUNCTION laneway_control.record_head(record bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN octet_length(record) < 5 OR get_byte(record, 1) > 0 THEN record
        ELSE substring(record FROM 1 FOR 5 + (get_byte(record, 2) << 16) + (get_byte(record, 3) << 8)
                                           + get_byte(record, 4)) END
$$;
-- When the row of a record was written, milliseconds; NULL if the record does not say it.
CREATE OR REPLACE FUNCTION laneway_control.record_written(record bytea) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL UNSAFE AS $$
    SELECT CASE WHEN jsonb_typeof(j.head -> 'a') = 'number' AND (j.head ->> 'a') ~ '^-?[0-9]{1,18}$'
        THEN (j.head ->> 'a')::bigint END
    FROM (SELECT laneway_control.record_json(record) AS head) j
$$;
CREATE OR REPLACE FUNCTION laneway_control.record_is_erased(record bytea) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL UNSAFE AS $$
    SELECT coalesce(laneway_control.record_json(record) -> 'x' = 'true', false)
$$;
-- Id of the row in its source; NULL if the record does not say it.
CREATE FUNCTION laneway_control.record_row(record bytea) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL UNSAFE AS $$
    SELECT CASE WHEN jsonb_typeof(j.head -> 'r') = 'number' AND (j.head ->> 'r') ~ '^-?[0-9]{1,18}$'
        THEN (j.head ->> 'r')::bigint END
    FROM (SELECT laneway_control.record_json(record) AS head) j
$$;

-- The events of a user key, found page by page in the outbox: lanes and dead letters without a user key are looked for by
-- them. They go when their erasure has ended.
CREATE TABLE laneway_control.erasure_events (
    erasure_id uuid NOT NULL,
    event_id   uuid NOT NULL,
    PRIMARY KEY (erasure_id, event_id)
);
CREATE INDEX dead_letters_nobodys ON laneway_control.dead_letters (tenant_id, event_id)
    WHERE user_key IS NULL AND erased_at IS NULL;
-- Erasures of a user key that are under way look through the outbox again, now for these.
UPDATE laneway_control.erasures SET row_id = 0 WHERE phase < 3 AND user_key IS NOT NULL;

ALTER TABLE laneway_control.erasures ADD COLUMN unreadable bigint NOT NULL DEFAULT 0; -- dead letters erased unread
