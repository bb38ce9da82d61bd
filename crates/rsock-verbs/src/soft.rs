//! A complete verbs device in shared memory.
/// The backend.
#[derive(Clone, Copy, Debug)]
pub struct Soft;
