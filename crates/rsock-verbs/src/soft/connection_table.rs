//! Connection tables: what the streams of two linked processes tell each other before they are
//! connected. Each process writes the table in its own segment, and reads that of its peer.
//!
//! An entry has a key, by which the two ends of a connection find each other's entries, and a note,
//! which the caller writes and reads. The caller also decides whether to believe a note: it asks
//! [`Link::has_trusted_user`], and the kernel.
//!
//! A forked child has neither table in its memory: it may have given up the user that its parent's
//! peer trusts.

use super::Link;
use super::layout::{
    CONNECTION_TABLE, CONNECTION_WORDS as WORDS, CONNECTIONS, ConnectionWords, PAGE,
};
use super::segment::Mapping;
use crate::sync::versioned_words::Copied;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Names a connection, the same at both ends. Not all zero.
pub type ConnectionKey = [u64; KEY_WORDS];
/// What one end tells the other.
pub type ConnectionNote = [u64; WORDS - KEY_WORDS];

/// What a process finds in the table of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerNote {
    /// The peer has no entry of the connection.
    Absent,
    /// The peer is writing. Of a hostile one this may never end.
    Changing,
    /// What the entry says. Any process may be the peer: the note is to be checked.
    Note(ConnectionNote),
}

const KEY_WORDS: usize = 5;
/// Bytes of a table: whole pages.
const TABLE_LEN: u64 = CONNECTIONS as u64 * size_of::<ConnectionWords>() as u64;
const _: () = assert!(TABLE_LEN.is_multiple_of(PAGE) && CONNECTION_TABLE.is_multiple_of(PAGE));
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

/// An entry of this process's table, until this is dropped. It does not keep the link.
#[derive(Debug)]
pub struct ConnectionEntry {
    link: Weak<Link>,
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
        for index in places(&key) {
            // The peer would find what was left for an earlier connection with this name.
            if uses[index as usize] == Use::Left(key) {
                self.write_connection(index, &[0; WORDS]);
                uses[index as usize] = Use::Free;
            }
        }
        let is_free = |index: &u32| match uses[*index as usize] {
            Use::Free => true,
            Use::Held => false,
            Use::Left(other) => self.note_of_peer(&other) == PeerNote::Absent,
        };
        let index = places(&key).find(is_free)?;
        uses[index as usize] = Use::Held;
        self.write_connection(index, &words_of(&key, note));
        drop(uses);
        Some(ConnectionEntry { link: Arc::downgrade(self), key, index })
    }

    /// What the peer says of the connection with `key`.
    #[must_use]
    pub fn note_of_peer(&self, key: &ConnectionKey) -> PeerNote {
        if !self.node().is_current() {
            return PeerNote::Absent;
        }
        let mut found = PeerNote::Absent;
        for index in places(key) {
            match words_at(self.peer_segment(), index)
                .map_or(Copied::Nothing, ConnectionWords::copy)
            {
                Copied::Words(words) if words.starts_with(key) => {
                    let mut note = ConnectionNote::default();
                    note.copy_from_slice(&words[KEY_WORDS..]);
                    return PeerNote::Note(note);
                }
                Copied::Changing => found = PeerNote::Changing,
                Copied::Words(_) | Copied::Nothing => {}
            }
        }
        found
    }

    /// The caller holds the lock of the table.
    fn write_connection(&self, index: u32, words: &[u64; WORDS]) {
        if let Some(at) = words_at(self.own_segment(), index) {
            at.replace(words);
        }
    }
}

impl ConnectionEntry {
    /// The link in whose table the entry is, as long as there is one.
    #[must_use]
    pub fn link(&self) -> Option<Arc<Link>> {
        self.link.upgrade()
    }

    /// What the peer says of the same connection.
    #[must_use]
    pub fn note_of_peer(&self) -> PeerNote {
        self.link().map_or(PeerNote::Absent, |link| link.note_of_peer(&self.key))
    }

    /// Writes `note` in place of the last one. Of two ends that both do so and then read what the
    /// other says, at least one reads the new note.
    pub fn set(&self, note: &ConnectionNote) {
        self.change(&words_of(&self.key, note), Use::Held);
        // SYNC(connection-note): orders the note before the load of the peer's. Pairs with the same
        // fence at the other end.
        fence(Ordering::SeqCst);
    }

    /// Writes `note` for the last time, and leaves it until the peer has removed its own entry of
    /// this connection.
    pub fn leave(self, note: &ConnectionNote) {
        self.change(&words_of(&self.key, note), Use::Left(self.key));
    }

