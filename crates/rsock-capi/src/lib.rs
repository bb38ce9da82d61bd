//! rsock-capi
