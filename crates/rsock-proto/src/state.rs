//! The life of a connected stream, as one table of transitions.
//!
//! Which directions are open, which control message each step sends, and which steps are misuse.
//! Whether unread bytes are left is the receiving half's knowledge, not this table's.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `rshutdown`, `rs_poll_cq`, `rs_handle_cm_event`.

use super::imm::Ctrl;
use std::fmt;

/// Where a stream is in its life. C keeps the same in the bits of its `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lifecycle {
    /// Both directions are open.
    #[doc(alias = "rs_connect_rdwr")]
    Open,
    /// Receiving has ended, by a local shutdown or because the peer ended; this end may still send.
    ReadClosed,
    /// Sending has ended and SHUTDOWN is sent; the peer may still send.
    WriteClosed,
    /// Both directions are closed here and DISCONNECT is on its way to the peer.
    Closing,
    /// Both directions are closed and no message remains to be sent.
    #[doc(alias = "rs_disconnected")]
    Disconnected,
    /// The path broke before both directions were closed.
    #[doc(alias = "rs_error")]
    Failed,
}

/// What happens to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LifecycleEvent {
    /// The application ends sending (`SHUT_WR`).
    LocalShutWr,
    /// The application ends receiving (`SHUT_RD`).
    LocalShutRd,
    /// The application ends both (`SHUT_RDWR`, `close`).
    LocalShutRdWr,
    /// SHUTDOWN arrived.
    PeerShutdown,
    /// DISCONNECT arrived.
    PeerDisconnect,
    /// The local DISCONNECT is delivered.
    DisconnectDone,
    /// The queue pair failed, or the connection manager reports the end without DISCONNECT before.
    PathError,
}

/// An event that cannot happen in this state: the caller's mistake (`ENOTCONN` for a shutdown).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} is not possible when {state:?}")]
pub struct IllegalEvent {
    /// The state, which stays.
    pub state: Lifecycle,
    /// What was tried.
    pub event: LifecycleEvent,
}

impl Lifecycle {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::Open,
        Self::ReadClosed,
        Self::WriteClosed,
        Self::Closing,
        Self::Disconnected,
        Self::Failed,
    ];

    /// The state after `event`, and the control message to send because of it.
    ///
    /// COMPAT: C repeats SHUTDOWN or DISCONNECT when a program shuts down twice; this crate sends
    /// it once.
    ///
    /// # Errors
    /// [`IllegalEvent`] for a shutdown of a stream that is over, or the delivery of a DISCONNECT
    /// that was never sent.
    pub const fn on(self, event: LifecycleEvent) -> Result<(Self, Option<Ctrl>), IllegalEvent> {
        use Lifecycle::{Closing, Disconnected, Failed, Open, ReadClosed, WriteClosed};
        use LifecycleEvent::{
            DisconnectDone, LocalShutRd, LocalShutRdWr, LocalShutWr, PathError, PeerDisconnect,
            PeerShutdown,
        };
        const BYE: Option<Ctrl> = Some(Ctrl::Disconnect);
        Ok(match (self, event) {
            (Open, LocalShutWr) => (WriteClosed, Some(Ctrl::Shutdown)),
            (Open, LocalShutRd | PeerShutdown) => (ReadClosed, None),
            (Open, LocalShutRdWr) => (Closing, BYE),

            (ReadClosed, LocalShutWr | LocalShutRdWr) => (Closing, BYE),
            (ReadClosed, LocalShutRd | PeerShutdown) => (ReadClosed, None),

            (WriteClosed, LocalShutWr) => (WriteClosed, None),
            (WriteClosed, LocalShutRd | LocalShutRdWr) => (Closing, BYE),
            (WriteClosed, PeerShutdown) => (Disconnected, None),

            (Closing, LocalShutWr | LocalShutRd | LocalShutRdWr) => (Closing, None),
            // The peer has ended, or is gone: either completes the close.
            (Closing, PeerShutdown | DisconnectDone | PathError) => (Disconnected, None),

            (Open | ReadClosed | WriteClosed | Closing, PeerDisconnect) => (Disconnected, None),
            (Open | ReadClosed | WriteClosed, PathError) => (Failed, None),

            // Messages that crossed, and completions that came late.
            (Disconnected | Failed, PeerShutdown | PeerDisconnect | DisconnectDone | PathError) => {
                (self, None)
            }

            (Open | ReadClosed | WriteClosed, DisconnectDone)
            | (Disconnected | Failed, LocalShutWr | LocalShutRd | LocalShutRdWr) => {
                return Err(IllegalEvent { state: self, event });
            }
        })
    }

    /// Whether data of the peer is still received.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        matches!(self, Self::Open | Self::WriteClosed)
    }

    /// Whether this end may still send stream bytes.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        matches!(self, Self::Open | Self::ReadClosed)
    }

    /// Whether the path is still needed.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Disconnected | Self::Failed)
    }
}

