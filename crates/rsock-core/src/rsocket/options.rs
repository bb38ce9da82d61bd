//! Socket options of rsockets: what `rsetsockopt` stores and `rgetsockopt` returns.
//!
//! Values have the layout of C, because this file interprets them for every face. An option that is
//! not in the list is not supported.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `rsetsockopt`, `rgetsockopt`. Where rsock
//! differs a comment says COMPAT, and `docs/c-api.md` lists it.

use crate::engine::Config;
use crate::rsocket::system_defaults::{MAX_DEPTH, SystemDefaults, iomap_slots, send_buf};
use rsock_proto::Keepalive;
use std::io;
use std::time::Duration;

/// Whether [`Options::keepalive`] depends on the option.
pub(super) fn is_of_keepalive(level: i32, name: i32) -> bool {
    matches!(
        (level, name),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE)
            | (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT)
    )
}

pub use crate::rdma_options::{
    RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA,
};

/// Options of one socket.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) reuse_address: bool,
    pub(super) v6_only: bool,
    /// `None` is the default wait of a close, and zero resets the connection.
    pub(super) linger: Option<Duration>,
    pub(super) recv_timeout: Option<Duration>,
    pub(super) send_timeout: Option<Duration>,
    /// Bytes, after doubling.
    pub(super) recv_buf: u32,
    /// Bytes, after doubling.
    send_buf: u32,
    sq_depth: u16,
    rq_depth: u16,
    inline: u16,
    pub(super) iomap_slots: u16,
    route: Vec<u8>,
    keepalive: bool,
    keep_idle: i32,
    keep_interval: i32,
    keep_count: i32,
    oob_inline: bool,
    pub(super) no_delay: bool,
    tos: u8,
}

/// The state of a socket, as far as options depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketState {
    pub(super) is_v6: bool,
    pub(super) is_listening: bool,
    pub(super) is_connected: bool,
    /// Connecting or connected: the queues exist and their sizes are fixed.
    pub(super) is_fixed: bool,
}

/// A value in C's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OptionValue {
    Int(i32),
    Bytes(Vec<u8>),
}

impl OptionValue {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Int(n) => n.to_ne_bytes().to_vec(),
            Self::Bytes(bytes) => bytes.clone(),
        }
    }
}

const KEEP_IDLE_FILE: &str = "/proc/sys/net/ipv4/tcp_keepalive_time";
/// Path MTU reported where there is no path with one.
const SEGMENT: i32 = 2048;
/// `struct tcp_info` of glibc, with the state in its first byte and the window at 80.
const TCP_INFO_LEN: usize = 104;
const TCP_INFO_WINDOW: usize = 80;
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;
const TCP_LISTEN: u8 = 10;

/// When a connection without traffic is probed, and when it is given up: `SO_KEEPALIVE` with
/// `TCP_KEEPIDLE`, `TCP_KEEPINTVL` and `TCP_KEEPCNT`; see tcp(7). Times count in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveSettings {
    /// Time without traffic before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes without an answer after which the connection ends with `ETIMEDOUT`.
    pub probes: u32,
}

impl Options {
    /// Options of a new socket.
    pub(super) fn new(defaults: &SystemDefaults) -> Self {
        Self {
            reuse_address: false,
            v6_only: false,
            linger: None,
            recv_timeout: None,
            send_timeout: None,
            recv_buf: defaults.recv_buf,
            send_buf: defaults.send_buf,
            sq_depth: defaults.sq_depth,
            rq_depth: defaults.rq_depth,
            inline: defaults.inline,
            iomap_slots: defaults.iomap_slots,
            route: Vec::new(),
            keepalive: false,
            keep_idle: 0,
            keep_interval: 75,
            keep_count: 9,
            oob_inline: false,
            no_delay: false,
            tos: 0,
        }
    }

    /// Sizes of a stream with these options.
    pub(super) fn config(&self) -> Config {
        let base = Config::default();
        let n_bufs = base.n_bufs;
        let share = (self.recv_buf / u32::from(n_bufs)).max(MIN_BUF);
        Config {
            buf_len: share.min(MAX_BUF).next_multiple_of(64),
            n_bufs,
            window: self.rq_depth.clamp(MIN_DEPTH, MAX_DEPTH_USED) - SPARE,
            iomap_slots: self.iomap_slots,
            ..base
        }
    }

