//! The header that is checked in is the one that the source makes.

use std::path::Path;

#[test]
fn the_header_is_current() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config =
        cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).expect("a configuration");
    let bindings = cbindgen::Builder::new()
        .with_crate(crate_dir)
        .with_config(config)
        .generate()
        .expect("bindings");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let path = crate_dir.join("include/afterglow.h");
    if std::env::var_os("AFTERGLOW_BLESS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let there = std::fs::read(&path).unwrap_or_default();
    assert!(
        there == made,
        "include/afterglow.h is not current: AFTERGLOW_BLESS=1 cargo test -p afterglow-ffi --test header"
    );
}
