//! Starts PostgreSQL and Kafka on free loopback ports; the scripted receiver and its journal.
