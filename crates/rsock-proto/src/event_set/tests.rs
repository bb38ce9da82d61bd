//! The rules one by one, and every short run of them beside a list of ready watches as the kernel
//! keeps it.

use super::*;

const IN: Events = Events::INPUT;
const OUT: Events = Events::OUTPUT;
const RDHUP: Events = Events::PEER_ENDED;
const ET: Events = Events::EDGE;
const ONE_SHOT: Events = Events::ONE_SHOT;

/// An open stream without bytes, and with room.
fn open() -> ReadinessSnapshot {
    ReadinessSnapshot { has_room: true, ..ReadinessSnapshot::default() }
}

fn arrive(stream: &mut ReadinessSnapshot) {
    stream.is_readable = true;
    stream.news.arrivals += 1;
}

fn end_input(stream: &mut ReadinessSnapshot) {
    stream.input_ended = true;
    stream.news.changes += 1;
}

/// What a wait reports, with the watch moved on.
fn wait(watch: &mut Watch, now: &ReadinessSnapshot) -> Events {
    let found = watch.inspect(now);
    *watch = found.next;
    found.report
}

#[test]
fn a_level_watch_reports_as_long_as_it_holds() {
    let mut stream = open();
    let mut watch = Watch::new(IN, &stream);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
    arrive(&mut stream);
    assert_eq!(wait(&mut watch, &stream), IN);
    let found = watch.inspect(&stream);
    assert_eq!((found.report, found.place), (IN, Place::Last));
    stream.is_readable = false;
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
}

#[test]
fn an_edge_watch_reports_each_arrival_once_even_if_nothing_was_read() {
    let mut stream = open();
    let mut watch = Watch::new(IN | ET, &stream);
    arrive(&mut stream);
    arrive(&mut stream);
    assert_eq!(wait(&mut watch, &stream), IN);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
    arrive(&mut stream);
    let found = watch.inspect(&stream);
    assert_eq!((found.report, found.place), (IN, Place::Out));
}

#[test]
fn an_arrival_that_was_read_before_the_wait_is_not_reported() {
    let mut stream = open();
    let mut watch = Watch::new(IN | ET, &stream);
    arrive(&mut stream);
    stream.is_readable = false;
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
    // Nor later: the look has taken the news.
    stream.is_readable = true;
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
}

#[test]
fn an_edge_watch_reports_once_what_is_ready_when_it_is_added_or_changed() {
    let mut stream = open();
    arrive(&mut stream);
    let mut watch = Watch::new(IN | ET, &stream);
    assert_eq!(wait(&mut watch, &stream), IN);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
    watch = Watch::new(IN | ET, &stream);
    assert_eq!(wait(&mut watch, &stream), IN);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
}

#[test]
fn an_arrival_reports_room_too_and_room_alone_is_no_news() {
    let mut stream = open();
    let mut watch = Watch::new(IN | OUT | ET, &stream);
    assert_eq!(wait(&mut watch, &stream), OUT);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
    arrive(&mut stream);
    assert_eq!(wait(&mut watch, &stream), IN | OUT);
    let mut output = Watch::new(OUT | ET, &stream);
    assert_eq!(wait(&mut output, &stream), OUT);
    arrive(&mut stream);
    assert_eq!(wait(&mut output, &stream), Events::NONE);
}

#[test]
fn room_after_none_is_news_for_output() {
    let mut stream = open();
    let mut watch = Watch::new(OUT | ET, &stream);
    assert_eq!(wait(&mut watch, &stream), OUT);
    stream.has_room = false;
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
    stream.has_room = true;
    stream.news.room += 1;
    assert_eq!(wait(&mut watch, &stream), OUT);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
}

#[test]
fn a_one_shot_watch_is_silent_until_it_is_changed() {
    let mut stream = open();
    let mut watch = Watch::new(IN | ONE_SHOT, &stream);
    arrive(&mut stream);
    assert_eq!(wait(&mut watch, &stream), IN);
    arrive(&mut stream);
    end_input(&mut stream);
    assert!(!watch.has_news(&stream));
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
    watch = Watch::new(IN | RDHUP | ONE_SHOT, &stream);
    assert_eq!(wait(&mut watch, &stream), IN | RDHUP);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
}

#[test]
fn what_came_while_a_one_shot_watch_was_spent_is_no_news_if_it_was_read() {
    let mut stream = open();
    let mut watch = Watch::new(IN | ET | ONE_SHOT, &stream);
    arrive(&mut stream);
    assert_eq!(wait(&mut watch, &stream), IN);
    arrive(&mut stream);
    stream.is_readable = false;
    watch = Watch::new(IN | ET | ONE_SHOT, &stream);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
}

#[test]
fn a_half_close_is_input_and_the_end_together() {
    let mut stream = open();
    let mut watch = Watch::new(IN | RDHUP | ET, &stream);
    arrive(&mut stream);
    end_input(&mut stream);
    assert_eq!(wait(&mut watch, &stream), IN | RDHUP);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
}

