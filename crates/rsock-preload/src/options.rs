//! The closed list of socket options, flags and ioctls that a stream off TCP can honour.
//!
//! *Harmless* are those about connecting, about the kernel's own socket, and hints; also those that
//! the core reads back from the kernel when they matter (timeouts, linger, buffer sizes). All
//! others, and every unknown one, *pin*: the stream stays on TCP.

use libc::{c_int, c_ulong};
use rsock_verbs::raw::SIOCATMARK;

/// Whether setting the option to `value` (its first four bytes) keeps the stream on TCP.
pub(crate) fn pins_when_set(level: c_int, name: c_int, value: Option<c_int>) -> bool {
    let on = value != Some(0);
    match level {
        libc::SOL_SOCKET => match name {
            libc::SO_DEBUG
            | libc::SO_REUSEADDR
            | libc::SO_REUSEPORT
            | libc::SO_DONTROUTE
            | libc::SO_BROADCAST
            | libc::SO_SNDBUF
            | libc::SO_RCVBUF
            | libc::SO_SNDBUFFORCE
            | libc::SO_RCVBUFFORCE
            | libc::SO_KEEPALIVE
            | libc::SO_OOBINLINE
            | libc::SO_PRIORITY
            | libc::SO_LINGER
            | libc::SO_RCVTIMEO
            | libc::SO_SNDTIMEO
            | libc::SO_RCVTIMEO_NEW
            | libc::SO_SNDTIMEO_NEW
            | libc::SO_BINDTODEVICE
            | libc::SO_DETACH_FILTER
            | libc::SO_MARK
            | libc::SO_BUSY_POLL
            | libc::SO_PREFER_BUSY_POLL
            | libc::SO_BUSY_POLL_BUDGET
            | libc::SO_INCOMING_CPU
            | libc::SO_ATTACH_REUSEPORT_CBPF
            | libc::SO_ATTACH_REUSEPORT_EBPF => false,
            // A stream off TCP wakes its reader for every byte.
            libc::SO_RCVLOWAT => value.is_none_or(|n| n > 1),
            libc::SO_ZEROCOPY
            | libc::SO_TIMESTAMP
            | libc::SO_TIMESTAMPNS
            | libc::SO_TIMESTAMPING
            | libc::SO_TIMESTAMP_NEW
            | libc::SO_TIMESTAMPNS_NEW
            | libc::SO_TIMESTAMPING_NEW => on,
            libc::SO_PEEK_OFF => value.is_none_or(|offset| offset >= 0),
            _ => true,
        },
        libc::IPPROTO_TCP => !matches!(
            name,
            libc::TCP_NODELAY
                | libc::TCP_CORK
                | libc::TCP_MAXSEG
                | libc::TCP_KEEPIDLE
                | libc::TCP_KEEPINTVL
                | libc::TCP_KEEPCNT
                | libc::TCP_SYNCNT
                | libc::TCP_LINGER2
                | libc::TCP_DEFER_ACCEPT
                | libc::TCP_WINDOW_CLAMP
                | libc::TCP_QUICKACK
                | libc::TCP_CONGESTION
                | libc::TCP_THIN_LINEAR_TIMEOUTS
                | libc::TCP_THIN_DUPACK
                | libc::TCP_USER_TIMEOUT
                | libc::TCP_FASTOPEN
                | libc::TCP_FASTOPEN_CONNECT
                | libc::TCP_NOTSENT_LOWAT
        ),

        libc::IPPROTO_IP => !matches!(
            name,
            libc::IP_TOS
                | libc::IP_TTL
                | libc::IP_MTU_DISCOVER
                | libc::IP_FREEBIND
                | libc::IP_TRANSPARENT
                | libc::IP_BIND_ADDRESS_NO_PORT
        ),

        libc::IPPROTO_IPV6 => !matches!(
            name,
            libc::IPV6_V6ONLY
                | libc::IPV6_TCLASS
                | libc::IPV6_UNICAST_HOPS
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_FREEBIND
                | libc::IPV6_TRANSPARENT
        ),

        _ => true,
    }
}

/// Whether the kernel treats the bytes on its socket otherwise once the option is set to `value`
/// (its first four bytes): TLS in the kernel (kTLS) encrypts them, a peek offset moves with them,
/// and a program that repairs a connection reads the kernel's queues.
pub(crate) fn concerns_bytes(level: c_int, name: c_int, value: Option<c_int>) -> bool {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_ULP) => true,
        (libc::IPPROTO_TCP, libc::TCP_REPAIR) => value != Some(0),
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => value.is_none_or(|offset| offset >= 0),
        _ => false,
    }
}

/// Whether the option is one of those that control keepalive.
pub(crate) fn is_of_keepalive(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => name == libc::SO_KEEPALIVE,
        libc::IPPROTO_TCP => {
            matches!(name, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT)
        }
        _ => false,
    }
}

