//! A program in C, built against the header and the library, does everything that the header
//! offers.

use std::path::Path;
use std::process::Command;

#[test]
fn a_c_program_uses_the_engine() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Beside this test's own program.
    let libraries =
        std::env::current_exe().expect("this program").parent().expect("its folder").to_owned();
    assert!(
        libraries.join("libafterglow_ffi.so").exists(),
        "no library in {}",
        libraries.display()
    );
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("smoke");
    let built = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(crate_dir.join("tests/smoke.c"))
        .arg("-I")
        .arg(crate_dir.join("include"))
        .arg("-L")
        .arg(&libraries)
        .arg("-lafterglow_ffi")
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .output()
        .expect("a C compiler: apt install gcc libc6-dev");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).arg(dir.path().join("cache")).output().expect("runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.ends_with("all good\n"), "{said}");
}
