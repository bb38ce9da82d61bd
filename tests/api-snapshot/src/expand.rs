//! Expands macros of one rule without repetitions, which is enough for those that write the same
//! `impl` blocks for several types.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::BTreeMap;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::{Expr, Ident, Item, Macro, Token, Type, braced, parenthesized};

/// The rules of a crate's macros, by name.
#[derive(Default)]
pub(crate) struct Rules(BTreeMap<String, Rule>);

/// `($of:ty, $value:expr) => { body }`.
struct Rule {
    variables: Vec<(String, Fragment)>,
    body: TokenStream,
}

#[derive(Clone, Copy)]
enum Fragment {
    Expr,
    Ident,
    Type,
}

impl Rules {
    /// Adds the rule of `item`, if that is a macro that can be expanded.
    pub(crate) fn add(&mut self, item: &Item) {
        let Item::Macro(item) = item else { return };
        let Some(name) = &item.ident else { return };
        if let Ok(rule) = item.mac.parse_body() {
            self.0.insert(name.to_string(), rule);
        }
    }

    /// The items that a call makes; `None` if its macro cannot be expanded.
    pub(crate) fn expand(&self, call: &Macro) -> Option<Vec<Item>> {
        let name = call.path.segments.last()?.ident.to_string();
        let rule = self.0.get(&name)?;
        let arguments = |input: ParseStream<'_>| rule.arguments(input);
        let arguments = arguments.parse2(call.tokens.clone()).ok()?;
        let file: syn::File = syn::parse2(substitute(rule.body.clone(), &arguments)).ok()?;
        Some(file.items)
    }
}

impl Rule {
    fn arguments(&self, input: ParseStream<'_>) -> syn::Result<BTreeMap<String, TokenStream>> {
        let mut arguments = BTreeMap::new();
        for (name, fragment) in &self.variables {
            let argument = match fragment {
                Fragment::Expr => input.parse::<Expr>()?.into_token_stream(),
                Fragment::Ident => input.parse::<Ident>()?.into_token_stream(),
                Fragment::Type => input.parse::<Type>()?.into_token_stream(),
            };
            arguments.insert(name.clone(), argument);
            input.parse::<Option<Token![,]>>()?;
        }
        Ok(arguments)
    }
}

impl Parse for Rule {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let (pattern, body);
        parenthesized!(pattern in input);
        input.parse::<Token![=>]>()?;
        braced!(body in input);
        input.parse::<Option<Token![;]>>()?;
        if !input.is_empty() {
            return Err(input.error("a second rule"));
        }
        let mut variables = Vec::new();
        while !pattern.is_empty() {
            pattern.parse::<Token![$]>()?;
            let name = pattern.call(Ident::parse_any)?;
            pattern.parse::<Token![:]>()?;
            let fragment = pattern.parse::<Ident>()?;
            let fragment = match fragment.to_string().as_str() {
                "expr" => Fragment::Expr,
                "ident" => Fragment::Ident,
                "ty" => Fragment::Type,
                _ => return Err(syn::Error::new(fragment.span(), "another fragment")),
            };
            variables.push((name.to_string(), fragment));
            pattern.parse::<Option<Token![,]>>()?;
        }
        Ok(Self { variables, body: body.parse()? })
    }
}

/// `body` with the arguments in the place of `$` and their names.
fn substitute(body: TokenStream, arguments: &BTreeMap<String, TokenStream>) -> TokenStream {
    let mut tokens = body.into_iter().peekable();
    let mut out = TokenStream::new();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => {
                let inside = substitute(group.stream(), arguments);
                out.extend([TokenTree::Group(Group::new(group.delimiter(), inside))]);
            }
            TokenTree::Punct(dollar) if dollar.as_char() == '$' => {
                let name = tokens.next().map(|name| name.to_string()).unwrap_or_default();
                out.extend(arguments.get(&name).cloned());
            }
            token => out.extend([token]),
        }
    }
    out
}
