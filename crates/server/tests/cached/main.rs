//! The cached path from socket to socket. It has a real engine in a temporary directory, and a
//! database in memory. The database's answers can be delayed, lost and falsified. Clients of
//! different protocol versions have different connections to the database, so that one can overtake
//! the other.

mod accounts;
mod asked_levels;
mod awaited;
mod cache_permission;
mod counts;
mod crowds;
mod doubts;
mod forever;
mod hedges;
mod holders;
mod in_vain;
mod keys;
mod lagging;
mod large_pages;
mod levels;
mod logged;
mod mostly_on_flash;
mod node;
mod orders;
mod other_types;
mod pipelined;
mod reads;
mod refreshes;
mod repeats;
mod repeats_beside;
mod repeats_shapes;
mod ring;
mod ring_beside;
mod ring_centers;
mod ring_failures;
mod ring_life;
mod ring_remade;
mod ring_schema;
mod ring_wide;
mod ring_world;
mod several;
mod silent;
mod slices;
mod unit_rows;
mod updates;
mod valve;
mod write_level;
mod writes;
