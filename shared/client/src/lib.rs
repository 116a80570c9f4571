//! Typed client of Laneway's own API.
