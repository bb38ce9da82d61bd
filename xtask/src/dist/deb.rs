//! The Debian package: its control files, and the archive around them.
//!
//! Written here rather than by `cargo deb` or `dpkg-deb`: the first would have to be installed, the
//! second exists on Debian only and compresses as its release does. The format is three members of
//! an `ar` archive, two of which are the same archives that the tarball is (deb(5)).

use super::Release;
use super::tree::{Tree, gzip};
use crate::steps::{Done, Failure};
use std::env;

/// The package's name in Debian, and that of its directory of documents.
pub(super) const NAME: &str = "rsock";

/// What a package says of itself, beside its files.
#[derive(Debug)]
pub(super) struct Package<'a> {
    pub(super) release: &'a Release,
    /// As `libc6 (>= 2.34)`, with commas.
    pub(super) depends: String,
    /// The name and number of the shared library that programs are linked to.
    pub(super) library: (&'a str, &'a str),
}

impl Package<'_> {
    /// As `rsock_0.1.0-1_amd64.deb`.
    pub(super) fn file_name(&self) -> Done<String> {
        Ok(format!("{NAME}_{}_{}.deb", self.version(), architecture()?))
    }

    /// The whole package.
    pub(super) fn archive(&self, files: &Tree) -> Done<Vec<u8>> {
        let time = self.release.time;
        let mut control = Tree::default();
        control.file("control", self.control(files.installed_size())?);
        control.file("md5sums", files.md5sums());
        let (library, number) = self.library;
        control
            .file("shlibs", format!("{library} {number} {NAME} (>= {})\n", self.release.version));
        // The linker's cache knows the libraries once the package is there, and forgets them with
        // it.
        control.file("triggers", "activate-noawait ldconfig\n");
        let mut archive = b"!<arch>\n".to_vec();
        for (name, bytes) in [
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", control.tar_gz("./", time)?),
            ("data.tar.gz", files.tar_gz("./", time)?),
        ] {
            let (mode, len) = ("100644", bytes.len());
            let header = format!("{name:<16}{time:<12}{:<6}{:<6}{mode:<8}{len:<10}`\n", 0, 0);
            archive.extend_from_slice(header.as_bytes());
            archive.extend_from_slice(&bytes);
            if !len.is_multiple_of(2) {
                archive.push(b'\n');
            }
        }
        Ok(archive)
    }

    /// Debian's own list of changes: what has changed in rsock is in `changelog.gz`.
    pub(super) fn changelog(&self) -> Vec<u8> {
        let (version, rsock) = (self.version(), &self.release.version);
        let (maintainer, date) = (maintainer(), rfc_2822(self.release.time));
        let entry = format!(
            "{NAME} ({version}) unstable; urgency=medium\n\n  \
             * Package of rsock {rsock}, made by `cargo xtask dist`.\n\n \
             -- {maintainer}  {date}\n"
        );
        gzip(entry.as_bytes())
    }

    fn version(&self) -> String {
        // The revision is the packaging's.
        format!("{}-1", self.release.version)
    }

    fn control(&self, installed_size: u64) -> Done<String> {
        let (version, architecture) = (self.version(), architecture()?);
        let (maintainer, depends) = (maintainer(), &self.depends);
        let homepage = env!("CARGO_PKG_REPOSITORY");
        // Without the libraries of rdma-core everything but RDMA works: they are opened at run
        // time.
        Ok(format!(
            "Package: {NAME}\n\
             Version: {version}\n\
             Architecture: {architecture}\n\
             Maintainer: {maintainer}\n\
             Installed-Size: {installed_size}\n\
             Depends: {depends}\n\
             Suggests: ibverbs-providers, libibverbs1, librdmacm1\n\
             Section: net\n\
             Priority: optional\n\
             Homepage: {homepage}\n\
             Description: {DESCRIPTION}\n"
        ))
    }
}

