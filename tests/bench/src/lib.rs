//! Whole-system measurements.
