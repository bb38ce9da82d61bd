//! Snapshots of a crate's public API: a list of the public items in a text file, and a check that
//! fails when they change.
//!
//! The list comes from the sources, parsed by `syn`, because rustdoc's JSON is not stable: each
//! item that is `pub` and reachable from `lib.rs`, with its signature as written, the public
//! methods of its `impl` blocks, and the traits that it implements. Items that are re-exported from
//! a crate beside it are listed in the same manner.
//!
//! Macros with one rule, and without repetitions, are expanded. Others that make public functions
//! must have their signatures as their arguments, in an `impl` block; further ones that make public
//! items are an error.
//!
//! Below every other crate, and depended on by tests only.

#![forbid(unsafe_code)]

mod expand;
mod render;
mod signatures;
mod sources;

use render::Api;
use sources::Sources;
use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

/// Compares the public API of the crate in `manifest_dir` with its `api.txt`. With `UPDATE_API` in
/// the environment it writes the file instead.
///
/// # Panics
/// If they differ; if a source cannot be read or parsed.
pub fn check(manifest_dir: &str) {
    let manifest_dir = Path::new(manifest_dir);
    let file = manifest_dir.join("api.txt");
    let now = list(manifest_dir);
    if env::var_os("UPDATE_API").is_some() {
        fs::write(&file, now).expect("api.txt is written");
        return;
    }
    let before = fs::read_to_string(&file).unwrap_or_default();
    if now == before {
        return;
    }
    panic!(
        "the public API differs from {}; if intended, run the test with UPDATE_API=1:\n{}",
        file.display(),
        changes(&before, &now).join("\n")
    );
}

/// Lines that are in one of two lists only, with the item that they belong to.
fn changes(before: &str, now: &str) -> Vec<String> {
    let (before, now) = (with_items(before), with_items(now));
    let missing = before.difference(&now).map(|line| format!("- {line}"));
    missing.chain(now.difference(&before).map(|line| format!("+ {line}"))).collect()
}

/// The lines of a list; several items may have a member in common.
fn with_items(list: &str) -> BTreeSet<String> {
    let mut item = "";
    let lines = list.lines().map(|line| match line.strip_prefix("    ") {
        Some(member) => format!("{item}: {member}"),
        None => {
            item = line;
            line.to_owned()
        }
    });
    lines.collect()
}

