//! Random programs over the preload library, every byte and every answer of which is checked:
//! `cargo xtask torture`.
//!
//! One program in two parts. The driver draws schedules from seeds and judges; the workers, which
//! it starts with the library and without it, do what a schedule says. docs/reliability.md has the
//! rules.

mod descendants;
mod driver;
mod generate;
mod kernel_tcp;
mod pattern;
mod referee;
mod report;
mod rules;
mod schedule;
mod shared;
mod shrink;
mod soak;
mod sys;
mod torture;
mod worker;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.first().is_some_and(|role| role == "worker") {
        let process = args.get(1).and_then(|n| n.parse().ok()).expect("the number of a process");
        worker::main(process, args.get(2).is_some_and(|how| how == "resume"));
    }
    match args.first().map(String::as_str) {
        Some("soak") => soak::run(&args),
        Some("soak-server") => soak::server(),
        Some("soak-client") => soak::client(args.get(1).expect("the server's ports")),
        _ => torture::run(&args),
    }
}
