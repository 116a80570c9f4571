//! Real processes under real faults.
