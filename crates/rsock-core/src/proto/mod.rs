//! The rsockets protocol without any input or output: values that are fed and drained.