    /// As `setsockopt(2)`. The caller passes on to the kernel what the kernel must know.
    ///
    /// # Errors
    /// `ENOTSUP` for an unknown option, `EINVAL` for a value that cannot be.
    pub(super) fn set(
        &mut self,
        state: SocketState,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> io::Result<()> {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address = flag(value)?,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if state.is_fixed => {}
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.recv_buf = doubled(value)?.max(1),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if state.is_fixed => {}
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.send_buf = send_buf(doubled(value)?),
            (libc::SOL_SOCKET, libc::SO_LINGER) => self.linger = linger(value)?,
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => self.recv_timeout = timeval(value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => self.send_timeout = timeval(value)?,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keepalive = flag(value)?,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.oob_inline = flag(value)?,
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                self.tos = u8::try_from(int(value)? & 0xFF).unwrap_or(0);
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.no_delay = flag(value)?,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.keep_idle = positive(value)?,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => self.keep_interval = positive(value)?,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => self.keep_count = positive(value)?,
            // rsockets neither segments nor controls congestion.
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => _ = int(value)?,
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {}
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if state.is_v6 => self.v6_only = flag(value)?,
            (SOL_RDMA, _) => return self.set_rdma(state, name, value),
            _ => return unsupported(),
        }
        Ok(())
    }

    fn set_rdma(&mut self, state: SocketState, name: i32, value: &[u8]) -> io::Result<()> {
        if state.is_fixed {
            return invalid();
        }
        let depth = |value| {
            let n = int(value)?.cast_unsigned();
            Ok::<_, io::Error>(u16::try_from(n).unwrap_or(u16::MAX).min(MAX_DEPTH))
        };
        match name {
            RDMA_SQSIZE => self.sq_depth = depth(value)?,
            RDMA_RQSIZE => self.rq_depth = depth(value)?,
            RDMA_INLINE => self.inline = depth(value)?,
            RDMA_IOMAPSIZE => {
                let n = u32::try_from(int(value)?).or_else(|_| invalid())?;
                self.iomap_slots = iomap_slots(n);
            }
            RDMA_ROUTE => self.route = value.to_vec(),
            _ => return unsupported(),
        }
        Ok(())
    }

    /// `getsockopt(2)`, but for `SO_ERROR`.
    ///
    /// # Errors
    /// `ENOTSUP` for an unknown option.
    pub(super) fn value(
        &self,
        state: SocketState,
        level: i32,
        name: i32,
    ) -> io::Result<OptionValue> {
        let int = |n: i32| Ok(OptionValue::Int(n));
        let size = |n: u32| int(i32::try_from(n).unwrap_or(i32::MAX));
        let flag = |b: bool| int(b.into());
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_TYPE) => int(libc::SOCK_STREAM),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => int(libc::IPPROTO_TCP),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => {
                int(if state.is_v6 { libc::AF_INET6 } else { libc::AF_INET })
            }
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => flag(state.is_listening),
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => flag(self.reuse_address),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => size(self.recv_buf),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => size(self.send_buf),
            // COMPAT: C rsockets stores the flag inverted, so that a new socket claims to linger.
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = self.linger.map_or(0, |l| l.as_secs());
                Ok(OptionValue::Bytes(pair(
                    i32::from(self.linger.is_some()),
                    i32::try_from(seconds).unwrap_or(i32::MAX),
                )))
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Ok(to_timeval(self.recv_timeout)),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Ok(to_timeval(self.send_timeout)),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => flag(self.keepalive),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => flag(self.oob_inline),
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => int(0),
            (libc::IPPROTO_IP, libc::IP_TOS) => int(self.tos.into()),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => flag(self.no_delay),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => int(SEGMENT),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => int(self.keep_idle()),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => int(self.keep_interval),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => int(self.keep_count),
            // COMPAT: C rsockets returns the number 1; the kernel returns a name.
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                Ok(OptionValue::Bytes(b"rsock\0".to_vec()))
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => Ok(OptionValue::Bytes(self.tcp_info(state))),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if state.is_v6 => flag(self.v6_only),
            (SOL_RDMA, RDMA_SQSIZE) => int(self.sq_depth.into()),
            (SOL_RDMA, RDMA_RQSIZE) => int(self.rq_depth.into()),
            (SOL_RDMA, RDMA_INLINE) => int(self.inline.into()),
            (SOL_RDMA, RDMA_IOMAPSIZE) => int(self.iomap_slots.into()),
            (SOL_RDMA, RDMA_ROUTE) if self.route.is_empty() => {
                Err(io::Error::from_raw_os_error(libc::ENODATA))
            }
            (SOL_RDMA, RDMA_ROUTE) => Ok(OptionValue::Bytes(self.route.clone())),
            _ => unsupported(),
        }
    }

    /// `TCP_KEEPIDLE` in seconds: the value that was set, or the system's default.
    fn keep_idle(&self) -> i32 {
        if self.keep_idle > 0 {
            return self.keep_idle;
        }
        let system = std::fs::read_to_string(KEEP_IDLE_FILE).ok();
        system.and_then(|text| text.trim().parse().ok()).unwrap_or(7200)
    }

    /// The keepalive times for the engine; `None` without `SO_KEEPALIVE`.
    pub(super) fn keepalive(&self) -> Option<Keepalive> {
        let seconds = |n: i32| Duration::from_secs(u64::try_from(n).unwrap_or(0));
        self.keepalive.then(|| Keepalive {
            idle: seconds(self.keep_idle()),
            interval: seconds(self.keep_interval),
            probes: u32::try_from(self.keep_count).unwrap_or(0),
        })
    }

    /// The settings behind [`Self::keepalive`], for the typed options.
    pub(super) fn keepalive_settings(&self) -> Option<KeepaliveSettings> {
        let Keepalive { idle, interval, probes } = self.keepalive()?;
        Some(KeepaliveSettings { idle, interval, probes })
    }

    /// Sets all that [`Self::keepalive`] depends on; `None` is `SO_KEEPALIVE` off.
    pub(super) fn set_keepalive_settings(
        &mut self,
        settings: Option<KeepaliveSettings>,
    ) -> io::Result<()> {
        let Some(settings) = settings else {
            self.keepalive = false;
            return Ok(());
        };
        let seconds = |time: Duration| match i32::try_from(time.as_secs()) {
            Ok(0) => invalid(),
            n => Ok(n.unwrap_or(i32::MAX)),
        };
        let (idle, interval) = (seconds(settings.idle)?, seconds(settings.interval)?);
        if settings.probes == 0 {
            return invalid();
        }
        (self.keep_idle, self.keep_interval) = (idle, interval);
        self.keep_count = i32::try_from(settings.probes).unwrap_or(i32::MAX);
        self.keepalive = true;
        Ok(())
    }

    /// `TCP_INFO`. COMPAT: C rsockets reports `TCP_ESTABLISHED` only once both directions are shut
    /// down.
    fn tcp_info(&self, state: SocketState) -> Vec<u8> {
        let mut info = vec![0; TCP_INFO_LEN];
        info[0] = match state {
            SocketState { is_connected: true, .. } => TCP_ESTABLISHED,
            SocketState { is_listening: true, .. } => TCP_LISTEN,
            _ => TCP_CLOSE,
        };
        let window = u32::from(self.sq_depth).to_ne_bytes();
        info[TCP_INFO_WINDOW..TCP_INFO_WINDOW + 4].copy_from_slice(&window);
        info
    }
}

