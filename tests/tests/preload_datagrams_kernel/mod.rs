//! What of UDP only the kernel can do, and what a queue beside it must not change: a program sees
//! the same.

use super::{assert_same_in, parts};

/// Datagrams that go past the kernel, until something is asked for that only the kernel has, or all
/// the time.
fn past_the_kernel(part: &'static str) {
    assert_same_in("kernel_udp.py", part, true);
}

/// Datagrams that the kernel brings from the first to the last.
fn by_the_kernel(part: &'static str) {
    assert_same_in("kernel_udp.py", part, false);
}

parts! {
    by_the_kernel;
    a_socket_that_asks_where_datagrams_were_sent_to = "destinations";
    one_of_ipv6_that_asks_where_datagrams_were_sent_to = "destinations6";
}

parts! {
    past_the_kernel;
    a_socket_that_comes_to_ask_where_datagrams_were_sent_to = "destinations_later";
    one_of_ipv6_that_comes_to_ask_where_datagrams_were_sent_to = "destinations_later6";
    a_datagram_with_a_source_of_its_own = "own_source";
    a_group_that_is_joined = "multicast";
    a_group_that_another_socket_has_joined = "multicast_heard_by_the_way";
    a_group_of_two = "multicast_to_two";
    broadcasts_and_who_may_not_send_any = "broadcast";
    ipv6_to_an_address = "everything:six";
    ipv6_to_any_address = "everything:six_any";
    ipv4_to_an_ipv6_socket = "everything:dual";
    an_ipv6_socket_to_ipv4 = "everything:mapped";
    addresses_of_the_other_family = "named_otherwise";
    an_ipv6_socket_that_may_not_speak_ipv4 = "six_only";
    many_at_once_some_with_control_data = "many_with_control";
    many_received_with_room_for_control_data = "many_received";
    segments_of_one_call = "segments";
    segments_that_are_received_together = "segments_together";
    one_datagram_of_several_calls = "corked";
    a_socket_that_is_disconnected = "disconnected";
    looked_at_and_cut_by_every_flag = "cut";
    errors_of_a_peer_that_has_gone = "refused";
}
