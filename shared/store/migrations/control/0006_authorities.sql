-- Whom to ask what became of a request, for endpoints with on_unknown = 'lookup' (design 5.5, C8).
CREATE TABLE laneway_control.authorities (
    tenant_id    uuid NOT NULL,
    endpoint_id  uuid NOT NULL,
    url          text NOT NULL,
    method       text NOT NULL CHECK (method IN ('GET', 'POST')),
    body         text,
    header_name  text,
    header_value bytea, -- sealed as an endpoint's secret is
    rules        jsonb NOT NULL DEFAULT '[]',
    revision     bigint NOT NULL DEFAULT 1,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, endpoint_id),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES laneway_control.endpoints (tenant_id, endpoint_id)
);

-- One row for each unknown that an authority is asked about. Who asks holds the claim; the answer counts only under it.
CREATE TABLE laneway_control.lookups (
    delivery_id uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    lane        bytea NOT NULL,
    attempts    integer NOT NULL,            -- of the unknown: the next unknown of the same delivery is another question
    asked       integer NOT NULL DEFAULT 0,
    ask_at      timestamptz NOT NULL,        -- not before the request can have ended (I13); while claimed: the claim's end
    claim       uuid,
    answer      text,
    detail      text,
    asked_at    timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX lookups_due ON laneway_control.lookups (ask_at);
