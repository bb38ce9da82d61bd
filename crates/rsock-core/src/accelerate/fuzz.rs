//! What a fuzzer calls: each function takes any bytes, as another process may send them, and panics
//! when a promise is broken. The ordinary tests call them too, with the committed corpus and with
//! variations of it.

pub use crate::accelerate::discovery::local::check_message as local_message;
pub use crate::accelerate::discovery::remote::check_auth_message as auth_message;
pub use crate::accelerate::verify::check_answer as sock_diag;
