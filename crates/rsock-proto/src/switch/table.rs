//! The table as a text: the steps and the answer of every query, in every state of a direction and
//! every situation.

use super::receive::Source;
use super::send::Sink;
use super::{
    Cause, Conditions, Counts, DirectionSwitch, Fact, Message, Observation, Peeked, Read,
    ReceivedMessages, Receiver, Rules, Seen, Sender, Step, Wire, Write,
};
use std::fmt::{Debug, Write as _};

const SNAPSHOT: &str = include_str!("table.snap");

/// What the two channels hold while a query is asked.
#[derive(Clone, Copy)]
struct Situation {
    name: &'static str,
    now: Conditions,
    /// Further conditions, when they are observed again.
    later: Conditions,
    message: Option<Message>,
    queued: u64,
    peeked: Peeked,
    ring: u64,
    /// Bytes that the kernel counts and the direction does not.
    foreign: u64,
    has_tcp_ended: bool,
    has_ring_ended: bool,
    has_ring_failed: bool,
    is_drained: bool,
    is_unread: bool,
    has_room: bool,
    has_message_room: bool,
}

const CALM: Situation = Situation {
    name: "nothing",
    now: Conditions::PAIRED,
    later: Conditions::NONE,
    message: None,
    queued: 0,
    peeked: Peeked::Nothing,
    ring: 0,
    foreign: 0,
    has_tcp_ended: false,
    has_ring_ended: false,
    has_ring_failed: false,
    is_drained: true,
    is_unread: false,
    has_room: false,
    has_message_room: true,
};

const REMOTE: Conditions = Conditions::PAIRED.with(Conditions::BETWEEN_HOSTS);
const ENDED: Situation =
    Situation { name: "TCP ended", has_tcp_ended: true, peeked: Peeked::End, ..CALM };

/// The ring to another host has failed, which is observed as an end of the ring, and as drained.
const FAILED: Situation = Situation {
    name: "remote, failed",
    now: REMOTE.with(Conditions::RING_FAILED),
    has_ring_ended: true,
    has_ring_failed: true,
    ..CALM
};
/// The same, before the failure is observed.
const FAILS: Situation = Situation {
    name: "remote, fails meanwhile",
    now: REMOTE,
    later: Conditions::RING_FAILED,
    ..FAILED
};

fn on(condition: Conditions) -> Conditions {
    CALM.now.with(condition)
}

fn receiving() -> Vec<Situation> {
    use Conditions as C;
    let down = Some(Message::Down);
    vec![
        CALM,
        Situation { name: "no ring", now: C::NONE, ..CALM },
        Situation { name: "2 on TCP", queued: 2, peeked: Peeked::Bytes, ..CALM },
        Situation { name: "2 on the ring", ring: 2, ..CALM },
        Situation { name: "Up at 3", message: Some(Message::Up { offset: 3 }), ring: 2, ..CALM },
        Situation { name: "Up behind", message: Some(Message::Up { offset: 0 }), ..CALM },
        Situation { name: "Down", message: down, ..CALM },
        Situation { name: "Down, 2 on the ring", message: down, ring: 2, ..CALM },
        Situation { name: "no room for messages", has_message_room: false, ..CALM },
        Situation { name: "pinned", now: on(C::PINNED), ..CALM },
        Situation { name: "pinned, Down", now: on(C::PINNED), message: down, ..CALM },
        Situation { name: "kernel-only waiter", now: on(C::KERNEL_ONLY_WAITER), ..CALM },
        Situation { name: "foreign use", foreign: 1, ..CALM },
        Situation { name: "urgent byte", peeked: Peeked::UrgentMark, ..CALM },
        Situation {
            name: "channel changed, 2 on TCP",
            now: on(C::CHANNEL_CHANGED.with(C::HAS_RECEIVED)),
            queued: 2,
            peeked: Peeked::Bytes,
            ..CALM
        },
        Situation {
            name: "received, urgent byte",
            now: on(C::HAS_RECEIVED),
            peeked: Peeked::UrgentMark,
            ..CALM
        },
        Situation { name: "socket check due", now: on(C::SOCKET_CHECK_DUE), ..CALM },
        Situation { now: on(C::SOCKET_CHECK_DUE), ..ENDED },
        Situation {
            name: "TCP ended, unread",
            now: on(C::SOCKET_CHECK_DUE),
            is_unread: true,
            ..ENDED
        },
        Situation { name: "both ended", has_ring_ended: true, ..ENDED },
        Situation { name: "ring ended", has_ring_ended: true, ..CALM },
        Situation {
            name: "ring ended, 2 on TCP",
            has_ring_ended: true,
            queued: 2,
            peeked: Peeked::Bytes,
            ..CALM
        },
        Situation { name: "shut reading", now: on(C::RECEIVING_ENDED), ..ENDED },
        Situation { name: "remote, TCP ended", now: REMOTE.with(C::SOCKET_CHECK_DUE), ..ENDED },
        Situation { name: "remote, both ended", now: REMOTE, has_ring_ended: true, ..ENDED },
        Situation {
            name: "remote, end overdue",
            now: REMOTE.with(C::END_OVERDUE).with(C::SOCKET_CHECK_DUE),
            ..ENDED
        },
        Situation { name: "broken", now: on(C::BROKEN), ..ENDED },
        Situation { name: "error on TCP", peeked: Peeked::Error, has_tcp_ended: true, ..CALM },
        Situation {
            name: "error on TCP, Up at 1",
            message: Some(Message::Up { offset: 1 }),
            peeked: Peeked::Error,
            ..ENDED
        },
        Situation { name: "shut reading meanwhile", later: C::RECEIVING_ENDED, ..ENDED },
        FAILED,
        Situation {
            name: "remote, failed, TCP ended",
            has_tcp_ended: true,
            peeked: Peeked::End,
            ..FAILED
        },
        FAILS,
        Situation {
            name: "remote, fails meanwhile, TCP ended",
            has_tcp_ended: true,
            peeked: Peeked::End,
            ..FAILS
        },
        Situation { name: "remote, broken", now: REMOTE.with(C::BROKEN), ..ENDED },
    ]
}

