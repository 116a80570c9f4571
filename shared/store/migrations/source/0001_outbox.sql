-- The laneway schema of a source database: the outbox that applications write and the functions they write it by.
-- Contract for writers (design section 3): a lane's events are ordered if all its writers call emit/emit_many, or all
-- hold the user's row lock when they insert. emit comes after the business rows are locked.
CREATE SCHEMA IF NOT EXISTS laneway;

-- UUIDv7 for PostgreSQL 15 and later: 48 bits of time before the random bits; 4 becomes 7 in the version's place.
CREATE FUNCTION laneway.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
            52, 1), 53, 1),
        'hex')::uuid
$$;

-- Custom headers: an object of at most 32 texts, 8 KiB together; names are tokens and not Laneway's own, values
-- visible ASCII, space and tab (security 5.7).
CREATE FUNCTION laneway.headers_are_valid(headers jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT headers IS NULL OR CASE WHEN jsonb_typeof(headers) <> 'object' THEN false ELSE (
        SELECT count(*) <= 32
           AND coalesce(sum(octet_length(h.key) + octet_length(h.value #>> '{}')), 0) <= 8192
           AND coalesce(bool_and(
                   jsonb_typeof(h.value) = 'string'
                   AND h.key ~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$'
                   AND (h.value #>> '{}') ~ '^[\x20-\x7e\t]*$'
                   AND lower(h.key) !~ '^(accept-encoding|connection|content-length|content-type|expect|host|http2-settings|idempotency-key|keep-alive|te|traceparent|trailer|transfer-encoding|upgrade|user-agent|x-attempt|x-delivery-id|x-event-type|x-replay-of|x-sequence-number|proxy-.*|webhook-.*)$'
               ), true)
        FROM jsonb_each(headers) AS h) END
$$;

-- Insert-only. The shard is fixed for ever. Of xid, id and shard no writer says anything: the relay's promises rest
-- on them. What could never be published is refused here, in the writer's own transaction.
CREATE TABLE laneway.outbox (
    id           bigint NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1),
    xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
    event_id     uuid NOT NULL DEFAULT laneway.uuid_v7(),
    tenant       uuid NOT NULL,
    shard        smallint NOT NULL GENERATED ALWAYS AS (get_byte(sha256(uuid_send(tenant)), 0) % 16) STORED,
    type         text NOT NULL
        CONSTRAINT type_has_1_to_255_of_letters_digits_dot_underscore_hyphen
            CHECK (octet_length(type) <= 255 AND type ~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$'),
    user_key     text
        CONSTRAINT user_key_has_1_to_255_bytes_and_no_control_characters
            CHECK (octet_length(user_key) BETWEEN 1 AND 255 AND user_key !~ '[\x01-\x1f\x7f]'),
    payload      bytea NOT NULL
        CONSTRAINT payload_has_at_most_262144_bytes CHECK (octet_length(payload) <= 262144),
    content_type text NOT NULL DEFAULT 'application/json'
        CONSTRAINT content_type_has_1_to_255_visible_ascii_characters
            CHECK (content_type ~ '^[\x20-\x7e]+$' AND octet_length(content_type) <= 255),
    headers      jsonb
        CONSTRAINT headers_are_at_most_32_valid_names_and_texts_of_8192_bytes
            CHECK (laneway.headers_are_valid(headers)),
    traceparent  text
        CONSTRAINT traceparent_is_a_w3c_trace_context
            CHECK (traceparent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
                   AND traceparent !~ '^00-0{32}' AND traceparent !~ '-0{16}-'),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (created_at);

-- Payloads are mostly small or compressed already, and are read once.
ALTER TABLE laneway.outbox ALTER COLUMN payload SET STORAGE EXTERNAL;

-- What is new to a shard, and the rows of one late transaction; then the pages of a batch in id order.
CREATE INDEX outbox_new ON laneway.outbox (shard, xid, id);
CREATE INDEX outbox_page ON laneway.outbox (shard, id);
-- For people who ask for one event: its id says its time. A few bytes for a megabyte of rows.
CREATE INDEX outbox_created ON laneway.outbox USING brin (created_at) WITH (autosummarize = on);

-- Daily partitions are made ahead by the relay; what lies outside of them comes here and raises an alert.
CREATE TABLE laneway.outbox_default PARTITION OF laneway.outbox DEFAULT;

-- A dedupe key names at most one event of its tenant.
CREATE TABLE laneway.outbox_dedupe (
    tenant     uuid NOT NULL,
    dedupe_key text NOT NULL
        CONSTRAINT dedupe_key_has_1_to_255_bytes CHECK (octet_length(dedupe_key) BETWEEN 1 AND 255),
    event_id   uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, dedupe_key)
);
CREATE INDEX outbox_dedupe_created ON laneway.outbox_dedupe (created_at);

-- Makes one day's partition if it is not there. A plain table first, then ATTACH: PARTITION OF would lock the parent
-- against every writer. The caller sets a short lock_timeout. False if the day exists already.
CREATE FUNCTION laneway.outbox_partition_create(day date) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := 'outbox_' || to_char(day, 'YYYYMMDD');
    attached boolean;
BEGIN
    SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid)
      INTO attached
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = 'laneway' AND c.relname = name;
    IF attached THEN
        RETURN false;
    END IF;
    IF attached IS NULL THEN
        EXECUTE format('CREATE TABLE laneway.%I (LIKE laneway.outbox INCLUDING DEFAULTS INCLUDING GENERATED '
                       'INCLUDING CONSTRAINTS INCLUDING STORAGE)', name);
    END IF;
    EXECUTE format('ALTER TABLE laneway.outbox ATTACH PARTITION laneway.%I FOR VALUES FROM (%L) TO (%L)', name,
                   to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00', to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
    RETURN true;
END
$$;

SELECT laneway.outbox_partition_create((now() AT TIME ZONE 'UTC')::date + ahead) FROM generate_series(0, 14) AS ahead;

-- Advisory locks of Laneway's own: class 0x4c61'6e01 for tenants, 0x4c61'6e02 for user keys. A collision of hashes
-- costs waiting, never order.

-- Writes one event and returns its id; with a dedupe key that the tenant has used, the id of the first event, and
-- nothing is written. Holds the (tenant, user key) lock until the transaction ends. Two calls with different user
-- keys in one transaction may deadlock with another (40P01, repeat it): use emit_many.
CREATE FUNCTION laneway.emit(
    tenant uuid, type text, user_key text, payload bytea, content_type text DEFAULT 'application/json',
    headers jsonb DEFAULT NULL, dedupe_key text DEFAULT NULL, traceparent text DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    event uuid := laneway.uuid_v7();
    first uuid;
BEGIN
    IF user_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock_shared(1281453569, hashtext(tenant::text));
        PERFORM pg_advisory_xact_lock(1281453570, hashtext(tenant::text || user_key));
    END IF;
    IF dedupe_key IS NOT NULL THEN
        INSERT INTO laneway.outbox_dedupe (tenant, dedupe_key, event_id) VALUES (tenant, dedupe_key, event)
        ON CONFLICT ON CONSTRAINT outbox_dedupe_pkey DO NOTHING;
        IF NOT FOUND THEN
            SELECT d.event_id INTO STRICT first FROM laneway.outbox_dedupe AS d
             WHERE d.tenant = emit.tenant AND d.dedupe_key = emit.dedupe_key;
            RETURN first;
        END IF;
    END IF;
    INSERT INTO laneway.outbox (event_id, tenant, type, user_key, payload, content_type, headers, traceparent)
    VALUES (event, tenant, type, user_key, payload, content_type, headers, traceparent);
    RETURN event;
END
$$;

-- Writes many events of one tenant, in the order of the arrays, and returns their ids in that order. All arrays that
-- are given have the same length. The locks are taken in the order of their hashes, each once; for more than 256
-- different user keys only the tenant's, exclusively.
CREATE FUNCTION laneway.emit_many(
    tenant uuid, types text[], user_keys text[], payloads bytea[], content_types text[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, dedupe_keys text[] DEFAULT NULL, traceparents text[] DEFAULT NULL
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    n integer := coalesce(cardinality(types), 0);
    own uuid[];
    ids uuid[];
    locks integer[];
    lock integer;
BEGIN
    IF n = 0 AND coalesce(cardinality(payloads), 0) = 0 THEN
        RETURN '{}';
    END IF;
    IF cardinality(payloads) IS DISTINCT FROM n
       OR coalesce(cardinality(user_keys), n) <> n OR coalesce(cardinality(content_types), n) <> n
       OR coalesce(cardinality(headers), n) <> n OR coalesce(cardinality(dedupe_keys), n) <> n
       OR coalesce(cardinality(traceparents), n) <> n THEN
        RAISE EXCEPTION 'laneway.emit_many: the arrays have different lengths' USING ERRCODE = '22023';
    END IF;
    SELECT array_agg(h ORDER BY h) INTO locks
      FROM (SELECT DISTINCT hashtext(tenant::text || k) AS h FROM unnest(user_keys) AS k WHERE k IS NOT NULL) AS keys;
    IF cardinality(locks) > 256 THEN
        PERFORM pg_advisory_xact_lock(1281453569, hashtext(tenant::text));
    ELSIF locks IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock_shared(1281453569, hashtext(tenant::text));
        FOREACH lock IN ARRAY locks LOOP
            PERFORM pg_advisory_xact_lock(1281453570, lock);
        END LOOP;
    END IF;
    SELECT array_agg(laneway.uuid_v7()) INTO own FROM generate_series(1, n);
    ids := own;
    IF dedupe_keys IS NOT NULL THEN
        INSERT INTO laneway.outbox_dedupe (tenant, dedupe_key, event_id)
        SELECT tenant, k.k, k.event FROM (
            SELECT DISTINCT ON (u.k) u.k, u.event
              FROM unnest(dedupe_keys, own) WITH ORDINALITY AS u (k, event, place)
             WHERE u.k IS NOT NULL ORDER BY u.k, u.place) AS k
        ORDER BY k.k
        ON CONFLICT ON CONSTRAINT outbox_dedupe_pkey DO NOTHING;
        SELECT array_agg(coalesce(d.event_id, u.event) ORDER BY u.place) INTO ids
          FROM unnest(dedupe_keys, own) WITH ORDINALITY AS u (k, event, place)
          LEFT JOIN laneway.outbox_dedupe AS d ON d.tenant = emit_many.tenant AND d.dedupe_key = u.k;
    END IF;
    INSERT INTO laneway.outbox (event_id, tenant, type, user_key, payload, content_type, headers, traceparent)
    SELECT u.event, tenant, u.type, u.user_key, u.payload, coalesce(u.content_type, 'application/json'), u.headers,
           u.traceparent
      FROM unnest(own, ids, types, user_keys, payloads, content_types, headers, traceparents)
           WITH ORDINALITY AS u (event, id, type, user_key, payload, content_type, headers, traceparent, place)
     WHERE u.event = u.id
     ORDER BY u.place;
    RETURN ids;
END
$$;

-- What an application's role needs to write events and nothing more: never id, xid, shard or created_at.
CREATE FUNCTION laneway.grant_writer(role name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA laneway TO %I', role);
    EXECUTE format('GRANT INSERT (event_id, tenant, type, user_key, payload, content_type, headers, traceparent) '
                   'ON laneway.outbox TO %I', role);
    EXECUTE format('GRANT INSERT (tenant, dedupe_key, event_id), SELECT (tenant, dedupe_key, event_id) '
                   'ON laneway.outbox_dedupe TO %I', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION laneway.uuid_v7(), laneway.headers_are_valid(jsonb), '
                   'laneway.emit(uuid, text, text, bytea, text, jsonb, text, text), '
                   'laneway.emit_many(uuid, text[], text[], bytea[], text[], jsonb[], text[], text[]) TO %I', role);
END
$$;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA laneway FROM PUBLIC;
