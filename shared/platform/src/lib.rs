//! Configuration, telemetry, admin server, signals, exit codes.
