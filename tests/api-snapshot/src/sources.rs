//! The modules of a crate, parsed, and what a path in one of them names.

use crate::expand::Rules;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use syn::{Attribute, Item, UseTree};

/// The path of a module below the crate, or of an item.
pub(crate) type ItemPath = Vec<String>;

/// See the module.
pub(crate) struct Sources {
    pub(crate) modules: BTreeMap<ItemPath, Vec<Item>>,
}

/// A name that a `use` brings into a module.
pub(crate) struct Import {
    /// `None` for a glob.
    pub(crate) name: Option<String>,
    pub(crate) path: ItemPath,
}

impl Sources {
    /// Reads the crate whose root is `lib`.
    pub(crate) fn read(lib: &Path) -> Self {
        let mut sources = Self { modules: BTreeMap::new() };
        let dir = lib.parent().unwrap_or_else(|| panic!("{} has no directory", lib.display()));
        sources.read_file(lib, dir, Vec::new());
        sources.expand();
        sources
    }

    /// Puts what macros make into the place of their calls.
    fn expand(&mut self) {
        let mut rules = Rules::default();
        self.modules.values().flatten().for_each(|item| rules.add(item));
        for items in self.modules.values_mut() {
            let expanded = items.drain(..).flat_map(|item| match &item {
                Item::Macro(call) if call.ident.is_none() => {
                    rules.expand(&call.mac).unwrap_or_else(|| vec![item])
                }
                _ => vec![item],
            });
            *items = expanded.collect();
        }
    }

    /// `dir` has the files of the module's children.
    fn read_file(&mut self, file: &Path, dir: &Path, module: ItemPath) {
        let text = fs::read_to_string(file)
            .unwrap_or_else(|e| panic!("{} cannot be read: {e}", file.display()));
        let parsed = syn::parse_file(&text)
            .unwrap_or_else(|e| panic!("{} cannot be parsed: {e}", file.display()));
        self.add(parsed.items, dir, module);
    }

    fn add(&mut self, items: Vec<Item>, dir: &Path, module: ItemPath) {
        let items: Vec<Item> = items.into_iter().filter(|item| !is_of_tests(item)).collect();
        for item in &items {
            let Item::Mod(child) = item else { continue };
            let name = child.ident.to_string();
            let mut path = module.clone();
            path.push(name.clone());
            match &child.content {
                Some((_, items)) => self.add(items.clone(), &dir.join(&name), path),
                None => {
                    let children = dir.join(&name);
                    let file = dir.join(format!("{name}.rs"));
                    let file = if file.exists() { file } else { children.join("mod.rs") };
                    self.read_file(&file, &children, path);
                }
            }
        }
        self.modules.insert(module, items);
    }

    /// The definition that `path` names in `module`, through the imports of private modules, too;
    /// `None` if it is of another crate.
    pub(crate) fn resolve(&self, module: &ItemPath, path: &[String]) -> Option<ItemPath> {
        self.resolve_within(module, path, 0)
    }

    fn resolve_within(&self, module: &ItemPath, path: &[String], depth: u8) -> Option<ItemPath> {
        // Imports that name each other end here.
        if depth > 16 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let base = match first.as_str() {
            "crate" => return self.resolve_below(&Vec::new(), rest, depth),
            "self" => return self.resolve_below(module, rest, depth),
            "super" => {
                let parent = module.split_last().map(|(_, parent)| parent.to_vec())?;
                return self.resolve_below(&parent, rest, depth);
            }
            name => self.find(module, name, depth)?,
        };
        if rest.is_empty() { Some(base) } else { self.resolve_below(&base, rest, depth) }
    }

    fn resolve_below(&self, module: &ItemPath, path: &[String], depth: u8) -> Option<ItemPath> {
        match path {
            [] => Some(module.clone()),
            [first, ..] if first == "super" => self.resolve_within(module, path, depth + 1),
            [first, rest @ ..] => {
                let found = self.find(module, first, depth)?;
                if rest.is_empty() { Some(found) } else { self.resolve_below(&found, rest, depth) }
            }
        }
    }

    /// What `name` is in `module`: defined there, or imported.
    fn find(&self, module: &ItemPath, name: &str, depth: u8) -> Option<ItemPath> {
        let items = self.modules.get(module)?;
        if items.iter().any(|item| name_of(item).is_some_and(|n| n == name)) {
            let mut path = module.clone();
            path.push(name.to_owned());
            return Some(path);
        }
        let imports = items.iter().filter_map(|item| match item {
            Item::Use(item) => Some(imports(&item.tree)),
            _ => None,
        });
        imports.flatten().find_map(|import| match import.name {
            // An import of the name itself, as `use rsockets::...` in a module `rsockets`, is of
            // another crate or of the root.
            Some(other) if other == name => self.resolve_within(module, &import.path, depth + 1),
            Some(_) => None,
            None => {
                let from = self.resolve_within(module, &import.path, depth + 1)?;
                self.find(&from, name, depth + 1)
            }
        })
    }

    /// The item at a public path of the crate, and where it is defined.
    pub(crate) fn exported(&self, path: &[String]) -> Option<(ItemPath, &Item)> {
        let mut found = self.resolve(&Vec::new(), path)?;
        if self.modules.contains_key(&found) {
            // A module's function of the same name, exported beside the module.
            found.push(found.last()?.clone());
        }
        let item = self.item(&found)?;
        Some((found, item))
    }

    /// The item at a path that [`Self::resolve`] returned; `None` for a module.
    pub(crate) fn item(&self, path: &ItemPath) -> Option<&Item> {
        let (name, module) = path.split_last()?;
        let items = self.modules.get(module)?.iter();
        items
            .filter(|item| !matches!(item, Item::Mod(_)))
            .find(|item| name_of(item).is_some_and(|other| other == *name))
    }
}

/// The names that a `use` declares, and their paths.
pub(crate) fn imports(tree: &UseTree) -> Vec<Import> {
    fn walk(tree: &UseTree, path: &mut ItemPath, out: &mut Vec<Import>) {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                walk(&tree.tree, path, out);
                path.pop();
            }
            UseTree::Name(tree) if tree.ident == "self" => {
                out.push(Import { name: path.last().cloned(), path: path.clone() });
            }
            UseTree::Name(tree) => {
                let name = tree.ident.to_string();
                let path = path.iter().cloned().chain([name.clone()]).collect();
                out.push(Import { name: Some(name), path });
            }
            UseTree::Rename(tree) => {
                let own = (tree.ident != "self").then(|| tree.ident.to_string());
                let path = path.iter().cloned().chain(own).collect();
                out.push(Import { name: Some(tree.rename.to_string()), path });
            }
            UseTree::Glob(_) => out.push(Import { name: None, path: path.clone() }),
            UseTree::Group(group) => {
                for tree in &group.items {
                    walk(tree, path, out);
                }
            }
        }
    }
    let mut out = Vec::new();
    walk(tree, &mut Vec::new(), &mut out);
    out
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Mod(item) => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Whether the item is compiled for tests and models alone.
fn is_of_tests(item: &Item) -> bool {
    let attributes: &[Attribute] = match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        let text = quote::quote!(#attribute).to_string();
        attribute.path().is_ident("cfg")
            && ["test", "loom", "fuzzing"].iter().any(|name| {
                let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
                words.into_iter().any(|word| word == *name) && !text.contains("not")
            })
    })
}
