//! The `examples` package: see its folders.
