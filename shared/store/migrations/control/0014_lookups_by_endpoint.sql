-- What is due of each endpoint is found by itself: an authority that does not answer keeps none from being asked.
SET LOCAL lock_timeout = '10s';
CREATE INDEX lookups_endpoint ON laneway_control.lookups (tenant_id, endpoint_id, ask_at);
DROP INDEX laneway_control.lookups_due;
