//! The rows about services that wait for events.
//!
//! Most have two promises: for machines whose kernel answers over TCP within 20 us, and for those
//! where it takes longer.

use super::super::{
    Case, Connections, Echo, Need, Place, RedisCommand, SERVICES, Service, Side, Unit, Work,
};

/// Every row about a service, in the order in which they are run and shown.
pub(super) fn all() -> Vec<Case> {
    [stores(), pages(), echoes(), connections(), costs()].concat()
}

/// rsock : kernel TCP.
#[derive(Clone, Copy)]
struct Promise {
    fast: f64,
    slow: f64,
    aim: f64,
}

/// A promise for fast kernels and for slow ones.
const fn promise(fast: f64, slow: f64, aim: f64) -> Promise {
    Promise { fast, slow, aim }
}

/// A promise for any kernel.
const fn always(least: f64, aim: f64) -> Promise {
    promise(least, least, aim)
}

fn case(id: &str, label: &str, service: Service, promise: Promise) -> Case {
    let Promise { fast, slow, aim } = promise;
    let at_least = |least| Need::RatioAtLeast { least, aim };
    Case { need_beside_slow: Some(at_least(slow)), ..row(id, label, service, at_least(fast)) }
}

/// A row that the kernel alone serves: the two sides differ by less than two samples of one side.
fn as_fast_as_kernel(id: &str, label: &str, service: Service) -> Case {
    Case { n_times: 3, ..case(id, label, service, always(0.97, 1.05)) }
}

fn row(id: &str, label: &str, service: Service, need: Need) -> Case {
    Case {
        is_also_pinned: false,
        work: Work::Service(service),
        need,
        ..Case::new(&format!("{SERVICES}{id}"), label, Unit::PerSecond, Place::Free)
    }
}

/// redis, memcached and PostgreSQL.
fn stores() -> Vec<Case> {
    let (alone, many) = (promise(2.0, 4.0, 4.0), promise(1.4, 1.6, 2.0));
    let mut cases = Vec::new();
    for command in [RedisCommand::Get, RedisCommand::Set] {
        let name = command.name();
        let redis = |clients, pipeline| Service::Redis { command, clients, pipeline };
        let id = |rest: &str| format!("redis.{name}.{rest}");
        let label = |rest: &str| format!("redis {name}, {rest}");
        let pipelined = promise(1.2, 1.3, 2.0);
        cases.extend([
            case(&id("1"), &label("1 client"), redis(1, 1), alone),
            case(&id("50"), &label("50 clients"), redis(50, 1), many),
            case(&id("50.pipelined"), &label("50 clients, pipelined"), redis(50, 16), pipelined),
        ]);
    }
    let memcached = |connections| Service::Memcached { connections };
    let postgres = |clients| Service::Postgres { clients };
    cases.extend([
        case("memcached.1", "memcached, 1 connection", memcached(1), alone),
        case("memcached.50", "memcached, 50 connections", memcached(50), many),
        case("postgres.1", "pgbench -S, 1 client", postgres(1), promise(1.3, 2.0, 2.0)),
        case("postgres.8", "pgbench -S, 8 clients", postgres(8), promise(1.1, 1.2, 1.4)),
    ]);
    cases
}

/// Pages over HTTP.
fn pages() -> Vec<Case> {
    let nginx = |connections, size, reuse| Service::Nginx { connections, size, reuse };
    let haproxy = |connections| Service::Haproxy { connections };
    let (kept, closed) = (Connections::Kept, Connections::Closed);
    let page = Service::PAGE;
    let proxied = promise(1.2, 1.5, 2.0);
    let (one, many) = (promise(1.5, 2.5, 3.0), promise(1.35, 1.5, 1.8));
    let large = nginx(8, 1 << 20, kept);
    vec![
        case("nginx.1", "nginx 1K, 1 connection", nginx(1, page, kept), one),
        case("nginx.64", "nginx 1K, 64 connections", nginx(64, page, kept), many),
        case("nginx.large", "nginx 1M, 8 connections", large, always(1.2, 2.0)),
        as_fast_as_kernel("nginx.close", "nginx 1K, closed each time", nginx(8, page, closed)),
        as_fast_as_kernel("nginx.ab", "nginx 1K, ab", Service::NginxByAb { clients: 8 }),
        case("haproxy.1", "haproxy, 1 connection", haproxy(1), proxied),
        case("haproxy.64", "haproxy, 64 connections", haproxy(64), proxied),
        case("node", "Node http 1K, 1 connection", Service::Node, always(1.2, 2.0)),
    ]
}

/// Runtimes of other languages, and Tokio.
fn echoes() -> Vec<Case> {
    let echo = Service::Echo;
    vec![
        case("echo.nio", "Java NIO echo 64 B", echo(Echo::Nio), always(1.5, 4.0)),
        case("echo.asyncio", "asyncio streams echo 64 B", echo(Echo::Asyncio), always(1.2, 2.0)),
        case("echo.tokio", "Tokio echo 64 B", echo(Echo::Tokio), always(2.0, 6.0)),
    ]
}

/// Connections that end at once, and connections that rest beside busy ones.
fn connections() -> Vec<Case> {
    let echo = |idle| Service::EchoBesideIdle { idle };
    // The rates are for the quotient below.
    let rate = |id: &str, label: &str, idle| row(id, label, echo(idle), Need::Nothing);
    let busy = "10 busy connections, echo 64 B";
    let quotient = Work::Quotient("services.busy.10000", "services.busy.10");
    vec![
        // Short samples, so that the machine changes little between two of them.
        Case {
            n_times: 12,
            ..as_fast_as_kernel("redis.cli", "redis-cli ping, one by one", Service::RedisCli)
        },
        rate("busy.10", busy, 0),
        rate("busy.10000", "  beside 9990 idle ones", 10_000 - Service::BUSY),
        Case {
            work: quotient,
            unit: Unit::Ratio,
            sides: &[Side::Rsock],
            ..row("busy", "  beside them : alone", echo(0), Need::AtLeast { least: 0.9, aim: 1.0 })
        },
    ]
}

/// What services cost that have little to do.
fn costs() -> Vec<Case> {
    let case = |id: &str, label: &str, unit, work, need| Case {
        is_also_pinned: false,
        work,
        need,
        ..Case::new(&format!("{SERVICES}{id}"), label, unit, Place::Free)
    };
    vec![
        case(
            "cpu",
            "CPU time, redis 1000 requests/s",
            Unit::CpuPerRequest,
            Work::CpuPerRequest,
            Need::RatioAtMost { most: 1.1, aim: 0.9 },
        ),
        case(
            "idle",
            "wake-ups, 100 idle in epoll",
            Unit::WakeupsPerSecond,
            Work::IdleInEpoll(100),
            Need::AtMost { most: 0.0, aim: 0.0 },
        ),
    ]
}
