//! The only Kafka client.
