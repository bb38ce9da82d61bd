//! The list of public items as text.

use crate::signatures::Signatures;
use crate::sources::{ItemPath, Sources, imports};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use syn::{Attribute, Fields, ImplItem, Item, ItemImpl, TraitItem, Type, Visibility};

/// The public items of each public module, with their members.
#[derive(Default)]
pub(crate) struct Api {
    modules: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

impl Api {
    /// `crates` has the directories of the crates whose items this one may re-export.
    pub(crate) fn of(sources: &Sources, crates: &Path) -> Self {
        refuse_hidden_items(sources);
        let impls = impls_by_type(sources);
        let mut api = Self::default();
        api.add_module(sources, &impls, &Vec::new(), "");
        for line in impls_for_others(sources) {
            api.add("", line, BTreeSet::new());
        }
        api.add_members_of_others(crates);
        api
    }

    /// Adds the members of items of other crates to the lines that re-export these items.
    fn add_members_of_others(&mut self, crates: &Path) {
        let mut others: BTreeMap<String, Option<(Sources, Impls)>> = BTreeMap::new();
        for items in self.modules.values_mut() {
            for (heading, members) in items {
                let Some(path) = heading.strip_prefix("use ") else { continue };
                let path = path.split(" as ").next().unwrap_or_default();
                let path: ItemPath = path.split("::").map(str::to_owned).collect();
                let Some((name, path)) = path.split_first() else { continue };
                let other = others.entry(name.clone()).or_insert_with(|| {
                    let lib = crates.join(name.replace('_', "-")).join("src/lib.rs");
                    let sources = lib.exists().then(|| Sources::read(&lib))?;
                    let impls = impls_by_type(&sources);
                    Some((sources, impls))
                });
                let Some((sources, impls)) = other else { continue };
                let Some((found, item)) = sources.exported(path) else { continue };
                let name = found.last().map_or("", String::as_str);
                members.insert(self::heading(item, name));
                members.extend(members_of(item));
                members.extend(impls.get(&found).into_iter().flatten().cloned());
            }
        }
    }

    /// `prefix` is the public path of the module.
    fn add_module(&mut self, sources: &Sources, impls: &Impls, module: &ItemPath, prefix: &str) {
        for item in sources.modules.get(module).into_iter().flatten() {
            match item {
                Item::Use(item) if is_public(&item.vis) => {
                    for import in imports(&item.tree) {
                        let found = sources.resolve(module, &import.path);
                        match (found, import.name) {
                            (Some(path), Some(name)) => {
                                self.add_path(sources, impls, &path, &name, prefix);
                            }
                            (Some(path), None) => self.add_module(sources, impls, &path, prefix),
                            (None, name) => {
                                let name = name.map(|name| renamed(&import.path, &name));
                                let name = name.unwrap_or_else(|| "::*".to_owned());
                                let path = import.path.join("::");
                                self.add(prefix, format!("use {path}{name}"), BTreeSet::new());
                            }
                        }
                    }
                }
                Item::Mod(item) if is_public(&item.vis) => {
                    let mut path = module.clone();
                    path.push(item.ident.to_string());
                    self.add_path(sources, impls, &path, &item.ident.to_string(), prefix);
                }
                Item::Macro(item) if has(&item.attrs, "macro_export") => {
                    let name = item.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    self.add("", format!("macro {name}!"), BTreeSet::new());
                }
                item => {
                    let Some((name, vis)) = declared(item) else { continue };
                    if is_public(vis) {
                        let mut path = module.clone();
                        path.push(name.clone());
                        self.add_path(sources, impls, &path, &name, prefix);
                    }
                }
            }
        }
    }

    fn add_path(
        &mut self,
        sources: &Sources,
        impls: &Impls,
        path: &ItemPath,
        name: &str,
        prefix: &str,
    ) {
        if let Some(item) = sources.item(path) {
            let mut members = members_of(item);
            members.extend(impls.get(path).into_iter().flatten().cloned());
            self.add(prefix, heading(item, name), members);
        } else if sources.modules.contains_key(path) {
            self.add(prefix, format!("mod {name}"), BTreeSet::new());
            let inner = format!("{prefix}{name}::");
            self.add_module(sources, impls, path, &inner);
        }
    }

