//! Two ends of a connection as two processes, each with or without the preload library.
//!
//! The programs in `tests/c` and `tests/scripts` print what they saw. The four pairs must not
//! differ: same output, same exit status.

use rsock_tests::tools::Tool;
use rsock_tests::{Running, Watchdog, preload_library};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Many times what any of them needs.
const LIMIT: Duration = Duration::from_secs(180);

/// What one process left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) status: String,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// What a pair left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) server: End,
    pub(crate) client: End,
}

/// Which ends have the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shim {
    pub(crate) server: bool,
    pub(crate) client: bool,
}

/// All pairs with the library in at least one end.
pub(crate) const MIXED: [Shim; 3] = [
    Shim { server: true, client: true },
    Shim { server: true, client: false },
    Shim { server: false, client: true },
];

/// Starts both ends and waits for them. The server prints `port N` first, which the client gets
/// as its last argument.
pub(crate) fn pair(mut server: Command, mut client: Command) -> Outcome {
    let mut server = Running::spawn(&mut server).expect("the server starts");
    let mut out = BufReader::new(server.stdout.take().expect("piped"));
    let mut first = String::new();
    out.read_line(&mut first).expect("the server's output");
    let Some(port) = first.strip_prefix("port ") else {
        let mut err = String::new();
        let _ = server.stderr.take().expect("piped").read_to_string(&mut err);
        panic!("the server says {first:?}, not its port: {err}");
    };
    let client = Running::spawn(client.arg(port.trim())).expect("the client starts");
    let client = client.output().expect("the client's output");
    let mut server_out = String::new();
    out.read_to_string(&mut server_out).expect("the server's output");
    let rest = server.output().expect("the server's end");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome {
        server: End { status: rest.status.to_string(), out: server_out, err: text(&rest.stderr) },
        client: End {
            status: client.status.to_string(),
            out: text(&client.stdout),
            err: text(&client.stderr),
        },
    }
}

/// A command that starts one end, with pipes to its output.
pub(crate) fn command(program: impl Into<Tool>, with_shim: bool, args: &[&str]) -> Command {
    let mut command = program.into().command();
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("LD_PRELOAD");
    if with_shim {
        command.env("LD_PRELOAD", preload_library());
    }
    command
}

/// Runs `f` in a thread of that name, and ends the test, saying the name, if it hangs.
pub(crate) fn watched<R: Send + 'static>(
    name: String,
    f: impl FnOnce() -> R + Send + 'static,
) -> R {
    let run = move || {
        let _watchdog = Watchdog::new(LIMIT);
        f()
    };
    let thread = thread::Builder::new().name(name).spawn(run).expect("a thread");
    thread.join().expect("reported above")
}
