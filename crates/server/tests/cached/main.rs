//! The cached path from socket to socket: a real engine in a temporary directory, and a database in
//! memory whose answers can be kept back, lost and made to lie. Clients of different protocol
//! versions have different connections to the database, so that one can overtake the other.

mod accounts;
mod cache_permission;
mod forever;
mod holders;
mod node;
mod orders;
mod reads;
mod silent;
mod writes;
