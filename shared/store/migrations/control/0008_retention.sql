-- Old rows are found without a walk over the table: a few bytes for a megabyte of rows, which are written in the order of
-- their times.
SET LOCAL lock_timeout = '10s';
CREATE INDEX attempts_ended ON laneway_control.attempts USING brin (ended_at) WITH (autosummarize = on);
CREATE INDEX audit_log_at ON laneway_control.audit_log USING brin (at) WITH (autosummarize = on);
