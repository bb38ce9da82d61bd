//! The driver's command line: which schedules are run, and what is printed about them.

use crate::driver::{self, MODES, Mode, Outcome};
use crate::generate::{self, SHAPES};
use crate::schedule::Schedule;
use crate::{shrink, sys};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What is asked for.
#[derive(Clone, Debug, Default)]
struct Options {
    library: PathBuf,
    /// Of the first schedule; those after it have the numbers after it.
    seed: u64,
    nanoseconds: Option<u64>,
    schedules: Option<u64>,
    /// How often each is run.
    repeat: u64,
    shape: Option<String>,
    mode: Option<Mode>,
    /// Runs each schedule in one mode, the next one in the next.
    takes_turns: bool,
    /// A schedule in a file, instead of those of seeds.
    replay: Option<PathBuf>,
    is_json: bool,
    shrinks: bool,
    goes_on: bool,
    /// Closes nothing under a thread.
    is_gentle: bool,
}

/// Figures of all runs.
#[derive(Debug, Default)]
struct Figures {
    schedules: u64,
    with_kills: u64,
    runs: u64,
    connections: u64,
    bytes: u64,
    lost_resets: u64,
    failures: u64,
}

pub(crate) fn run(args: &[String]) -> ExitCode {
    let options = match Options::of(args) {
        Ok(options) => options,
        Err(what) => {
            eprintln!("torture: {what}");
            return ExitCode::from(2);
        }
    };
    sys::adopt_orphans();
    let is_alone = sys::own_network() && bring_up_loopback();
    let mut ports = Ports::new(is_alone);
    println!("torture: seed {}, {}", options.seed, options.library.display());
    let figures = torture(&options, &mut ports);
    print(&options, &figures);
    if figures.failures == 0 && figures.schedules > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn torture(options: &Options, ports: &mut Ports) -> Figures {
    let mut figures = Figures::default();
    let begin = sys::now();
    let limit = options.schedules.unwrap_or(u64::MAX);
    let mut said = begin;
    for i in 0..limit {
        let now = sys::now();
        if options.nanoseconds.is_some_and(|limit| now - begin >= limit) {
            break;
        }
        if now - said > PROGRESS {
            said = now;
            println!("torture: {} schedules, {} failures", figures.schedules, figures.failures);
        }
        let seed = options.seed.wrapping_add(i);
        let mut schedule = match &options.replay {
            Some(file) => Schedule::of_text(&fs::read_to_string(file).expect("the schedule")),
            None => generate::schedule(seed, options.shape.as_deref()),
        };
        schedule.settings.is_gentle |= u64::from(options.is_gentle);
        if !run_in_all_modes(options, ports, &schedule, seed, &mut figures) && !options.goes_on {
            break;
        }
        if options.replay.is_some() {
            break;
        }
    }
    figures
}

/// Whether none of the runs of a schedule failed.
fn run_in_all_modes(
    options: &Options,
    ports: &mut Ports,
    schedule: &Schedule,
    seed: u64,
    figures: &mut Figures,
) -> bool {
    let mut has_kills = false;
    figures.schedules += 1;
    for _ in 0..options.repeat.max(1) {
        let turn = u32::try_from(seed % 4).expect("below 4");
        let chosen = options.mode.or(options.takes_turns.then_some(turn));
        for mode in (0..4).filter(|mode| chosen.is_none_or(|chosen| chosen == *mode)) {
            let outcome = ports.run(schedule, mode, &options.library);
            figures.runs += 1;
            figures.connections += u64::from(outcome.n_connections);
            figures.bytes += outcome.n_checked;
            figures.lost_resets += outcome.n_lost_resets;
            has_kills |= outcome.has_kills;
            if let Some(failure) = outcome.failure {
                figures.failures += 1;
                figures.with_kills += u64::from(has_kills);
                let name = MODES[mode as usize];
                let shape = &schedule.shape;
                println!("torture: seed {seed} ({shape}), library at {name}: {}", failure.what);
                println!("{}", failure.details);
                keep(options, ports, schedule, mode, seed);
                return false;
            }
        }
    }
    figures.with_kills += u64::from(has_kills);
    true
}

/// Shrinks a failing schedule and leaves it in a file.
fn keep(options: &Options, ports: &mut Ports, schedule: &Schedule, mode: Mode, seed: u64) {
    let mut small = schedule.clone();
    if options.shrinks {
        println!("torture: shrinking {} operations", schedule.len());
        small = shrink::shrunk(schedule, |candidate| {
            let outcome = ports.run(candidate, mode, &options.library);
            outcome.failure.map(|failure| failure.what)
        });
    }
    let dir = options.library.parent().unwrap_or(Path::new("."));
    let file = dir.join(format!("torture-{seed}-{}.txt", MODES[mode as usize]));
    let text = small.to_text();
    println!("torture: {} operations are left:\n{text}", small.len());
    match fs::write(&file, text) {
        Ok(()) => println!(
            "torture: again: cargo xtask torture --replay {} --repeat 20, or --seed {seed} \
             --schedules 1 --repeat 20",
            file.display()
        ),
        Err(e) => println!("torture: {}: {e}", file.display()),
    }
}

fn print(options: &Options, figures: &Figures) {
    let Figures { schedules, with_kills, runs, connections, bytes, lost_resets, failures } =
        figures;
    if options.is_json {
        println!(
            "{{\"seed\":{},\"schedules\":{schedules},\"with_kills\":{with_kills},\"runs\":{runs},\
             \"connections\":{connections},\"bytes\":{bytes},\"lost_resets\":{lost_resets},\
             \"failures\":{failures}}}",
            options.seed
        );
    } else {
        println!(
            "torture: seed {}: {schedules} schedules, {with_kills} of them with kills, {runs} \
             runs, {connections} connections, {bytes} bytes checked, {lost_resets} resets lost by \
             kernel TCP, {failures} failures",
            options.seed
        );
    }
}

impl Options {
    fn of(args: &[String]) -> Result<Self, String> {
        let mut options = Self { shrinks: true, repeat: 1, ..Self::default() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            let number = |text: &String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
            match arg.as_str() {
                "--library" => options.library = value()?.into(),
                "--seed" => options.seed = number(value()?)?,
                "--seconds" => options.nanoseconds = Some(number(value()?)? * 1_000_000_000),
                "--schedules" => options.schedules = Some(number(value()?)?),
                "--repeat" => options.repeat = number(value()?)?,
                "--replay" => options.replay = Some(value()?.into()),
                "--json" => options.is_json = true,
                "--no-shrink" => options.shrinks = false,
                "--gentle" => options.is_gentle = true,
                "--keep-going" => options.goes_on = true,
                "--shape" => {
                    let shape = value()?;
                    if !SHAPES.iter().any(|(name, _)| name == shape) {
                        return Err(format!("no shape {shape}: {SHAPES:?}"));
                    }
                    options.shape = Some(shape.clone());
                }
                "--library-at" => {
                    let name = value()?;
                    if name == "turns" {
                        options.takes_turns = true;
                        continue;
                    }
                    let mode = MODES.iter().position(|mode| mode == name);
                    let mode = mode.ok_or_else(|| format!("{name} is none of {MODES:?}"))?;
                    options.mode = Some(u32::try_from(mode).expect("few"));
                }
                _ => return Err(format!("unknown option {arg}")),
            }
        }
        if options.nanoseconds.is_none() && options.schedules.is_none() && options.replay.is_none()
        {
            options.nanoseconds = Some(60_000_000_000);
        }
        Ok(options)
    }
}

/// Ports for each run that no run shortly before has had.
pub(crate) struct Ports {
    next: u16,
}

impl Ports {
    fn new(is_alone: bool) -> Self {
        let offset = if is_alone { 0 } else { std::process::id() % 20 };
        Self { next: FIRST_PORT + PORTS_OF_RUN * u16::try_from(offset).expect("small") }
    }

    /// Runs a schedule; again if another program has its listeners' ports.
    pub(crate) fn run(&mut self, schedule: &Schedule, mode: Mode, library: &Path) -> Outcome {
        loop {
            let port = self.next;
            let outcome = driver::run(schedule, mode, library, port);
            let used = u16::try_from(outcome.n_ports).unwrap_or(0) + PROCESSES_PORTS;
            self.next = port.saturating_add(used);
            if self.next > LAST_PORT - PORTS_OF_RUN {
                self.next = FIRST_PORT;
            }
            match &outcome.failure {
                Some(failure) if failure.what.contains("listening on port") => {}
                _ => return outcome,
            }
        }
    }
}

/// Below those that the kernel gives out, above those that programs are known by.
const FIRST_PORT: u16 = 10_000;
const LAST_PORT: u16 = 32_000;
/// What a run may need: listeners, and a client's for each connection, and some that are taken.
const PORTS_OF_RUN: u16 = 1000;
/// Those of listeners.
const PROCESSES_PORTS: u16 = 3;

/// How often the driver says that it lives.
const PROGRESS: u64 = 30_000_000_000;

pub(crate) fn bring_up_loopback() -> bool {
    std::process::Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status()
        .is_ok_and(|status| status.success())
}
