//! Removals of what is not found: nothing that was on flash comes back.

use super::large::Large;
use super::*;

const OBJECTS: usize = 12_000;
const BYTES: usize = 8_000;

/// A word of the protocol that takes an object away, and its answer where there is none.
const WORDS: [(&str, &str); 7] = [
    ("delete KEY", "NOT_FOUND"),
    ("delete KEY noreply\r\nmn", "MN"),
    ("md KEY", "NF"),
    ("md KEY I T30", "NF"),
    ("md KEY C1", "NF"),
    ("touch KEY -1", "NOT_FOUND"),
    ("mg KEY T-1", "EN"),
];

/// Those of the objects that are not found.
fn evicted(client: &mut Client) -> Vec<usize> {
    (0..OBJECTS).filter(|n| client.get(&format!("k{n}")).is_none()).collect()
}

/// Evicts objects, removes half of them and ends. How many of the others come back; none of those
/// that were removed may.
fn remove_what_was_evicted() -> usize {
    let mut large = Large::new(Durability::WriteThrough);
    let mut client = large.connect();
    for n in 0..OBJECTS {
        let value = "a".repeat(BYTES);
        assert_eq!(client.ask(&format!("set k{n} 0 0 {BYTES}\r\n{value}")), "STORED");
    }
    // Evicted last, so some are not overwritten yet. Many removals would bring a checkpoint, which
    // knows that their segments are free.
    let gone = evicted(&mut client).into_iter().rev().take(1_000).collect::<Vec<_>>();
    let word = |n: usize| WORDS.get(n % (2 * WORDS.len()));
    for (n, key) in gone.iter().enumerate() {
        if let Some((word, answer)) = word(n) {
            assert_eq!(client.ask(&word.replace("KEY", &format!("k{key}"))), *answer);
        }
    }
    drop(client);
    large.stop(false);
    large.start();
    let still = evicted(&mut large.connect());
    let came_back = |(_, key): &(usize, &usize)| still.binary_search(key).is_err();
    let (removed, alone): (Vec<_>, Vec<_>) =
        gone.iter().enumerate().filter(came_back).partition(|(n, _)| word(*n).is_some());
    let removed: Vec<_> = removed.iter().map(|(n, key)| (word(*n), key)).collect();
    assert_eq!(removed, [], "{} that nobody removed came back too", alone.len());
    alone.len()
}

/// An eviction leaves the bytes on flash until their segment is written anew, and writes nothing to
/// the journal. So a lookup that finds nothing does not show that nothing can come back.
#[test]
fn what_was_not_found_when_it_was_removed_does_not_come_back_after_a_crash() {
    let back = (0..10).map(|_| remove_what_was_evicted()).find(|back| *back > 0);
    assert!(back.is_some(), "no test: nothing that was evicted came back");
}
