//! All bounds and rules of the core, in one place, each with its default.

use std::time::Duration;

/// Bounds and rules. Every field is settable in the deliver service's configuration.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Records of one partition between its first incomplete offset and its last taken one, at most: what a restart
    /// replays. Beyond half of it, the lanes that hold the position back are parked.
    pub window_events: u32,
    /// The same in payload bytes.
    pub window_bytes: u64,
    /// The part (percent) of what may be incomplete (`open_percent`) that live events of one slow endpoint may fill
    /// before its oldest lanes are parked.
    pub endpoint_share_percent: u32,
    /// Part of a partition's window (percent) that may be incomplete at a time. Below half: then only what really holds
    /// the position back reaches the second half of the window.
    pub open_percent: u32,
    /// An endpoint that would need longer than this for its live events at its present pace is slow: it is the one
    /// whose lanes are parked when the window gets scarce. A backlog that drains faster is only waited for.
    pub slow_after: Duration,
    /// Requests in flight from this process, over all endpoints.
    pub max_in_flight: u32,
    /// A failed head stays live no longer than this after its first attempt; then its lane is parked.
    pub live_retry: Duration,
    /// Events loaded of one parked lane at a time.
    pub page_events: u32,
    /// Parked lanes with something in memory, over all partitions.
    pub loaded_lanes: u32,
    /// Payload bytes of loaded parked events, over all partitions.
    pub loaded_bytes: u64,
    /// Heads asked for by one load of due or expired lanes.
    pub due_page: u32,
    /// How often owners look for expired heads.
    pub expiry_every: Duration,
    /// Nothing is tried for longer than this (P8).
    pub horizon: Duration,
    /// First steps of the retry schedule; each further step doubles the one before, up to `retry_max` (A6).
    pub retry_steps: Vec<Duration>,
    /// The longest step.
    pub retry_max: Duration,
    /// Each step is lengthened by up to this many percent, by a hash of (delivery, attempt); never shortened (I17).
    pub retry_jitter_percent: u32,
    /// Failures in a row, on at least two lanes or on the only one, that make an endpoint degraded.
    pub degrade_after: u32,
    /// Between two probes of a degraded endpoint.
    pub probe_every: Duration,
    /// A health view older than this counts as "all are degraded".
    pub health_view_max_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window_events: 20_000,
            window_bytes: 64 * 1024 * 1024,
            endpoint_share_percent: 50,
            open_percent: 25,
            slow_after: Duration::from_secs(5),
            max_in_flight: 512,
            live_retry: Duration::from_secs(30),
            page_events: 64,
            loaded_lanes: 4_096,
            loaded_bytes: 64 * 1024 * 1024,
            due_page: 256,
            expiry_every: Duration::from_secs(20),
            horizon: Duration::from_secs(72 * 3600),
            retry_steps: [1, 2, 4, 8].map(Duration::from_secs).to_vec(),
            retry_max: Duration::from_secs(15 * 60),
            retry_jitter_percent: 20,
            degrade_after: 10,
            probe_every: Duration::from_secs(1),
            health_view_max_age: Duration::from_secs(2),
        }
    }
}
