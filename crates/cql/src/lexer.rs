//! Tokens of CQL, as strict as Cassandra's own lexer.
