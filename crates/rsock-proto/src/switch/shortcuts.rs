//! Compares the shortcuts, which spare a call the table, with the table.

use super::receive::Source;
use super::send::Sink;
use super::{
    Conditions, Counts, Fact, Input, KernelInput, Message, Read, ReceivedMessages, Receiver,
    RingInput, Seen, Sender, Step, Wire,
};
use super::{Observation, WaitFor, Write};

fn received(message: Option<Message>) -> ReceivedMessages {
    let counts = message.map_or(Counts::default(), |m| Counts::default().after(m));
    ReceivedMessages { counts, up_offset: 0 }
}

/// The first observation that a query asks for, and its step after that.
fn after_one_observation<D>(
    now: Conditions,
    messages: ReceivedMessages,
    mut query: impl FnMut(&mut Seen) -> Step<D>,
) -> Option<(Observation, Step<D>)> {
    let mut seen = Seen::new(now);
    let Step::Observe(observation @ (Observation::Messages | Observation::PolledMessages)) =
        query(&mut seen)
    else {
        return None;
    };
    seen.note::<Wire>(Fact::Messages(messages), || now);
    Some((observation, query(&mut seen)))
}

#[test]
fn a_write_goes_to_the_ring_at_once_where_the_table_says_so() {
    let mut n_direct = 0;
    for sink in [Sink::Tcp, Sink::Ring, Sink::DrainingRing] {
        for message in [None, Some(Message::Leave), Some(Message::Ready)] {
            let messages = received(message);
            for now in Conditions::every() {
                let mut at: Sender = Sender::after(1);
                (at.sink, at.ring_bytes) = (sink, 1);
                let is_direct = at.writes_ring(now.flags(), messages);
                let answer = after_one_observation(now, messages, |seen| at.write(seen));
                let is_ring =
                    matches!(answer, Some((Observation::Messages, Step::Done(Write::Ring))));
                assert_eq!(is_direct, is_ring, "{sink:?}, {message:?}, {now:?}: {answer:?}");
                n_direct += u32::from(is_direct);
            }
        }
    }
    assert!(n_direct != 0);
}

/// A pinned receiver that has asked its peer to leave the ring may read it too; the shortcut leaves
/// that rare case to the table.
#[test]
fn a_read_takes_the_ring_at_once_only_where_the_table_says_so() {
    let mut n_direct = 0;
    for source in [Source::Tcp, Source::Invited, Source::DrainingTcp, Source::Ring] {
        for message in [None, Some(Message::Down), Some(Message::Up { offset: 3 })] {
            let messages = received(message);
            for now in Conditions::every() {
                let mut at: Receiver = Receiver::after(1);
                at.source = source;
                let is_direct = at.reads_ring(now.flags(), messages);
                let answer = after_one_observation(now, messages, |seen| at.read(seen));
                let is_ring =
                    matches!(answer, Some((Observation::PolledMessages, Step::Done(Read::Ring))));
                let is_pinned = now.has(Conditions::PINNED);
                assert!(
                    is_direct == is_ring || !is_direct && is_pinned,
                    "{source:?}, {message:?}, {now:?}: {answer:?}"
                );
                n_direct += u32::from(is_direct);
            }
        }
    }
    assert!(n_direct != 0);
}

#[test]
fn a_look_at_the_ring_suffices_only_where_the_table_says_so() {
    let mut n_direct = 0;
    for source in [Source::Tcp, Source::Invited, Source::DrainingTcp, Source::Ring] {
        for message in [None, Some(Message::Down), Some(Message::Up { offset: 3 })] {
            let messages = received(message);
            for now in Conditions::every() {
                let mut at: Receiver = Receiver::after(1);
                at.source = source;
                if !at.polls_ring(now.flags(), messages) {
                    continue;
                }
                let before = at;
                let answer = after_one_observation(now, messages, |seen| at.poll_input(seen));
                let answer = answer.map(|(_, step)| step);
                let is_ring = matches!(
                    answer,
                    Some(Step::Done(Input {
                        kernel: KernelInput::End,
                        ring: RingInput::Input,
                        fault: None
                    }))
                );
                assert!(is_ring, "{source:?}, {message:?}, {now:?}: {answer:?}");
                assert_eq!(at, before, "a look changes nothing");
                n_direct += 1;
            }
        }
    }
    assert!(n_direct != 0);
}

#[test]
fn a_read_ends_on_the_ring_at_once_only_where_the_table_says_so() {
    let mut n_direct = 0;
    for message in [None, Some(Message::Down), Some(Message::Up { offset: 3 })] {
        let messages = received(message);
        for (now, ring) in Conditions::every().flat_map(|now| [(now, 0), (now, 5)]) {
            let mut at: Receiver = Receiver::after(1);
            at.source = Source::Ring;
            if !at.read_ends_on_ring(now.flags(), messages) {
                continue;
            }
            let mut seen = Seen::new(now);
            let answer = loop {
                let fact = match at.read_continues(&seen) {
                    Step::Observe(Observation::Messages) => Fact::Messages(messages),
                    Step::Observe(Observation::RingBytes) => Fact::RingBytes(ring),
                    answer => break answer,
                };
                seen.note::<Wire>(fact, || now);
            };
            assert_eq!(answer, Step::Done(false), "{message:?}, {now:?}, {ring}");
            n_direct += 1;
        }
    }
    assert!(n_direct != 0);
}

#[test]
fn a_read_of_an_empty_ring_waits_at_once_only_where_the_table_says_so() {
    let mut n_waits = 0;
    for message in [None, Some(Message::Down), Some(Message::Up { offset: 3 })] {
        let messages = received(message);
        for now in Conditions::every() {
            let mut at: Receiver = Receiver::after(1);
            at.source = Source::Ring;
            let waits = at.waits_for_ring(now.flags(), messages);
            if !at.reads_ring(now.flags(), messages) {
                assert!(!waits, "{message:?}, {now:?}");
                continue;
            }
            let mut seen = Seen::new(now);
            let answer = loop {
                let fact = match at.read(&mut seen) {
                    Step::Observe(Observation::PolledMessages) => Fact::Messages(messages),
                    Step::Done(Read::Ring) => Fact::RingEmpty,
                    answer => break answer,
                };
                seen.note::<Wire>(fact, || now);
            };
            let is_wait = answer == Step::Done(Read::Wait(WaitFor::Ring));
            assert_eq!(waits, is_wait, "{message:?}, {now:?}: {answer:?}");
            n_waits += u32::from(waits);
        }
    }
    assert!(n_waits != 0);
}
