//! The JSON of `rsock perf` and `rsock compare incast`, as far as tests read it; without spaces.

/// The number called `name` at its first place in `text`.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn number(text: &str, name: &str) -> f64 {
    let (_, rest) =
        text.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name}: {text}"));
    let digits = rest.split([',', '}']).next().unwrap_or_default();
    digits.parse().unwrap_or_else(|e| panic!("{name} is {digits}, {e}: {text}"))
}

/// The figures of each client of a run of `rsock compare incast`, and of all clients together.
///
/// # Panics
/// If they are missing.
#[must_use]
pub fn shares(run: &str) -> (Vec<&str>, &str) {
    let (_, rest) = run.split_once("\"clients\":[").expect("clients");
    let (clients, rest) = rest.split_once(']').expect("an end");
    let (_, total) = rest.split_once("\"total\":").expect("total");
    (clients.split("},").collect(), total)
}
