//! Reads the schema from the database's own tables.
//!
//! 1. [`TIMES`]: when tables, views and keyspaces were last changed.
//! 2. [`QUERIES`]: what they are.
//! 3. [`TIMES`] again.
//!
//! What belongs to one step is sent at once. A node may answer requests of one connection in any
//! order, so a step begins when the one before has been answered.
//!
//! If the times of step 3 are those of step 1, nothing has changed in between. Then it does not
//! matter in which order the answers of step 2 were made. Otherwise, and where the database tells
//! no times, [`QUERIES`] are read in their order, one after the other, and [`TIMES`] once more. A
//! table has a time only if the first [`TIMES`] and the last tell the same.
//!
//! A table that such a reading knows has the columns that it had then or later. Of a column that it
//! knows it has the time at which another of that name was dropped.

use std::rc::Rc;

use afterglow_cql::schema::Schema;
use futures_util::future::{try_join, try_join3, try_join4};

use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::query::{
    ControlConnectionError, QueryStep, fetch, fetch_if_there,
};
use crate::frontend::cql::cluster::rows::Fetched;
use crate::frontend::cql::cluster::schema::{QUERIES, Sources, TIMES, build};

/// Reads a snapshot.
pub async fn load_schema(backend: &Rc<Backend>) -> Result<Schema, ControlConnectionError> {
    let times = load_times(backend).await?;
    let times = match times.iter().all(Option::is_some) {
        true => {
            let sources = load_at_once(backend, times).await?;
            if sources.are_of_one_moment() {
                return Ok(build(&sources));
            }
            sources.first_times()
        }
        false => times,
    };
    Ok(build(&load_in_turn(backend, times).await?))
}

/// When tables, views and keyspaces were last changed, as far as the database tells.
async fn load_times(backend: &Rc<Backend>) -> Result<[Option<Fetched>; 3], ControlConnectionError> {
    let step = QueryStep::new(backend);
    let [tables, views, keyspaces] = TIMES.map(|text| step.fetch_if_told(text));
    let (tables, views, keyspaces) = try_join3(tables, views, keyspaces).await?;
    Ok([tables, views, keyspaces])
}

async fn load_at_once(
    backend: &Rc<Backend>,
    times: [Option<Fetched>; 3],
) -> Result<Sources, ControlConnectionError> {
    let [keyspaces, tables, views, columns, indexes, triggers, dropped, masks] = QUERIES;
    let step = QueryStep::new(backend);
    let [keyspaces, tables, views, columns, indexes, triggers, dropped] =
        [keyspaces, tables, views, columns, indexes, triggers, dropped]
            .map(|text| step.fetch(text));
    let masks = step.fetch_if_there(masks);
    let one_half = try_join4(keyspaces, tables, views, columns);
    let other_half = try_join4(indexes, triggers, dropped, masks);
    let ((keyspaces, tables, views, columns), (indexes, triggers, dropped, masks)) =
        try_join(one_half, other_half).await?;
    let times_after = load_times(backend).await?;
    Ok(Sources {
        times,
        times_after,
        keyspaces,
        tables,
        views,
        columns,
        indexes,
        triggers,
        dropped,
        masks,
    })
}

async fn load_in_turn(
    backend: &Rc<Backend>,
    times: [Option<Fetched>; 3],
) -> Result<Sources, ControlConnectionError> {
    let [keyspaces, tables, views, columns, indexes, triggers, dropped, masks] = QUERIES;
    Ok(Sources {
        times,
        keyspaces: fetch(backend, keyspaces).await?,
        tables: fetch(backend, tables).await?,
        views: fetch(backend, views).await?,
        columns: fetch(backend, columns).await?,
        indexes: fetch(backend, indexes).await?,
        triggers: fetch(backend, triggers).await?,
        dropped: fetch(backend, dropped).await?,
        masks: fetch_if_there(backend, masks).await?,
        times_after: load_times(backend).await?,
    })
}
