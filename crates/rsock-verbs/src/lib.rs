//! RDMA verbs, safe to use, over devices chosen at run time.

pub mod clock;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod copy;
pub mod cpu_cache;
pub mod cred;
mod datagram;
mod device;
mod error;
pub mod family;
pub mod fault;
mod high_fd;
pub mod mutex;
pub mod own_fd;
pub mod per_thread;
pub mod raw;
pub mod rdma;
pub mod soft;
mod sparse;
mod sync;
mod types;
pub mod untrusted;
mod wc;
mod wr;

pub use datagram::*;
pub use device::*;
pub use error::{Error, PostError};
pub use high_fd::HighFd;
pub use types::*;
pub use wc::{Completion, WcOp, WcStatus};
pub use wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
