//! Making, copying, sending away and closing descriptors.

use super::pool::Call;
use super::{MAIL_FD, Worker};
use crate::rules;
use crate::schedule::{Kind, Op};
use crate::shared::{CONNECTIONS, End, OPEN, PROCESSES, RESERVED};
use crate::sys::{self, DONTWAIT, Returned};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::SeqCst;

impl Worker {
    /// Listens, with the buffers that the schedule asks for.
    pub(super) fn open_listener(&self) {
        let settings = self.schedule.settings;
        let fd = sys::stream_socket().fd().expect("a socket");
        let port = settings.port + self.me as u64;
        let port = u16::try_from(port).expect("a port");
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        if settings.buffer > 0 {
            set_receive_buffer(fd, settings.buffer);
        }
        for done in [sys::bind(fd, port), sys::listen(fd, 128)] {
            if !done.is_ok() {
                self.fail(&format!("listening on port {port}: errno {}", done.errno));
            }
        }
        // Out of the way of the numbers that connections get.
        let high = sys::dup_above(fd, HIGH_FD).fd().expect("a descriptor");
        sys::close(fd);
        self.process().port.store(port.into(), SeqCst);
        self.process().listener.store(high + 1, SeqCst);
    }

    pub(super) fn close_listener(&self) {
        let fd = self.process().listener.swap(0, SeqCst) - 1;
        sys::close(fd);
    }

    pub(super) fn connect(&mut self, op: Op) {
        let to = op.slot as usize % 2;
        let target = &self.shared.processes[to];
        while target.port.load(SeqCst) == 0 || target.listener.load(SeqCst) == 0 {
            if target.is_gone.load(SeqCst) != 0 || target.is_claimed.load(SeqCst) == 0 {
                return;
            }
            sys::pause(200);
        }
        let id = self.shared.n_connections.fetch_add(1, SeqCst) as usize;
        if id >= CONNECTIONS {
            return;
        }
        let end = End { connection: id, side: 0 };
        let Some(slot) = self.reserve() else { return };
        self.maybe_opened(end);
        let (fd, returned) = loop {
            let fd = self.new_client(end, op);
            self.begin(Kind::Connect, end, 0);
            let returned = self.connect_now(fd, target.port.load(SeqCst));
            self.own().call.store(0, SeqCst);
            self.remember(op.kind, fd, Some(end), 0, returned);
            // An earlier run's connection had the same ports, and the kernel remembers it.
            if returned.is_ok() || returned.errno != libc::EADDRNOTAVAIL {
                break (fd, returned);
            }
            sys::close(fd);
        };
        if !returned.is_ok() {
            let is_leaving = target.phase.load(SeqCst) != 0 || target.is_gone.load(SeqCst) != 0;
            // Accepted and closed again before this thread asked how its connecting went.
            let is_reset =
                returned.errno == libc::ECONNRESET && !rules::is_open(self.shared, end.peer());
            if !is_leaving && !is_reset {
                self.fail(&format!("connecting, the {end} is told errno {}", returned.errno));
            }
            sys::close(fd);
            self.closed(end);
            return self.give_back(slot);
        }
        self.opened(end);
        self.shared.connection(end).is_connected.store(1, SeqCst);
        let rounds = self.shared.connection(end).n_warm.load(SeqCst);
        self.warm_up(&Call { fd, end }, rounds);
        self.publish(slot, fd, end);
    }

