-- A command over many deliveries waits while too much of what it has sent again is not settled, and sets aside what
-- cannot be sent again.
SET LOCAL lock_timeout = '10s';
ALTER TABLE laneway_control.rewinds
    ALTER COLUMN matched DROP NOT NULL, -- NULL: they could not be counted in the time that a count has
    ADD COLUMN waits     text,          -- what its next page waits for: deliveries
    ADD COLUMN set_aside bigint NOT NULL DEFAULT 0,
    ADD COLUMN example   text;          -- the first that was set aside, and why

-- Whether a repeat has its outcome, as far as anybody has looked: noted when a command has to know how many have none.
-- Of those that were there before, nobody waits.
ALTER TABLE laneway_control.rewound ADD COLUMN settled boolean NOT NULL DEFAULT true;
ALTER TABLE laneway_control.rewound ALTER COLUMN settled SET DEFAULT false;
CREATE INDEX rewound_unsettled ON laneway_control.rewound (tenant_id, endpoint_id) WHERE NOT settled;

-- An erasure that a person has ended: phase 4. What it has erased stays so.
ALTER TABLE laneway_control.erasures
    DROP CONSTRAINT erasures_phase_check,
    ADD CONSTRAINT erasures_phase_is_known CHECK (phase BETWEEN 0 AND 4) NOT VALID;
