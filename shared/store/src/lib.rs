//! All SQL: migrations and one file per table family.