    fn add(&mut self, prefix: &str, heading: String, members: BTreeSet<String>) {
        self.modules.entry(prefix.to_owned()).or_default().insert(heading, members);
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (prefix, items) in &self.modules {
            for (heading, members) in items {
                writeln!(f, "{prefix}{heading}")?;
                for member in members {
                    writeln!(f, "    {member}")?;
                }
            }
        }
        Ok(())
    }
}

/// What the `impl` blocks of each type, which may lie in any module, add to the API.
type Impls = BTreeMap<ItemPath, BTreeSet<String>>;

fn impls_by_type(sources: &Sources) -> Impls {
    let mut impls = Impls::new();
    for (module, items) in &sources.modules {
        for item in items {
            match item {
                Item::Impl(item) => {
                    let Some(of) = own_type(sources, module, item) else { continue };
                    if !is_of_private_trait(sources, module, item) {
                        impls.entry(of).or_default().extend(members_of_impl(item));
                    }
                }
                Item::Macro(call) if call.ident.is_none() => {
                    if let Ok(block) = call.mac.parse_body::<Signatures>() {
                        let Some(of) = sources.resolve(module, &path_of(&block.of)) else {
                            continue;
                        };
                        impls.entry(of).or_default().extend(members_of_signatures(&block));
                    }
                }
                _ => {}
            }
        }
    }
    impls
}

/// The traits that types of other crates implement.
fn impls_for_others(sources: &Sources) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (module, items) in &sources.modules {
        for item in items {
            let Item::Impl(item) = item else { continue };
            if own_type(sources, module, item).is_none()
                && !is_of_private_trait(sources, module, item)
            {
                lines.extend(members_of_impl(item));
            }
        }
    }
    lines
}

/// The type of this crate that the block is for, or for references to which it is.
fn own_type(sources: &Sources, module: &ItemPath, item: &ItemImpl) -> Option<ItemPath> {
    let mut of = &*item.self_ty;
    while let Type::Reference(reference) = of {
        of = &*reference.elem;
    }
    let Type::Path(of) = of else { return None };
    sources.resolve(module, &path_of(&of.path))
}

/// A call that could not be expanded, and makes public items, must be given their signatures.
///
/// # Panics
/// If a call may make other public items.
fn refuse_hidden_items(sources: &Sources) {
    let items = || sources.modules.values().flatten();
    let makes_public = |item: &&syn::ItemMacro| has_pub(&item.mac.tokens);
    let macros: BTreeSet<String> = items()
        .filter_map(|item| match item {
            Item::Macro(item) if makes_public(&item) => item.ident.as_ref().map(Ident::to_string),
            _ => None,
        })
        .collect();
    for item in items() {
        let Item::Macro(call) = item else { continue };
        let name = call.mac.path.segments.last().map(|last| last.ident.to_string());
        let is_call = call.ident.is_none();
        let is_of_public = name.is_some_and(|name| macros.contains(&name));
        if is_call && (is_of_public || has_pub(&call.mac.tokens)) {
            let is_listed = call.mac.parse_body::<Signatures>().is_ok();
            assert!(is_listed, "a macro hides public items: {}", tidy(&call.mac));
        }
    }
}

fn has_pub(tokens: &TokenStream) -> bool {
    tokens.to_string().split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "pub")
}

