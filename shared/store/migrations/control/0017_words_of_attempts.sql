-- What is said of an unknown outcome is said of one attempt: of a later one it says nothing. NULL: of whichever is held, as
-- before this column, and of erasures.
SET LOCAL lock_timeout = '10s';
ALTER TABLE laneway_control.commands ADD COLUMN attempts integer;
