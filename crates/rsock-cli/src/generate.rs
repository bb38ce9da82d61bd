//! `rsock generate`: man pages and shell completions, from the definitions of the command line.
//!
//! A subcommand of the installed program rather than a build script or a library: `cargo xtask
//! dist` runs it for the packages without compiling the command a second time, and a user of `cargo
//! install` can run it, too.

use crate::error::Error;
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Write the man pages and shell completions of this command
///
/// DIR gets the directories man1 and completions.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// Where to write them
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: PathBuf,
}

/// Writes all files, over those of an earlier run.
pub(crate) fn run(args: &Args, command: &clap::Command) -> Result<(), Error> {
    let manual = directory(&args.dir, "man1")?;
    let completions = directory(&args.dir, "completions")?;
    let mut command = visible(command);
    command.build();
    pages(&command, &manual).map_err(Error::file("write man pages to", &manual))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "rsock", &completions)
            .map_err(Error::file("write completions to", &completions))?;
    }
    Ok(())
}

/// `command` without its hidden subcommands, which completions would offer. clap can hide a
/// subcommand but not remove it, so a new command takes over what the files show.
fn visible(command: &clap::Command) -> clap::Command {
    if !command.has_subcommands() {
        return command.clone();
    }
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible);
    let mut visible = clap::Command::new(command.get_name().to_owned())
        .disable_help_subcommand(true)
        .subcommand_required(command.is_subcommand_required_set())
        .args(command.get_arguments().cloned())
        .subcommands(subcommands);
    if let Some(about) = command.get_about() {
        visible = visible.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        visible = visible.long_about(about.clone());
    }
    if let Some(version) = command.get_version() {
        visible = visible.version(version.to_owned());
    }
    visible
}

fn directory(parent: &Path, name: &str) -> Result<PathBuf, Error> {
    let dir = parent.join(name);
    fs::create_dir_all(&dir).map_err(Error::file("make the directory", &dir))?;
    Ok(dir)
}

/// One page for `command` and one for each of its subcommands.
fn pages(command: &clap::Command, dir: &Path) -> io::Result<()> {
    let man = Man::new(command.clone());
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    // clap_mangen's own title leaves out an unknown date, and what follows moves to its place.
    let title =
        format!(".TH {} 1 \"\" \"rsock {VERSION}\" \"rsock manual\"\n", name.to_uppercase());
    let mut page = title.into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend_from_slice(SEE_ALSO.as_bytes());
    fs::write(dir.join(format!("{name}.1")), page)?;
    command.get_subcommands().try_for_each(|sub| pages(sub, dir))
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The end of every page.
const SEE_ALSO: &str = ".SH \"SEE ALSO\"\n\
    \\fBrsock\\fR(1), \\fBrsock\\-preload\\fR(7), \\fBrsock.toml\\fR(5), \\fBlibrsock\\fR(3)\n";