#[test]
fn errors_and_hang_ups_are_reported_to_a_watch_that_asks_for_nothing() {
    let mut stream = open();
    let mut watch = Watch::new(ET, &stream);
    arrive(&mut stream);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
    end_input(&mut stream);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
    stream.output_ended = true;
    stream.has_error = true;
    stream.news.changes += 1;
    assert_eq!(wait(&mut watch, &stream), Events::ERROR | Events::HANG_UP);
    assert_eq!(wait(&mut watch, &stream), Events::NONE);
}

#[test]
fn only_the_bits_that_were_asked_for_come_back() {
    let mut stream = open();
    arrive(&mut stream);
    let asked = Events::from_bits(0x40);
    assert_eq!(wait(&mut Watch::new(asked, &stream), &stream).bits(), 0x40);
}

/// A watch as the kernel keeps it: callbacks put it into a list, and waits take it from there.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    events: u32,
    is_listed: bool,
    /// A look has found no room, so that a callback comes with the next room (`SOCK_NOSPACE`).
    awaits_room: bool,
}

impl Kernel {
    const FLAGS: u32 = 0xf << 28;

    /// `ep_poll_callback`. A key of 0 says nothing about what happened.
    fn callback(&mut self, key: u32) {
        let is_enabled = self.events & !Self::FLAGS != 0;
        if is_enabled && (key == 0 || key & self.events != 0) {
            self.is_listed = true;
        }
    }

    /// `ep_insert`, and the same part of `ep_modify`.
    fn set(&mut self, events: u32, ready: u32) {
        self.awaits_room |= ready & OUT.bits() == 0;
        self.events = events | 0x18;
        self.is_listed |= ready & self.events != 0;
    }

    /// `ep_send_events`, with one watch.
    fn wait(&mut self, ready: u32) -> u32 {
        if !std::mem::take(&mut self.is_listed) {
            return 0;
        }
        self.awaits_room |= ready & OUT.bits() == 0;
        let report = ready & self.events & !Self::FLAGS;
        if report == 0 {
            return 0;
        }
        if self.events & 1 << 30 != 0 {
            self.events &= Self::FLAGS;
        } else if self.events & 1 << 31 == 0 {
            self.is_listed = true;
        }
        report
    }
}

/// What may happen to a stream and its watch.
const HAPPENS: usize = 11;

fn happen(what: usize, stream: &mut ReadinessSnapshot, watch: &mut Watch, kernel: &mut Kernel) {
    let was_closed = stream.input_ended && stream.output_ended;
    match what {
        0 if !stream.input_ended => {
            arrive(stream);
            kernel.callback(0xc3);
        }
        1 => stream.is_readable = false,
        2 => stream.has_room = false,
        3 if !stream.has_room => {
            stream.has_room = true;
            stream.news.room += 1;
            kernel.awaits_room = false;
            kernel.callback(0x304);
        }
        4 if !stream.input_ended => {
            end_input(stream);
            kernel.callback(0);
            kernel.callback(0xc3);
        }
        5 if !stream.output_ended => {
            stream.output_ended = true;
            stream.news.changes += 1;
            kernel.callback(0);
        }
        6 if !was_closed => {
            (stream.has_error, stream.input_ended, stream.output_ended) = (true, true, true);
            stream.news.changes += 1;
            kernel.callback(0);
        }
        9 if !kernel.awaits_room => stream.has_room = true,
        7 => {
            let asked = IN | OUT | ET;
            *watch = Watch::new(asked, stream);
            kernel.set(asked.bits(), stream.ready().bits());
        }
        8 => {
            let asked = IN | RDHUP | ONE_SHOT;
            *watch = Watch::new(asked, stream);
            kernel.set(asked.bits(), stream.ready().bits());
        }
        _ => {}
    }
}

#[test]
fn every_short_run_reports_what_the_kernels_list_reports() {
    const LENGTH: u32 = 5;
    let asked = [
        IN,
        IN | OUT,
        OUT,
        RDHUP,
        Events::NONE,
        IN | ET,
        OUT | ET,
        IN | OUT | ET,
        RDHUP | ET,
        IN | ONE_SHOT,
        IN | OUT | ET | ONE_SHOT,
    ];
    for asked in asked {
        for mut run in 0..HAPPENS.pow(LENGTH) {
            let name = run;
            let mut stream = open();
            let mut watch = Watch::new(asked, &stream);
            let mut kernel = Kernel { events: 0, is_listed: false, awaits_room: false };
            kernel.set(asked.bits(), stream.ready().bits());
            for _ in 0..LENGTH {
                let what = run % HAPPENS;
                run /= HAPPENS;
                happen(what, &mut stream, &mut watch, &mut kernel);
                if what == HAPPENS - 1 {
                    let reported = wait(&mut watch, &stream).bits();
                    let expected = kernel.wait(stream.ready().bits());
                    assert_eq!(reported, expected, "{asked:?}, run {name}");
                }
            }
            let (reported, expected) =
                (wait(&mut watch, &stream).bits(), kernel.wait(stream.ready().bits()));
            assert_eq!(reported, expected, "{asked:?}, run {name}");
        }
    }
}
