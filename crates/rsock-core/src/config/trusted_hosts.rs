//! Trusted hosts: the peers on other hosts that may carry a connection over RDMA. They have this
//! host's key, or send from a network that a rule trusts.
//!
//! A fabric does not tell which user of a host uses a port of the connection manager. So a host
//! that has neither a key nor a rule stays on TCP with other hosts. Programs that use rsockets
//! without rsock have no key and no TCP connection to claim: they have a list of their own. All of
//! it comes from a file that is read once, in the part of TOML that these settings need: a string,
//! and a list of strings on one line.
//!
//! ```toml
//! key_file = "/etc/rsock.key"          # at least 16 bytes, not readable by others
//! trust_fabric = ["192.168.7.0/24"]    # networks where every user may claim any connection
//! plain_rsockets = ["192.168.7.0/24"]  # networks with programs that use rsockets without TCP
//! ```

#![forbid(unsafe_code)]

use super::environment;
use once_cell::race::{OnceBool, OnceBox};
use rustix::fs::{Access, access};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a code.
pub(crate) const CODE_LEN: usize = 12;

/// What the configuration says of other hosts.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    key: Option<Key>,
    rules: Vec<Network>,
    /// Networks of peers without TCP.
    plain: Vec<Network>,
}

/// A secret that the hosts share.
struct Key([u8; BLOCK]);

/// A network, as `192.168.7.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    base: u128,
    mask: u128,
}

/// The claim that a code authenticates: its sender has the key, and means this connection and these
/// objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AuthClaim<'a> {
    /// The address that connected.
    pub(crate) client: SocketAddr,
    /// The address that accepted.
    pub(crate) server: SocketAddr,
    /// The queue pair of the code's sender.
    pub(crate) qp_num: u32,
    /// The connection data of its sender.
    pub(crate) conn_data: &'a [u8],
    /// In an answer: the code of the request that it answers.
    pub(crate) request: Option<&'a [u8; CODE_LEN]>,
}

/// A summary of the configuration, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The file that was read.
    pub file: PathBuf,
    /// Whether it names a key.
    pub has_key: bool,
    /// Number of networks that it trusts without a key.
    pub n_rules: usize,
    /// Number of networks with programs that may use rsockets without TCP.
    pub n_plain: usize,
}

/// Why a configuration was rejected, so that no host is trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read; most often there is none.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line is no setting, or has an invalid value.
    #[error("{}: line {line} is no setting", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// The key cannot be read or used: `PermissionDenied` also if all users may read it,
    /// `InvalidData` if it is too short.
    #[error("{}: {source}", file.display())]
    Key {
        /// The key's file.
        file: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Reads this host's configuration, as a program does when it first needs it.
///
/// # Errors
/// [`ConfigError`]; then connections to other hosts stay on TCP.
pub fn examine() -> Result<Summary, ConfigError> {
    let file = file();
    let trust = Trust::read(&file)?;
    let (n_rules, n_plain) = (trust.rules.len(), trust.plain.len());
    Ok(Summary { has_key: trust.key.is_some(), n_rules, n_plain, file })
}

fn file() -> PathBuf {
    environment::value("RSOCK_CONFIG").map_or_else(|| DEFAULT_FILE.into(), PathBuf::from)
}

/// Whether this host has a configuration, as of the first call. Without one no host is trusted.
///
/// PERF: most hosts have none. Reading what is not there would take a program's first connection
/// 40 us, most of them for code and memory that it needs for nothing else.
pub(crate) fn is_configured() -> bool {
    static IS_CONFIGURED: OnceBool = OnceBool::new();
    IS_CONFIGURED.get_or_init(|| {
        environment::value("RSOCK_CONFIG").is_some() || access(DEFAULT_FILE, Access::EXISTS).is_ok()
    })
}

/// The configuration of this host, read at the first call. If it cannot be read, or is invalid, no
/// host is trusted.
pub(crate) fn trust() -> &'static Trust {
    static TRUST: OnceBox<Trust> = OnceBox::new();
    TRUST.get_or_init(|| Box::new(Trust::read(&file()).unwrap_or_default()))
}

