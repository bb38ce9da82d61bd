//! The exchange over a link that the two processes have already: in the connection tables of the
//! link, without a socket. It has the messages of the exchange by a Unix socket, and its checks.
//!
//! Nothing wakes a process that waits while its peer writes into its table. An end that has had no
//! answer within a few calls, or for some milliseconds, goes on by a Unix socket.

use crate::accelerate::FallbackReason;
use crate::accelerate::discovery::candidate::Candidate;
use crate::accelerate::discovery::local::message::{Kind, Message};
use crate::accelerate::discovery::local::{
    Next, Search, connect, finish, is_other_end, open_device, publish, recent_links,
};
use crate::engine::Preparing;
use rsock_verbs::soft::{ConnectionEntry, Link, Soft};
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

/// The publisher's first step: says in the tables of all links that it is here.
pub(super) fn list(candidate: Candidate<'_>) -> Next {
    let note = Message::new(Kind::Published).to_note();
    let key = candidate.tuple.key();
    let list = |link: &Arc<Link>| link.answering_end().add_connection(key, &note);
    let entries: Vec<_> = candidate.links.iter().filter_map(list).collect();
    Next::Stay(if entries.is_empty() { Search::new() } else { Search::Listed(entries) })
}

/// The publisher's next step: answers the request of a finder.
pub(super) fn serve(
    candidate: Candidate<'_>,
    mut entries: Vec<ConnectionEntry>,
) -> Result<Next, FallbackReason> {
    let request_at = |entry: &ConnectionEntry| {
        let request = Message::from_note(&entry.note_of_peer()?)?;
        (request.kind == Kind::Request).then_some(request)
    };
    let asked = entries.iter().position(|entry| request_at(entry).is_some());
    let request = asked.and_then(|at| request_at(&entries[at]));
    let Some((at, request)) = asked.zip(request) else {
        return match candidate.links {
            [] => publish(candidate.tuple).map(Search::Published).map(Next::Stay),
            _ => Ok(Next::Stay(Search::Listed(entries))),
        };
    };
    let entry = entries.swap_remove(at);
    let link = entry.link();
    if !link.has_trusted_user() || !is_other_end(candidate.tuple, request.socket)? {
        // Another process's entry, or one about a former connection with these addresses. The peer
        // looks elsewhere once this one is gone.
        drop(entry);
        return Ok(Next::Stay(if entries.is_empty() {
            Search::new()
        } else {
            Search::Listed(entries)
        }));
    }
    match connect(candidate, link, &request) {
        Ok((path, reply)) => {
            recent_links::note(link.id(), true);
            entry.leave(&reply.to_note());
            Ok(Next::Found(Box::new(path)))
        }
        Err(reason) => {
            entry.leave(&Message::new(Kind::Refusal).to_note());
            Err(reason)
        }
    }
}

/// The finder's first step: looks for the publisher in the tables of all links, and writes its
/// request beside what it has found.
pub(super) fn find(candidate: Candidate<'_>) -> Result<Next, FallbackReason> {
    let key = candidate.tuple.key();
    let is_listed = |note| Message::from_note(&note).is_some_and(|m| m.kind == Kind::Published);
    let mut listed = candidate.links.iter().filter(|l| l.note_of_peer(&key).is_some_and(is_listed));
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
pub(super) fn complete(candidate: Candidate<'_>, asked: Request) -> Result<Next, FallbackReason> {
    let note = asked.entry.note_of_peer();
    let Some(reply) = note.and_then(|note| Message::from_note(&note)) else {
        // The publisher has gone on by a Unix socket, or its stream has ended.
        return Ok(Next::Stay(Search::new()));
    };
    match reply.kind {
        Kind::Reply => {
            recent_links::note(asked.entry.link().id(), true);
            finish(candidate, &reply, *asked.preparing)
        }
        Kind::Published if !candidate.links.is_empty() || asked.since.elapsed() < PATIENCE => {
            Ok(Next::Stay(Search::Asked(asked)))
        }
        Kind::Published => Ok(Next::Stay(Search::new())),
        Kind::Hello | Kind::Request | Kind::Refusal | Kind::UnknownLink => {
            Err(FallbackReason::NoPeer)
        }
    }
}