/// Receives that the engine posts beyond the window, for control messages.
const SPARE: u16 = 16;
/// Smallest and largest receive queue: each entry takes a slot of shared memory.
const MIN_DEPTH: u16 = SPARE + 8;
const MAX_DEPTH_USED: u16 = 4096;
/// Bounds of one receive buffer, in bytes.
const MIN_BUF: u32 = 1024;
const MAX_BUF: u32 = 64 << 20;

fn int(value: &[u8]) -> io::Result<i32> {
    value.first_chunk().map_or_else(invalid, |bytes| Ok(i32::from_ne_bytes(*bytes)))
}

fn flag(value: &[u8]) -> io::Result<bool> {
    Ok(int(value)? != 0)
}

fn positive(value: &[u8]) -> io::Result<i32> {
    let n = int(value)?;
    if n > 0 { Ok(n) } else { invalid() }
}

/// Doubles the value, as the kernel does for TCP, where half of the space is overhead.
fn doubled(value: &[u8]) -> io::Result<u32> {
    // A negative size is a huge one, as for the kernel.
    Ok(int(value)?.cast_unsigned().min(u32::MAX / 4) * 2)
}

fn linger(value: &[u8]) -> io::Result<Option<Duration>> {
    let (on, seconds) = (int(value)?, int(value.get(4..).unwrap_or(&[]))?);
    let seconds = u64::try_from(seconds).unwrap_or(u64::from(u32::MAX));
    Ok((on != 0).then(|| Duration::from_secs(seconds)))
}

