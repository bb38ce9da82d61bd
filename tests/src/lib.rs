//! The `tests` package: see its folders.
