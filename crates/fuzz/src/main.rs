//! `afterglow-fuzz`: what the targets are, their seeds as files, and one input run again.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: afterglow-fuzz list | seeds DIR | replay TARGET FILE...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match &arguments[..] {
        ["list"] => {
            afterglow_fuzz::targets().for_each(|target| println!("{}", target.name));
            Ok(())
        }
        ["seeds", dir] => write_seeds(Path::new(dir)),
        ["replay", target, files @ ..] if !files.is_empty() => replay(target, files),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// A folder for each target, a file for each seed.
fn write_seeds(dir: &Path) -> Result<(), String> {
    for target in afterglow_fuzz::targets() {
        let dir: PathBuf = dir.join(target.name);
        let write =
            |(n, seed): (usize, Vec<u8>)| std::fs::write(dir.join(format!("seed-{n}")), seed);
        let written = std::fs::create_dir_all(&dir)
            .and_then(|()| (target.seeds)().into_iter().enumerate().try_for_each(write));
        written.map_err(|e| format!("cannot write to {}: {e}", dir.display()))?;
    }
    Ok(())
}

fn replay(target: &str, files: &[&str]) -> Result<(), String> {
    let target =
        afterglow_fuzz::find(target).ok_or("there is no such target: see `afterglow-fuzz list`")?;
    for file in files {
        let data = std::fs::read(file).map_err(|e| format!("cannot read {file}: {e}"))?;
        (target.run)(&data);
        println!("{file}: {} bytes, nothing wrong", data.len());
    }
    Ok(())
}
