//! Tests of planning.
