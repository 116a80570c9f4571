//! Records of the deliveries topic become HTTP requests, lane by lane.
