use crate as memcache;

mod golden;
mod server;
mod sessions;
mod units;