    /// Writes the entry, if it is still held. That of a stream that a forked child inherited is its
    /// parent's.
    fn change(&self, words: &[u64; WORDS], next: Use) {
        let Some(link) = self.link().filter(|link| link.node().is_current()) else { return };
        let mut uses = link.connections.uses();
        if uses[self.index as usize] == Use::Held {
            link.write_connection(self.index, words);
            uses[self.index as usize] = next;
        }
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.change(&[0; WORDS], Use::Free);
    }
}

/// Keeps the table in `segment` out of the memory of forked children. False if the kernel does not.
pub(super) fn hide_connections(segment: &Mapping) -> bool {
    segment.hide_from_children(CONNECTION_TABLE, TABLE_LEN)
}

fn words_of(key: &ConnectionKey, note: &ConnectionNote) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[..KEY_WORDS].copy_from_slice(key);
    words[KEY_WORDS..].copy_from_slice(note);
    words
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
        assert_eq!(b.note_of_peer(&key(1)), PeerNote::Absent);
        let entry = a.add_connection(key(1), &NOTE).expect("room");
        assert_eq!(b.note_of_peer(&key(1)), PeerNote::Note(NOTE));
        assert_eq!([a.note_of_peer(&key(1)), b.note_of_peer(&key(2))], [PeerNote::Absent; 2]);
        let answer = b.add_connection(key(1), &ANSWER).expect("room");
        assert_eq!(entry.note_of_peer(), PeerNote::Note(ANSWER));
        entry.set(&ANSWER);
        assert_eq!(answer.note_of_peer(), PeerNote::Note(ANSWER));
        drop((entry, answer));
        assert_eq!([a.note_of_peer(&key(1)), b.note_of_peer(&key(1))], [PeerNote::Absent; 2]);
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
        assert!(others.iter().all(|key| b.note_of_peer(key) == PeerNote::Note(ANSWER)));
        // The peer has an entry of the first only, and still reads what was left for it.
        let entry = add(last).expect("room");
        assert_eq!(b.note_of_peer(&others[0]), PeerNote::Note(ANSWER));
        drop((entry, asked));
        assert!(add(last).is_some());
    }

    #[test]
    fn an_earlier_connection_with_the_same_name_is_not_found() {
        let (a, b) = link();
        let keys: Vec<_> = neighbours().take(2).collect();
        let first = a.add_connection(keys[0], &NOTE).expect("room");
        a.add_connection(keys[1], &NOTE).expect("room").leave(&ANSWER);
        let asked = b.add_connection(keys[1], &NOTE).expect("room");
        assert_eq!(asked.note_of_peer(), PeerNote::Note(ANSWER));
        // The place of the first one comes before that of the one that was left.
        drop(first);
        let again = a.add_connection(keys[1], &NOTE).expect("room");
        assert_eq!(asked.note_of_peer(), PeerNote::Note(NOTE));
        drop(again);
        assert_eq!(asked.note_of_peer(), PeerNote::Absent);
    }

    #[test]
    fn a_forked_child_has_neither_table_and_leaves_the_entries_alone() {
        let (a, b) = link();
        let entry = a.add_connection(key(1), &NOTE).expect("room");
        #[expect(clippy::cast_possible_truncation, reason = "few pages")]
        const LEN: usize = TABLE_LEN as usize;
        let is_gone = |segment: &Mapping| {
            let at = segment.bytes(CONNECTION_TABLE, TABLE_LEN).expect("inside").as_ptr();
            // SAFETY: the kernel checks the address, and writes nothing: no file lies behind it.
            let synced =
                unsafe { rustix::mm::msync(at.cast(), LEN, rustix::mm::MsyncFlags::ASYNC) };
            synced == Err(rustix::io::Errno::NOMEM)
        };
        assert!(!is_gone(a.own_segment()));
        // SAFETY: the child takes no lock but that of the table, which no other thread knows.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_gone = is_gone(a.own_segment()) && is_gone(a.peer_segment());
            let is_absent = entry.note_of_peer() == PeerNote::Absent
                && a.note_of_peer(&key(2)) == PeerNote::Absent;
            entry.set(&ANSWER);
            drop(entry);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!(is_gone && is_absent))) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(b.note_of_peer(&key(1)), PeerNote::Note(NOTE));
    }

    #[test]
    fn an_entry_does_not_keep_its_link() {
        let (a, b) = link();
        let n = Arc::strong_count(&a);
        let entry = a.add_connection(key(1), &NOTE).expect("room");
        assert_eq!(Arc::strong_count(&a), n);
        drop((entry, b));
    }
}
