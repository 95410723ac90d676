//! The CQL front end between a client that sees every byte and a database that does what a test
//! says.

mod bounds;
mod bugs;
mod client;
mod database;
mod events;
mod explain;
mod gate;
mod keyspaces;
mod leaving;
mod logins;
mod nodes;
mod overload;
mod prepared;
mod proxy;
mod relay;
mod ring;
mod schema_steps;
mod tls;
mod turns;
mod words;