    /// A socket on a port by which the acceptor knows the connection.
    fn new_client(&self, end: End, op: Op) -> RawFd {
        let fd = sys::stream_socket().fd().unwrap_or_else(|| self.fail("no socket"));
        let connection = self.shared.connection(end);
        connection.to.store(op.slot % 2, SeqCst);
        connection.n_warm.store(u32::try_from(op.n).unwrap_or(0), SeqCst);
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (op.how / 2 % 2).cast_signed());
        if op.how > 3 {
            set_receive_buffer(fd, op.how.into());
        }
        if op.how % 2 == 1 {
            self.shared.state(end).is_nonblocking.store(1, SeqCst);
            sys::set_nonblocking(fd, true);
        }
        for _ in 0..100 {
            let n = u64::from(self.shared.n_ports.fetch_add(1, SeqCst));
            let port = u16::try_from(self.schedule.settings.port + PROCESSES as u64 + n);
            let port = port.expect("a port");
            connection.port.store(port.into(), SeqCst);
            if sys::bind(fd, port).is_ok() {
                return fd;
            }
        }
        self.fail("no port is free")
    }

    /// Connects; an interrupted or non-blocking call is waited for.
    fn connect_now(&self, fd: RawFd, port: u32) -> Returned {
        let port = u16::try_from(port).expect("a port");
        loop {
            let returned = sys::connect(fd, port);
            match returned.errno {
                libc::EINTR | libc::EINPROGRESS | libc::EALREADY if !returned.is_ok() => {
                    sys::poll(fd, libc::POLLOUT, 20);
                }
                libc::EISCONN if !returned.is_ok() => return Returned { value: 0, errno: 0 },
                _ => return returned,
            }
        }
    }

    pub(super) fn accept(&mut self, only_if_there: bool) {
        let listener = self.process().listener.load(SeqCst) - 1;
        if only_if_there && sys::poll(listener, libc::POLLIN, 0).0.value != 1 {
            return;
        }
        let Some(slot) = self.reserve() else { return };
        self.accept_into(slot, true);
    }

    /// Accepts into a reserved slot, or gives that back.
    fn accept_into(&mut self, slot: usize, is_warmed: bool) {
        let listener = self.process().listener.load(SeqCst) - 1;
        self.begin(Kind::Accept, End { connection: 0, side: 1 }, 0);
        let (returned, port) = sys::accept(listener);
        let end = self.client_of(port);
        if let (true, Some(end)) = (returned.is_ok(), end) {
            self.maybe_opened(end);
            self.opened(end);
            self.shared.connection(end).is_accepted.store(1, SeqCst);
        }
        self.own().call.store(0, SeqCst);
        self.remember(Kind::Accept, listener, end, port.into(), returned);
        let Some(fd) = returned.fd() else {
            match returned.errno {
                libc::EINTR => {}
                // It was reset before; which one it was is not told.
                libc::ECONNABORTED => self.process().has_lost_accepts.store(1, SeqCst),
                errno => self.fail(&format!("accepting: errno {errno}")),
            }
            return self.give_back(slot);
        };
        let Some(end) = end else { self.fail(&format!("a connection from unknown port {port}")) };
        if is_warmed {
            let rounds = self.shared.connection(end).n_warm.load(SeqCst);
            self.warm_up(&Call { fd, end }, rounds);
        }
        self.publish(slot, fd, end);
    }

    /// The server's end of the connection from that port.
    fn client_of(&self, port: u16) -> Option<End> {
        let n = (self.shared.n_connections.load(SeqCst) as usize).min(CONNECTIONS);
        let mut all = self.shared.connections[..n].iter();
        let connection = all.position(|c| c.port.load(SeqCst) == u32::from(port))?;
        Some(End { connection, side: 1 })
    }

    pub(super) fn shutdown(&mut self, op: Op) {
        let Some(slot) = self.some_slot(op.slot) else { return };
        let Some(call) = self.enter(slot, op.kind, 0, 0) else { return };
        self.shutdown_now(&call, op.how.cast_signed() % 3);
        self.leave_call(&call);
    }

    fn shutdown_now(&self, call: &Call, how: i32) {
        if how != libc::SHUT_RD {
            self.shared.written_by(call.end).has_shut_begun.store(1, SeqCst);
        }
        if how != libc::SHUT_WR {
            self.shared.read_by(call.end).is_read_shut.store(1, SeqCst);
        }
        let returned = sys::shutdown(call.fd, how);
        self.remember(Kind::Shutdown, call.fd, Some(call.end), how as usize, returned);
        if returned.is_ok() && how != libc::SHUT_RD {
            self.shared.written_by(call.end).is_shut.store(1, SeqCst);
        }
    }

    pub(super) fn close(&mut self, op: Op) {
        if let Some(slot) = self.some_slot(op.slot) {
            self.close_slot(slot);
        }
    }

    pub(super) fn close_slot(&self, slot: usize) {
        if self.vacate(slot, false) {
            self.give_back(slot);
        }
    }

    /// Closes what is in a slot, which stays reserved, if no thread is about to use it.
    fn vacate(&self, slot: usize, shuts_down: bool) -> bool {
        if !self.try_lock(slot) {
            return false;
        }
        let place = self.slot(slot);
        let is_free = place.state.load(SeqCst) == OPEN && self.are_all_inside(slot);
        if is_free {
            let end = End::of_index(place.end.load(SeqCst));
            let call = Call { fd: place.fd.load(SeqCst), end };
            self.closes(end);
            if shuts_down {
                self.shutdown_now(&call, libc::SHUT_RDWR);
            }
            let returned = sys::close(call.fd);
            place.state.store(RESERVED, SeqCst);
            self.closed(end);
            self.remember(Kind::Close, call.fd, Some(end), 0, returned);
            if !returned.is_ok() {
                self.fail(&format!("closing {}, the {end}: errno {}", call.fd, returned.errno));
            }
        }
        self.unlock(slot);
        is_free
    }

    pub(super) fn replace(&mut self, op: Op) {
        let Some(slot) = self.some_slot(op.slot) else { return };
        if self.vacate(slot, op.how == 1) {
            self.accept_into(slot, false);
        }
    }

    pub(super) fn duplicate(&mut self, op: Op) {
        let Some(slot) = self.some_slot(op.slot) else { return };
        let Some(copy) = self.reserve() else { return };
        self.lock(slot);
        let place = self.slot(slot);
        if place.state.load(SeqCst) == OPEN {
            let end = End::of_index(place.end.load(SeqCst));
            self.maybe_opened(end);
            let returned = sys::dup(place.fd.load(SeqCst));
            self.remember(op.kind, place.fd.load(SeqCst), Some(end), 0, returned);
            match returned.fd() {
                Some(fd) => {
                    self.opened(end);
                    self.publish(copy, fd, end);
                }
                None => self.fail(&format!("dup of the {end}: errno {}", returned.errno)),
            }
        } else {
            self.give_back(copy);
        }
        self.unlock(slot);
    }

    pub(super) fn duplicate_over(&mut self, op: Op) {
        let Some(from) = self.some_slot(op.slot) else { return };
        let Some(to) = self.some_slot(u32::try_from(op.n).unwrap_or(0)) else { return };
        if from == to {
            return;
        }
        self.lock(from.min(to));
        self.lock(from.max(to));
        let (source, target) = (self.slot(from), self.slot(to));
        let are_open = source.state.load(SeqCst) == OPEN && target.state.load(SeqCst) == OPEN;
        if are_open && self.are_all_inside(to) {
            let new = End::of_index(source.end.load(SeqCst));
            let old = End::of_index(target.end.load(SeqCst));
            self.maybe_opened(new);
            self.closes(old);
            let (fd, over) = (source.fd.load(SeqCst), target.fd.load(SeqCst));
            let returned = sys::dup2(fd, over);
            self.remember(op.kind, fd, Some(old), over as usize, returned);
            if !returned.is_ok() {
                self.fail(&format!("dup2 of the {new} over the {old}: errno {}", returned.errno));
            }
            self.opened(new);
            target.end.store(new.index(), SeqCst);
            self.closed(old);
        }
        self.unlock(from.max(to));
        self.unlock(from.min(to));
    }

    pub(super) fn pass(&mut self, op: Op) {
        let Some(slot) = self.some_slot(op.slot) else { return };
        let to = usize::try_from(op.n).unwrap_or(0) % PROCESSES;
        let other = &self.shared.processes[to];
        if other.is_claimed.load(SeqCst) == 0 || other.is_gone.load(SeqCst) != 0 {
            return;
        }
        self.lock(slot);
        let place = self.slot(slot);
        if place.state.load(SeqCst) == OPEN {
            let end = End::of_index(place.end.load(SeqCst));
            let fd = place.fd.load(SeqCst);
            self.give_up_order(end);
            self.shared.state(end).n_mailed.fetch_add(1, SeqCst);
            let returned = sys::send_descriptor(mailbox(to)[0], fd, end.index());
            self.remember(op.kind, fd, Some(end), to, returned);
            if !returned.is_ok() {
                self.shared.state(end).n_mailed.fetch_sub(1, SeqCst);
            }
        }
        self.unlock(slot);
        if op.how == 1 {
            self.close_slot(slot);
        }
    }

    /// A stream may be handed over by a relay, which reads ahead for the processes that go on with
    /// the descriptor that is passed. Where another process holds the stream by a descriptor of its
    /// own, the order between the two is lost (docs/limits.md): neither direction is used any more.
    fn give_up_order(&self, end: End) {
        let held = &self.shared.state(end).n_maybe_open;
        let is_shared = (0..PROCESSES).any(|p| p != self.me && held[p].load(SeqCst) > 0);
        if is_shared {
            self.shared.read_by(end).is_read_unsure.store(1, SeqCst);
            self.shared.read_by(end).is_order_lost.store(1, SeqCst);
            self.shared.written_by(end).is_write_unsure.store(1, SeqCst);
        }
    }

    pub(super) fn take(&mut self) {
        self.take_from(self.me);
    }

    /// Takes everything that is in a mailbox, of whatever process.
    pub(super) fn collect_mail(&mut self) {
        for process in 0..PROCESSES {
            while self.take_from(process) {}
        }
    }

    fn take_from(&mut self, process: usize) -> bool {
        let Some(slot) = self.reserve() else { return false };
        let Some((fd, index)) = sys::recv_descriptor(mailbox(process)[1]) else {
            self.give_back(slot);
            return false;
        };
        let end = End::of_index(index);
        self.maybe_opened(end);
        self.opened(end);
        self.shared.state(end).n_mailed.fetch_sub(1, SeqCst);
        let noted = Returned { value: fd.into(), errno: 0 };
        self.remember(Kind::Take, fd, Some(end), process, noted);
        self.publish(slot, fd, end);
        // What has been taken at the end is left like all else.
        if self.process().phase.load(SeqCst) != super::WORKING
            && self.schedule.settings.ends_abruptly == 0
        {
            self.prepare_to_leave(slot);
        }
        true
    }

    pub(super) fn set_nonblocking(&mut self, op: Op) {
        let Some(slot) = self.some_slot(op.slot) else { return };
        let Some(call) = self.enter(slot, op.kind, 0, 0) else { return };
        self.shared.state(call.end).is_nonblocking.store(1, SeqCst);
        let returned = sys::set_nonblocking(call.fd, op.how == 1);
        self.remember(op.kind, call.fd, Some(call.end), op.how as usize, returned);
        self.leave_call(&call);
    }

    pub(super) fn set_buffer(&mut self, op: Op) {
        let Some(slot) = self.some_slot(op.slot) else { return };
        let Some(call) = self.enter(slot, op.kind, 0, 0) else { return };
        if op.how == 0 {
            set_receive_buffer(call.fd, op.n);
        } else {
            let size = i32::try_from(op.n).unwrap_or(i32::MAX);
            sys::set_option(call.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, size);
        }
        self.leave_call(&call);
    }

    pub(super) fn set_linger(&mut self, op: Op) {
        let Some(slot) = self.some_slot(op.slot) else { return };
        let Some(call) = self.enter(slot, op.kind, 0, 0) else { return };
        self.shared.state(call.end).is_abortive.store(1, SeqCst);
        let returned = sys::linger_not_at_all(call.fd);
        self.remember(op.kind, call.fd, Some(call.end), 0, returned);
        self.leave_call(&call);
    }

    /// Ends what this end writes, so that the peer sees the end.
    pub(super) fn prepare_to_leave(&self, slot: usize) {
        let place = self.slot(slot);
        let end = End::of_index(place.end.load(SeqCst));
        self.shutdown_now(&Call { fd: place.fd.load(SeqCst), end }, libc::SHUT_WR);
    }

    /// Reads what is there; whether nothing more will come.
    pub(super) fn is_read_to_the_end(&mut self, slot: usize) -> bool {
        let place = self.slot(slot);
        let end = End::of_index(place.end.load(SeqCst));
        let call = Call { fd: place.fd.load(SeqCst), end };
        let direction = self.shared.read_by(end);
        if direction.is_ended.load(SeqCst) != 0
            || direction.is_read_unsure.load(SeqCst) != 0
            || self.shared.state(end).has_lost_reset.load(SeqCst) != 0
        {
            return true;
        }
        for _ in 0..64 {
            match self.receive_once(&call, 64 << 10, DONTWAIT, Kind::Recv) {
                super::streams::Got::Bytes(_) => {}
                super::streams::Got::Over => return true,
                super::streams::Got::Nothing => break,
            }
        }
        false
    }
}

/// The end to send to, and the end to receive from, of a process's mailbox.
fn mailbox(process: usize) -> [RawFd; 2] {
    let first = MAIL_FD + 2 * RawFd::try_from(process).expect("few");
    [first, first + 1]
}

/// By force where that is allowed, else within the kernel's limit.
fn set_receive_buffer(fd: RawFd, size: u64) {
    let size = i32::try_from(size).unwrap_or(i32::MAX);
    if !sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size).is_ok() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, size);
    }
}

/// Where the listener's number lies.
const HIGH_FD: RawFd = 150;
