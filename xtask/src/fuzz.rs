//! `cargo xtask fuzz`: the fuzz targets under libFuzzer, one after the other.

use crate::nightly;
use crate::steps::{self, Done, Failure};
use clap::Args;
use std::fs;
use std::path::Path;

/// What to fuzz, and for how long.
#[derive(Debug, Args)]
pub(crate) struct Fuzz {
    /// A target of fuzz/README.md; all of them if none is named
    target: Option<String>,
    /// Minutes for each target
    #[arg(long, default_value_t = 1)]
    minutes: u64,
}

/// Runs the targets; the first finding ends it.
pub(crate) fn run(fuzz: &Fuzz) -> Done {
    nightly::require("fuzzing", &[])?;
    if !steps::is_available("cargo-fuzz", "--version") {
        return Err(Failure::new("fuzzing needs cargo-fuzz: cargo install cargo-fuzz"));
    }
    let known = targets()?;
    let chosen = match &fuzz.target {
        None => known,
        Some(target) if known.contains(target) => vec![target.clone()],
        Some(target) => {
            return Err(Failure::new(format!(
                "no target `{target}`; there are: {}",
                known.join(", ")
            )));
        }
    };
    let seconds = format!("-max_total_time={}", fuzz.minutes.saturating_mul(60));
    for target in chosen {
        let found = steps::root().join("fuzz/target/found").join(&target);
        fs::create_dir_all(&found).map_err(|e| Failure::io(found.display(), &e))?;
        let mut command = nightly::cargo();
        command.args(["fuzz", "run", &target]).arg(found);
        command.arg(Path::new("fuzz/corpus").join(&target));
        command.args(["--", &seconds, "-max_len=4096", "-print_final_stats=1"]);
        steps::run(&mut command)?;
    }
    Ok(())
}

/// The names of all targets, in order.
fn targets() -> Done<Vec<String>> {
    let dir = steps::root().join("fuzz/fuzz_targets");
    let files = fs::read_dir(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let name = |file: fs::DirEntry| Some(file.path().file_stem()?.to_str()?.to_owned());
    let mut names: Vec<_> = files.filter_map(|file| name(file.ok()?)).collect();
    names.sort();
    Ok(names)
}
