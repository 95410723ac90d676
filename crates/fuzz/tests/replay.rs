//! The short form of fuzzing: seeds and corpus of every target, then seeded mutations of them.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use afterglow_fuzz::Target;
use afterglow_fuzz::mutate::{Random, mutate};

fn corpus(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// Seeds, and the corpus in the order of its names.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(corpus(target))
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut inputs = (target.seeds)();
    inputs.extend(files.iter().map(|file| std::fs::read(file).unwrap()));
    inputs
}

/// Runs one input. What fails is kept, to be replayed and, once repaired, added to the corpus.
fn run(target: &Target, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-failure", target.name));
        std::fs::write(&file, input).unwrap();
        let file = file.display();
        panic!("replay with: cargo run -p afterglow-fuzz -- replay {} {file}", target.name);
    }
}

#[test]
fn no_target_falls_over_its_corpus_or_what_is_made_of_it() {
    for target in afterglow_fuzz::targets() {
        let inputs = inputs(target);
        inputs.iter().for_each(|input| run(target, input));
        let mut random = Random::new(1);
        (0..target.mutations).for_each(|_| run(target, &mutate(&mut random, &inputs)));
    }
}

#[test]
fn every_target_has_seeds_and_every_corpus_a_target() {
    let names: HashSet<&str> = afterglow_fuzz::targets().map(|target| target.name).collect();
    assert_eq!(names.len(), afterglow_fuzz::targets().count(), "two targets of one name");
    assert!(
        afterglow_fuzz::targets()
            .all(|target| !(target.seeds)().is_empty() && target.mutations > 0)
    );
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"))
        .into_iter()
        .flatten()
    {
        let name = entry.unwrap().file_name();
        assert!(names.contains(&*name.to_string_lossy()), "{name:?} is the corpus of nothing");
    }
}
