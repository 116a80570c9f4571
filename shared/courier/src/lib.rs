//! The only outgoing HTTP to endpoints.
