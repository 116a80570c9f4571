-- A rewind is a row that sends an event again, to one endpoint, as a new delivery (design section 6, B7): the event's
-- id and content, and here what no subscription says: {delivery, endpoint, mode, number, of}. Writers of events have
-- no right to it. Every relay has to be of this build or later before the first rewind: an older one takes the row for
-- a repetition of the event, whose deliveries are all settled.
SET LOCAL lock_timeout = '10s';
ALTER TABLE laneway.outbox ADD COLUMN rewind jsonb;
