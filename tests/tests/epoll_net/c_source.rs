//! A program of calls as a C program of its own, to be run with the library and without.

use super::program::{Call, Layout};
use std::fmt::Write as _;

/// Functions that the steps of a program are made of.
const PRELUDE: &str = include_str!("prelude.c");

/// The text of a C program that makes `calls`, step by step, and prints what each returns.
pub(crate) fn c_source(seed: u64, layout: Layout, calls: &[Call]) -> String {
    let processes = match layout {
        Layout::One => 1,
        Layout::Two => 2,
    };
    let mut text = format!(
        "/* Program {seed}: cc -pthread -o steps steps.c; compare what `./steps` prints with\n \
         * what `LD_PRELOAD=librsock_preload.so ./steps` prints. */\n{PRELUDE}\n\
         int main(int argc, char **argv)\n{{\n\
         \t(void)warm, (void)fill, (void)drain, (void)empty, (void)error_of, (void)listen_at;\n\
         \t(void)accept_from, (void)connect_to, (void)ctl, (void)wait_in, (void)end_waits;\n\
         \t(void)poll_at, (void)select_at, (void)arm, (void)fork_here, (void)exit_child;\n\
         \tstart(argc, argv, {processes});\n"
    );
    for (n, call) in calls.iter().enumerate() {
        let p = call.process;
        let _ = match call.word {
            "exit" => writeln!(text, "\texit_child({p}, {n});"),
            _ => writeln!(
                text,
                "\tif (mine({p}, {n}, \"{call}\")) {{\n\t\t{};\n\t\tdone();\n\t}}",
                step(call)
            ),
        };
        if call.word == "warm" && call.a[1] < 0 {
            let (other, place) = (1 - p, -1 - call.a[1]);
            let rounds = call.a[3];
            let _ = writeln!(
                text,
                "\tif (role == {other}) {{\n\t\tawait_turn({n});\n\t\twarm(f[{place}], -1, 0, \
                 {rounds});\n\t}}"
            );
        }
    }
    let _ = writeln!(
        text,
        "\tawait_turn({});\n\tif (role == 0)\n\t\tusleep(50000);\n\treturn 0;\n}}",
        calls.len()
    );
    text
}

fn step(call: &Call) -> String {
    let [a, b, c, d, e] = call.a;
    match call.word {
        "listen" => format!("show(f[{a}] = listen_at({b}))"),
        "socket" => format!("show(f[{a}] = socket(AF_INET, SOCK_STREAM, 0))"),
        "connect" => format!("connect_to(f[{a}], {b}, {d})"),
        "refuse" => format!("connect_to(f[{a}], -1, 1)"),
        "accept" => format!("f[{a}] = accept_from(f[{b}])"),
        "send" => format!("show(send(f[{a}], room, {b}, MSG_NOSIGNAL))"),
        "recv" => format!("show(recv(f[{a}], room, {b}, 0))"),
        "peek" => format!("show(recv(f[{a}], room, {b}, MSG_PEEK))"),
        "empty" => format!("empty(f[{a}])"),
        "urgent" => format!("show(send(f[{a}], \"!\", 1, MSG_OOB | MSG_NOSIGNAL))"),
        "error" => format!("error_of(f[{a}])"),
        "shutdown" => format!("show(shutdown(f[{a}], {b}))"),
        "fill" => format!("fill(f[{a}])"),
        "drain" => format!("drain(f[{a}])"),
        "warm" if b < 0 => format!("warm(f[{a}], -1, {c}, {d})"),
        "warm" => format!("warm(f[{a}], f[{b}], {c}, {d})"),
        "close" => format!("show(close(f[{a}]))"),
        "dup" if c != 0 => format!("show(f[{b}] = fcntl(f[{a}], F_DUPFD_CLOEXEC, 0))"),
        "dup" => format!("show(f[{b}] = dup(f[{a}]))"),
        "dup2" => format!("show(dup2(f[{a}], f[{b}]))"),
        "pipe" => format!("int p[2]; show(pipe2(p, O_NONBLOCK)); f[{a}] = p[0]; f[{b}] = p[1]"),
        "eventfd" => format!("show(f[{a}] = eventfd({b}, EFD_NONBLOCK))"),
        "timerfd" => format!("show(f[{a}] = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK))"),
        "create" if b != 0 => format!("show(f[{a}] = epoll_create(1))"),
        "create" => format!("show(f[{a}] = epoll_create1(EPOLL_CLOEXEC))"),
        // Of a pipe all of it is taken, where the driver takes a byte.
        "put" => format!("uint64_t n = 1; show(write(f[{a}], &n, sizeof(n)))"),
        "take" => format!("uint64_t n; show(read(f[{a}], &n, sizeof(n)))"),
        "arm" => format!("arm(f[{a}], {b})"),
        "ctl" => format!("ctl(f[{a}], {}, f[{b}], {d:#x}, {e:#x}, {})", c & 0xff, c >> 8),
        "badcreate" if a != 0 => format!("show(epoll_create({}))", a - 1),
        "badcreate" => "show(epoll_create1(1))".to_owned(),
        "wait" | "begin" => {
            let is_begin = i32::from(call.word == "begin");
            format!("wait_in({}, f[{a}], {b}, {c}, {d}, {e}, {is_begin})", call.thread)
        }
        "end" => "end_waits()".to_owned(),
        "poll" => format!("poll_at({a}, {b}, {c}, {d}, {e})"),
        "select" => format!("select_at({a}, {b}, {c}, {d}, {e})"),
        "fork" => "fork_here()".to_owned(),
        word => unreachable!("{word} is no call of a program"),
    }
}