/// Whether the option limits how long a call waits.
pub(crate) fn is_time_limit(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && matches!(
            name,
            libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | libc::SO_RCVTIMEO_NEW | libc::SO_SNDTIMEO_NEW
        )
}

/// Whether setting the option of a UDP socket to `value` (its first four bytes) pins the socket.
pub(crate) fn pins_datagrams_when_set(level: c_int, name: c_int, value: Option<c_int>) -> bool {
    let is_harmless = match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_DEBUG
                | libc::SO_REUSEADDR
                | libc::SO_BROADCAST
                | libc::SO_DONTROUTE
                | libc::SO_SNDBUF
                | libc::SO_RCVBUF
                | libc::SO_SNDBUFFORCE
                | libc::SO_RCVBUFFORCE
                | libc::SO_PRIORITY
                | libc::SO_KEEPALIVE
                | libc::SO_LINGER
                | libc::SO_RCVTIMEO
                | libc::SO_SNDTIMEO
                | libc::SO_RCVTIMEO_NEW
                | libc::SO_SNDTIMEO_NEW
                | libc::SO_NO_CHECK
                | libc::SO_BUSY_POLL
                | libc::SO_PREFER_BUSY_POLL
                | libc::SO_BUSY_POLL_BUDGET
        ),
        // Errors concern datagrams that the kernel has sent, and the kernel reports those as
        // before.
        libc::IPPROTO_IP => matches!(
            name,
            libc::IP_TOS
                | libc::IP_TTL
                | libc::IP_MTU_DISCOVER
                | libc::IP_BIND_ADDRESS_NO_PORT
                | libc::IP_RECVERR
                | libc::IP_MULTICAST_TTL
                | libc::IP_MULTICAST_LOOP
                | libc::IP_MULTICAST_IF
        ),
        libc::IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_V6ONLY
                | libc::IPV6_TCLASS
                | libc::IPV6_UNICAST_HOPS
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_RECVERR
                | libc::IPV6_MULTICAST_HOPS
                | libc::IPV6_MULTICAST_LOOP
                | libc::IPV6_MULTICAST_IF
        ),
        _ => false,
    };
    let asks_for_more = [
        (libc::SOL_SOCKET, libc::SO_REUSEPORT),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
        (libc::IPPROTO_IP, libc::IP_PKTINFO),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    ];
    let is_taken_back = value == Some(0) && asks_for_more.contains(&(level, name));
    !(is_harmless || is_taken_back)
}

/// Whether reading the option takes bytes from the kernel's socket.
pub(crate) fn receives_when_asked(level: c_int, name: c_int) -> bool {
    /// Maps received pages into the program (linux/tcp.h).
    const TCP_ZEROCOPY_RECEIVE: c_int = 35;
    level == libc::IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE
}

/// Flags of a send that a stream off TCP honours, or may ignore as TCP does.
pub(crate) const SEND_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_MORE
    | libc::MSG_EOR
    | libc::MSG_CONFIRM
    | libc::MSG_DONTROUTE;

/// Flags of a send that a datagram past the kernel honours, or may ignore as UDP does.
pub(crate) const DATAGRAM_SEND_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM | libc::MSG_DONTROUTE;

/// Flags of a receive that a stream off TCP honours, or may ignore as TCP does.
pub(crate) const RECV_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// Whether the command of `fcntl` keeps a stream on TCP.
pub(crate) fn pins_by_fcntl(command: c_int, arg: c_int) -> bool {
    match command {
        libc::F_SETFL => arg & libc::O_ASYNC != 0,
        libc::F_DUPFD
        | libc::F_DUPFD_CLOEXEC
        | libc::F_GETFD
        | libc::F_SETFD
        | libc::F_GETFL
        | libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_GETOWN
        | libc::F_SETOWN
        | F_SETSIG
        | F_GETSIG
        | F_SETOWN_EX
        | F_GETOWN_EX
        | F_DUPFD_QUERY => false,
        _ => true,
    }
}

const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
/// Whether two descriptors name the same file (linux/fcntl.h, Linux 6.10).
const F_DUPFD_QUERY: c_int = 1027;

/// The socket that the ioctl `request` on another file gives to the kernel, by its argument.
pub(crate) fn socket_given_by_ioctl(request: c_ulong, argument: usize) -> Option<c_int> {
    /// A network block device takes the connection to its server (linux/nbd.h).
    const NBD_SET_SOCK: c_ulong = 0xab00;
    (request == NBD_SET_SOCK).then(|| c_int::try_from(argument).ok()).flatten()
}

/// How a hook answers an ioctl on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ioctl {
    /// With the number of readable bytes.
    Readable,
    /// With the number of bytes that the peer has not received.
    Unsent,
    /// With whether urgent data comes next, which never lies on the ring.
    AtMark,
    /// The kernel's answer is right.
    Harmless,
    /// Only TCP can do it.
    Pins,
}

