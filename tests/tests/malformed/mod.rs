//! The connection data of two ends with every field wrong, whatever carries it.

use rsock_proto::CONN_DATA_LEN;

/// What is done to honest connection data, which may have room behind it.
pub(crate) type Lie = fn(&mut Vec<u8>);

/// Connection data that neither end may accept, with the errno of a client that gets it in an
/// answer.
pub(crate) const CONN_DATA: [(&str, Lie, i32); 18] = [
    ("nothing", |data| data.clear(), libc::ENOTSUP),
    ("nothing but zeroes", |data| data.fill(0), libc::ENOTSUP),
    ("nothing but ones", |data| data.fill(0xff), libc::ENOTSUP),
    ("version 0", |data| data[0] = 0, libc::ENOTSUP),
    ("version 2", |data| data[0] = 2, libc::ENOTSUP),
    ("version 255", |data| data[0] = 255, libc::ENOTSUP),
    ("a version and nothing else", |data| data.truncate(1), libc::EPROTO),
    ("a table without its length", |data| data.truncate(20), libc::EPROTO),
    ("a table with three bytes of its length", |data| data.truncate(23), libc::EPROTO),
    ("a table of no entry", |data| data[20..24].fill(0), libc::EPROTO),
    ("a table of one entry", |data| put(data, 20, &[0, 0, 0, 1]), libc::EPROTO),
    ("a table past the address space", |data| data[8..16].fill(0xff), libc::EPROTO),
    ("a table that ends past the address space", |data| data[8..24].fill(0xff), libc::EPROTO),
    (
        "a table one byte too high",
        |data| put(data, 8, &(u64::MAX - 31).to_be_bytes()),
        libc::EPROTO,
    ),
    (
        "iomaps that end past the address space",
        |data| {
            put(data, 8, &(u64::MAX - 32 - 23).to_be_bytes());
            put(data, 7, &[1]);
        },
        libc::EPROTO,
    ),
    ("a buffer past the address space", |data| data[24..32].fill(0xff), libc::EPROTO),
    ("a buffer that ends past the address space", |data| data[24..40].fill(0xff), libc::EPROTO),
    (
        "a buffer one byte too high",
        |data| {
            put(data, 24, &(u64::MAX - 15).to_be_bytes());
            put(data, 36, &16u32.to_be_bytes());
        },
        libc::EPROTO,
    ),
];

/// Overwrites what is at `at`.
pub(crate) fn put(data: &mut [u8], at: usize, bytes: &[u8]) {
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

const _: () = assert!(CONN_DATA_LEN == 40, "the places above");
