-- The payload of an event that was published can be erased (C17): payload and headers are emptied and the row says so, by
-- the one UPDATE that there is of this table. Writers of events have no right to it. Every relay and deliver process has
-- to be of this build or later before the first erasure: an older one would send the empty payload if the topic were lost.
SET LOCAL lock_timeout = '10s';
ALTER TABLE laneway.outbox ADD COLUMN erased boolean NOT NULL DEFAULT false;
