//! Runs the fuzzers' functions on their committed inputs and on mutations of them.

use crate::datagram::header;
use crate::{accelerate, metrics};

#[path = "../../../fuzz/driver.rs"]
mod driver;

#[test]
fn datagram_headers_are_decoded_without_panic() {
    driver::run("dgram", 20_000, header::check_any);
}

#[test]
fn messages_of_local_discovery_are_decoded_without_panic() {
    driver::run("local_message", 5_000, accelerate::fuzz::local_message);
}

#[test]
fn auth_messages_between_hosts_are_decoded_without_panic() {
    driver::run("auth_message", 5_000, accelerate::fuzz::auth_message);
}

#[test]
fn sock_diag_answers_are_decoded_without_panic() {
    driver::run("sock_diag", 20_000, accelerate::fuzz::sock_diag);
}

#[test]
fn metrics_of_other_processes_are_decoded_without_panic() {
    driver::run("stat_table", 200, metrics::fuzz::stat_table);
}