/// How a hook answers the ioctl `request`.
pub(crate) fn ioctl(request: c_ulong) -> Ioctl {
    const FIOSETOWN: c_ulong = 0x8901;
    const FIOGETOWN: c_ulong = 0x8903;
    const SIOCGPGRP: c_ulong = 0x8904;
    const SIOCSPGRP: c_ulong = 0x8902;
    /// Requests about interfaces, routes and addresses, which any socket takes.
    const INTERFACES: std::ops::RangeInclusive<c_ulong> = 0x890b..=0x89ff;
    match request {
        libc::FIONREAD => Ioctl::Readable,
        libc::TIOCOUTQ => Ioctl::Unsent,
        libc::FIONBIO | libc::FIOCLEX | libc::FIONCLEX | libc::TCGETS | libc::TIOCGWINSZ => {
            Ioctl::Harmless
        }
        SIOCATMARK => Ioctl::AtMark,
        FIOSETOWN | FIOGETOWN | SIOCGPGRP | SIOCSPGRP => Ioctl::Harmless,
        request if INTERFACES.contains(&request) => Ioctl::Harmless,
        _ => Ioctl::Pins,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_are_known_by_both_of_their_numbers() {
        assert!(is_time_limit(libc::SOL_SOCKET, libc::SO_RCVTIMEO));
        assert!(is_time_limit(libc::SOL_SOCKET, libc::SO_SNDTIMEO_NEW));
        assert!(!is_time_limit(libc::SOL_SOCKET, libc::SO_RCVBUF));
        assert!(!is_time_limit(libc::IPPROTO_TCP, libc::SO_RCVTIMEO));
    }

    #[test]
    fn unknown_options_and_commands_pin() {
        assert!(pins_when_set(libc::SOL_SOCKET, 9999, Some(0)));
        assert!(pins_when_set(libc::IPPROTO_TCP, 9999, Some(0)));
        assert!(pins_when_set(libc::IPPROTO_SCTP, libc::TCP_NODELAY, Some(1)));
        assert!(pins_by_fcntl(9999, 0));
        assert_eq!(ioctl(0xdead), Ioctl::Pins);
    }

    #[test]
    fn switching_an_option_off_does_not_pin() {
        for name in [libc::SO_ZEROCOPY, libc::SO_TIMESTAMP, libc::SO_TIMESTAMPING] {
            assert!(pins_when_set(libc::SOL_SOCKET, name, Some(1)), "{name}");
            assert!(!pins_when_set(libc::SOL_SOCKET, name, Some(0)), "{name}");
        }
        assert!(pins_when_set(libc::SOL_SOCKET, libc::SO_RCVLOWAT, Some(2)));
        assert!(!pins_when_set(libc::SOL_SOCKET, libc::SO_RCVLOWAT, Some(1)));
        assert!(pins_by_fcntl(libc::F_SETFL, libc::O_ASYNC));
        assert!(!pins_by_fcntl(libc::F_SETFL, libc::O_NONBLOCK));
    }

    #[test]
    fn options_that_only_the_kernel_honours_pin_a_udp_socket() {
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_REUSEPORT),
            (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
            (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
            (libc::IPPROTO_IP, libc::IP_PKTINFO),
            (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP),
            (libc::IPPROTO_UDP, libc::UDP_GRO),
            (libc::IPPROTO_UDP, libc::UDP_SEGMENT),
            (libc::IPPROTO_UDP, libc::UDP_CORK),
        ] {
            assert!(pins_datagrams_when_set(level, name, Some(1)), "{level} {name}");
        }
        assert!(!pins_datagrams_when_set(libc::SOL_SOCKET, libc::SO_TIMESTAMP, Some(0)));
        assert!(!pins_datagrams_when_set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, Some(1)));
        assert!(!pins_datagrams_when_set(libc::IPPROTO_IP, libc::IP_RECVERR, Some(1)));
    }

    #[test]
    fn common_options_of_servers_are_harmless() {
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
            (libc::SOL_SOCKET, libc::SO_LINGER),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            (libc::IPPROTO_IP, libc::IP_TOS),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
        ] {
            assert!(!pins_when_set(level, name, Some(1)), "{level} {name}");
        }
        assert!(pins_when_set(libc::IPPROTO_TCP, libc::TCP_ULP, None));
    }

    #[test]
    fn what_concerns_bytes_pins_too() {
        for (level, name) in [
            (libc::IPPROTO_TCP, libc::TCP_ULP),
            (libc::IPPROTO_TCP, libc::TCP_REPAIR),
            (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
        ] {
            assert!(concerns_bytes(level, name, Some(1)), "{level} {name}");
            assert!(pins_when_set(level, name, Some(1)), "{level} {name}");
        }
        assert!(!concerns_bytes(libc::SOL_SOCKET, libc::SO_PEEK_OFF, Some(-1)));
        assert!(!concerns_bytes(libc::IPPROTO_TCP, libc::TCP_REPAIR, Some(0)));
    }
}
