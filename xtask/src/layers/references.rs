//! The modules of a crate and the paths by which their code names each other, read with `syn`.
//!
//! Code that only tests, models or fuzzing compile is left out. Methods are not seen, because their
//! paths are not written: only `crate::`, `super::` and `self::` lead from module to module.

use crate::steps::{Done, Failure};
use proc_macro2::{Ident, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree};

/// The names of a module and of those it lies in, from the crate's root down; empty for the root.
pub(super) type ModulePath = Vec<String>;

/// What one crate's code is made of.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) modules: BTreeSet<ModulePath>,
    paths: Vec<Written>,
    /// What a `use` brings into a module, by the name it has there.
    imports: BTreeMap<(ModulePath, String), Vec<String>>,
    /// What a `use` of everything (`*`) brings into a module comes from these paths.
    globs: Vec<(ModulePath, Vec<String>)>,
    /// The items of each module, by their names.
    items: BTreeSet<(ModulePath, String)>,
}

/// A path as it stands in the code.
#[derive(Debug)]
struct Written {
    module: ModulePath,
    segments: Vec<String>,
    at: String,
}

/// One module's code names something of another module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) from: ModulePath,
    pub(super) to: ModulePath,
    /// File and line, for people.
    pub(super) at: String,
}

impl Sources {
    /// Reads the crate whose root is `file`, and every module of it. Files are shown relative to
    /// `shown_from`.
    pub(super) fn read(file: &Path, shown_from: &Path) -> Done<Self> {
        let mut sources = Self::default();
        let mut todo = vec![(file.to_owned(), ModulePath::new(), true)];
        while let Some((file, module, owns_directory)) = todo.pop() {
            let shown = file.strip_prefix(shown_from).unwrap_or(&file).display().to_string();
            let text = fs::read_to_string(&file).map_err(|e| Failure::io(&shown, &e))?;
            let parsed = syn::parse_file(&text)
                .map_err(|e| Failure::new(format!("{shown}:{}: {e}", e.span().start().line)))?;
            let parent = file.parent().unwrap_or(Path::new(""));
            let directory =
                if owns_directory { parent.to_owned() } else { file.with_extension("") };
            sources.modules.insert(module.clone());
            let mut reader = Reader {
                sources: &mut sources,
                file: &file,
                shown,
                module,
                directory,
                todo: &mut todo,
            };
            reader.visit_file(&parsed);
        }
        Ok(sources)
    }

    /// Every reference from one module to another that neither lies in it nor holds it.
    pub(super) fn references(&self) -> Vec<Reference> {
        let mut found = Vec::new();
        for path in &self.paths {
            let Some(to) = self.target(&path.module, &path.segments, 0) else { continue };
            if !path.module.starts_with(&to) && !to.starts_with(&path.module) {
                found.push(Reference { from: path.module.clone(), to, at: path.at.clone() });
            }
        }
        found
    }

    /// The module that `segments`, written in `module`, lead to. What a surrounding module only
    /// re-exports counts as what it is a name of.
    fn target(&self, module: &[String], segments: &[String], depth: usize) -> Option<ModulePath> {
        let (mut to, mut rest) = self.start(module, segments)?;
        while let Some((name, after)) = rest.split_first() {
            to.push(name.clone());
            if !self.modules.contains(&to) {
                to.pop();
                break;
            }
            rest = after;
        }
        if let Some((name, after)) = rest.split_first()
            && module.starts_with(&to)
            && depth < MAX_IMPORTS
        {
            if let Some(import) = self.imports.get(&(to.clone(), name.clone())) {
                // A name from outside the crate makes no arrow.
                return self.target(&to, &[import, after].concat(), depth + 1);
            }
            if let Some(source) = self.glob_source(&to, name) {
                return Some(source);
            }
        }
        Some(to)
    }

    /// The module whose item `name` is part of `module` by a `use` of everything.
    fn glob_source(&self, module: &[String], name: &str) -> Option<ModulePath> {
        let globs = self.globs.iter().filter(|(at, _)| at == module);
        let sources = globs.filter_map(|(_, path)| self.target(module, path, MAX_IMPORTS));
        let mut sources = sources.map(|source| (source, name.to_owned()));
        sources.find(|item| self.items.contains(item)).map(|(source, _)| source)
    }

    /// Where a path begins: the module, and the segments that are still to follow.
    fn start<'a>(
        &self,
        module: &[String],
        segments: &'a [String],
    ) -> Option<(ModulePath, &'a [String])> {
        let (first, mut rest) = segments.split_first()?;
        let mut start = match first.as_str() {
            "crate" => return Some((ModulePath::new(), rest)),
            "self" | "super" => module.to_vec(),
            name => {
                let child = [module, &[name.to_owned()]].concat();
                return self.modules.contains(&child).then_some((child, rest));
            }
        };
        if first == "super" {
            start.pop()?;
        }
        while let Some((next, after)) = rest.split_first().filter(|(next, _)| *next == "super") {
            debug_assert_eq!(next, "super");
            start.pop()?;
            rest = after;
        }
        Some((start, rest))
    }
}

