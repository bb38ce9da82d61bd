//! rsock-cm