fn path_of(path: &syn::Path) -> ItemPath {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// Whether the trait is of this crate and not `pub`; `Drop` is not part of the API either.
fn is_of_private_trait(sources: &Sources, module: &ItemPath, item: &ItemImpl) -> bool {
    let Some((_, of, _)) = &item.trait_ else { return false };
    let found = sources.resolve(module, &path_of(of));
    let found = found.as_ref().and_then(|path| sources.item(path)).and_then(declared);
    of.is_ident("Drop") || found.is_some_and(|(_, vis)| !is_public(vis))
}

fn members_of_impl(item: &ItemImpl) -> BTreeSet<String> {
    let ItemImpl { unsafety, generics, self_ty, .. } = item;
    let bounds = &generics.where_clause;
    if let Some((not, of, _)) = &item.trait_ {
        let head = tidy(&quote!(#unsafety impl #generics #not #of for #self_ty #bounds));
        let types = item.items.iter().filter_map(|member| match member {
            ImplItem::Type(t) => {
                let (ident, generics, ty) = (&t.ident, &t.generics, &t.ty);
                let text = tidy(&quote!(type #ident #generics = #ty));
                Some(format!("{head}: {text}"))
            }
            _ => None,
        });
        return types.chain([head.clone()]).collect();
    }
    let head = tidy(&quote!(impl #generics #self_ty #bounds));
    let members = item.items.iter().filter_map(|member| match member {
        ImplItem::Fn(f) if is_public(&f.vis) => {
            let sig = &f.sig;
            Some(tidy(&quote!(pub #sig)))
        }
        ImplItem::Const(c) if is_public(&c.vis) => {
            let (ident, ty) = (&c.ident, &c.ty);
            Some(tidy(&quote!(pub const #ident: #ty)))
        }
        _ => None,
    });
    members.map(|member| format!("{head}: {member}")).collect()
}

fn members_of_signatures(block: &Signatures) -> impl Iterator<Item = String> {
    let of = &block.of;
    let head = tidy(&quote!(impl #of));
    block.functions.iter().filter(|(vis, _)| is_public(vis)).map(move |(_, sig)| {
        let sig = tidy(&quote!(pub #sig));
        format!("{head}: {sig}")
    })
}

/// The first line of an item, without its body.
fn heading(item: &Item, name: &str) -> String {
    let name = Ident::new(name, Span::call_site());
    match item {
        Item::Const(item) => {
            let ty = &item.ty;
            tidy(&quote!(const #name: #ty))
        }
        Item::Static(item) => {
            let ty = &item.ty;
            tidy(&quote!(static #name: #ty))
        }
        Item::Enum(item) => {
            let (generics, bounds) = (&item.generics, &item.generics.where_clause);
            tidy(&quote!(enum #name #generics #bounds))
        }
        Item::Struct(item) => {
            let (generics, bounds) = (&item.generics, &item.generics.where_clause);
            tidy(&quote!(struct #name #generics #bounds))
        }
        Item::Trait(item) => {
            let (generics, bounds) = (&item.generics, &item.generics.where_clause);
            let (unsafety, colon, supers) = (&item.unsafety, &item.colon_token, &item.supertraits);
            tidy(&quote!(#unsafety trait #name #generics #colon #supers #bounds))
        }
        Item::Type(item) => {
            let (generics, ty) = (&item.generics, &item.ty);
            tidy(&quote!(type #name #generics = #ty))
        }
        Item::Fn(item) => {
            let mut sig = item.sig.clone();
            sig.ident = name;
            tidy(&sig)
        }
        item => tidy(item),
    }
}

fn members_of(item: &Item) -> BTreeSet<String> {
    let mut members = BTreeSet::new();
    let attributes: &[Attribute] = match item {
        Item::Enum(item) => {
            members.extend(item.variants.iter().map(|variant| {
                let (ident, fields) = (&variant.ident, &variant.fields);
                tidy(&quote!(#ident #fields))
            }));
            &item.attrs
        }
        Item::Struct(item) => {
            members.extend(public_fields(&item.fields));
            &item.attrs
        }
        Item::Trait(item) => {
            members.extend(item.items.iter().filter_map(|member| match member {
                TraitItem::Fn(f) => Some(tidy(&f.sig)),
                TraitItem::Const(c) => {
                    let (ident, ty) = (&c.ident, &c.ty);
                    Some(tidy(&quote!(const #ident: #ty)))
                }
                TraitItem::Type(t) => {
                    let (ident, bounds) = (&t.ident, &t.bounds);
                    Some(tidy(&quote!(type #ident: #bounds)))
                }
                _ => None,
            }));
            &item.attrs
        }
        _ => &[],
    };
    let listed = |attribute: &&Attribute| {
        ["derive", "non_exhaustive"].iter().any(|name| attribute.path().is_ident(name))
    };
    members.extend(attributes.iter().filter(listed).map(tidy));
    members
}

fn public_fields(fields: &Fields) -> Vec<String> {
    let public = fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis));
    public
        .map(|(n, field)| {
            let ty = tidy(&field.ty);
            let name = field.ident.as_ref().map_or(n.to_string(), ToString::to_string);
            format!("pub {name}: {ty}")
        })
        .collect()
}

fn declared(item: &Item) -> Option<(String, &Visibility)> {
    let (ident, vis) = match item {
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        Item::Static(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        Item::Union(item) => (&item.ident, &item.vis),
        _ => return None,
    };
    Some((ident.to_string(), vis))
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

/// ` as name` if it is not the last part of `path`.
fn renamed(path: &ItemPath, name: &str) -> String {
    if path.last().is_some_and(|last| last == name) { String::new() } else { format!(" as {name}") }
}

/// Tokens as text, spaced as a person would.
fn tidy(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (spaced, tight) in [
        ("\n", " "),
        (" :: ", "::"),
        (":: ", "::"),
        (" < ", "<"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        ("& ", "&"),
        (" ,", ","),
        (",)", ")"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" :", ":"),
        ("* mut ", "*mut "),
        ("* const ", "*const "),
        (" ;", ";"),
        (" ]", "]"),
        ("# [", "#["),
        (" !", "!"),
        ("->(", "-> ("),
        (",(", ", ("),
        ("=(", "= ("),
        (":(", ": ("),
        // Whether a function changes its parameters is no part of its signature.
        ("(mut self", "(self"),
    ] {
        text = text.replace(spaced, tight);
    }
    text.trim_end().to_owned()
}
