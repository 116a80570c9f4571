-- A person may give a held unknown up, and is shown what was said of it.
ALTER TABLE laneway_control.commands
    DROP CONSTRAINT commands_verdict_is_known,
    ADD CONSTRAINT commands_verdict_is_known
        CHECK (verdict IN ('delivered', 'not_applied', 'given_up', 'erase')) NOT VALID;
CREATE INDEX commands_of_delivery ON laneway_control.commands (delivery_id, command_id);
