//! Standard output: text, and values as JSON.

use crate::error::Error;
use std::io::{self, Write};

/// Writes to standard output.
///
/// # Errors
/// [`Error::OutputClosed`] if its reader is gone; the system's error for any other failure.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => Error::OutputClosed,
        _ => Error::io("cannot write to standard output")(e),
    })
}

/// Writes a value as indented JSON and a line feed to standard output.
///
/// # Errors
/// As [`print()`] and [`to_json`].
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Error> {
    print(&to_json(value)?)
}

/// Returns a value as indented JSON and a line feed.
///
/// # Errors
/// If JSON cannot express the value.
pub fn to_json(value: &impl serde::Serialize) -> Result<String, Error> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::Failed(format!("cannot make JSON: {e}")))?;
    text.push('\n');
    Ok(text)
}
