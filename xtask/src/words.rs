//! Plain English: words that make a sentence a riddle do not appear in comments, in strings or in
//! Markdown pages, and no Rust line is longer than 100 columns. docs/glossary.md has the words that
//! the project uses instead.

use crate::sources;
use crate::steps::{self, Done, Failure};
use std::fs;
use std::path::{Path, PathBuf};

/// Checks every Rust, C and Markdown file of the repository.
pub(crate) fn check() -> Done {
    let root = steps::root();
    let mut wrong = Vec::new();
    for file in files(&root)? {
        let shown = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        let text = fs::read_to_string(&file).map_err(|e| Failure::io(&shown, &e))?;
        let is_markdown = shown.ends_with(".md");
        let prose = if is_markdown { markdown_prose(&text) } else { comments_and_strings(&text) };
        for (at, line) in (1..).zip(prose.lines()) {
            complain(&mut wrong, &shown, at, line);
        }
        if shown.ends_with(".rs") {
            for (at, name) in (1..).zip(text.lines().map(declared_name)) {
                complain(&mut wrong, &shown, at, &name.replace('_', " "));
            }
            for (at, n) in long_lines(&text) {
                wrong.push(format!("{shown}:{at}: {n} columns; a line has at most {COLUMNS}"));
            }
        }
    }
    sources::verdict("words", &wrong)
}

/// Notes the words to avoid of a line.
fn complain(wrong: &mut Vec<String>, file: &str, at: usize, line: &str) {
    for (word, instead) in avoided(line).filter(|(word, _)| !is_exception(file, word)) {
        wrong.push(format!("{file}:{at}: `{word}`: write {instead}"));
    }
}

/// The files that are checked.
fn files(root: &Path) -> Done<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).map_err(|e| Failure::io(dir.display(), &e))? {
            let path = entry.map_err(|e| Failure::io(dir.display(), &e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                let is_built = ["target", "corpus"].contains(&name.as_str());
                if !is_built && !name.starts_with('.') {
                    todo.push(path);
                }
            } else if path.extension().is_some_and(|ext| KINDS.iter().any(|kind| ext == *kind)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Words of a line that are to be avoided, with what to write instead.
fn avoided(line: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lower = line.to_ascii_lowercase();
    AVOIDED.iter().filter(move |(word, _)| has_word(&lower, word)).copied()
}

/// Whether `line` has `word` with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(is_part_of_name) && !after.starts_with(is_part_of_name)
    })
}

fn is_exception(file: &str, word: &str) -> bool {
    EXCEPTIONS.iter().any(|(place, only, _)| *place == file && only.is_none_or(|only| only == word))
}

/// The name of the function or module that a line of Rust declares, or nothing.
fn declared_name(line: &str) -> &str {
    let code = line.split("//").next().unwrap_or_default();
    let after = ["fn ", "mod "].iter().find_map(|kind| {
        let (before, name) = code.split_once(kind)?;
        (!before.ends_with(is_part_of_name)).then_some(name)
    });
    let name = after.unwrap_or_default();
    name.split(|c| !is_part_of_name(c)).next().unwrap_or_default()
}

/// Lines with more than [`COLUMNS`] characters: their numbers and lengths.
fn long_lines(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let lengths = text.lines().map(|line| line.chars().count());
    (1..).zip(lengths).filter(|(_, n)| *n > COLUMNS)
}

/// `text` without the targets of its links, which are names of files.
fn markdown_prose(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, target)) = rest.split_once("](") {
        prose.push_str(before);
        prose.push_str("](");
        rest = target.split_once(')').map_or(target, |(_, after)| after);
    }
    prose + rest
}

/// Rust or C source with blanks in place of everything but comments and the contents of strings, so
/// that line numbers stay.
fn comments_and_strings(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (n_bytes, is_prose) = token(rest, first);
        let (token, after) = rest.split_at(n_bytes);
        if is_prose || first == '\n' {
            prose.push_str(token);
        } else {
            prose.push(' ');
        }
        rest = after;
    }
    prose
}

