//! The fuzzers' committed inputs, and changes of them, through the fuzzers' own functions.

use crate::datagram::header;
use crate::{accelerate, metrics};

#[path = "../../../fuzz/driver.rs"]
mod driver;

#[test]
fn datagrams_pass() {
    driver::run("dgram", 20_000, header::check_any);
}

#[test]
fn messages_of_the_exchange_pass() {
    driver::run("pair_message", 5_000, accelerate::fuzz::pair_message);
}

#[test]
fn words_between_hosts_pass() {
    driver::run("far_words", 5_000, accelerate::fuzz::far_words);
}

#[test]
fn answers_of_the_kernel_pass() {
    driver::run("sock_diag", 20_000, accelerate::fuzz::sock_diag);
}

#[test]
fn tables_of_other_processes_pass() {
    driver::run("stat_table", 200, metrics::fuzz::stat_table);
}
