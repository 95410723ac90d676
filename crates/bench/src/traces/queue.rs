//! A queue of numbered objects with their bytes: oldest out first, any may leave.

const NIL: u32 = u32::MAX;

/// A doubly linked list over object numbers.
pub struct Queue {
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Bytes that each object takes here; 0 is not here.
    cost: Vec<u32>,
    bytes: u64,
    len: usize,
}

impl Queue {
    /// An empty queue for objects numbered below `unique`.
    pub fn new(unique: usize) -> Self {
        let mut next = vec![NIL; unique + 1];
        // The last node is the head of the ring.
        next[unique] = unique as u32;
        Self { previous: next.clone(), next, cost: vec![0; unique], bytes: 0, len: 0 }
    }

    fn head(&self) -> usize {
        self.cost.len()
    }

    /// Bytes of all objects in it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of objects in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has this object.
    pub fn contains(&self, key: u32) -> bool {
        self.cost[key as usize] > 0
    }

    /// Appends an object that is not in it.
    pub fn push(&mut self, key: u32, cost: u32) {
        debug_assert!(!self.contains(key) && cost > 0);
        let (head, at) = (self.head(), key as usize);
        let last = self.previous[head];
        (self.next[last as usize], self.previous[at]) = (key, last);
        (self.next[at], self.previous[head]) = (head as u32, key);
        self.cost[at] = cost;
        self.bytes += u64::from(cost);
        self.len += 1;
    }

    /// Takes an object out, if it is in it. Returns its bytes, or 0.
    pub fn remove(&mut self, key: u32) -> u32 {
        let at = key as usize;
        let cost = std::mem::take(&mut self.cost[at]);
        if cost > 0 {
            let (previous, next) = (self.previous[at], self.next[at]);
            self.next[previous as usize] = next;
            self.previous[next as usize] = previous;
            self.bytes -= u64::from(cost);
            self.len -= 1;
        }
        cost
    }

    /// Makes an object that is in it the newest.
    pub fn renew(&mut self, key: u32) {
        let cost = self.remove(key);
        self.push(key, cost);
    }

    /// Takes out the oldest, with its bytes.
    pub fn pop(&mut self) -> Option<(u32, u32)> {
        let oldest = self.oldest().next()?;
        Some((oldest, self.remove(oldest)))
    }

    /// All objects, oldest first.
    pub fn oldest(&self) -> impl Iterator<Item = u32> {
        let mut at = self.next[self.head()];
        std::iter::from_fn(move || {
            let found = (at as usize != self.head()).then_some(at)?;
            at = self.next[at as usize];
            Some(found)
        })
    }

    /// Those that leave first, as many as free `bytes` bytes.
    pub fn first(&self, bytes: u64) -> impl Iterator<Item = u32> {
        let mut freed = 0;
        self.oldest().take_while(move |&key| {
            let before = freed;
            freed += u64::from(self.cost[key as usize]);
            before < bytes
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leaves_first_and_bytes_are_counted() {
        let mut queue = Queue::new(4);
        (0..4).for_each(|key| queue.push(key, 10 + key));
        queue.renew(0);
        assert_eq!(queue.remove(2), 12);
        assert_eq!(queue.remove(2), 0);
        assert_eq!(queue.oldest().collect::<Vec<_>>(), [1, 3, 0]);
        assert_eq!(queue.first(11).collect::<Vec<_>>(), [1]);
        assert_eq!(queue.first(12).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((queue.bytes(), queue.len()), (34, 3));
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop()),
            (Some((1, 11)), Some((3, 13)), Some((0, 10)))
        );
        assert_eq!((queue.pop(), queue.bytes()), (None, 0));
    }
}
