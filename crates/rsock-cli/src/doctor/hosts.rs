//! Other hosts: whether this one has a key to authenticate with, or trusts a network without one.
//! Connections that begin on TCP need either to leave it; programs that use RDMA themselves do not.

use super::{Device, Findings};
use rsock_core::config::trusted_hosts::{self, ConfigError, Summary};
use std::io;

pub(super) fn look() -> Findings {
    let mut findings = Findings::new(Device::Rdma);
    match trusted_hosts::examine() {
        Ok(summary) => report(&mut findings, &summary),
        Err(fault) => {
            let (why, fix) = explain(&fault);
            findings.limited("hosts", format!("{STAYS}: {why}"), fix);
        }
    }
    findings
}

/// Adds the finding about a configuration that could be read.
fn report(findings: &mut Findings, summary: &Summary) {
    let file = summary.file.display();
    let rules = match summary.n_rules {
        1 => "a network that is trusted".to_owned(),
        n => format!("{n} networks that are trusted"),
    };
    match (summary.has_key, summary.n_rules) {
        (true, 0) => findings.fine("hosts", format!("{file} names a key for other hosts")),
        (true, _) => {
            findings.fine("hosts", format!("{file} names a key for other hosts, and {rules}"))
        }
        (false, 0) => {
            let why = format!("{STAYS}: {file} names no key and no network");
            findings.limited("hosts", why, MAKE_KEY);
        }
        (false, _) => findings.fine("hosts", format!("{file} names {rules}, and no key")),
    }
}

/// Returns what is wrong with a configuration, and what to do.
fn explain(fault: &ConfigError) -> (String, String) {
    match fault {
        ConfigError::File { file, source } if source.kind() == io::ErrorKind::NotFound => {
            (format!("there is no {}", file.display()), MAKE_KEY.to_owned())
        }
        ConfigError::File { file, .. } => {
            (fault.to_string(), format!("chmod 644 {}", file.display()))
        }
        ConfigError::Key { file, source } => {
            let file = file.display();
            let fix = match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    format!("chmod 640 {file}, in a group of the users that run programs")
                }
                io::ErrorKind::InvalidData => {
                    format!("head -c 32 /dev/urandom | base64 > {file}, and the same on each host")
                }
                _ => format!("copy it from another host to {file}"),
            };
            let why = match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    format!("the key {file} is not ours to read, or readable for all users")
                }
                io::ErrorKind::InvalidData => format!("the key {file} is shorter than 16 bytes"),
                _ => format!("the key: {fault}"),
            };
            (why, fix)
        }
        _ => (
            fault.to_string(),
            "it takes key_file = \"FILE\", trust_fabric = [\"NETWORK/LENGTH\"] and \
             plain_rsockets = [\"NETWORK/LENGTH\"]"
                .to_owned(),
        ),
    }
}

const STAYS: &str = "connections that begin on TCP stay there between hosts";
const MAKE_KEY: &str = "write key_file = \"/etc/rsock.key\" into /etc/rsock.toml, and a key into \
    that file, on each host: docs/hosts.md";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    fn fault(kind: io::ErrorKind) -> ConfigError {
        ConfigError::Key { file: "/k".into(), source: kind.into() }
    }

    #[test]
    fn what_a_configuration_lacks_decides_the_fix() {
        let none = ConfigError::File { file: "/c".into(), source: io::ErrorKind::NotFound.into() };
        for (fault, why, fix) in [
            (none, "there is no /c", "key_file"),
            (fault(io::ErrorKind::PermissionDenied), "not ours to read", "chmod 640 /k"),
            (fault(io::ErrorKind::InvalidData), "shorter than 16", "/dev/urandom"),
            (fault(io::ErrorKind::NotFound), "/k", "copy it"),
            (ConfigError::Line { file: "/c".into(), line: 3 }, "/c: line 3", "trust_fabric"),
        ] {
            let (what, how) = explain(&fault);
            assert!(what.contains(why) && how.contains(fix), "{what}; {how}");
        }
    }

    #[test]
    fn a_key_or_a_network_is_enough() {
        for (has_key, n_rules, n_plain, state) in [
            (true, 0, 0, State::Fine),
            (false, 2, 0, State::Fine),
            (true, 1, 1, State::Fine),
            (false, 0, 0, State::Limited),
            // Peers of plain rsockets do not begin on TCP, so they do not count.
            (false, 0, 1, State::Limited),
        ] {
            let mut findings = Findings::new(Device::Rdma);
            report(&mut findings, &Summary { file: "/c".into(), has_key, n_rules, n_plain });
            let [found] = &findings.list[..] else { panic!("one line: {findings:?}") };
            assert_eq!(found.state, state, "{}", found.what);
        }
    }
}
