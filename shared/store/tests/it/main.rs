//! The store on a real PostgreSQL.

mod delivery;
