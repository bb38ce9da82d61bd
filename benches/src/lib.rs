//! The `benches` package: see its folders.