/// The public items of the crate in `manifest_dir`, one a line, its members indented. Crates whose
/// items it re-exports are in the directories beside it.
///
/// # Panics
/// If a source cannot be read or parsed.
#[must_use]
pub fn list(manifest_dir: &Path) -> String {
    let crates = manifest_dir.parent().expect("a directory with crates");
    Api::of(&Sources::read(&manifest_dir.join("src/lib.rs")), crates).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The API of a crate of these files, in the directory `name` of the test's own.
    fn api_of(name: &str, files: &[(&str, &str)]) -> String {
        let dir = env::temp_dir().join(format!("rsock-api-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = dir.join("listed/src").join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a source");
        }
        let api = list(&dir.join("listed"));
        fs::remove_dir_all(&dir).expect("removed");
        api
    }

    #[test]
    fn items_that_are_reachable_are_listed_with_their_members() {
        let lib = "mod a; pub mod b; pub use a::{Thing, inner::Deep as Renamed};
            pub use other::Foreign; #[cfg(test)] mod tests { pub struct NotHere; }
            /// Docs are not listed.
            pub fn free<T: Clone>(of: &mut [T], f: impl Fn(u8) -> u8)
                -> (u8, Option<&'static str>) { todo!() }";
        let a = "pub mod inner;
            #[derive(Clone)] pub struct Thing<T = u8> { pub shown: T, hidden: u8 }
            impl<T> Thing<T> { pub fn method(&self) -> u8 { 0 } pub(crate) fn not_this(&self) {} }
            pub struct Unreachable; impl Unreachable { pub fn nor_this() {} }";
        let inner = "use super::Thing; pub enum Deep { One, Two(u8) }
            impl From<Deep> for Thing { fn from(_: Deep) -> Self { todo!() } }";
        let b = "pub type Alias = crate::a::Thing<u16>; pub const N: usize = 3;
            pub trait Shape { const SIDES: u8; fn area(&self) -> f64 { 0.0 } }
            pub struct Thing; impl Thing { pub fn other_thing(mut self) {} }
            impl Drop for Thing { fn drop(&mut self) {} }
            trait Private {} impl Private for Thing {} impl Private for u8 {}
            impl Iterator for &Thing { type Item = u8; fn next(&mut self) {} }
            impl From<Thing> for u8 { fn from(_: Thing) -> u8 { 0 } }";
        let files = [("lib.rs", lib), ("a.rs", a), ("a/inner.rs", inner), ("b/mod.rs", b)];
        let expected = "\
enum Renamed
    One
    Two(u8)
fn free<T: Clone>(of: &mut [T], f: impl Fn(u8) -> u8) -> (u8, Option<&'static str>)
impl From<Thing> for u8
mod b
struct Thing<T = u8>
    #[derive(Clone)]
    impl From<Deep> for Thing
    impl<T> Thing<T>: pub fn method(&self) -> u8
    pub shown: T
use other::Foreign
b::const N: usize
b::struct Thing
    impl Iterator for &Thing
    impl Iterator for &Thing: type Item = u8
    impl Thing: pub fn other_thing(self)
b::trait Shape
    const SIDES: u8
    fn area(&self) -> f64
b::type Alias = crate::a::Thing<u16>
";
        assert_eq!(api_of("members", &files), expected);
    }

    #[test]
    fn a_member_that_one_of_two_items_has_lost_is_a_change() {
        let before = "struct A\n    pub n: u8\nstruct B\n    pub n: u8\n";
        let now = "struct A\n    pub n: u8\nstruct B\n    pub m: u8\n";
        assert_eq!(changes(before, now), ["- struct B: pub n: u8", "+ struct B: pub m: u8"]);
        assert_eq!(changes(before, before), Vec::<String>::new());
    }

    #[test]
    fn members_of_items_of_a_crate_beside_it_are_listed() {
        let lib = "pub use beside_it::deep::{Thing, None as Renamed, thing};";
        let beside = "pub mod deep { mod thing; pub use thing::{Thing, thing}; }";
        let thing = "pub enum Thing { One } impl Thing { pub fn method(&self) {} }
            pub fn thing(at: *mut u8) {}";
        let files = [
            ("lib.rs", lib),
            ("../../beside-it/src/lib.rs", beside),
            ("../../beside-it/src/deep/thing.rs", thing),
        ];
        let expected = "\
use beside_it::deep::None as Renamed
use beside_it::deep::Thing
    One
    enum Thing
    impl Thing: pub fn method(&self)
use beside_it::deep::thing
    fn thing(at: *mut u8)
";
        assert_eq!(api_of("beside", &files), expected);
    }

    #[test]
    fn signatures_that_a_macro_is_given_are_listed() {
        let lib = "pub struct Thing;
            macro_rules! m { ($($t:tt)*) => { pub fn } }
            m! { impl Thing {
                /// Docs.
                pub fn method(&self, n: u8) -> Vec<u8>;
                pub fn set(&self) = other, call;
                fn hidden(&self);
            } }";
        let expected = "\
struct Thing
    impl Thing: pub fn method(&self, n: u8) -> Vec<u8>
    impl Thing: pub fn set(&self)
";
        assert_eq!(api_of("signatures", &[("lib.rs", lib)]), expected);
    }

    #[test]
    fn a_macro_of_one_rule_is_expanded() {
        let lib = "pub struct Thing<'a, T>(&'a T); struct Private; mod a;
            m!(Thing<'_, T>, |_| {}); m!(Private, 0);";
        let a = "macro_rules! m { ($of:ty, $value:expr) => {
                impl<T> Read for $of { fn read(&mut self) { $value } }
                impl<T> Read for &$of {}
                impl<T> $of { pub fn method(&self) -> u8 { $value } }
            } }";
        let expected = "\
struct Thing<'a, T>
    impl<T> Read for &Thing<'_, T>
    impl<T> Read for Thing<'_, T>
    impl<T> Thing<'_, T>: pub fn method(&self) -> u8
";
        assert_eq!(api_of("expanded", &[("lib.rs", lib), ("a.rs", a)]), expected);
    }

    #[test]
    #[should_panic(expected = "hides public items")]
    fn a_macro_with_public_items_in_its_arguments_is_an_error() {
        let lib = "macro_rules! m { ($($t:tt)*) => { $($t)* } } m! { pub fn hidden() {} }";
        let _ = api_of("arguments", &[("lib.rs", lib)]);
    }

    #[test]
    #[should_panic(expected = "hides public items")]
    fn a_macro_with_public_items_in_its_definition_is_an_error() {
        let lib =
            "mod a { macro_rules! m { ($($n:ident)*) => { $(pub fn $n() {})* } } m!(hidden); }";
        let _ = api_of("definition", &[("lib.rs", lib)]);
    }
}
