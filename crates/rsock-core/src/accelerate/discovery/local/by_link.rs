//! The exchange over a link that the two processes have already: in the connection tables of the
//! link, without a socket. It has the messages of the exchange by a Unix socket, and its checks.
//!
//! Nothing wakes a process that waits while its peer writes into its table. An end that has had no
//! answer within a few calls, or for some milliseconds, begins again by a Unix socket. The finder
//! then takes its request back, and the publisher may be about to answer it. So both write what
//! they are about to do before they read once more what the other has written: the finder waits for
//! the publisher, or the publisher sees that the request is gone.

use crate::accelerate::FallbackReason;
use crate::accelerate::discovery::candidate::Candidate;
use crate::accelerate::discovery::local::message::{Kind, Message};
use crate::accelerate::discovery::local::{
    Next, Search, connect, finish, is_other_end, open_device, recent_links,
};
use crate::engine::Preparing;
use rsock_verbs::soft::{ConnectionEntry, Link, PeerNote, Soft};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an end waits for an answer, where its calls do not tell.
pub(in crate::accelerate) const PATIENCE: Duration = Duration::from_millis(10);

/// The finder's request in the table of a link.
#[derive(Debug)]
pub(in crate::accelerate) struct Request {
    entry: ConnectionEntry,
    preparing: Box<Preparing<Soft>>,
    since: Instant,
}

/// What the peer says of a connection, if that is anything.
fn message(note: PeerNote) -> Option<Message> {
    match note {
        PeerNote::Note(note) => Message::from_note(&note),
        PeerNote::Absent | PeerNote::Changing => None,
    }
}

fn says(note: PeerNote, kind: Kind) -> bool {
    message(note).is_some_and(|message| message.kind == kind)
}

/// The publisher's first step: says in the tables of all links that it is here.
#[inline(never)]
pub(super) fn list(candidate: Candidate<'_>) -> Next {
    let note = Message::new(Kind::Published).to_note();
    let key = candidate.tuple.key();
    let list = |link: &Arc<Link>| link.answering_end().add_connection(key, &note);
    Next::Stay(listed(candidate.links.iter().filter_map(list).collect()))
}

/// The publisher's state with what it has listed.
fn listed(entries: Vec<ConnectionEntry>) -> Search {
    if entries.is_empty() { Search::new() } else { Search::Listed(entries) }
}

/// The publisher's next step: answers the request of a finder.
#[inline(never)]
pub(super) fn serve(
    candidate: Candidate<'_>,
    mut entries: Vec<ConnectionEntry>,
) -> Result<Next, FallbackReason> {
    let request = |entry: &ConnectionEntry| {
        message(entry.note_of_peer()).filter(|request| request.kind == Kind::Request)
    };
    let mut numbered = entries.iter().enumerate();
    let Some((at, request)) = numbered.find_map(|(at, entry)| Some((at, request(entry)?))) else {
        let goes_on = !candidate.links.is_empty();
        return Ok(Next::Stay(if goes_on { Search::Listed(entries) } else { Search::new() }));
    };
    let entry = entries.swap_remove(at);
    let is_peer = |link: &Arc<Link>| link.has_trusted_user();
    let Some(link) = entry.link().filter(is_peer) else { return Ok(Next::Stay(listed(entries))) };
    if !is_other_end(candidate.tuple, request.socket)? {
        // Of a former connection with these addresses, or of another process's invention. The peer
        // looks elsewhere once the entry is gone.
        return Ok(Next::Stay(listed(entries)));
    }
    entry.set(&Message::new(Kind::Answering).to_note());
    if !says(entry.note_of_peer(), Kind::Request) {
        entry.set(&Message::new(Kind::Published).to_note());
        entries.push(entry);
        return Ok(Next::Stay(Search::Listed(entries)));
    }
    match connect(candidate, &link, &request) {
        Ok((path, reply)) => {
            recent_links::remember(link.id(), true);
            entry.leave(&reply.to_note());
            Ok(Next::Found(path))
        }
        Err(reason) => {
            entry.leave(&Message::new(Kind::Refusal).to_note());
            Err(reason)
        }
    }
}

/// The finder's first step: looks for the publisher in the tables of all links, and writes its
/// request beside what it has found.
#[inline(never)]
pub(super) fn find(candidate: Candidate<'_>) -> Result<Next, FallbackReason> {
    let key = candidate.tuple.key();
    let is_listed = |link: &&Arc<Link>| says(link.note_of_peer(&key), Kind::Published);
    let mut listed = candidate.links.iter().filter(is_listed);
    let Some(link) = listed.find(|link| link.has_trusted_user()) else {
        return Ok(Next::Stay(Search::new()));
    };
    let preparing = Preparing::new(&open_device()?, link, &candidate.config.on_one_host())
        .map_err(|_| FallbackReason::Resources)?;
    let request = Message::about(Kind::Request, candidate, link, &preparing)?;
    Ok(Next::Stay(match link.add_connection(key, &request.to_note()) {
        Some(entry) => {
            let preparing = Box::new(preparing);
            Search::Asked(Request { entry, preparing, since: Instant::now() })
        }
        None => Search::new(),
    }))
}

/// The finder's next step: takes the publisher's reply.
#[inline(never)]
pub(super) fn complete(candidate: Candidate<'_>, asked: Request) -> Result<Next, FallbackReason> {
    let mut note = asked.entry.note_of_peer();
    let is_over = candidate.links.is_empty() && asked.since.elapsed() >= PATIENCE;
    if is_over && says(note, Kind::Published) {
        asked.entry.set(&Message::new(Kind::Withdrawn).to_note());
        note = asked.entry.note_of_peer();
        if says(note, Kind::Published) {
            return Ok(Next::Stay(Search::new()));
        }
    }
    let reply = match note {
        // The publisher has gone on by a Unix socket, or its stream has ended.
        PeerNote::Absent => return Ok(Next::Stay(Search::new())),
        PeerNote::Changing => return Ok(Next::Stay(Search::Asked(asked))),
        PeerNote::Note(note) => Message::from_note(&note).ok_or(FallbackReason::NoPeer)?,
    };
    match reply.kind {
        Kind::Reply => {
            if let Some(link) = asked.entry.link() {
                recent_links::remember(link.id(), true);
            }
            finish(candidate, &reply, *asked.preparing)
        }
        Kind::Published | Kind::Answering => Ok(Next::Stay(Search::Asked(asked))),
        Kind::Hello | Kind::Request | Kind::Refusal | Kind::UnknownLink | Kind::Withdrawn => {
            Err(FallbackReason::NoPeer)
        }
    }
}

#[cfg(test)]
impl Search {
    /// Has a publisher say in the tables of its links that it is about to answer, or no longer.
    pub(in crate::accelerate) fn pretend_to_answer(&self, answers: bool) {
        let kind = if answers { Kind::Answering } else { Kind::Published };
        let Self::Listed(entries) = self else { panic!("not in the tables of links: {self:?}") };
        entries.iter().for_each(|entry| entry.set(&Message::new(kind).to_note()));
    }

    /// Has a finder take its request back.
    pub(in crate::accelerate) fn pretend_to_withdraw(&self) {
        let Self::Asked(asked) = self else { panic!("no request: {self:?}") };
        asked.entry.set(&Message::new(Kind::Withdrawn).to_note());
    }
}
