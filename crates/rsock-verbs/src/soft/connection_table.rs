//! Connection tables: what the streams of two linked processes tell each other before they are
//! connected. Each process writes the table in its own segment, and reads that of its peer.
//!
//! An entry has a key, by which the two ends of a connection find each other's entries, and a note,
//! which the caller writes and reads. Who may be trusted with what is the caller's question:
//! [`Link::has_trusted_user`], and whatever else it asks the kernel.

use super::Link;
use super::layout::{CONNECTION_TABLE, CONNECTION_WORDS as WORDS, CONNECTIONS, ConnectionWords};
use super::segment::Mapping;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names a connection, the same at both ends. Not all zero.
pub type ConnectionKey = [u64; KEY_WORDS];
/// What one end tells the other.
pub type ConnectionNote = [u64; WORDS - KEY_WORDS];

const KEY_WORDS: usize = 5;
/// Places in which an entry may lie.
const PLACES: u32 = 4;

/// Which entries of a process's own table are in use.
#[derive(Debug, Default)]
pub(super) struct OwnEntries(Mutex<Vec<Use>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Held,
    /// Left for the peer to read, which then removes its own entry with this key.
    Left(ConnectionKey),
}

impl OwnEntries {
    fn uses(&self) -> MutexGuard<'_, Vec<Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry of this process's table, until this is dropped.
#[derive(Debug)]
pub struct ConnectionEntry {
    link: Arc<Link>,
    key: ConnectionKey,
    index: u32,
}

impl Link {
    /// Adds an entry, which the peer can read from now on. `None` if there is no place for it, or
    /// in a forked child.
    #[must_use]
    pub fn add_connection(
        self: &Arc<Self>,
        key: ConnectionKey,
        note: &ConnectionNote,
    ) -> Option<ConnectionEntry> {
        self.check_owner().ok()?;
        let mut uses = self.connections.uses();
        uses.resize(CONNECTIONS as usize, Use::Free);
        let can_have = |index: &u32| match uses[*index as usize] {
            Use::Free => true,
            Use::Held => false,
            // One that was left for an earlier connection with this name would be found first.
            Use::Left(other) => other == key || self.note_of_peer(&other).is_none(),
        };
        let index = places(&key).find(can_have)?;
        uses[index as usize] = Use::Held;
        let entry = ConnectionEntry { link: Arc::clone(self), key, index };
        entry.write(note);
        drop(uses);
        Some(entry)
    }

    /// What the peer's entry with `key` says, if there is one. Any process may be the peer: the
    /// note is to be checked.
    #[must_use]
    pub fn note_of_peer(&self, key: &ConnectionKey) -> Option<ConnectionNote> {
        places(key).find_map(|index| {
            let words = words_at(self.peer_segment(), index)?.copy()?;
            let (found, note) = words.split_first_chunk::<KEY_WORDS>()?;
            if found == key { note.try_into().ok() } else { None }
        })
    }
}

impl ConnectionEntry {
    /// The link in whose table the entry is.
    #[must_use]
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// What the peer says of the same connection.
    #[must_use]
    pub fn note_of_peer(&self) -> Option<ConnectionNote> {
        self.link.note_of_peer(&self.key)
    }

    /// Writes `note` for the last time, and leaves it until the peer has removed its own entry of
    /// this connection.
    pub fn leave(self, note: &ConnectionNote) {
        if self.link.node().is_current() {
            let mut uses = self.link.connections.uses();
            self.write(note);
            uses[self.index as usize] = Use::Left(self.key);
        }
    }

    /// The caller holds the lock of the table.
    fn write(&self, note: &ConnectionNote) {
        let mut words = [0; WORDS];
        words[..KEY_WORDS].copy_from_slice(&self.key);
        words[KEY_WORDS..].copy_from_slice(note);
        self.replace(&words);
    }

