//! A bug where the cache is costs one request.

use std::sync::Arc;

use afterglow::frontend::cql::{Later, Operation, PassThrough, Request, Router};
use afterglow::metrics::Path;
use afterglow::reactor::Driver;
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Flags, Opcode, Version};

use crate::client::error_of;
use crate::database::{echo, scripted};
use crate::proxy::Proxy;

/// Panics where the cache would be.
struct Faulty;

impl Router for Faulty {
    fn route(&self, request: Request) -> Option<Later> {
        let Operation::Query(_) = request.asked else { return PassThrough.route(request) };
        if request.body.windows(4).any(|bytes| bytes == b"oops") {
            panic!("a bug, on purpose");
        }
        if request.body.windows(4).any(|bytes| bytes == b"torn") {
            request.into_responder().reply_with(Opcode::Result, Flags::NONE, Path::Local, |out| {
                out.push(1);
                panic!("a bug in the middle of an answer, on purpose");
            });
            return None;
        }
        if request.body.windows(5).any(|bytes| bytes == b"later") {
            return Some(Box::pin(async move {
                let mut request = request;
                let answer = request.call().await;
                panic!("a bug in a task, on purpose: {answer:?}");
            }));
        }
        PassThrough.route(request)
    }
}

#[test]
fn a_bug_costs_one_request_and_nobody_elses_connection() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::routed(fake.address(), Driver::Auto, Arc::new(Faulty));
    let mut other = proxy.client(Version::V4);
    let mut client = proxy.client(Version::V4);
    client.query(1, "SELECT v FROM ks.later");
    assert_eq!(error_of(&client.receive()).0, ErrorCode::Server);
    client.query(2, "SELECT v FROM ks.oops");
    assert_eq!(error_of(&client.receive()).0, ErrorCode::Server);
    assert_eq!(client.ask("SELECT v FROM ks.fine"), "SELECT v FROM ks.fine");
    client.query(3, "SELECT v FROM ks.torn");
    assert!(client.try_receive().is_none(), "half an answer must not be followed by another");
    assert_eq!(other.ask("SELECT v FROM ks.fine"), "SELECT v FROM ks.fine");
}
