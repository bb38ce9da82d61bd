//! Debian packages without installing them: apt with a state of its own, so that no root is needed
//! and the machine stays as it was.
//!
//! Only the machine's own archive is asked (its sources, its keys, its release), with the
//! components added that netperf needs. What is already installed on the machine is not fetched
//! again, except the packages asked for by name.

use crate::steps::{self, Done, Failure};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An apt state below one directory.
#[derive(Debug)]
pub(crate) struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// Writes the configuration below `dir`.
    pub(crate) fn new(dir: &Path) -> Done<Self> {
        for needed in ["apt-get", "dpkg-deb"] {
            if !steps::is_available(needed, "--version") {
                return Err(Failure::new(format!("`{needed}` is not on this machine")));
            }
        }
        for sub in ["state/lists/partial", "cache/archives/partial", "sources", "debs"] {
            let sub = dir.join(sub);
            fs::create_dir_all(&sub).map_err(|e| Failure::io(sub.display(), &e))?;
        }
        let this = Self { dir: dir.to_owned() };
        this.write("sources/machine.sources", &sources(Path::new("/etc/apt"), &Release::read()?)?)?;
        this.write("apt.conf", &this.config())?;
        Ok(this)
    }

    /// Fetches `packages` and what they depend on and the machine lacks; returns the archives.
    pub(crate) fn fetch(&self, packages: &[&str]) -> Done<Vec<PathBuf>> {
        self.fetch_with_families(packages, &[])
    }

    /// As [`fetch`](Self::fetch), with the whole of each family: the packages of that name and of
    /// the library of that name on which it depends, even those that the machine has. An
    /// interpreter looks for its library beside itself.
    pub(crate) fn fetch_with_families(
        &self,
        packages: &[&str],
        families: &[&str],
    ) -> Done<Vec<PathBuf>> {
        steps::run(self.apt("apt-get").args(["--quiet", "update"]))?;
        let mut names: BTreeSet<String> = packages.iter().map(|&name| name.to_owned()).collect();
        for family in families {
            let listing = steps::output(self.apt("apt-cache").args(DEPENDENCIES).arg(family))?;
            names.extend(members(&listing, family));
        }
        let plan = ["--quiet=2", "--print-uris", "--no-install-recommends", "install"];
        let plan = steps::output(self.apt("apt-get").args(plan).args(&names))?;
        names.extend(plan.lines().filter_map(planned_package));
        let debs = self.dir.join("debs");
        steps::run(
            self.apt("apt-get").args(["--quiet", "download"]).args(&names).current_dir(&debs),
        )?;
        let mut archives = Vec::new();
        for entry in fs::read_dir(&debs).map_err(|e| Failure::io(debs.display(), &e))? {
            archives.push(entry.map_err(|e| Failure::io(debs.display(), &e))?.path());
        }
        archives.sort();
        Ok(archives)
    }

    /// One of apt's programs, with this state.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.dir.join("apt.conf")).env("LC_ALL", "C");
        // A task may have an answer for standard output; progress is not it.
        command.stdin(Stdio::null()).stdout(io::stderr());
        command
    }

    /// The machine's configuration is read first (it may name a proxy); this one wins. Hooks are
    /// dropped because they would touch the machine.
    fn config(&self) -> String {
        let dir = self.dir.display();
        format!(
            r#"Dir::State "{dir}/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "{dir}/cache";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{dir}/sources";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Install-Pkgs;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
Debug::NoLocking "true";
"#
        )
    }

    fn write(&self, name: &str, text: &str) -> Done {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(|e| Failure::io(path.display(), &e))
    }
}

/// Unpacks a package's files below `root`.
pub(crate) fn unpack(archive: &Path, root: &Path) -> Done {
    steps::output(Command::new("dpkg-deb").arg("--extract").args([archive, root])).map(drop)
}