impl Trust {
    fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(file)
            .map_err(|source| ConfigError::File { file: file.to_owned(), source })?;
        let mut this = Self::default();
        for (i, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let invalid = || ConfigError::Line { file: file.to_owned(), line: i + 1 };
            let (name, value) = line.split_once('=').ok_or_else(invalid)?;
            match (name.trim_end(), Value::parse(value.trim_start()).ok_or_else(invalid)?) {
                (list @ ("trust_fabric" | "plain_rsockets"), Value::List(rules)) => {
                    let rules: Option<Vec<_>> = rules.into_iter().map(Network::parse).collect();
                    let place =
                        if list == "trust_fabric" { &mut this.rules } else { &mut this.plain };
                    *place = rules.ok_or_else(invalid)?;
                }
                ("key_file", Value::Text(name)) => {
                    let key = Key::read(Path::new(name));
                    this.key =
                        Some(key.map_err(|source| ConfigError::Key { file: name.into(), source })?);
                }
                // A misspelt name is an error, not ignored.
                _ => return Err(invalid()),
            }
        }
        Ok(this)
    }

    /// Whether a peer at `ip` can be authenticated, or is trusted by a rule.
    pub(crate) fn knows(&self, ip: IpAddr) -> bool {
        self.key.is_some() || self.covers(ip)
    }

    /// The code of a claim; zeros without a key.
    pub(crate) fn code(&self, claim: AuthClaim<'_>) -> [u8; CODE_LEN] {
        self.key.as_ref().map_or([0; CODE_LEN], |key| key.code(claim))
    }

    /// Whether to accept the claim of a peer at `ip` with this code.
    pub(crate) fn believes(&self, ip: IpAddr, claim: AuthClaim<'_>, code: &[u8; CODE_LEN]) -> bool {
        let is_right = self.key.as_ref().is_some_and(|key| {
            // Compares all bytes, so that the time does not depend on where they differ.
            let right = key.code(claim);
            right.iter().zip(code).fold(0, |all, (a, b)| all | (a ^ b)) == 0
        });
        is_right || self.covers(ip)
    }

    /// Whether a program at `ip` may use rsockets without TCP.
    pub(crate) fn admits(&self, ip: IpAddr) -> bool {
        covers(&self.plain, ip)
    }

    /// Whether [`Self::admits`] holds for any address.
    pub(crate) fn admits_any(&self) -> bool {
        !self.plain.is_empty()
    }

    fn covers(&self, ip: IpAddr) -> bool {
        covers(&self.rules, ip)
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn of_key(key: &[u8]) -> Self {
        Self { key: Some(Key::new(key)), ..Self::default() }
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn of_rule(rule: &str) -> Self {
        Self { rules: Network::parse(rule).into_iter().collect(), ..Self::default() }
    }
}

fn covers(networks: &[Network], ip: IpAddr) -> bool {
    let bits = bits(ip);
    networks.iter().any(|network| bits & network.mask == network.base)
}

/// The value of a setting.
#[derive(Debug)]
enum Value<'a> {
    Text(&'a str),
    List(Vec<&'a str>),
}

impl<'a> Value<'a> {
    /// Parses `text` up to the end of the line; a comment may follow the value.
    fn parse(text: &'a str) -> Option<Self> {
        let (value, rest) = match text.strip_prefix('[') {
            None => {
                let (text, rest) = string(text)?;
                (Self::Text(text), rest)
            }
            Some(mut rest) => {
                let mut items = Vec::new();
                loop {
                    rest = rest.trim_start();
                    if let Some(rest) = rest.strip_prefix(']') {
                        break (Self::List(items), rest);
                    }
                    let (item, after) = string(rest)?;
                    items.push(item);
                    let after = after.trim_start();
                    let next = after.strip_prefix(',');
                    rest = next.or_else(|| after.starts_with(']').then_some(after))?;
                }
            }
        };
        let rest = rest.trim_start();
        (rest.is_empty() || rest.starts_with('#')).then_some(value)
    }
}

/// The string at the beginning of `text`, without escapes, and what follows it.
fn string(text: &str) -> Option<(&str, &str)> {
    let (string, rest) = text.strip_prefix('"')?.split_once('"')?;
    (!string.contains('\\')).then_some((string, rest))
}

impl Key {
    /// # Errors
    /// `PermissionDenied` if others may read it; `InvalidData` if it is too short to be one.
    fn read(file: &Path) -> io::Result<Self> {
        let mut file = fs::File::open(file)?;
        if file.metadata()?.mode() & 0o007 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut bytes = Vec::new();
        file.by_ref().take(MOST_KEY).read_to_end(&mut bytes)?;
        let bytes = bytes.trim_ascii_end();
        if bytes.len() < LEAST_KEY {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self::new(bytes))
    }

    /// The key as HMAC uses it: a long key is hashed, a short one padded.
    fn new(bytes: &[u8]) -> Self {
        let mut key = [0; BLOCK];
        if bytes.len() > BLOCK {
            key[..32].copy_from_slice(&Sha256::digest(bytes));
        } else {
            key[..bytes.len()].copy_from_slice(bytes);
        }
        Self(key)
    }

    /// HMAC-SHA256 of the claim, truncated.
    ///
    /// # Source
    /// RFC 2104.
    fn code(&self, claim: AuthClaim<'_>) -> [u8; CODE_LEN] {
        // WIRE: everything of fixed length but for the last, and all of one protocol.
        let mut inner = Sha256::new_with_prefix(self.0.map(|byte| byte ^ 0x36));
        inner.update(b"rsock pair 1");
        for addr in [claim.client, claim.server] {
            inner.update(bits(addr.ip()).to_be_bytes());
            inner.update(addr.port().to_be_bytes());
        }
        inner.update(claim.qp_num.to_be_bytes());
        inner.update(claim.conn_data);
        inner.update(claim.request.map_or(&[][..], |code| &code[..]));
        let mut outer = Sha256::new_with_prefix(self.0.map(|byte| byte ^ 0x5c));
        outer.update(inner.finalize());
        let mut code = [0; CODE_LEN];
        code.copy_from_slice(&outer.finalize()[..CODE_LEN]);
        code
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (ip, len) = text.split_once('/')?;
        let ip: IpAddr = ip.trim().parse().ok()?;
        let len: u32 = len.trim().parse().ok()?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let host = 128_u32.checked_sub(len + (128 - most)).filter(|_| len <= most)?;
        let mask = u128::MAX.checked_shl(host).unwrap_or(0);
        // A base with bits beyond the length is rejected: the rule would not mean what it says.
        (bits(ip) & !mask == 0).then_some(Self { base: bits(ip), mask })
    }
}

/// An address as a number; IPv4 addresses are mapped.
fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

const DEFAULT_FILE: &str = "/etc/rsock.toml";
/// Bytes that SHA-256 takes at a time.
const BLOCK: usize = 64;
/// Shortest and longest key, in bytes.
const LEAST_KEY: usize = 16;
const MOST_KEY: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn claim(conn_data: &[u8]) -> AuthClaim<'_> {
        AuthClaim {
            client: "10.9.0.1:1000".parse().expect("address"),
            server: "10.9.0.2:80".parse().expect("address"),
            qp_num: 17,
            conn_data,
            request: None,
        }
    }

    #[test]
    fn the_code_is_hmac_with_sha_256() {
        // RFC 4231, test case 2, by the same two steps.
        let key = Key::new(b"Jefe");
        let mut inner = Sha256::new_with_prefix(key.0.map(|byte| byte ^ 0x36));
        inner.update(b"what do ya want for nothing?");
        let mut outer = Sha256::new_with_prefix(key.0.map(|byte| byte ^ 0x5c));
        outer.update(inner.finalize());
        assert_eq!(outer.finalize()[..4], [0x5b, 0xdc, 0xc1, 0x46]);
    }

    #[test]
    fn a_code_is_valid_for_one_claim_and_one_key() {
        let trust = Trust::of_key(b"0123456789abcdef");
        let peer: IpAddr = "10.9.0.2".parse().expect("address");
        let data = [7; 40];
        let code = trust.code(claim(&data));
        assert!(trust.believes(peer, claim(&data), &code));
        assert!(!Trust::of_key(b"0123456789abcdeF").believes(peer, claim(&data), &code));
        assert!(!trust.believes(peer, claim(&[8; 40]), &code));
        assert!(!trust.believes(peer, claim(&data), &[0; CODE_LEN]));
        let swapped =
            AuthClaim { client: claim(&data).server, server: claim(&data).client, ..claim(&data) };
        let others = [
            swapped,
            AuthClaim { qp_num: 18, ..claim(&data) },
            AuthClaim { request: Some(&code), ..claim(&data) },
        ];
        for other in others {
            assert!(!trust.believes(peer, other, &code), "{other:?}");
        }
    }

    #[test]
    fn no_claim_is_accepted_without_a_key_or_a_rule() {
        let trust = Trust::default();
        let peer: IpAddr = "10.9.0.2".parse().expect("address");
        assert!(!trust.knows(peer));
        assert!(!trust.believes(peer, claim(&[0; 40]), &trust.code(claim(&[0; 40]))));
    }

    #[test]
    fn a_rule_covers_its_network_and_no_more() {
        let rules = vec![
            Network::parse("10.9.0.0/24").expect("a rule"),
            Network::parse("fd09::/64").expect("a rule"),
        ];
        let trust = Trust { rules: rules.clone(), ..Trust::default() };
        let plain = Trust { plain: rules, ..Trust::default() };
        for (ip, is_covered) in [
            ("10.9.0.0", true),
            ("10.9.0.255", true),
            ("10.9.1.0", false),
            ("fd09::9", true),
            ("fd09:0:0:1::9", false),
            ("::10.9.0.1", false),
        ] {
            let ip: IpAddr = ip.parse().expect("address");
            assert_eq!(trust.knows(ip), is_covered, "{ip}");
            // A network without TCP may not claim connections, and the other way round.
            assert_eq!(plain.admits(ip), is_covered, "{ip}");
            assert!(!plain.knows(ip) && !trust.admits(ip), "{ip}");
        }
        assert!(Network::parse("0.0.0.0/0").is_some_and(|rule| rule.mask.count_ones() == 96));
        for bad in ["10.9.0.1/24", "10.9.0.0", "10.9.0.0/33", "fd09::/129", "x/8", "10.9.0.0/-1"] {
            assert_eq!(Network::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_file_is_parsed_and_a_key_that_others_can_read_is_rejected() {
        let dir = std::env::temp_dir().join(format!("rsock-trust-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let (file, key) = (dir.join("rsock.toml"), dir.join("key"));
        fs::write(&key, b"0123456789abcdef\n").expect("a key");
        let text = format!(
            "trust_fabric = [\"10.9.0.0/24\"]\nkey_file = {key:?}\n\
             plain_rsockets = [\"10.9.0.0/24\", \"fd09::/64\"]\n"
        );
        fs::write(&file, text).expect("a file");
        let mode = |bits| fs::set_permissions(&key, fs::Permissions::from_mode(bits));
        mode(0o600).expect("mode");
        let trust = Trust::read(&file).expect("a configuration");
        assert!(trust.key.is_some() && trust.rules.len() == 1 && trust.plain.len() == 2);
        let data = [1; 40];
        // The newline is not part of the key.
        assert_eq!(trust.code(claim(&data)), Trust::of_key(b"0123456789abcdef").code(claim(&data)));
        mode(0o604).expect("mode");
        let fault = Trust::read(&file).expect_err("open to all");
        let is_denied = |source: &io::Error| source.kind() == io::ErrorKind::PermissionDenied;
        assert!(matches!(&fault, ConfigError::Key { source, .. } if is_denied(source)), "{fault}");
        for bad in [
            "trust_fabric = \"10.9.0.0/24\"",
            "trust_fabric = [1]",
            "key_file = 1",
            "=",
            "trust_fabrics = []",
            "trust_fabric = [\"10.9.0.0/24\"",
            "trust_fabric = [\"10.9.0.1/24\"]",
        ] {
            fs::write(&file, bad).expect("a file");
            let fault = Trust::read(&file).expect_err(bad);
            assert!(matches!(fault, ConfigError::Line { line: 1, .. }), "{bad}: {fault}");
        }
        fs::remove_dir_all(&dir).expect("removed");
    }
}