    fn replace(&self, words: &[u64; WORDS]) {
        if let Some(at) = words_at(self.link.own_segment(), self.index) {
            at.replace(words);
        }
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        // The entry of a stream that a forked child inherited is its parent's.
        if !self.link.node().is_current() {
            return;
        }
        let mut uses = self.link.connections.uses();
        if uses[self.index as usize] == Use::Held {
            self.replace(&[0; WORDS]);
            uses[self.index as usize] = Use::Free;
        }
    }
}

fn words_at(segment: &Mapping, index: u32) -> Option<&ConnectionWords> {
    segment.at(CONNECTION_TABLE + u64::from(index) * size_of::<ConnectionWords>() as u64)
}

/// The places of an entry with `key`: the same in both processes.
fn places(key: &ConnectionKey) -> impl Iterator<Item = u32> {
    /// Spreads numbers that differ in few bits (Fibonacci hashing).
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash =
        key.iter().fold(0u64, |hash, word| (hash.rotate_left(5) ^ word).wrapping_mul(SPREAD));
    let first = (hash >> 32) as u32;
    (0..PLACES).map(move |n| first.wrapping_add(n) % CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::SoftContext;
    use crate::soft::testing::linked_pair;

    const NOTE: ConnectionNote = [7; WORDS - KEY_WORDS];
    const ANSWER: ConnectionNote = [8; WORDS - KEY_WORDS];

    fn link() -> (Arc<Link>, Arc<Link>) {
        linked_pair(&SoftContext::open().expect("a device")).expect("a link")
    }

    fn key(n: u64) -> ConnectionKey {
        [1, 2, 3, 4, n]
    }

    /// Keys of which each has the same places.
    fn neighbours() -> impl Iterator<Item = ConnectionKey> {
        let first = places(&key(0)).next();
        (0..).map(key).filter(move |key| places(key).next() == first)
    }

    #[test]
    fn each_end_reads_what_the_other_writes_until_it_is_removed() {
        let (a, b) = link();
        assert_eq!(b.note_of_peer(&key(1)), None);
        let entry = a.add_connection(key(1), &NOTE).expect("room");
        assert_eq!(b.note_of_peer(&key(1)), Some(NOTE));
        assert_eq!((a.note_of_peer(&key(1)), b.note_of_peer(&key(2))), (None, None));
        let answer = b.add_connection(key(1), &ANSWER).expect("room");
        assert_eq!(entry.note_of_peer(), Some(ANSWER));
        drop((entry, answer));
        assert_eq!((a.note_of_peer(&key(1)), b.note_of_peer(&key(1))), (None, None));
    }

    #[test]
    fn a_full_table_has_room_again_once_the_peer_has_read_what_was_left() {
        let (a, b) = link();
        let keys: Vec<_> = neighbours().take(PLACES as usize + 1).collect();
        let (last, others) = keys.split_last().expect("some");
        let add = |key: &ConnectionKey| a.add_connection(*key, &NOTE);
        let asked = b.add_connection(others[0], &ANSWER).expect("room");
        let entries: Vec<_> = others.iter().map(|key| add(key).expect("room")).collect();
        assert!(add(last).is_none());
        entries.into_iter().for_each(|entry| entry.leave(&ANSWER));
        assert!(others.iter().all(|key| b.note_of_peer(key) == Some(ANSWER)));
        // The peer has an entry of the first only, and still reads what was left for it.
        let entry = add(last).expect("room");
        assert_eq!(b.note_of_peer(&others[0]), Some(ANSWER));
        drop((entry, asked));
        assert!(add(last).is_some());
    }

    #[test]
    fn an_earlier_connection_with_the_same_name_is_not_found() {
        let (a, b) = link();
        a.add_connection(key(1), &NOTE).expect("room").leave(&ANSWER);
        let asked = b.add_connection(key(1), &NOTE).expect("room");
        assert_eq!(asked.note_of_peer(), Some(ANSWER));
        let _again = a.add_connection(key(1), &NOTE).expect("room");
        assert_eq!(asked.note_of_peer(), Some(NOTE));
    }
}
