-- The horizon's clock stands while an endpoint is disabled (I22). The endpoint's row remembers it, so that enabling it
-- touches none of its lanes' rows, however many wait; whoever changes the state, by whatever road, this is kept.
ALTER TABLE laneway_control.endpoints
    ADD COLUMN disabled_at timestamptz,                               -- since when it is disabled, if it is
    ADD COLUMN enabled_at  timestamptz NOT NULL DEFAULT '-infinity',  -- when it was last enabled again
    ADD COLUMN stood_ms    bigint      NOT NULL DEFAULT 0;            -- how long it was disabled in all, up to then
UPDATE laneway_control.endpoints SET disabled_at = updated_at WHERE state = 'disabled';

CREATE FUNCTION laneway_control.endpoints_standstill() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'disabled' THEN
        NEW.enabled_at := now();
        NEW.stood_ms := OLD.stood_ms + greatest(0, ceil(extract(epoch FROM now() - OLD.disabled_at) * 1000));
        NEW.disabled_at := NULL;
    ELSIF NEW.state = 'disabled' THEN
        NEW.disabled_at := now();
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER endpoints_standstill BEFORE UPDATE OF state ON laneway_control.endpoints
    FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION laneway_control.endpoints_standstill();

-- Of a head that was tried: the endpoint's stood_ms that first_held and head_held include.
ALTER TABLE laneway_control.parked_lanes ADD COLUMN stood_ms bigint NOT NULL DEFAULT 0;
