//! Puts the commit into the version, where there is one: a source archive without git builds all
//! the same.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_string();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn main() {
    println!("cargo::rerun-if-env-changed=AFTERGLOW_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    // Packagers who build without git say it themselves.
    let given = std::env::var("AFTERGLOW_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    let version = env!("CARGO_PKG_VERSION");
    let long =
        commit.as_ref().map_or(version.into(), |commit| format!("{version} (commit {commit})"));
    println!("cargo::rustc-env=AFTERGLOW_LONG_VERSION={long}");
    println!("cargo::rustc-env=AFTERGLOW_COMMIT={}", commit.unwrap_or_default());
    // The log of HEAD grows with every commit and checkout, also in a worktree.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
}
