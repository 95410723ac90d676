//! A session at one contact point.

use std::error::Error;

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::Consistency;

/// What a step gives, or why it failed.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Connects, at LOCAL_QUORUM.
pub async fn open(contact: &str) -> Outcome<Session> {
    let profile = ExecutionProfile::builder().consistency(Consistency::LocalQuorum).build();
    let builder = SessionBuilder::new().known_node(contact);
    Ok(builder.default_execution_profile_handle(profile.into_handle()).build().await?)
}
