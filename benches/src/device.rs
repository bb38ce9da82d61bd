//! Two connected queue pairs of the shared-memory device, both in this process.

use rsock_verbs::soft::{SoftContext, SoftCq, SoftMr, SoftQp, testing};
use rsock_verbs::{Access, Context, Error, ProtectionDomain, QpCap, QueuePair};
use std::sync::Arc;

/// A queue pair, and the region that its peer may write.
#[derive(Debug)]
pub struct End {
    /// Connected and ready to send. Declared first: it goes before the memory.
    pub qp: SoftQp,
    /// Of both its halves.
    pub cq: Arc<SoftCq>,
    /// Of the length asked for.
    pub region: SoftMr,
}

/// Two ends, each with a region of `len` bytes.
///
/// # Errors
/// When memory, queues or descriptors run out.
pub fn pair(len: usize) -> Result<(End, End), Error> {
    let ctx = SoftContext::open()?;
    let (there, back) = testing::linked_pair(&ctx)?;
    let mut ends = Vec::new();
    for link in [&there, &back] {
        let pd = ctx.alloc_pd(link)?;
        let region = pd.alloc_mr(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let (cq, qp) = pd.create_qp(&ctx, CAP)?;
        qp.init(Access::REMOTE_WRITE)?;
        ends.push(End { qp, cq, region });
    }
    let [a, b] = <[End; 2]>::try_from(ends).map_err(|_| Error::Invalid("two ends"))?;
    for (end, path, peer) in [(&a, &there, &b), (&b, &back, &a)] {
        end.qp.ready_to_receive(path, peer.qp.qp_num())?;
        end.qp.ready_to_send()?;
    }
    Ok((a, b))
}

const CAP: QpCap = QpCap {
    max_send_wr: 64,
    max_recv_wr: 64,
    max_send_sge: 4,
    max_recv_sge: 0,
    has_recv_ids: true,
    max_inline: 64,
};
