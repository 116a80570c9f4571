//! What can go wrong with Kafka, and what the caller has to know about it.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// An error of the Kafka client or broker. Classify it with the methods; the text is for people.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// A client could not be made: the settings do not go together, or a certificate cannot be read.
    #[error("kafka client cannot be made")]
    Client(#[source] KafkaError),
    /// An operation on a topic failed.
    #[error("kafka operation {operation} on topic {topic} failed")]
    Topic {
        /// What was tried.
        operation: &'static str,
        /// On which topic.
        topic: String,
        /// Why it failed.
        #[source]
        source: KafkaError,
    },
    /// A record was not acknowledged. It may be in the log all the same, unless [`BusError::is_too_large`].
    #[error("record for partition {partition} was not acknowledged")]
    Produce {
        /// The partition it was for.
        partition: i32,
        /// Why it failed.
        #[source]
        source: KafkaError,
    },
    /// The client cannot go on.
    #[error("kafka client ended for good")]
    Fatal(#[source] KafkaError),
    /// A number that Kafka cannot express, or an answer without what was asked for.
    #[error("kafka answered {0}")]
    Answer(&'static str),
    /// The client was dropped while an operation was under way.
    #[error("kafka client is gone")]
    Gone,
}

impl BusError {
    /// The client that reported it is dead: make a new one.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Gone | Self::Fatal(_) => true,
            _ => matches!(self.code(), Some(RDKafkaErrorCode::Fatal)) || self.is_sequence_error(),
        }
    }

    /// The broker does not know what this producer wrote before: the log may be lost (design section 4). Start from
    /// the stored cursor with a new producer, after looking at end offsets and the topic's incarnation.
    pub fn is_sequence_error(&self) -> bool {
        matches!(
            self.code(),
            Some(
                RDKafkaErrorCode::OutOfOrderSequenceNumber
                    | RDKafkaErrorCode::UnknownProducerId
                    | RDKafkaErrorCode::InvalidProducerEpoch
                    | RDKafkaErrorCode::DuplicateSequenceNumber
            )
        )
    }

    /// This record was refused for its size and can never be written.
    pub fn is_too_large(&self) -> bool {
        matches!(
            self.code(),
            Some(
                RDKafkaErrorCode::MessageSizeTooLarge
                    | RDKafkaErrorCode::InvalidMessageSize
                    | RDKafkaErrorCode::MessageBatchTooLarge
            )
        )
    }

    /// The topic or the partition does not exist (any more).
    pub fn is_topic_missing(&self) -> bool {
        matches!(
            self.code(),
            Some(
                RDKafkaErrorCode::UnknownTopicOrPartition
                    | RDKafkaErrorCode::UnknownTopic
                    | RDKafkaErrorCode::UnknownPartition
                    | RDKafkaErrorCode::UnknownTopicId
            )
        )
    }

    /// The record was thrown out by [`Producer::purge_queued`](crate::Producer::purge_queued); an earlier failure is the
    /// reason.
    pub fn is_purged(&self) -> bool {
        matches!(self.code(), Some(RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight))
    }

    /// Trying again with the same client can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Client(_) | Self::Gone | Self::Fatal(_) => false,
            Self::Answer(_) => true,
            _ => !self.is_fatal() && !self.is_too_large() && !self.is_topic_missing(),
        }
    }

    fn code(&self) -> Option<RDKafkaErrorCode> {
        match self {
            Self::Client(source)
            | Self::Fatal(source)
            | Self::Topic { source, .. }
            | Self::Produce { source, .. } => source.rdkafka_error_code(),
            Self::Answer(_) | Self::Gone => None,
        }
    }
}
