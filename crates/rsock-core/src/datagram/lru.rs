//! A map of bounded size that forgets what was used least lately, roughly: two generations.
//!
//! Invariant: each generation has at most half of the capacity, and no key is in both. When the young
//! one is full it becomes the old one, and what nobody udp_polled at since the last time goes.

use std::collections::HashMap;
use std::hash::Hash;

/// The map.
#[derive(Debug)]
pub(super) struct LruMap<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash + Copy, V> LruMap<K, V> {
    /// Room for `capacity` entries, two at least.
    pub(super) fn new(capacity: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (capacity / 2).max(1) }
    }

    /// The entry, which counts as used.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if let Some(value) = self.old.remove(key) {
            self.insert(*key, value);
        }
        self.young.get_mut(key)
    }

    /// Adds or replaces an entry; others may go for it.
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is done, the map is bounded, what it has is what was put in last, and the entries
        /// used last are there.
        #[test]
        fn bounded_and_faithful(
            capacity in 2usize..12,
            ops in proptest::collection::vec((0u8..3, 0u8..20, any::<u16>()), 0..200),
        ) {
            let mut map = LruMap::new(capacity);
            let mut all = HashMap::new();
            let mut recent = Vec::new();
            for (op, key, value) in ops {
                match op {
                    0 => {
                        map.insert(key, value);
                        all.insert(key, value);
                        recent.retain(|k| *k != key);
                        recent.push(key);
                    }
                    1 => {
                        if let Some(found) = map.get_mut(&key) {
                            prop_assert_eq!(Some(&*found), all.get(&key));
                            recent.retain(|k| *k != key);
                            recent.push(key);
                        } else {
                            prop_assert!(!recent.iter().rev().take(capacity / 2).any(|k| *k == key));
                        }
                    }
                    _ => {
                        let removed = map.remove(&key);
                        prop_assert!(removed.is_none() || removed == all.get(&key).copied());
                        all.remove(&key);
                        // What is used less lately may be gone already, and does not come back.
                        recent.clear();
                    }
                }
                prop_assert!(map.len() <= capacity);
            }
        }
    }
}