/// As [`unpack`], where `root/bin` and the like are links into `root/usr`: they stay links.
pub(crate) fn unpack_merged(archive: &Path, root: &Path) -> Done {
    let mut tar = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io("dpkg-deb", &e))?;
    let files = tar.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let extract = ["--extract", "--keep-directory-symlink", "--no-same-owner", "--directory"];
    let done = steps::run(Command::new("tar").args(extract).arg(root).stdin(files));
    let status = tar.wait().map_err(|e| Failure::io("dpkg-deb", &e))?;
    done?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("dpkg-deb: {status}"))) }
}

/// The machine's release, from `os-release`.
struct Release {
    id: String,
    codename: String,
}

impl Release {
    fn read() -> Done<Self> {
        let path = "/etc/os-release";
        let text = fs::read_to_string(path).map_err(|e| Failure::io(path, &e))?;
        Self::parse(&text).ok_or_else(|| Failure::new(format!("{path} names no release")))
    }

    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
            Some(line.trim_matches('"').to_owned())
        };
        Some(Self { id: value("ID")?, codename: value("VERSION_CODENAME")? })
    }

    /// Components beside `main` in which netperf or its libraries may be.
    fn more_components(&self) -> &'static [&'static str] {
        if self.id == "ubuntu" { &["universe", "multiverse"] } else { &["non-free"] }
    }

    fn has_suite(&self, suite: &str) -> bool {
        let rest = suite.strip_prefix(self.codename.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

/// The archive entries of the machine's own release, in deb822 form. Other vendors' archives, which
/// may be down or need a login, are left out.
fn sources(etc: &Path, release: &Release) -> Done<String> {
    let mut files = vec![etc.join("sources.list")];
    if let Ok(entries) = fs::read_dir(etc.join("sources.list.d")) {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort();
    let mut found = String::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        match file.extension().and_then(|ext| ext.to_str()) {
            Some("list") => found.extend(text.lines().filter_map(|line| one_line(line, release))),
            Some("sources") => {
                found.extend(stanzas(&text).filter_map(|stanza| deb822(&stanza, release)));
            }
            _ => {}
        }
    }
    if found.is_empty() {
        let codename = &release.codename;
        return Err(Failure::new(format!("apt's sources name no archive of `{codename}`")));
    }
    Ok(found)
}

fn one_line(line: &str, release: &Release) -> Option<String> {
    let line = line.split('#').next()?.trim().strip_prefix("deb ")?.trim();
    let (options, line) = match line.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", line),
    };
    let mut words = line.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let components: Vec<&str> = words.collect();
    if !release.has_suite(suite) || !components.contains(&"main") {
        return None;
    }
    let signed = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
    let signed = signed.map_or_else(String::new, |key| format!("Signed-By: {key}\n"));
    let components = joined(&components, release);
    Some(format!("Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: {components}\n{signed}\n"))
}

/// Paragraphs without their comments.
fn stanzas(text: &str) -> impl Iterator<Item = String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let stanzas: Vec<String> =
        lines.split(|line| line.trim().is_empty()).map(|lines| lines.join("\n")).collect();
    stanzas.into_iter().filter(|stanza| !stanza.is_empty())
}

