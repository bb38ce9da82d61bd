//! Unmodified C programs behave the same with and without the preload library, in all pairs.

mod pair;

/// One test for each part of each program.
macro_rules! parts {
    ($($program:ident: $($part:ident)*;)*) => {
        $(
            mod $program {
                $(
                    #[test]
                    fn $part() {
                        super::pair::assert_same_in_all_pairs(
                            stringify!($program),
                            stringify!($part),
                        );
                    }
                )*
            }
        )*
    };
}

parts! {
    transfer: threads turns polled selected dontwait both_write_first;
    ends: half_close both_half_close closed_peer killed_by_sigpipe unread linger exit killed
        blocked_writer shut_read edges state timeouts files options;
    signals: interrupt interrupt_poll restart restart_timeout longjmp longjmp_write storm
        writing_handler actions fault fork cancel;
    descriptors: dup replace reuse raw_close close_range fork_server fork_both prefork vfork exec
        stdio pass epoll nonblocking many;
}
