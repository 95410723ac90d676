//! Who waits for what: acknowledgements that wait for a device ([`pending`]), and changes that wait for room ([`backpressure`]).

pub(crate) mod backpressure;
pub(crate) mod pending;
