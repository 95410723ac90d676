//! Limits of the system that would refuse clients.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// With fewer open files than this a busy application may be refused.
const FEW: u64 = 16 * 1024;

/// Raises the limit of open files to the system's maximum. Every connection is one, and shells and
/// service managers often begin with 1,024.
pub(super) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If it fails, what was allowed before still is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    if let Some(files) = getrlimit(Resource::Nofile).current.filter(|files| *files < FEW) {
        tracing::warn!(
            files,
            "few open files are allowed, and each connection is one: raise the hard limit (`ulimit -Hn`, LimitNOFILE)"
        );
    }
}
