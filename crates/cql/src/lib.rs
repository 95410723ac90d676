//! CQL native protocol and statement analysis, sans-io.
