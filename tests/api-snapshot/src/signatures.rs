//! The arguments of a macro that writes the bodies of an `impl` block:
//! `impl Type { pub fn name(&self) -> u8 = rest; }`, where `= rest` may be missing.

use proc_macro2::{TokenStream, TokenTree};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Signature, Token, Visibility, braced};

/// See the module.
pub(crate) struct Signatures {
    pub(crate) of: syn::Path,
    pub(crate) functions: Vec<(Visibility, Signature)>,
}

impl Parse for Signatures {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        input.parse::<Token![impl]>()?;
        let of = input.parse()?;
        let block;
        braced!(block in input);
        let mut functions = Vec::new();
        while !block.is_empty() {
            Attribute::parse_outer(&block)?;
            functions.push((block.parse()?, block.parse()?));
            skip_to_semicolon(&block)?;
        }
        if !input.is_empty() {
            return Err(input.error("something follows the block"));
        }
        Ok(Self { of, functions })
    }
}

/// Skips what the macro is told about the body, and the semicolon.
fn skip_to_semicolon(block: ParseStream<'_>) -> syn::Result<()> {
    if block.peek(Token![=]) {
        let mut rest = TokenStream::new();
        while !block.peek(Token![;]) {
            rest.extend([block.parse::<TokenTree>()?]);
        }
    }
    block.parse::<Token![;]>()?;
    Ok(())
}
