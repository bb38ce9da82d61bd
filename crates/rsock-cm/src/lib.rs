//! Connection manager: connects queue pairs, and exchanges the private data of both ends.
//!
//! This is the layer between the verbs device and the stream protocol, with the part that librdmacm
//! plays for C rsockets: addresses and ports, listen, connect, accept, reject, disconnect. A queue
//! pair needs its peer's number and a path before it can run; the *private data* that travels with
//! a request and its answer is where the protocol above puts its own connection block.
//!
//! Nothing here blocks and nothing runs in the background. Every object has a descriptor to poll
//! and a method that makes what progress there is, with the time as an argument.
//!
//! # Example
//!
//! A listener and a connector on the soft device, in one thread:
//!
//! ```
//! use rsock_cm::manager::{Connected, Connecting, Listening};
//! use rsock_cm::{Port, PortSpace, soft};
//! use rsock_verbs::{QpNum, soft::SoftContext};
//! use std::{sync::Arc, time::{Duration, Instant}};
//!
//! let ctx = SoftContext::open()?;
//! let port = Arc::new(Port::open(false)?);
//! port.bind("127.0.0.1:0".parse()?)?;
//! let server_addr = port.local_addr()?;
//! let mut listener = soft::SoftListener::listen(&ctx, PortSpace::Tcp, port, 8)?;
//!
//! let now = Instant::now();
//! let port = Arc::new(Port::open(false)?);
//! let deadline = now + Duration::from_secs(60);
//! let mut client =
//!     soft::SoftConnecting::start(&ctx, PortSpace::Tcp, port, server_addr, now, deadline)?;
//! let (mut server_end, mut client_end) = (None, None);
//! while server_end.is_none() {
//!     match client.progress(now)? {
//!         soft::SoftProgress::Path(_, _) => client.send_request(QpNum(7), b"hello")?,
//!         soft::SoftProgress::Accepted(answer) => {
//!             assert_eq!(&answer.private_data.as_bytes()[..2], b"hi");
//!             client_end = Some(client.establish()?);
//!         }
//!         soft::SoftProgress::Rejected(_) | soft::SoftProgress::Pending => {}
//!     }
//!     match listener.try_next(now)? {
//!         Some(soft::SoftEvent::Request(request)) => {
//!             listener.accept(request.id, QpNum(9), b"hi")?;
//!         }
//!         Some(soft::SoftEvent::Established { connection, .. }) => server_end = Some(connection),
//!         _ => {}
//!     }
//! }
//! assert_eq!(server_end.map(|c| c.peer_addr()), client_end.map(|c| c.local_addr()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which peers are accepted
//!
//! Both ends of a soft connection check the other's credentials before any descriptor is handed
//! over: the same user or root. On an RDMA device the fabric decides which peers are reachable.

mod addr;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod error;
pub mod manager;
mod neighbour;
mod port;
mod private_data;
pub mod rdma;
mod route;
pub mod soft;

pub use addr::{PortSpace, canonical, in_family};
pub use error::{Error, Violation};
pub use neighbour::knows_neighbour;
pub use port::Port;
pub use private_data::PrivateData;
pub use route::{Route, is_local, route_to};
