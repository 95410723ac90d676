//! What must hold of any text and any values.
