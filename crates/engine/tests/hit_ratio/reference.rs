//! The policies to compare with, as plainly as they can be written: capacity in objects, keys
//! numbered from 0.

use std::collections::VecDeque;

/// Counts hits of a policy over a trace.
pub fn hits(requests: &[u32], mut touch: impl FnMut(u32) -> bool) -> usize {
    requests.iter().filter(|&&key| touch(key)).count()
}

/// A doubly linked list over key numbers, oldest first, with a mark per key for the list it is on.
struct Lists {
    next: Vec<u32>,
    previous: Vec<u32>,
    /// List each key is on, 0 for none.
    on: Vec<u8>,
    len: [usize; 4],
}

const NIL: u32 = u32::MAX;

impl Lists {
    fn new(unique: usize) -> Self {
        // The last four nodes are the lists' heads.
        let nodes = unique + 4;
        let heads = |n| if n < unique { NIL } else { n as u32 };
        let next: Vec<u32> = (0..nodes).map(heads).collect();
        Self { previous: next.clone(), next, on: vec![0; nodes], len: [0; 4] }
    }

    fn head(&self, list: u8) -> u32 {
        (self.next.len() - 4) as u32 + u32::from(list)
    }

    fn push(&mut self, list: u8, key: u32) {
        let head = self.head(list);
        let last = self.previous[head as usize];
        self.next[last as usize] = key;
        self.previous[key as usize] = last;
        self.next[key as usize] = head;
        self.previous[head as usize] = key;
        self.on[key as usize] = list;
        self.len[usize::from(list)] += 1;
    }

    fn remove(&mut self, key: u32) {
        let (previous, next) = (self.previous[key as usize], self.next[key as usize]);
        self.next[previous as usize] = next;
        self.previous[next as usize] = previous;
        self.len[usize::from(self.on[key as usize])] -= 1;
        self.on[key as usize] = 0;
    }

    fn move_to(&mut self, list: u8, key: u32) {
        self.remove(key);
        self.push(list, key);
    }

    fn oldest(&self, list: u8) -> u32 {
        self.next[self.head(list) as usize]
    }
}

/// Least recently used.
pub fn lru(requests: &[u32], unique: usize, capacity: usize) -> usize {
    let mut lists = Lists::new(unique);
    hits(requests, |key| {
        let hit = lists.on[key as usize] == 1;
        if hit {
            lists.remove(key);
        } else if lists.len[1] == capacity {
            lists.remove(lists.oldest(1));
        }
        lists.push(1, key);
        hit
    })
}

/// S3-FIFO (Yang et al., SOSP 2023): 10 % small queue, promoted at two hits, ghost as large as
/// main.
pub fn s3_fifo(requests: &[u32], unique: usize, capacity: usize) -> usize {
    const SMALL: u8 = 1;
    const MAIN: u8 = 2;
    let small_target = (capacity / 10).max(1);
    let ghost_len = capacity - small_target;
    let mut lists = Lists::new(unique);
    let mut freq = vec![0u8; unique];
    let mut ghost = VecDeque::new();
    // Turn at which a key entered the ghost, to tell apart an older entry of the same key.
    let (mut ghosted, mut turn) = (vec![0u64; unique], 0u64);
    hits(requests, |key| {
        let k = key as usize;
        if lists.on[k] != 0 {
            freq[k] = (freq[k] + 1).min(3);
            return true;
        }
        while lists.len[1] + lists.len[2] >= capacity {
            if lists.len[1] >= small_target || lists.len[2] == 0 {
                let old = lists.oldest(SMALL);
                if freq[old as usize] >= 2 {
                    lists.move_to(MAIN, old);
                    freq[old as usize] = 0;
                } else {
                    lists.remove(old);
                    turn += 1;
                    ghosted[old as usize] = turn;
                    ghost.push_back((old, turn));
                    if ghost.len() > ghost_len {
                        let (gone, then) = ghost.pop_front().expect("a full ghost");
                        if ghosted[gone as usize] == then {
                            ghosted[gone as usize] = 0;
                        }
                    }
                }
            } else {
                let old = lists.oldest(MAIN);
                if freq[old as usize] > 0 {
                    freq[old as usize] -= 1;
                    lists.move_to(MAIN, old);
                } else {
                    lists.remove(old);
                }
            }
        }
        let remembered = std::mem::take(&mut ghosted[k]) != 0;
        freq[k] = 0;
        lists.push(if remembered { MAIN } else { SMALL }, key);
        false
    })
}

/// W-TinyLFU (Einziger et al., 2017): 1 % LRU window, segmented LRU with 80 % protected. Exact
/// counts up to 15 are halved after ten times the capacity.
pub fn w_tiny_lfu(requests: &[u32], unique: usize, capacity: usize) -> usize {
    const WINDOW: u8 = 1;
    const PROBATION: u8 = 2;
    const PROTECTED: u8 = 3;
    let window = (capacity / 100).max(1);
    let main = capacity - window;
    let protected = main * 8 / 10;
    let mut lists = Lists::new(unique);
    let (mut counts, mut additions) = (vec![0u8; unique], 0);
    hits(requests, |key| {
        let k = key as usize;
        if counts[k] < 15 {
            counts[k] += 1;
            additions += 1;
            if additions >= 10 * capacity {
                counts.iter_mut().for_each(|count| *count /= 2);
                additions /= 2;
            }
        }
        match lists.on[k] {
            0 => {}
            PROBATION => {
                lists.move_to(PROTECTED, key);
                if lists.len[3] > protected {
                    lists.move_to(PROBATION, lists.oldest(PROTECTED));
                }
                return true;
            }
            list => {
                lists.move_to(list, key);
                return true;
            }
        }
        lists.push(WINDOW, key);
        if lists.len[1] > window {
            let candidate = lists.oldest(WINDOW);
            if lists.len[2] + lists.len[3] < main {
                lists.move_to(PROBATION, candidate);
            } else {
                let victim = if lists.len[2] > 0 {
                    lists.oldest(PROBATION)
                } else {
                    lists.oldest(PROTECTED)
                };
                if counts[candidate as usize] > counts[victim as usize] {
                    lists.remove(victim);
                    lists.move_to(PROBATION, candidate);
                } else {
                    lists.remove(candidate);
                }
            }
        }
        false
    })
}
