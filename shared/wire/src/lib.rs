//! Pure: ids, the delivery record, lane ids and buckets, signatures.
