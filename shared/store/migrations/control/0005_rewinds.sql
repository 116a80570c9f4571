-- Dead letters in the order in which they were given up, which is their lanes' order: heads alone are given up, one
-- after the other. Time does not tell it: clocks go back.
SET LOCAL lock_timeout = '10s';
CREATE SEQUENCE laneway_control.dead_letter_places;
ALTER TABLE laneway_control.dead_letters
    ADD COLUMN place     bigint,
    ADD COLUMN state     text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'rewound', 'discarded')),
    ADD COLUMN rewind_id uuid,  -- the command that closed it
    ADD COLUMN rewound_to uuid, -- the delivery that repeats it
    ADD COLUMN closed_at timestamptz;
ALTER TABLE laneway_control.dead_letters ALTER COLUMN place SET DEFAULT nextval('laneway_control.dead_letter_places');
-- Those that were there before come before all others.
UPDATE laneway_control.dead_letters d SET place = o.place FROM (
    SELECT tenant_id, delivery_id, row_number() OVER (ORDER BY dead_at, delivery_id) - count(*) OVER () AS place
    FROM laneway_control.dead_letters) o
WHERE o.tenant_id = d.tenant_id AND o.delivery_id = d.delivery_id;
ALTER TABLE laneway_control.dead_letters ALTER COLUMN place SET NOT NULL;
CREATE INDEX dead_letters_place ON laneway_control.dead_letters (tenant_id, place);

-- Commands over many deliveries: jobs that go on where they were, whoever works on them. A page and the job's own
-- position change in one transaction under the row's lock.
CREATE TABLE laneway_control.rewinds (
    tenant_id   uuid NOT NULL REFERENCES laneway_control.projects,
    rewind_id   uuid NOT NULL, -- UUIDv7: its time begins the ids of the new deliveries
    action      text NOT NULL CHECK (action IN ('rewind', 'discard', 'replay')),
    selection   jsonb NOT NULL,
    reason      text NOT NULL CHECK (length(reason) BETWEEN 1 AND 1000),
    actor       text NOT NULL,
    state       text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'done', 'cancelled')),
    matched     bigint NOT NULL,           -- counted when it was commanded
    done        bigint NOT NULL DEFAULT 0,
    skipped     bigint NOT NULL DEFAULT 0, -- looked at and left: somebody else was first, or it was not sent at all
    position    bigint NOT NULL,           -- the last place looked at
    until       bigint NOT NULL,           -- the last place that belongs to it
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (tenant_id, rewind_id)
);
CREATE INDEX rewinds_running ON laneway_control.rewinds (tenant_id, rewind_id) WHERE state = 'running';

-- Which deliveries repeat which. The key makes two rewinds of one event to one endpoint two numbers; of one command
-- there is one for each delivery.
CREATE TABLE laneway_control.rewound (
    tenant_id   uuid NOT NULL,
    event_id    uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    number      integer NOT NULL,
    delivery_id uuid NOT NULL UNIQUE,
    of_delivery uuid NOT NULL,
    rewind_id   uuid NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, event_id, endpoint_id, number),
    UNIQUE (rewind_id, of_delivery)
);
