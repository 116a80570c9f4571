-- A command whose page fails tells why, and lets others pass until it is tried again.
SET LOCAL lock_timeout = '10s';
ALTER TABLE laneway_control.rewinds
    ADD COLUMN error    text,        -- of the last page that failed; gone with the next that does not
    ADD COLUMN retry_at timestamptz; -- not before this
