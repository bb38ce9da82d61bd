//! A map of bounded size that forgets roughly the least recently used entries, by two generations.
//!
//! INVARIANT: each generation has at most half of the capacity, and no key is in both. When the
//! young generation is full it becomes the old one, and the entries of the previous old one are
//! dropped.

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
    /// A map for `capacity` entries, at least two.
    pub(super) fn new(capacity: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (capacity / 2).max(1) }
    }

    /// The entry, which counts as used now.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if let Some(value) = self.old.remove(key) {
            self.insert(*key, value);
        }
        self.young.get_mut(key)
    }

    /// Adds or replaces an entry; the oldest entries may be dropped for it.
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// After any operations the map is bounded, each entry has the value inserted last, and the
        /// most recently used entries are present.
        #[test]
        fn the_map_is_bounded_and_returns_what_was_inserted_last(
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
                            let mut newest = recent.iter().rev().take(capacity / 2);
                            prop_assert!(!newest.any(|k| *k == key));
                        }
                    }
                    _ => {
                        let removed = map.remove(&key);
                        prop_assert!(removed.is_none() || removed == all.get(&key).copied());
                        all.remove(&key);
                        // A less recently used entry may be gone already, and does not come back.
                        recent.clear();
                    }
                }
                prop_assert!(map.len() <= capacity);
            }
        }
    }
}
