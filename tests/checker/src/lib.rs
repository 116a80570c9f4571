//! Journal, source rows and fault journal in, verdict out; no workspace dependency.
