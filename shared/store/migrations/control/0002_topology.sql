-- Where lanes live: generations of the topic, who owns which partition, which partition a bucket is in.
-- PostgreSQL is the truth for all of it; Kafka's committed offsets are advisory (design 5.3).

-- A generation is one life of the topic (design section 3, position). The newest row is the present one.
CREATE TABLE laneway_control.topic_generations (
    generation bigint PRIMARY KEY,
    topic      text NOT NULL,
    topic_id   text NOT NULL, -- Kafka's own id: another one under the same name is another topic
    partitions integer NOT NULL,
    reason     text NOT NULL, -- created, recreated, log_lost
    created_at timestamptz NOT NULL DEFAULT now()
);

-- First lost offset of a partition, where the generation began with a loss: from it on an owner completes unsent every
-- record stamped with an older generation. A partition that lost nothing has no row.
CREATE TABLE laneway_control.topic_fences (
    generation bigint NOT NULL REFERENCES laneway_control.topic_generations,
    partition  integer NOT NULL,
    first_lost bigint NOT NULL,
    PRIMARY KEY (generation, partition)
);

-- Highest acknowledged offset; raised before a cursor moves, never lowered within a generation. `low` is the lowest
-- offset acknowledged of late although it lay below the mark: usual where several relays write, and a trace of a lost
-- log that a loss must not begin behind. Closed with its generation: what is acknowledged later counts for nothing.
CREATE TABLE laneway_control.topic_marks (
    generation bigint NOT NULL REFERENCES laneway_control.topic_generations,
    partition  integer NOT NULL,
    acked      bigint NOT NULL,
    low        bigint,
    low_at     timestamptz,
    closed     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (generation, partition)
);

CREATE TABLE laneway_control.bucket_map (
    bucket    smallint PRIMARY KEY CHECK (bucket BETWEEN 0 AND 1023),
    partition integer NOT NULL,
    version   bigint NOT NULL DEFAULT 1,
    moves     integer NOT NULL DEFAULT 0
);
CREATE TABLE laneway_control.map_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL
);
INSERT INTO laneway_control.map_version (version) VALUES (1);

-- Epochs come from a sequence: none is ever used twice, whatever is restored or copied.
CREATE SEQUENCE laneway_control.epochs;
CREATE TABLE laneway_control.partition_owners (
    generation     bigint NOT NULL REFERENCES laneway_control.topic_generations,
    partition      integer NOT NULL,
    epoch          bigint NOT NULL DEFAULT 0,
    renewal        bigint NOT NULL DEFAULT 0,
    owner          text,
    state          text NOT NULL DEFAULT 'released' CHECK (state IN ('owned', 'released', 'closed')),
    max_timeout_ms integer NOT NULL DEFAULT 0,
    next_offset    bigint NOT NULL DEFAULT 0,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation, partition)
);