fn sending() -> Vec<Situation> {
    use Conditions as C;
    let (ready, leave) = (Some(Message::Ready), Some(Message::Leave));
    vec![
        CALM,
        Situation { name: "no ring", now: C::NONE, ..CALM },
        Situation { name: "room", has_room: true, ..CALM },
        Situation { name: "Ready", message: ready, has_room: true, ..CALM },
        Situation {
            name: "Ready, no room for Up",
            message: ready,
            has_message_room: false,
            ..CALM
        },
        Situation { name: "Ready, foreign use", message: ready, foreign: 1, ..CALM },
        Situation { name: "Ready, ended", now: on(C::SENDING_ENDED), message: ready, ..CALM },
        Situation { name: "Leave", message: leave, has_room: true, ..CALM },
        Situation { name: "pinned", now: on(C::PINNED), has_room: true, ..CALM },
        Situation { name: "pinned, no room", now: on(C::PINNED), has_message_room: false, ..CALM },
        Situation { name: "spill due", now: on(C::SPILL_DUE), ..CALM },
        Situation { name: "kernel call", now: on(C::KERNEL_CALL), has_room: true, ..CALM },
        Situation {
            name: "socket check due",
            now: on(C::SOCKET_CHECK_DUE),
            has_room: true,
            ..CALM
        },
        Situation { now: on(C::SOCKET_CHECK_DUE), has_room: true, ..ENDED },
        Situation { name: "unread", is_unread: true, ..CALM },
        Situation { name: "ring closed", has_ring_ended: true, ..CALM },
        Situation { name: "remote, ring closed", now: REMOTE, has_ring_ended: true, ..CALM },
        Situation {
            name: "remote, spill due",
            now: REMOTE.with(C::SPILL_DUE),
            is_drained: false,
            ..CALM
        },
        Situation { name: "remote, drained", now: REMOTE, ..CALM },
        Situation {
            name: "remote, silent",
            now: REMOTE.with(C::DEVICE_SILENT),
            is_drained: false,
            ..CALM
        },
        FAILED,
        Situation { name: "remote, failed, Ready", message: ready, ..FAILED },
        Situation { name: "remote, failed, pinned", now: FAILED.now.with(C::PINNED), ..FAILED },
        Situation {
            name: "remote, failed, pinned, refuses",
            now: FAILED.now.with(C::PINNED),
            has_message_room: false,
            ..FAILED
        },
        Situation {
            name: "remote, failed, kernel call, refuses",
            now: FAILED.now.with(C::KERNEL_CALL),
            has_message_room: false,
            ..FAILED
        },
        Situation {
            name: "kernel call, no room for Down",
            now: on(C::KERNEL_CALL),
            has_message_room: false,
            ..CALM
        },
        FAILS,
    ]
}