fn deb822(stanza: &str, release: &Release) -> Option<String> {
    let field = |name: &str| {
        stanza.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let is_off = field("Enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
    let suites: Vec<&str> = field("Suites")?.split_whitespace().collect();
    let components: Vec<&str> = field("Components")?.split_whitespace().collect();
    let ours = suites.iter().all(|suite| release.has_suite(suite)) && components.contains(&"main");
    if is_off || !ours || !field("Types")?.split_whitespace().any(|kind| kind == "deb") {
        return None;
    }
    let mut out = String::new();
    for line in stanza.lines() {
        match line.split_once(':').map_or("", |(key, _)| key) {
            key if key.eq_ignore_ascii_case("Types") => out.push_str("Types: deb"),
            key if key.eq_ignore_ascii_case("Components") => {
                out.push_str("Components: ");
                out.push_str(&joined(&components, release));
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out.push('\n');
    Some(out)
}

fn joined(components: &[&str], release: &Release) -> String {
    let more = release.more_components().iter().filter(|more| !components.contains(*more));
    components.iter().chain(more).copied().collect::<Vec<_>>().join(" ")
}

/// Asks for everything that a package cannot do without, whatever the machine has.
const DEPENDENCIES: &[&str] = &[
    "depends",
    "--recurse",
    "--no-recommends",
    "--no-suggests",
    "--no-conflicts",
    "--no-breaks",
    "--no-replaces",
    "--no-enhances",
];

/// The packages of `family` in a listing of dependencies, which names each at the beginning of a
/// line and below it, indented, what it needs.
fn members<'a>(listing: &'a str, family: &'a str) -> impl Iterator<Item = String> + 'a {
    let names = listing.lines().filter(|line| !line.starts_with([' ', '|', '<']));
    let is_member = move |name: &&str| {
        name.strip_prefix("lib").unwrap_or(name).starts_with(family) && !name.contains(':')
    };
    names.map(str::trim_end).filter(is_member).map(str::to_owned)
}

/// The package of a `--print-uris` line: `'URI' NAME_VERSION_ARCH.deb SIZE HASH`.
fn planned_package(line: &str) -> Option<String> {
    let file = line.split_whitespace().nth(1)?;
    file.strip_suffix(".deb")?.split_once('_').map(|(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bookworm() -> Release {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        Release::parse(text).unwrap()
    }

    #[test]
    fn the_releases_own_stanza_is_taken_and_gets_the_component_of_netperf() {
        let text = "# comment\nTypes: deb deb-src\nURIs: http://archive.test/debian\n\
                    Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: /k.gpg\n";
        let stanza: Vec<String> = stanzas(text).collect();
        assert_eq!(
            deb822(&stanza[0], &bookworm()).unwrap(),
            "Types: deb\nURIs: http://archive.test/debian\nSuites: bookworm bookworm-updates\n\
             Components: main non-free\nSigned-By: /k.gpg\n\n"
        );
    }

    #[test]
    fn other_vendors_and_disabled_stanzas_are_left_out() {
        for text in [
            "Types: deb\nURIs: http://v.test\nSuites: nodistro\nComponents: main\n",
            "Types: deb\nURIs: http://v.test\nSuites: bookwormish\nComponents: main\n",
            "Types: deb-src\nURIs: http://v.test\nSuites: bookworm\nComponents: main\n",
            "Types: deb\nURIs: http://v.test\nSuites: bookworm\nComponents: extra\n",
            "Types: deb\nURIs: http://v.test\nSuites: bookworm\nComponents: main\nEnabled: no\n",
        ] {
            assert_eq!(deb822(text, &bookworm()), None, "{text}");
        }
    }

    #[test]
    fn one_line_entries_keep_their_key() {
        let line = "deb [arch=amd64 signed-by=/k.gpg] http://archive.test/debian bookworm main";
        assert_eq!(
            one_line(line, &bookworm()).unwrap(),
            "Types: deb\nURIs: http://archive.test/debian\nSuites: bookworm\n\
             Components: main non-free\nSigned-By: /k.gpg\n\n"
        );
        assert_eq!(one_line("# deb http://archive.test/debian bookworm main", &bookworm()), None);
        assert_eq!(one_line("deb http://v.test cloud-bookworm main", &bookworm()), None);
    }

    #[test]
    fn a_family_is_the_interpreter_and_its_library() {
        let listing = "python3\n  Depends: python3.11\n |Depends: debconf\nlibpython3.11-stdlib\n\
                       <python3:any>\n  Depends: libc6\nlibc6\npython3:i386\npython3.11\n";
        let found: Vec<String> = members(listing, "python3").collect();
        assert_eq!(found, ["python3", "libpython3.11-stdlib", "python3.11"]);
    }

    #[test]
    fn a_plan_line_names_its_package() {
        let line = "'http://archive.test/n/netperf_2.7.0-0.1_amd64.deb' \
                    netperf_2.7.0-0.1_amd64.deb 540848 MD5Sum:ee";
        assert_eq!(planned_package(line).as_deref(), Some("netperf"));
        assert_eq!(planned_package("Reading package lists..."), None);
    }
}
