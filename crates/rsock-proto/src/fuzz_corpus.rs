//! The fuzzers' committed inputs, and changes of them, through the fuzzers' own functions.

use crate::sim::bytes;

#[path = "../../../fuzz/driver.rs"]
mod driver;

#[test]
fn words_pass() {
    driver::run("imm", 20_000, bytes::imm);
}

#[test]
fn connection_data_passes() {
    driver::run("conn_data", 5_000, bytes::conn_data);
}

#[test]
fn schedules_pass() {
    driver::run("proto_ops", 300, bytes::proto_ops);
}
