//! Random bytes through the fuzzers' own functions.

use crate::sim::bytes;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_bytes_pass(data in vec(any::<u8>(), 0..400), mut block in vec(any::<u8>(), 0..80)) {
        bytes::imm(&data);
        bytes::conn_data(&data);
        if let Some(version) = block.first_mut() {
            *version = 1;
        }
        bytes::conn_data(&block);
        bytes::proto_ops(&data);
    }
}
