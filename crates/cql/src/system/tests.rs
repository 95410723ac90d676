//! Tests of the system tables.
