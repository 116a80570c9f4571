//! The rules of the house (ARCHITECTURE.md, "Closed roads"), as tests: see `tests/rules.rs`.