impl Situation {
    fn observe(&self, observation: Observation, counted: u64) -> Fact {
        let counts = self.message.map_or(Counts::default(), |m| Counts::default().after(m));
        let up_offset = match self.message {
            Some(Message::Up { offset }) => offset,
            _ => 0,
        };
        let messages = ReceivedMessages { counts, up_offset };
        match observation {
            Observation::Messages | Observation::PolledMessages => Fact::Messages(messages),
            Observation::AllMessages => Fact::AllMessages(messages),
            Observation::Queued => Fact::Queued(self.queued),
            Observation::KernelRead | Observation::KernelWritten => {
                Fact::KernelCount(Some(counted + self.foreign))
            }
            Observation::TcpEnded => Fact::TcpEnded(self.has_tcp_ended),
            Observation::TcpHasMore => Fact::TcpHasMore(self.queued != 0),
            Observation::TcpEndsCall => Fact::TcpEndsCall(self.peeked == Peeked::UrgentMark),
            Observation::Peek => Fact::Peeked(self.peeked),
            Observation::RingBytes => Fact::RingBytes(self.ring),
            Observation::RingEnd => Fact::RingEnd(self.has_ring_ended),
            Observation::Drained => Fact::Drained(self.is_drained),
            Observation::LeftUnread => Fact::LeftUnread(self.is_unread),
            Observation::PeerGone => Fact::PeerGone(self.has_tcp_ended),
        }
    }

    /// The outcome of a read that was asked for; `None` if it returns bytes.
    fn read(&self, read: Read) -> Option<Fact> {
        match read {
            Read::Tcp { .. } if self.peeked == Peeked::Bytes => None,
            Read::Tcp { .. } if self.has_tcp_ended => Some(Fact::TcpEof),
            Read::Tcp { .. } => Some(Fact::TcpEmpty),
            Read::Ring if self.ring != 0 => None,
            Read::Ring if self.has_ring_failed => Some(Fact::RingFailed),
            Read::Ring if self.has_ring_ended => Some(Fact::RingEof),
            Read::Ring => Some(Fact::RingEmpty),
            _ => None,
        }
    }

    fn write(&self, write: Write) -> Option<Fact> {
        match write {
            Write::Tcp if !self.has_room => Some(Fact::TcpFull),
            Write::Ring if self.has_ring_failed => Some(Fact::RingFailed),
            Write::Ring if self.has_ring_ended => Some(Fact::RingClosed),
            Write::Ring if !self.has_room => Some(Fact::RingFull),
            _ => None,
        }
    }
}

/// What the table shows of a direction.
trait Shown: DirectionSwitch + Copy {
    fn counted(&self) -> u64;
    fn place(&self) -> String;
}

impl<R: Rules> Shown for Receiver<R> {
    fn counted(&self) -> u64 {
        self.tcp_bytes
    }

    fn place(&self) -> String {
        let declined = if self.was_refused != 0 { ", refused" } else { "" };
        format!("{:?}{declined}", self.source)
    }
}

impl<R: Rules> Shown for Sender<R> {
    fn counted(&self) -> u64 {
        self.tcp_bytes
    }

    fn place(&self) -> String {
        let refused = if self.has_refused != 0 { ", refused" } else { "" };
        format!("{:?}{refused}", self.sink)
    }
}

/// The steps of a query until its answer, and where the direction is then.
fn follow<T: Shown, D: Debug + Copy>(
    mut at: T,
    situation: &Situation,
    query: impl Fn(&mut T, &mut Seen) -> Step<D>,
    outcome: impl Fn(D) -> Option<Fact>,
) -> String {
    let mut now = situation.now;
    let mut seen = Seen::new(now);
    let mut text = String::new();
    for _ in 0..40 {
        match query(&mut at, &mut seen) {
            Step::Observe(observation) => {
                write!(text, "{observation:?} ").unwrap();
                seen.note::<Wire>(situation.observe(observation, at.counted()), || {
                    now.with(situation.later)
                });
            }
            Step::Send(message) => {
                write!(text, "send-{message:?} ").unwrap();
                at.note_send(message, situation.has_message_room, &mut seen);
            }
            Step::Pin(cause) => {
                write!(text, "pin-{} ", pin(cause)).unwrap();
                now = now.with(Conditions::PINNED);
                seen.pinned();
            }
            Step::Done(done) => match outcome(done) {
                Some(fact) => {
                    write!(text, "{done:?}:{fact:?} ").unwrap();
                    seen.note::<Wire>(fact, || now.with(situation.later));
                }
                None => return format!("{text}=> {done:?} [{}]", at.place()),
            },
        }
    }
    panic!("{}: no answer: {text}", situation.name);
}

