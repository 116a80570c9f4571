//! Control plane and idempotent intake.
