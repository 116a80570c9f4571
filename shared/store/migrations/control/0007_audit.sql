-- The id of the first delivery of an event to an endpoint, as `DeliveryId::first` makes it: for the audit, which joins
-- the outbox with what became of its rows.
CREATE FUNCTION laneway_control.first_delivery_id(event uuid, endpoint uuid) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT encode(set_byte(set_byte(d.id, 6, (get_byte(d.id, 6) & 15) | 128), 8, (get_byte(d.id, 8) & 63) | 128), 'hex')::uuid
    FROM (SELECT substring(uuid_send(event) FROM 1 FOR 6)
              || substring(sha256('laneway.delivery.1'::bytea || uuid_send(event) || uuid_send(endpoint) || int4send(0))
                           FROM 1 FOR 10) AS id) d
$$;
