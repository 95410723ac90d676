//! libFuzzer's entry to the target that the environment variable `FUZZ_TARGET` names.

#![no_main]

use std::sync::LazyLock;

use afterglow_fuzz::Target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    afterglow_fuzz::find(&name).unwrap_or_else(|| panic!("there is no target {name}"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.run)(data));