fn pair(first: i32, second: i32) -> Vec<u8> {
    [first.to_ne_bytes(), second.to_ne_bytes()].concat()
}

/// `struct timeval`; zero is no limit.
fn timeval(value: &[u8]) -> io::Result<Option<Duration>> {
    let word = |at: usize| -> io::Result<i64> {
        let bytes = value.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or_else(invalid, |b| Ok(i64::from_ne_bytes(*b)))
    };
    let (seconds, micros) = (word(0)?, word(8)?);
    if !(0..1_000_000).contains(&micros) {
        return Err(io::Error::from_raw_os_error(libc::EDOM));
    }
    // A negative time limit is over at once, as for the kernel.
    let Ok(seconds) = u64::try_from(seconds) else { return Ok(Some(Duration::from_nanos(1))) };
    let micros = u32::try_from(micros).unwrap_or(0);
    let limit = Duration::new(seconds, micros * 1000);
    Ok((!limit.is_zero()).then_some(limit))
}

fn to_timeval(limit: Option<Duration>) -> OptionValue {
    let limit = limit.unwrap_or_default();
    let seconds = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
    let micros = i64::from(limit.subsec_micros());
    OptionValue::Bytes([seconds.to_ne_bytes(), micros.to_ne_bytes()].concat())
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::ENOTSUP))
}