impl LifecycleEvent {
    /// All events.
    pub const ALL: [Self; 7] = [
        Self::LocalShutWr,
        Self::LocalShutRd,
        Self::LocalShutRdWr,
        Self::PeerShutdown,
        Self::PeerDisconnect,
        Self::DisconnectDone,
        Self::PathError,
    ];
}

impl fmt::Display for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    const SNAPSHOT: &str = include_str!("state.snap");
    const DOCS: &str = include_str!("../../../docs/protocol.md");

    fn cell(state: Lifecycle, event: LifecycleEvent) -> String {
        match state.on(event) {
            Err(_) => "illegal".to_owned(),
            Ok((next, None)) if next == state => "-".to_owned(),
            Ok((next, None)) => next.to_string(),
            Ok((next, Some(ctrl))) => format!("{next}, sends {ctrl:?}"),
        }
    }

    /// The table and the graph, as the snapshot and the documentation have them.
    fn print() -> String {
        let mut out = String::from("| |");
        for state in Lifecycle::ALL {
            write!(out, " {state} |").unwrap();
        }
        out.push_str("\n|---|");
        out.push_str(&"---|".repeat(Lifecycle::ALL.len()));
        out.push('\n');
        for event in LifecycleEvent::ALL {
            write!(out, "| {event:?} |").unwrap();
            for state in Lifecycle::ALL {
                write!(out, " {} |", cell(state, event)).unwrap();
            }
            out.push('\n');
        }
        out.push_str("\n```dot\ndigraph lifecycle {\n");
        for state in Lifecycle::ALL {
            for event in LifecycleEvent::ALL {
                if let Ok((next, ctrl)) = state.on(event)
                    && next != state
                {
                    let sends = ctrl.map_or(String::new(), |c| format!(" / {c:?}"));
                    writeln!(out, "    {state} -> {next} [label=\"{event:?}{sends}\"];").unwrap();
                }
            }
        }
        out.push_str("}\n```\n");
        out
    }

    #[test]
    fn the_table_is_the_reviewed_one_and_documented() {
        let table = print();
        assert!(table == SNAPSHOT, "state.snap should be:\n{table}");
        assert!(DOCS.contains(SNAPSHOT), "docs/protocol.md does not contain state.snap");
    }

    #[test]
    fn a_stream_that_is_over_stays_over() {
        for state in Lifecycle::ALL.into_iter().filter(|s| !s.is_connected()) {
            for event in LifecycleEvent::ALL {
                assert!(state.on(event).is_err() || state.on(event) == Ok((state, None)));
            }
        }
    }

    #[test]
    fn no_event_opens_a_closed_direction() {
        for state in Lifecycle::ALL {
            for event in LifecycleEvent::ALL {
                let Ok((next, _)) = state.on(event) else { continue };
                assert!(state.is_readable() || !next.is_readable(), "{state} {event:?}");
                assert!(state.is_writable() || !next.is_writable(), "{state} {event:?}");
            }
        }
    }

    #[test]
    fn no_control_message_is_sent_twice() {
        // Along every path of events, DISCONNECT is sent at most once, SHUTDOWN at most once, and
        // SHUTDOWN never after DISCONNECT.
        fn walk(state: Lifecycle, said: &[Ctrl], depth: usize) {
            for event in LifecycleEvent::ALL {
                let Ok((next, ctrl)) = state.on(event) else { continue };
                let mut said = said.to_vec();
                if let Some(ctrl) = ctrl {
                    assert!(!said.contains(&ctrl) && !said.contains(&Ctrl::Disconnect));
                    said.push(ctrl);
                }
                if depth > 0 {
                    walk(next, &said, depth - 1);
                }
            }
        }
        walk(Lifecycle::Open, &[], 5);
    }
}
