//! Pure: the state machine of lanes.