fn invalid<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: SocketState =
        SocketState { is_v6: false, is_listening: false, is_connected: false, is_fixed: false };

    fn options() -> Options {
        Options::new(&SystemDefaults::default())
    }

    fn errno<T: std::fmt::Debug>(r: io::Result<T>) -> Option<i32> {
        r.expect_err("an error").raw_os_error()
    }

    /// For every integer option: the value set, and the value returned afterwards.
    #[test]
    fn integers_come_back_as_documented() {
        let table: &[(i32, i32, i32, i32)] = &[
            (libc::SOL_SOCKET, libc::SO_REUSEADDR, 7, 1),
            (libc::SOL_SOCKET, libc::SO_RCVBUF, 4096, 8192),
            (libc::SOL_SOCKET, libc::SO_RCVBUF, 0, 1),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, 4096, 8192),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, 1000, 4096),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1, 1),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE, 1, 1),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x110, 0x10),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1, 1),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1, SEGMENT),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 5, 5),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 6, 6),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 7, 7),
            (SOL_RDMA, RDMA_SQSIZE, 100, 100),
            (SOL_RDMA, RDMA_RQSIZE, 0x1_0000, 0xFFFE),
            (SOL_RDMA, RDMA_INLINE, -1, 0xFFFE),
            (SOL_RDMA, RDMA_IOMAPSIZE, 129, 128),
            (SOL_RDMA, RDMA_IOMAPSIZE, 257, 256),
        ];
        for &(level, name, set, returned) in table {
            let mut options = options();
            options.set(IDLE, level, name, &set.to_ne_bytes()).expect("set");
            let value = options.value(IDLE, level, name).expect("value");
            assert_eq!(value, OptionValue::Int(returned), "{level} {name}");
            let short = options.set(IDLE, level, name, &[1, 2, 3]);
            assert_eq!(errno(short), Some(libc::EINVAL), "{level} {name}");
        }
    }

    #[test]
    fn linger_is_off_by_default_and_kept() {
        let mut options = options();
        let value = |o: &Options| o.value(IDLE, libc::SOL_SOCKET, libc::SO_LINGER).expect("value");
        assert_eq!(value(&options), OptionValue::Bytes(pair(0, 0)));
        options.set(IDLE, libc::SOL_SOCKET, libc::SO_LINGER, &pair(1, 9)).expect("set");
        assert_eq!(value(&options), OptionValue::Bytes(pair(1, 9)));
        assert_eq!(options.linger, Some(Duration::from_secs(9)));
        assert_eq!(
            errno(options.set(IDLE, libc::SOL_SOCKET, libc::SO_LINGER, &pair(1, 9)[..4])),
            Some(libc::EINVAL)
        );
    }

    #[test]
    fn timeouts_are_kept_to_the_microsecond() {
        let mut options = options();
        let bytes = [3i64.to_ne_bytes(), 250_000i64.to_ne_bytes()].concat();
        options.set(IDLE, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &bytes).expect("set");
        assert_eq!(options.recv_timeout, Some(Duration::from_millis(3250)));
        let value = options.value(IDLE, libc::SOL_SOCKET, libc::SO_RCVTIMEO).expect("value");
        assert_eq!(value.to_bytes(), bytes);
        let too_many = [3i64.to_ne_bytes(), 1_000_000i64.to_ne_bytes()].concat();
        let refused = options.set(IDLE, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &too_many);
        assert_eq!(errno(refused), Some(libc::EDOM));
        options.set(IDLE, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &[0; 16]).expect("set");
        assert_eq!(options.recv_timeout, None);
    }

    #[test]
    fn queue_sizes_are_fixed_once_connecting_and_buffer_sizes_silently_so() {
        let fixed = SocketState { is_fixed: true, ..IDLE };
        let mut options = options();
        let one = 1i32.to_ne_bytes();
        for name in [RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE] {
            assert_eq!(errno(options.set(fixed, SOL_RDMA, name, &one)), Some(libc::EINVAL));
        }
        let before = options.value(IDLE, libc::SOL_SOCKET, libc::SO_RCVBUF).expect("value");
        options.set(fixed, libc::SOL_SOCKET, libc::SO_RCVBUF, &one).expect("ignored");
        let after = options.value(IDLE, libc::SOL_SOCKET, libc::SO_RCVBUF).expect("value");
        assert_eq!(before, after);
    }

    #[test]
    fn unknown_options_are_not_supported_and_bad_values_invalid() {
        let mut options = options();
        let one = 1i32.to_ne_bytes();
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_REUSEPORT),
            (libc::SOL_SOCKET, libc::SO_BROADCAST),
            (libc::IPPROTO_TCP, libc::TCP_CORK),
            (libc::IPPROTO_TCP, libc::TCP_INFO),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
            (SOL_RDMA, 77),
            (12345, 1),
        ] {
            assert_eq!(errno(options.set(IDLE, level, name, &one)), Some(libc::ENOTSUP));
        }
        for name in [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT] {
            let zero = options.set(IDLE, libc::IPPROTO_TCP, name, &[0; 4]);
            assert_eq!(errno(zero), Some(libc::EINVAL));
        }
        let negative = (-1i32).to_ne_bytes();
        assert_eq!(
            errno(options.set(IDLE, SOL_RDMA, RDMA_IOMAPSIZE, &negative)),
            Some(libc::EINVAL)
        );
        assert_eq!(errno(options.value(IDLE, SOL_RDMA, RDMA_ROUTE)), Some(libc::ENODATA));
    }

    #[test]
    fn the_connection_state_shows_in_tcp_info() {
        let info = |state| {
            let value = options().value(state, libc::IPPROTO_TCP, libc::TCP_INFO).expect("value");
            (value.to_bytes()[0], value.to_bytes()[TCP_INFO_WINDOW..][..2].to_vec())
        };
        let window = 384u16.to_ne_bytes().to_vec();
        assert_eq!(info(IDLE), (TCP_CLOSE, window.clone()));
        assert_eq!(info(SocketState { is_listening: true, ..IDLE }), (TCP_LISTEN, window.clone()));
        assert_eq!(info(SocketState { is_connected: true, ..IDLE }), (TCP_ESTABLISHED, window));
    }

    #[test]
    fn stream_sizes_follow_the_options_within_bounds() {
        let mut options = options();
        let config = options.config();
        let base = Config::default();
        assert_eq!((config.buf_len, config.window), (base.buf_len, base.window));
        options.set(IDLE, libc::SOL_SOCKET, libc::SO_RCVBUF, &[0; 4]).expect("set");
        options.set(IDLE, SOL_RDMA, RDMA_RQSIZE, &[0; 4]).expect("set");
        let least = options.config();
        assert!(least.buf_len >= MIN_BUF && least.window == 8);
        let most = (-1i32).to_ne_bytes();
        options.set(IDLE, libc::SOL_SOCKET, libc::SO_RCVBUF, &most).expect("set");
        options.set(IDLE, SOL_RDMA, RDMA_RQSIZE, &most).expect("set");
        let config = options.config();
        assert!(config.buf_len <= MAX_BUF && config.window < MAX_DEPTH_USED);
    }
}