/// How long the token is that `rest` begins with, and whether it is a comment or a string.
fn token(rest: &str, first: char) -> (usize, bool) {
    if rest.starts_with("//") {
        (rest.find('\n').unwrap_or(rest.len()), true)
    } else if rest.starts_with("/*") {
        (rest.find("*/").map_or(rest.len(), |at| at + 2), true)
    } else if first == '"' {
        (end_of_string(rest), true)
    } else if first == '\'' {
        (end_of_character(rest), false)
    } else if is_part_of_name(first) {
        let n_bytes = rest.find(|c| !is_part_of_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(n_bytes);
        let raw = ["r", "br", "cr"].contains(&name).then(|| end_of_raw_string(after)).flatten();
        (n_bytes + raw.unwrap_or(0), raw.is_some())
    } else {
        (first.len_utf8(), false)
    }
}

/// The length of a raw string without its `r`, if `rest` begins with one.
fn end_of_raw_string(rest: &str) -> Option<usize> {
    let n_hashes = rest.bytes().take_while(|b| *b == b'#').count();
    let begin = n_hashes + 1;
    let contents = rest[n_hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(n_hashes));
    Some(contents.find(&end).map_or(rest.len(), |at| begin + at + end.len()))
}

/// The length of the string that `rest` begins with, quotes included.
fn end_of_string(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of the character that `rest` begins with, or 1 for the quote of a lifetime.
fn end_of_character(rest: &str) -> usize {
    if rest.starts_with("'\\") {
        let end = rest.char_indices().skip(3).find(|(_, c)| *c == '\'');
        return end.map_or(rest.len(), |(at, _)| at + 1);
    }
    let end = rest.char_indices().nth(2).filter(|(_, c)| *c == '\'');
    end.map_or(1, |(at, _)| at + 1)
}

fn is_part_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

const COLUMNS: usize = 100;

/// What the names of checked files end in.
const KINDS: &[&str] = &["rs", "c", "h", "md"];

const PERSON: &str = "the actor: the sender, the receiver, the peer, the caller, the program";
const NONE: &str = "what is absent: `no process`, `no thread`, `no peer`, or the passive";
const SOME: &str = "the actor: `another process`, `a thread`, `a peer`";
const ALL: &str = "`all processes`, `all users`, `every peer`";
const STREAM: &str = "`accelerated stream`, `the stream`, or `the peer's end`";

/// Words, in small letters, and what to write instead.
const AVOIDED: &[(&str, &str)] = &[
    ("who", PERSON),
    ("whom", PERSON),
    ("whoever", PERSON),
    ("whomever", PERSON),
    ("nobody", NONE),
    ("no one", NONE),
    ("somebody", SOME),
    ("someone", SOME),
    ("anybody", SOME),
    ("anyone", SOME),
    ("everybody", ALL),
    ("everyone", ALL),
    ("what is told of", "a sentence with a subject"),
    ("is told of", "`learns of`, or `is notified of`"),
    ("is heard", "`arrives`, or `is received`"),
    ("twin", STREAM),
    ("twins", STREAM),
    ("door", "`native listener`"),
    ("doors", "`native listeners`"),
    ("deaf", "`kernel-only waiter`, or that the ring cannot wake it"),
    ("stand-in", "`epoll proxy`, `socket proxy` or `placeholder`"),
    ("stand-ins", "`epoll proxies`, `socket proxies` or `placeholders`"),
    ("standin", "`epoll proxy`, `socket proxy` or `placeholder`"),
    ("the telling", "`metrics`, or `counters`"),
    ("a telling", "`metrics`, or `counters`"),
    ("tellings", "`metrics`, or `counters`"),
    ("the looking", "`discovery`, or `search`"),
    ("crowd", "`CPU contention`"),
    ("crowded", "`CPU contention`"),
    ("wish", "`request`"),
    ("wishes", "`requests`, or `options`"),
    ("birth", "`creation`"),
    ("grave", "`closed`, or `retired`"),
    ("graves", "`closed`, or `retired`"),
    ("bury", "`retire`, or `remove`"),
    ("buries", "`retires`, or `removes`"),
    ("buried", "`retired`, or `removed`"),
];

/// Files that may have a word, or every word (`None`), and why.
const EXCEPTIONS: &[(&str, Option<&str>, &str)] =
    &[("xtask/src/words.rs", None, "the list itself, and its tests")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole_and_in_any_case() {
        let found = |line| avoided(line).map(|(word, _)| word).collect::<Vec<_>>();
        assert_eq!(found("Nobody reads what a Twin says."), ["nobody", "twin"]);
        assert_eq!(found("`whole`, doorbell, twins_of, NOBODY_1, whose"), Vec::<&str>::new());
        assert_eq!(found("(who) a stand-in"), ["who", "stand-in"]);
    }

    #[test]
    fn only_comments_and_strings_are_read_in_sources() {
        let text = "let who = f(\"deaf \\\" ears\"); // a door\n/* two\nlines */ let c = 'w';\n";
        let prose = comments_and_strings(text);
        assert!(!prose.contains("who"), "{prose:?}");
        assert!(!prose.contains("'w'"), "{prose:?}");
        for read in ["\"deaf \\\" ears\"", "// a door", "/* two\nlines */"] {
            assert!(prose.contains(read), "{prose:?}");
        }
        assert_eq!(prose.lines().count(), text.lines().count());
    }

    #[test]
    fn raw_strings_lifetimes_and_quotes_are_told_apart() {
        let prose =
            comments_and_strings("f::<'a>(r#\"x \" who\"#, '\"', '\\'', nobody, b\"twin\")");
        assert!(prose.contains("x \" who") && prose.contains("twin"), "{prose:?}");
        assert!(!prose.contains("nobody"), "{prose:?}");
        let prose = comments_and_strings("var\"text\" who");
        assert!(prose.contains("text") && !prose.contains("who"), "{prose:?}");
    }

    #[test]
    fn names_of_functions_and_modules_are_found() {
        assert_eq!(declared_name("    pub(crate) fn a_twin_moves<T>(t: T) {"), "a_twin_moves");
        assert_eq!(declared_name("mod door;"), "door");
        assert_eq!(declared_name("let x: fn(u8) = y; // fn nobody"), "");
    }

    #[test]
    fn targets_of_links_are_not_read() {
        let prose = markdown_prose("a [choice](0004-who.md) and\n[b](who.md), c");
        assert_eq!(prose, "a [choice]( and\n[b](, c");
    }

    #[test]
    fn long_lines_are_counted_in_characters() {
        let text = format!("{}\n{}\n{}\n", "x".repeat(100), "ä".repeat(100), "ä".repeat(101));
        assert_eq!(long_lines(&text).collect::<Vec<_>>(), [(3, 101)]);
    }

    #[test]
    fn every_exception_is_of_a_file_and_a_listed_word() {
        for (file, word, _) in EXCEPTIONS {
            let is_listed = |word: &str| AVOIDED.iter().any(|(listed, _)| *listed == word);
            assert!(word.is_none_or(is_listed), "{file}");
            assert!(steps::root().join(file).exists(), "{file}");
        }
    }
}
