//! rsock-preload
