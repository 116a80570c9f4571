//! Committed outbox rows become records of the deliveries topic.