/// Re-exports of re-exports that are followed at most.
const MAX_IMPORTS: usize = 8;

/// Collects the paths of one file.
struct Reader<'a> {
    sources: &'a mut Sources,
    file: &'a Path,
    shown: String,
    module: ModulePath,
    /// Where the files of this module's submodules lie.
    directory: PathBuf,
    todo: &'a mut Vec<(PathBuf, ModulePath, bool)>,
}

impl Reader<'_> {
    fn add(&mut self, segments: Vec<String>, line: usize) {
        let leads_somewhere = matches!(segments[0].as_str(), "crate" | "super" | "self");
        if leads_somewhere && segments.len() > 1 {
            let at = format!("{}:{line}", self.shown);
            self.sources.paths.push(Written { module: self.module.clone(), segments, at });
        }
    }

    /// Adds every path of a `use`, each with the name that it gets.
    fn add_use(&mut self, tree: &UseTree, before: &[String]) {
        let with = |ident: &Ident| [before, &[ident.to_string()]].concat();
        let (path, name, line) = match tree {
            UseTree::Path(path) => return self.add_use(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_use(tree, before));
            }
            UseTree::Glob(glob) => {
                self.sources.globs.push((self.module.clone(), before.to_vec()));
                return self.add(before.to_vec(), glob.star_token.spans[0].start().line);
            }
            UseTree::Name(name) => (with(&name.ident), &name.ident, name.ident.span().start().line),
            UseTree::Rename(name) => {
                (with(&name.ident), &name.rename, name.ident.span().start().line)
            }
        };
        let path = match path.split_last() {
            Some((last, module)) if last == "self" && !module.is_empty() => module.to_vec(),
            _ => path,
        };
        let name = if name == "self" { path[path.len() - 1].clone() } else { name.to_string() };
        self.sources.imports.insert((self.module.clone(), name), path.clone());
        self.add(path, line);
    }

    /// Adds the paths in a macro's tokens.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens = tokens.into_iter().collect::<Vec<_>>();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let mut segments = vec![first.to_string()];
                    while let [TokenTree::Punct(a), TokenTree::Punct(b), next, ..] = &tokens[at..]
                        && (a.as_char(), b.as_char()) == (':', ':')
                        && let TokenTree::Ident(next) = next
                    {
                        segments.push(next.to_string());
                        at += 3;
                    }
                    self.add(segments, first.span().start().line);
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = described(item);
        if !attributes.iter().any(is_left_out) {
            if let Some(name) = name {
                self.sources.items.insert((self.module.clone(), name.to_string()));
            }
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !item.attrs.iter().any(is_left_out) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        self.module.push(name.clone());
        let directory = self.directory.join(&name);
        if item.content.is_some() {
            self.sources.modules.insert(self.module.clone());
            let outside = std::mem::replace(&mut self.directory, directory);
            visit::visit_item_mod(self, item);
            self.directory = outside;
        } else if let Some(path) = path_attribute(&item.attrs) {
            let parent = self.file.parent().unwrap_or(Path::new(""));
            self.todo.push((parent.join(path), self.module.clone(), true));
        } else {
            let inside = directory.join("mod.rs");
            let (file, owns_directory) = if inside.exists() {
                (inside, true)
            } else {
                (directory.with_extension("rs"), false)
            };
            self.todo.push((file, self.module.clone(), owns_directory));
        }
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.add(segments, path.segments[0].ident.span().start().line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    /// Attributes name no module of the crate.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// The attributes of an item, and the name that others know it by.
fn described(item: &Item) -> (&[Attribute], Option<&Ident>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.ident)),
        Item::Enum(item) => (&item.attrs, Some(&item.ident)),
        Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
        Item::ForeignMod(item) => (&item.attrs, None),
        Item::Impl(item) => (&item.attrs, None),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
        Item::Mod(item) => (&item.attrs, Some(&item.ident)),
        Item::Static(item) => (&item.attrs, Some(&item.ident)),
        Item::Struct(item) => (&item.attrs, Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.ident)),
        Item::Union(item) => (&item.attrs, Some(&item.ident)),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    })
}

/// Whether an attribute keeps what it stands at out of the crate that programs use.
fn is_left_out(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<Meta>().is_ok_and(|condition| holds(&condition) == Some(false))
}

/// Whether a condition of `cfg` holds in an ordinary build; `None` if that depends on more.
fn holds(condition: &Meta) -> Option<bool> {
    let name = condition.path().get_ident().map(Ident::to_string).unwrap_or_default();
    let Meta::List(list) = condition else {
        return ["test", "fuzzing", "loom"].contains(&name.as_str()).then_some(false);
    };
    let separated = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
    let inner = list.parse_args_with(separated).ok()?;
    let mut inner = inner.iter().map(holds);
    match name.as_str() {
        "not" => inner.next()?.map(|holds| !holds),
        "all" if inner.any(|holds| holds == Some(false)) => Some(false),
        "any" if inner.all(|holds| holds == Some(false)) => Some(false),
        _ => None,
    }
}
