mod golden;
mod server;
mod sessions;
mod units;
