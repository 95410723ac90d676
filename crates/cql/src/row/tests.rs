//! Tests of the stored row.
