//! Numbers of the socket options at level `SOL_RDMA`, as librdmacm defines them.

/// Level of the options that are specific to RDMA.
pub const SOL_RDMA: i32 = 0x10000;
/// Send queue entries (`u32`).
pub const RDMA_SQSIZE: i32 = 0;
/// Receive queue entries (`u32`).
pub const RDMA_RQSIZE: i32 = 1;
/// Inline bytes (`u32`).
pub const RDMA_INLINE: i32 = 2;
/// How many regions the peer may expose to this socket (`int`).
pub const RDMA_IOMAPSIZE: i32 = 3;
/// Path records, which are stored and returned.
pub const RDMA_ROUTE: i32 = 4;
