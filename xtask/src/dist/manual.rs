//! Man pages from Markdown: the pages of docs/man, as `man(7)` macros.
//!
//! Written in Markdown because people read and change them there, and because one of them includes
//! a document of the project. A page begins with `# name(section)`; `##` is a section, `###` a
//! subsection. A list item that begins with a paragraph of code alone is a tagged paragraph, and so
//! is a table's row: the first cell is its tag, the others follow with the heads of their columns.

use crate::steps::{Done, Failure};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use std::fmt::Write;
use std::fs;
use std::iter::Peekable;
use std::path::Path;

/// A finished page.
#[derive(Debug)]
pub(super) struct Page {
    /// As `rsock.toml.5`.
    pub(super) file_name: String,
    pub(super) text: String,
}

/// Reads the Markdown in `file`; its footer names `version`.
pub(super) fn page(file: &Path, version: &str) -> Done<Page> {
    let text = with_includes(file)?;
    let wrong = |why: &str| Failure::new(format!("{}: {why}", file.display()));
    let (title, body) = text.split_once('\n').ok_or_else(|| wrong("is empty"))?;
    let (name, section) = title
        .strip_prefix("# ")
        .and_then(|title| title.strip_suffix(')')?.split_once('('))
        .ok_or_else(|| wrong("does not begin with `# name(section)`"))?;
    let file_name = format!("{name}.{section}");
    if file.file_stem().is_none_or(|stem| stem != file_name.as_str()) {
        return Err(wrong("is not called as its title says"));
    }
    let mut roff = format!(
        ".TH {} {section} \"\" \"rsock {version}\" \"rsock manual\"\n",
        escape(&name.to_uppercase())
    );
    roff.push_str(&body_of(body));
    Ok(Page { file_name, text: roff })
}

