-- Tenants and what they own. The tenant is part of every key and foreign key, so that a link across tenants cannot be
-- stored even by a mistake, and row-level security can be switched on without a rewrite.
CREATE SCHEMA IF NOT EXISTS laneway_control;

CREATE TABLE laneway_control.projects (
    tenant_id  uuid PRIMARY KEY,
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE laneway_control.api_keys (
    tenant_id   uuid NOT NULL REFERENCES laneway_control.projects,
    key_id      text NOT NULL CHECK (key_id ~ '^[0-9A-Za-z]{8}$'),
    secret_hash bytea NOT NULL CHECK (length(secret_hash) = 32), -- SHA-256; the secret has 190 random bits
    last4       text NOT NULL,
    scopes      text[] NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    revoked_at  timestamptz,
    last_used_at timestamptz,
    PRIMARY KEY (tenant_id, key_id),
    UNIQUE (key_id)
);

-- Every change of endpoints or subscriptions raises the one version in its own transaction (design section 4,
-- routing): versions commit in their order, because the row is locked until commit.
CREATE TABLE laneway_control.routing_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL
);
INSERT INTO laneway_control.routing_version (version) VALUES (1);

CREATE TABLE laneway_control.endpoints (
    tenant_id       uuid NOT NULL REFERENCES laneway_control.projects,
    endpoint_id     uuid NOT NULL,
    url             text NOT NULL,
    on_unknown      text NOT NULL DEFAULT 'resend' CHECK (on_unknown IN ('resend', 'lookup', 'hold')),
    ordering        text NOT NULL DEFAULT 'user' CHECK (ordering IN ('user', 'none')),
    timeout_ms      integer NOT NULL CHECK (timeout_ms BETWEEN 1000 AND 60000),
    max_connections integer NOT NULL DEFAULT 16 CHECK (max_connections BETWEEN 1 AND 1024),
    state           text NOT NULL DEFAULT 'enabled' CHECK (state IN ('enabled', 'disabled', 'deleted')),
    state_reason    text,
    secret          bytea NOT NULL,  -- {version, key id, nonce, ciphertext}; security 5.3
    since_version   bigint NOT NULL, -- routing version that made it
    until_version   bigint,          -- routing version that deleted it
    revision        bigint NOT NULL DEFAULT 1, -- raised by each change of its settings
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, endpoint_id),
    UNIQUE (endpoint_id)
);
CREATE INDEX endpoints_updated ON laneway_control.endpoints (updated_at);

-- Kept for ever: publishing again routes as the first time.
CREATE TABLE laneway_control.subscriptions (
    tenant_id       uuid NOT NULL,
    subscription_id uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    event_type      text NOT NULL, -- a type, `prefix.*` or `*`
    ordering_enabled boolean NOT NULL DEFAULT false,
    since_version   bigint NOT NULL,
    until_version   bigint,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, subscription_id),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES laneway_control.endpoints (tenant_id, endpoint_id)
);
CREATE INDEX subscriptions_endpoint ON laneway_control.subscriptions (tenant_id, endpoint_id);

CREATE TABLE laneway_control.idempotency_keys (
    tenant_id   uuid NOT NULL REFERENCES laneway_control.projects,
    operation   text NOT NULL,
    key         text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    fingerprint bytea NOT NULL CHECK (length(fingerprint) = 32),
    status      smallint NOT NULL,
    body        bytea NOT NULL,
    sealed      boolean NOT NULL DEFAULT false, -- the body is encrypted: the answer had a secret in it
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, operation, key)
);
CREATE INDEX idempotency_keys_created ON laneway_control.idempotency_keys (created_at);

CREATE TABLE laneway_control.audit_log (
    tenant_id uuid REFERENCES laneway_control.projects,
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL DEFAULT now(),
    actor     text NOT NULL,
    action    text NOT NULL,
    object    text NOT NULL,
    detail    jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_log_tenant ON laneway_control.audit_log (tenant_id, id);