/// The copyright file in Debian's form, for sources of `time`. The text of the MIT licence is
/// `mit`, that of the Apache licence is on every Debian system.
pub(super) fn copyright(mit: &str, time: u64) -> String {
    let holder = mit.lines().find(|line| line.starts_with("Copyright")).unwrap_or_default();
    let holder = holder.trim_start_matches("Copyright (c) ");
    // Its title and the line with the holder are no part of the licence's text.
    let text = mit.split_once("\n\nPermission").map_or(mit, |(_, rest)| rest);
    let mut expat = String::from(" Permission");
    for (i, line) in text.trim_end().lines().enumerate() {
        match (i, line) {
            (0, line) => expat.push_str(line),
            (_, "") => expat.push_str("\n ."),
            (_, line) => expat.extend(["\n ", line]),
        }
    }
    let source = env!("CARGO_PKG_REPOSITORY");
    let date = rfc_2822(time);
    let year = date.split(' ').nth(3).unwrap_or_default();
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: rsock\n\
         Source: {source}\n\
         Comment:\n \
         The programs contain the Rust standard library and the Rust packages that\n \
         third-party.gz lists with their licences. NOTICE says what rsock builds on.\n\
         \n\
         Files: *\n\
         Copyright: {year} {holder}\n\
         License: Expat or Apache-2.0\n\
         \n\
         License: Expat\n{expat}\n\
         \n\
         License: Apache-2.0\n \
         On Debian systems the full text of the Apache License, Version 2.0, is in\n \
         /usr/share/common-licenses/Apache-2.0.\n"
    )
}

/// The builder, by the variables that Debian's own tools read; without an address nothing can be
/// sent to the project's developers.
fn maintainer() -> String {
    let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let name = variable("DEBFULLNAME").unwrap_or_else(|| env!("CARGO_PKG_AUTHORS").to_owned());
    let address = variable("DEBEMAIL").unwrap_or_else(|| "rsock@rsock.invalid".to_owned());
    format!("{name} <{address}>")
}

/// What Debian calls the architecture of this program, and so of those that it builds.
fn architecture() -> Done<&'static str> {
    match env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        "riscv64" => Ok("riscv64"),
        other => Err(Failure::new(format!("no Debian package for the architecture {other}"))),
    }
}

/// A moment in UTC, as `Thu, 01 Jan 1970 00:00:00 +0000`.
fn rfc_2822(time: u64) -> String {
    let (days, second) = (time / 86_400, time % 86_400);
    let (mut year, mut day) = (1970, days);
    loop {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let n_days = if is_leap { 366 } else { 365 };
        if day >= n_days {
            day -= n_days;
            year += 1;
            continue;
        }
        let february = if is_leap { 29 } else { 28 };
        let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while day >= lengths[month] {
            day -= lengths[month];
            month += 1;
        }
        let weekday = &"ThuFriSatSunMonTueWed"[(days % 7) as usize * 3..][..3];
        let month = &"JanFebMarAprMayJunJulAugSepOctNovDec"[month * 3..][..3];
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let day = day + 1;
        return format!(
            "{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} +0000"
        );
    }
}

/// The first line is what lists of packages show.
const DESCRIPTION: &str = "sockets at RDMA and shared-memory speed for unmodified programs
 rsock moves TCP connections of unmodified programs to shared memory between
 processes of one host, and to RDMA between hosts that trust each other. What
 cannot move stays on kernel TCP. No daemon, no kernel module and no RDMA
 hardware is needed.
 .
 This package has the rsock command (run, stat, doctor, perf, compare), the
 library that it preloads, and librsock, an implementation of rsocket(3) for
 C programs, with its header.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_the_calendar() {
        assert_eq!(rfc_2822(0), "Thu, 01 Jan 1970 00:00:00 +0000");
        assert_eq!(rfc_2822(951_782_400), "Tue, 29 Feb 2000 00:00:00 +0000");
        assert_eq!(rfc_2822(1_790_000_001), "Mon, 21 Sep 2026 14:13:21 +0000");
    }
}