fn pin(cause: Cause) -> &'static str {
    match cause {
        Cause::ForeignUse => "foreign-use",
        Cause::Urgent => "urgent",
        Cause::RingFailed => "ring-failed",
    }
}

fn line(out: &mut String, place: impl Debug, situation: &Situation, steps: &str) {
    writeln!(out, "{place:?} | {} | {steps}", situation.name).unwrap();
}

fn receivers() -> [Receiver; 4] {
    let at = |source, limit| {
        let mut at = Receiver::after(1);
        (at.source, at.limit) = (source, limit);
        at
    };
    [at(Source::Tcp, 0), at(Source::Invited, 0), at(Source::DrainingTcp, 3), at(Source::Ring, 0)]
}

fn senders() -> [Sender; 3] {
    [Sink::Tcp, Sink::Ring, Sink::DrainingRing].map(|sink| {
        let mut at = Sender::after(1);
        (at.sink, at.ring_bytes) = (sink, 1);
        at
    })
}

fn print_receiving<D: Debug + Copy>(
    out: &mut String,
    title: &str,
    query: impl Fn(&mut Receiver, &mut Seen) -> Step<D>,
    outcome: impl Fn(&Situation, D) -> Option<Fact>,
) {
    writeln!(out, "\n## {title}\n").unwrap();
    for at in receivers() {
        for situation in receiving() {
            let steps = follow(at, &situation, &query, |done| outcome(&situation, done));
            line(out, at.source, &situation, &steps);
        }
    }
}

fn print_sending<D: Debug + Copy>(
    out: &mut String,
    title: &str,
    query: impl Fn(&mut Sender, &mut Seen) -> Step<D>,
    outcome: impl Fn(&Situation, D) -> Option<Fact>,
) {
    writeln!(out, "\n## {title}\n").unwrap();
    for at in senders() {
        for situation in sending() {
            let steps = follow(at, &situation, &query, |done| outcome(&situation, done));
            line(out, at.sink, &situation, &steps);
        }
    }
}

fn print() -> String {
    let mut out = String::from(
        "The switch, as its test prints it:\n\
         place | situation | observations and messages => answer [place after it].\n\
         One byte has come by TCP; the peer moved at byte 3 where it matters.\n",
    );
    print_receiving(&mut out, "read", Receiver::read, |s, read| s.read(read));
    print_receiving(&mut out, "poll_input", Receiver::poll_input, |_, _| None);
    print_receiving(&mut out, "count_readable", Receiver::count_readable, |_, _| None);
    print_receiving(&mut out, "leave", Receiver::leave, |_, _| None);
    print_receiving(&mut out, "peek_order", |at, seen| at.peek_order(seen), |_, _| None);
    print_receiving(&mut out, "read_continues", |at, seen| at.read_continues(seen), |_, _| None);
    print_sending(&mut out, "write", Sender::write, |s, write| s.write(write));
    print_sending(&mut out, "poll_output", Sender::poll_output, |s, output| match output {
        super::Output::Ring if !s.has_room => Some(Fact::RingFull),
        _ => None,
    });
    print_sending(&mut out, "settle", Sender::settle, |_, _| None);
    out
}

#[test]
fn the_table_is_the_reviewed_one() {
    let table = print();
    assert!(table == SNAPSHOT, "table.snap should be:\n{table}");
}

/// The sizes are those that the documentation names.
#[test]
fn directions_are_as_large_as_documented() {
    assert_eq!(size_of::<Receiver>(), 48);
    assert_eq!(size_of::<Sender>(), 32);
    assert_eq!((align_of::<Receiver>(), align_of::<Sender>()), (8, 8));
}
