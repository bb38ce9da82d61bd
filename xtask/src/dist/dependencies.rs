//! The Rust packages that are linked into rsock's, and their licences: most of these ask that their
//! text goes along with the program.

use crate::steps::{self, Done, Failure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of others, as `cargo metadata` tells of them.
#[derive(Debug)]
pub(super) struct Dependencies(Vec<Package>);

#[derive(Debug)]
struct Package {
    name: String,
    version: String,
    licence: String,
    authors: String,
    dir: PathBuf,
}

impl Dependencies {
    /// Those of `roots`, which are packages of the workspace. Packages that only run in the
    /// compiler are left out, tests' and build scripts' too.
    pub(super) fn of(roots: &[&str]) -> Done<Self> {
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let compiler = steps::output(rustc.args(["--version", "--verbose"]))?;
        let platform = compiler.lines().find_map(|line| line.strip_prefix("host: "));
        let mut cargo = steps::cargo();
        cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
        let metadata = steps::output(cargo.arg(platform.unwrap_or_default()))?;
        let metadata = serde_json::from_str::<Value>(&metadata)
            .map_err(|e| Failure::new(format!("cargo metadata: {e}")))?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let by_id = |packages: Vec<Value>| -> BTreeMap<String, Value> {
            packages.into_iter().map(|package| (text(&package["id"]), package)).collect()
        };
        let packages = by_id(list(&metadata["packages"]));
        let nodes = by_id(list(&metadata["resolve"]["nodes"]));
        let is_root =
            |package: &Value| roots.contains(&package["name"].as_str().unwrap_or_default());
        let mut todo: Vec<String> = packages
            .iter()
            .filter(|(_, package)| is_root(package))
            .map(|(id, _)| id.clone())
            .collect();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut found = Vec::new();
        while let Some(id) = todo.pop() {
            let (Some(package), Some(node)) = (packages.get(&id), nodes.get(&id)) else { continue };
            let is_of_compiler =
                list(&package["targets"]).iter().any(|target| target["kind"][0] == "proc-macro");
            if is_of_compiler || !seen.insert(id) {
                continue;
            }
            if !package["source"].is_null() {
                found.push(Package::read(package));
            }
            todo.extend(list(&node["deps"]).iter().filter_map(|dependency| {
                let is_linked =
                    list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
                is_linked.then(|| text(&dependency["pkg"]))
            }));
        }
        found.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        Ok(Self(found))
    }

    /// Directories that hold the sources of packages.
    pub(super) fn source_dirs(&self) -> BTreeSet<&Path> {
        self.0.iter().filter_map(|package| package.dir.parent()).collect()
    }

    /// A document with all of them and each text once.
    pub(super) fn licences(&self) -> Done<String> {
        let mut texts: Vec<String> = Vec::new();
        let mut document = String::from(HEAD);
        for package in &self.0 {
            let Package { name, version, licence, authors, .. } = package;
            let _ = writeln!(document, "{name} {version}: {licence}");
            if !authors.is_empty() {
                let _ = writeln!(document, "    by {authors}");
            }
            let mut numbers = Vec::new();
            for text in package.texts()? {
                let at = texts.iter().position(|known| *known == text).unwrap_or(texts.len());
                if at == texts.len() {
                    texts.push(text);
                }
                numbers.push(format!("[{}]", at + 1));
            }
            let numbers =
                if numbers.is_empty() { "none in the package".into() } else { numbers.join(" ") };
            let _ = writeln!(document, "    texts: {numbers}");
        }
        for (i, text) in texts.iter().enumerate() {
            let _ = write!(document, "\n{}\n[{}]\n\n{text}\n", "-".repeat(78), i + 1);
        }
        Ok(document)
    }
}

impl Package {
    fn read(package: &Value) -> Self {
        let authors = package["authors"].as_array().cloned().unwrap_or_default();
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        Self {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: text(&package["license"]),
            authors: authors.iter().map(text).collect::<Vec<_>>().join(", "),
            dir: manifest.parent().map(Path::to_owned).unwrap_or_default(),
        }
    }

    /// The texts of its licences and notices, by the names of the files.
    fn texts(&self) -> Done<Vec<String>> {
        let mut files = BTreeSet::new();
        let failed = |e| Failure::io(self.dir.display(), &e);
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            let is_text = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
            if path.is_file() && is_text.iter().any(|start| name.starts_with(start)) {
                files.insert(path);
            }
        }
        let read = |path: &PathBuf| {
            let bytes = fs::read(path).map_err(|e| Failure::io(path.display(), &e))?;
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
            Ok(lines.join("\n").trim_matches('\n').to_owned())
        };
        files.iter().map(read).collect()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

const HEAD: &str = "\
The programs and libraries of rsock contain the Rust standard library (MIT OR
Apache-2.0, by the Rust project's contributors) and the packages listed here,
with their licences. The numbers name the texts that follow the list.

";