/// The text of `file`, with the documents that it includes in a line `<!-- include PATH -->`.
fn with_includes(file: &Path) -> Done<String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|e| Failure::io(path.display(), &e));
    let mut text = String::new();
    for line in read(file)?.lines() {
        match line.strip_prefix("<!-- include ").and_then(|rest| rest.strip_suffix(" -->")) {
            Some(other) => {
                let other = read(&file.parent().unwrap_or(file).join(other))?;
                // Its title is that of a document of its own.
                let (_, body) = other.split_once('\n').unwrap_or_default();
                text.push_str("## Description\n");
                text.push_str(body);
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    Ok(text)
}

fn body_of(markdown: &str) -> String {
    let events = Parser::new_ext(markdown, Options::ENABLE_TABLES).peekable();
    let mut writer = Writer { events, roff: String::new(), is_tagged: false };
    writer.blocks();
    writer.roff
}

struct Writer<'a, I: Iterator<Item = Event<'a>>> {
    events: Peekable<I>,
    roff: String,
    /// The next paragraph follows a tag, so it needs no macro of its own.
    is_tagged: bool,
}

impl<'a, I: Iterator<Item = Event<'a>>> Writer<'a, I> {
    /// Writes all blocks.
    fn blocks(&mut self) {
        while let Some(event) = self.events.next() {
            match event {
                Event::Start(Tag::Heading { level, .. }) => self.heading(level),
                Event::Start(Tag::Paragraph) => {
                    let text = self.inline(TagEnd::Paragraph);
                    self.paragraph(&text);
                }
                Event::Start(Tag::CodeBlock(_)) => self.code(),
                Event::Start(Tag::List(_)) => self.list(),
                Event::Start(Tag::Table(_)) => self.table(),
                // Quotations, rules and HTML: no page has them.
                _ => {}
            }
        }
    }

    fn heading(&mut self, level: HeadingLevel) {
        let mut text = String::new();
        while let Some(event) = self.events.next_if(|event| !matches!(event, Event::End(_))) {
            if let Event::Text(part) | Event::Code(part) = event {
                text.push_str(&part);
            }
        }
        let _ = if level <= HeadingLevel::H2 {
            writeln!(self.roff, ".SH \"{}\"", escape(&text.to_uppercase()))
        } else {
            writeln!(self.roff, ".SS \"{}\"", escape(&text))
        };
        // A paragraph after a heading needs no macro either.
        self.is_tagged = true;
    }

    fn paragraph(&mut self, text: &str) {
        if !std::mem::take(&mut self.is_tagged) {
            self.roff.push_str(".PP\n");
        }
        self.lines(text);
    }

    fn code(&mut self) {
        self.is_tagged = false;
        self.roff.push_str(".PP\n.RS 4\n.nf\n");
        while let Some(event) = self.events.next() {
            match event {
                Event::End(TagEnd::CodeBlock) => break,
                Event::Text(text) => self.lines(&escape(&text)),
                _ => {}
            }
        }
        self.roff.push_str(".fi\n.RE\n");
    }

    fn list(&mut self) {
        while let Some(event) = self.events.next() {
            match event {
                Event::End(TagEnd::List(_)) => break,
                Event::Start(Tag::Item) => self.item(),
                _ => {}
            }
        }
        self.is_tagged = false;
    }

    fn item(&mut self) {
        let mut first = String::new();
        if matches!(self.events.peek(), Some(Event::Start(Tag::Paragraph))) {
            self.events.next();
            first = self.inline(TagEnd::Paragraph);
        }
        let is_code = first.starts_with("\\fB") && first.ends_with("\\fR");
        self.is_tagged = first.is_empty() || (is_code && first.matches("\\f").count() == 2);
        let tag = if is_code && self.is_tagged { ".TP\n" } else { ".IP \\(bu 2\n" };
        self.roff.push_str(tag);
        self.lines(&first);
        self.blocks_in_item();
    }

    /// Paragraphs are indented as the first. The text of an item in a list without empty lines has
    /// no paragraph around it.
    fn blocks_in_item(&mut self) {
        while let Some(event) = self.events.next() {
            let text = match event {
                Event::End(TagEnd::Item) => return,
                Event::Start(Tag::Paragraph) => self.inline(TagEnd::Paragraph),
                event => self.tight(event),
            };
            if !std::mem::take(&mut self.is_tagged) {
                self.roff.push_str(".IP\n");
            }
            self.lines(&text);
        }
    }

    fn table(&mut self) {
        let mut heads = Vec::new();
        let mut cells = Vec::new();
        while let Some(event) = self.events.next() {
            match event {
                Event::End(TagEnd::Table) => break,
                Event::Start(Tag::TableCell) => cells.push(self.inline(TagEnd::TableCell)),
                Event::End(TagEnd::TableHead) => heads = std::mem::take(&mut cells),
                Event::End(TagEnd::TableRow) => {
                    self.row(&heads, &cells);
                    cells.clear();
                }
                _ => {}
            }
        }
        self.is_tagged = false;
    }

    fn row(&mut self, heads: &[String], cells: &[String]) {
        let Some((tag, rest)) = cells.split_first() else { return };
        self.roff.push_str(".TP\n");
        self.lines(tag);
        for (i, (cell, head)) in rest.iter().zip(&heads[1..]).enumerate() {
            if i > 0 {
                self.roff.push_str(".br\n");
            }
            let head = if head.is_empty() { String::new() } else { format!("\\fI{head}\\fR: ") };
            self.lines(&format!("{head}{cell}"));
        }
    }

    /// Text up to `end`, with fonts.
    fn inline(&mut self, end: TagEnd) -> String {
        let mut text = String::new();
        for event in self.events.by_ref() {
            if event == Event::End(end) {
                break;
            }
            span(&event, &mut text);
        }
        text
    }

    /// Text from `first` up to the next block or the end of this one.
    fn tight(&mut self, first: Event<'a>) -> String {
        let mut text = String::new();
        span(&first, &mut text);
        while let Some(event) = self.events.next_if(is_inline) {
            span(&event, &mut text);
        }
        text
    }

    /// Whole lines, none of which is taken for a macro.
    fn lines(&mut self, text: &str) {
        for line in text.lines() {
            if line.starts_with(['.', '\'']) {
                self.roff.push_str("\\&");
            }
            self.roff.push_str(line);
            self.roff.push('\n');
        }
    }
}

fn is_inline(event: &Event<'_>) -> bool {
    match event {
        Event::Start(tag) => matches!(tag, Tag::Emphasis | Tag::Strong | Tag::Link { .. }),
        Event::End(tag) => matches!(tag, TagEnd::Emphasis | TagEnd::Strong | TagEnd::Link),
        _ => true,
    }
}

/// Adds what `event` says to `text`: code and strong text are bold, emphasis is italic, and of a
/// link its text stays.
fn span(event: &Event<'_>, text: &mut String) {
    match event {
        Event::Text(plain) => text.push_str(&escape(plain)),
        Event::Code(code) => {
            let _ = write!(text, "\\fB{}\\fR", escape(code).replace('-', "\\-"));
        }
        Event::SoftBreak | Event::HardBreak => text.push('\n'),
        Event::Start(Tag::Emphasis) => text.push_str("\\fI"),
        Event::Start(Tag::Strong) => text.push_str("\\fB"),
        Event::End(TagEnd::Emphasis | TagEnd::Strong) => text.push_str("\\fR"),
        _ => {}
    }
}

/// Characters that mean something else to roff.
fn escape(text: &str) -> String {
    text.replace('\\', "\\e").replace('"', "\\(dq").replace('\'', "\\(aq")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_macros() {
        let markdown = "## Name\n\nthe `a-b` page\n.not a macro\n\nnext\n\n    code \"x\"\n";
        assert_eq!(
            body_of(markdown),
            ".SH \"NAME\"\nthe \\fBa\\-b\\fR page\n\\&.not a macro\n.PP\nnext\n\
             .PP\n.RS 4\n.nf\ncode \\(dqx\\(dq\n.fi\n.RE\n"
        );
    }

    #[test]
    fn items_and_rows_are_tagged_paragraphs() {
        let tagged = "- `A=b`\n\n  means *this*\n\n  and that\n\n- `C`\n\n  more\n";
        assert_eq!(
            body_of(tagged),
            ".TP\n\\fBA=b\\fR\nmeans \\fIthis\\fR\n.IP\nand that\n.TP\n\\fBC\\fR\nmore\n"
        );
        assert_eq!(
            body_of("* one\n  [two](x.md)\n* three\n\nafter\n"),
            ".IP \\(bu 2\none\ntwo\n.IP \\(bu 2\nthree\n.PP\nafter\n"
        );
        assert_eq!(
            body_of("| call | C | here |\n| --- | --- | --- |\n| `r` | 0 | `1`; 2 |\n"),
            ".TP\n\\fBr\\fR\n\\fIC\\fR: 0\n.br\n\\fIhere\\fR: \\fB1\\fR; 2\n"
        );
    }
}
