/* One process of a random program of epoll calls in lock step: makes calls as it is ordered to, and says what each
 * returned.
 *
 *   epoll_net CPU FILE       FILE is memory that the processes of a program share
 *
 * Reads lines `WORD CHILD THREAD A B C D E EXPECT` and answers each with a line. A program's descriptors have *places*,
 * small numbers that mean the same in every run. All threads run on one processor: what the kernel does within one
 * system call or one packet is then one step for a thread that waits. After each call everything that is on its way is
 * waited for (`settle`), and every thread that waits has either returned or sleeps again (`quiet`), so that what kernel
 * TCP returns does not depend on time. What the driver itself needs of the kernel it gets by system calls that the
 * preload library does not see. */
#include "common.h"
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

enum {
	PLACES = 40,
	CONNECTIONS = 8,
	LISTENERS = 4,
	THREADS = 4,
	MOST = 1 << 16,
	MOST_EVENTS = 8,
	/* Descriptors of the driver are above the program's. */
	HIGH = 600,
};

enum kind { NONE, STREAM, LISTENER, PIPE, EVENT, TIMER, SET, FRESH };

struct place {
	int fd;
	int is_open;
	enum kind kind;
	/* Of a stream: its connection and end. Of a listener: its number. Of a socket that is not connected: whether it has
	 * been in a set. */
	int number;
	int end;
};

/* End 0 connects, end 1 accepts. */
struct connection {
	int is_used;
	uint16_t ports[2];
	uint64_t sent[2];
	uint64_t read[2];
	/* Where each end's bytes begin anew: how many it takes to fill a stream is not compared. */
	uint64_t base[2];
	/* Descriptors of each end, in all processes. One that waits to be accepted counts. */
	int holders[2];
	int is_full;
	/* Whether an end has been in a set. */
	int is_watched;
};

struct listening {
	uint16_t port;
	int holders;
	int queue[CONNECTIONS];
	int waiting;
};

/* What the processes of a program share. */
struct shared {
	struct connection connections[CONNECTIONS];
	struct listening listeners[LISTENERS];
	/* Calls so far that may have ended a stream, which the other process acknowledges. */
	_Atomic unsigned long ends;
	/* Whether bytes went past the kernel. */
	int past_kernel;
};

struct order {
	char word[16];
	int child;
	int thread;
	long long a[5];
	/* For each set, by its place, whether a thread that waits in it is to return; -1 if that is not known. */
	long long expect;
};

static struct place places[PLACES];
static struct shared *shared;
static unsigned char room[MOST];
static char answer[4096];
static int diag = -1;
static int child_orders = -1, child_answers = -1;
static pid_t child_pid;
static volatile sig_atomic_t handled;

static void say(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(answer, sizeof(answer), format, args);
	va_end(args);
}

static const char *why(int e)
{
	switch (e) {
	case EEXIST: return "EEXIST";
	case ENOENT: return "ENOENT";
	case EPERM: return "EPERM";
	case ELOOP: return "ELOOP";
	}
	return errno_name(e);
}

static void say_result(long n)
{
	if (n < 0)
		say("%s", why(errno));
	else
		say("%ld", n);
}

static void say_bytes(long n)
{
	uint32_t digest = 2166136261u;
	for (long i = 0; i < n && i < MOST; i++)
		digest = (digest ^ room[i]) * 16777619u;
	if (n <= 0)
		say_result(n);
	else
		say("%ld:%08x", n, digest);
}

static long bare(long number, long a, long b, long c, long d, long e, long f)
{
	return bare_syscall(number, a, b, c, d, e, f);
}

/* For what only the kernel's clock brings. */
static void nap(void)
{
	struct timespec some = {.tv_nsec = 200000};
	bare(SYS_nanosleep, (long)&some, 0, 0, 0, 0, 0);
}

/* --- What the kernel knows of a connection. --- */

struct view {
	/* A whole socket: not gone, not one that only waits out its time. */
	int is_there;
	int state;
	uint64_t sent;
	uint64_t received;
	uint32_t unacked;
	uint32_t unsent;
};

static void look(const struct connection *c, int end, struct view *v)
{
	enum { UNACKED = 24, RECEIVED = 128, UNSENT = 144, SENT = 200, AGAIN = 208 };
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 ask;
	} q = {
		.head = {.nlmsg_len = sizeof(q), .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
		.ask = {.sdiag_family = AF_INET,
			.sdiag_protocol = IPPROTO_TCP,
			.idiag_ext = 1 << (INET_DIAG_INFO - 1),
			.idiag_states = ~0u},
	};
	union {
		struct nlmsghdr head;
		char bytes[2048];
	} got;
	memset(v, 0, sizeof(*v));
	q.ask.id.idiag_sport = htons(c->ports[end]);
	q.ask.id.idiag_dport = htons(c->ports[1 - end]);
	q.ask.id.idiag_src[0] = q.ask.id.idiag_dst[0] = htonl(INADDR_LOOPBACK);
	q.ask.id.idiag_cookie[0] = q.ask.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
	CHECK(bare(SYS_sendto, diag, (long)&q, sizeof(q), 0, 0, 0) == (long)sizeof(q));
	long n = bare(SYS_recvfrom, diag, (long)&got, sizeof(got), 0, 0, 0);
	CHECK(n >= (long)sizeof(struct nlmsghdr));
	if (got.head.nlmsg_type == NLMSG_ERROR)
		return;
	struct inet_diag_msg *msg = NLMSG_DATA(&got.head);
	v->state = msg->idiag_state;
	struct rtattr *attr = (struct rtattr *)(msg + 1);
	long left = (long)got.head.nlmsg_len - NLMSG_LENGTH(sizeof(*msg));
	for (; RTA_OK(attr, left); attr = RTA_NEXT(attr, left)) {
		if (attr->rta_type != INET_DIAG_INFO || v->state == TCP_LISTEN || v->state == TCP_CLOSE)
			continue;
		const char *info = RTA_DATA(attr);
		uint64_t again;
		memcpy(&v->sent, info + SENT, 8);
		memcpy(&again, info + AGAIN, 8);
		memcpy(&v->received, info + RECEIVED, 8);
		memcpy(&v->unacked, info + UNACKED, 4);
		memcpy(&v->unsent, info + UNSENT, 4);
		v->sent -= again;
		v->is_there = 1;
	}
}

/* Whether an end knows that its peer sends no more. */
static int knows_end(const struct view *v)
{
	return v->state == TCP_CLOSE_WAIT || v->state == TCP_LAST_ACK || v->state == TCP_CLOSING;
}

/* Whether an end that has shut down sending waits for the acknowledgement, which is news for its watches. The peer's
 * kernel delays it if there are unread bytes. */
enum strictness { LAX, STRICT };

static int arrived(const struct connection *c, const struct view v[2], int end, enum strictness strictness)
{
	const struct view *e = &v[end], *peer = &v[1 - end];
	if (!c->holders[end])
		/* What is sent to it is answered with a reset. */
		return !peer->is_there || !c->holders[1 - end] || peer->unacked == 0;
	if (!e->is_there)
		return 1;
	if (!peer->is_there)
		return knows_end(e);
	if (e->received < peer->sent)
		return 0;
	if (peer->unsent && !c->is_full)
		return 0;
	if (peer->state == TCP_FIN_WAIT1 || peer->state == TCP_CLOSING || peer->state == TCP_LAST_ACK)
		return knows_end(e) && (strictness == LAX || !c->holders[1 - end]);
	return 1;
}

/* Has the kernel acknowledge at once what has come: it might wait 40 ms for something to send along. */
static void acknowledge(const struct connection *c)
{
	int on = 1;
	for (struct place *p = places; p < places + PLACES; p++)
		if (p->is_open && p->kind == STREAM && c == &shared->connections[p->number])
			bare(SYS_setsockopt, p->fd, IPPROTO_TCP, TCP_QUICKACK, (long)&on, sizeof(on), 0);
}

static void settle_to(struct connection *c, enum strictness strictness)
{
	struct view v[2];
	for (unsigned tries = 0; c->is_used; tries++) {
		for (int end = 0; end < 2; end++) {
			look(c, end, &v[end]);
			if (v[end].is_there && !c->is_full && v[end].sent < c->sent[end])
				shared->past_kernel = 1;
		}
		if (arrived(c, v, 0, strictness) && arrived(c, v, 1, strictness))
			return;
		acknowledge(c);
		sched_yield();
		if (tries > 20)
			nap();
		if (tries > 100000)
			fail("a connection does not settle: %d %d, holders %d %d, sent %lu %lu received %lu %lu, "
			     "unacked %u %u",
			     v[0].state, v[1].state, c->holders[0], c->holders[1], (long)v[0].sent, (long)v[1].sent,
			     (long)v[0].received, (long)v[1].received, v[0].unacked, v[1].unacked);
	}
}

static void settle(struct connection *c)
{
	settle_to(c, c->is_watched ? STRICT : LAX);
}

static void settle_all(void)
{
	for (struct connection *c = shared->connections; c < shared->connections + CONNECTIONS; c++)
		settle(c);
}

/* The peer's kernel does not wait 40 ms before it acknowledges what it cannot be made to acknowledge at once. */
static void hasten(int fd)
{
	enum { DELACK_MAX_US = 46 };
	/* Two ticks of the kernel's clock, the least that it takes. */
	int us = 8000;
	bare(SYS_setsockopt, fd, IPPROTO_TCP, DELACK_MAX_US, (long)&us, sizeof(us), 0);
}

/* --- Places. --- */

static void hold(const struct place *p, int by)
{
	if (p->kind == STREAM)
		shared->connections[p->number].holders[p->end] += by;
	if (p->kind == LISTENER) {
		struct listening *l = &shared->listeners[p->number];
		l->holders += by;
		if (l->holders == 0) {
			/* The kernel resets those that wait. */
			for (int i = 0; i < l->waiting; i++)
				shared->connections[l->queue[i]].holders[1]--;
			l->waiting = 0;
		}
	}
}

static void put_at(long long place, int fd, enum kind kind, int number, int end)
{
	CHECK(place >= 0 && place < PLACES && !places[place].is_open && fd >= 0);
	places[place] = (struct place){fd, 1, kind, number, end};
	hold(&places[place], 1);
}

/* Waits for what a call has set off on a stream, or on the streams that waited at a listener. */
static void settle_place(const struct place *p)
{
	if (p->kind == STREAM)
		settle(&shared->connections[p->number]);
	else if (p->kind == LISTENER)
		settle_all();
}

static struct place *place(const struct order *o, int i)
{
	CHECK(o->a[i] >= 0 && o->a[i] < PLACES);
	return &places[o->a[i]];
}

static struct connection *connection(const struct place *p)
{
	CHECK(p->kind == STREAM);
	return &shared->connections[p->number];
}

/* --- Calls on sockets. --- */

static void do_listen(const struct order *o)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct listening *l = &shared->listeners[o->a[1]];
	CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	hasten(fd);
	CHECK(bind(fd, (struct sockaddr *)&at, len) == 0 && listen(fd, 8) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
	memset(l, 0, sizeof(*l));
	l->port = ntohs(at.sin_port);
	put_at(o->a[0], fd, LISTENER, (int)o->a[1], 0);
	say("%d", fd);
}

static void do_socket(const struct order *o)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	hasten(fd);
	put_at(o->a[0], fd, FRESH, 0, 0);
	say("%d", fd);
}

/* Connects the socket at a place with listener b as connection c; d: without blocking. */
static void do_connect(const struct order *o)
{
	struct place *p = place(o, 0);
	struct listening *l = &shared->listeners[o->a[1]];
	struct connection *c = &shared->connections[o->a[2]];
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	int on = 1, both = 0;
	CHECK(p->is_open && p->kind == FRESH);
	at.sin_port = htons(l->port);
	CHECK(setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	if (o->a[3])
		set_nonblocking(p->fd, 1);
	say_result(connect(p->fd, (struct sockaddr *)&at, sizeof(at)));
	if (!o->a[3])
		set_nonblocking(p->fd, 1);
	CHECK(bare(SYS_getsockname, p->fd, (long)&at, (long)&len, 0, 0, 0) == 0);
	memset(c, 0, sizeof(*c));
	c->is_used = 1;
	c->is_watched = p->number;
	c->ports[0] = ntohs(at.sin_port);
	c->ports[1] = l->port;
	p->kind = STREAM;
	p->number = (int)o->a[2];
	p->end = 0;
	hold(p, 1);
	l->queue[l->waiting++] = p->number;
	c->holders[1]++;
	while (!both) {
		struct view v[2];
		look(c, 0, &v[0]);
		look(c, 1, &v[1]);
		both = v[0].is_there && v[1].is_there && v[0].state == TCP_ESTABLISHED && v[1].state == TCP_ESTABLISHED;
		if (!both)
			sched_yield();
	}
}

/* Connects to a port that nothing listens on. */
static void do_refuse(const struct order *o)
{
	struct place *p = place(o, 0);
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(1)};
	CHECK(p->is_open && p->kind == FRESH);
	set_nonblocking(p->fd, 1);
	say_result(connect(p->fd, (struct sockaddr *)&at, sizeof(at)));
	for (;;) {
		unsigned char state = 0;
		socklen_t len = sizeof(state);
		CHECK(bare(SYS_getsockopt, p->fd, IPPROTO_TCP, TCP_INFO, (long)&state, (long)&len, 0) == 0);
		if (state != TCP_SYN_SENT)
			return;
		sched_yield();
	}
}

static void do_accept(const struct order *o)
{
	struct place *p = place(o, 1);
	struct listening *l = &shared->listeners[p->number];
	int on = 1, fd = accept4(p->fd, NULL, NULL, SOCK_NONBLOCK);
	if (fd < 0) {
		say_result(fd);
		return;
	}
	CHECK(l->waiting > 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	int number = l->queue[0];
	memmove(l->queue, l->queue + 1, (size_t)--l->waiting * sizeof(l->queue[0]));
	put_at(o->a[0], fd, STREAM, number, 1);
	shared->connections[number].holders[1]--;
	say("%d is of connection %d", fd, number);
}

static long send_some(const struct place *p, size_t n)
{
	struct connection *c = connection(p);
	fill_stream(room, n, (uint64_t)p->number * 2 + (uint64_t)p->end + 1,
		    c->sent[p->end] - c->base[p->end]);
	long done = send(p->fd, room, n, MSG_NOSIGNAL);
	if (done > 0)
		c->sent[p->end] += (uint64_t)done;
	return done;
}

static void do_send(const struct order *o)
{
	say_result(send_some(place(o, 0), (size_t)o->a[1]));
}

static long recv_some(const struct place *p, size_t n)
{
	struct connection *c = connection(p);
	long done = recv(p->fd, room, n, 0);
	if (done > 0)
		c->read[p->end] += (uint64_t)done;
	return done;
}

static void do_recv(const struct order *o)
{
	say_bytes(recv_some(place(o, 0), (size_t)o->a[1]));
}

static void do_peek(const struct order *o)
{
	say_bytes(recv(place(o, 0)->fd, room, (size_t)o->a[1], MSG_PEEK));
}

/* Receives until there is no more. */
static void do_empty(const struct order *o)
{
	long n, total = 0;
	while ((n = recv_some(place(o, 0), MOST)) > 0)
		total += n;
	say("%ld, then %s", total, n == 0 ? "end" : why(errno));
}

static void do_urgent(const struct order *o)
{
	say_result(send(place(o, 0)->fd, "!", 1, MSG_OOB | MSG_NOSIGNAL));
}

static void do_error(const struct order *o)
{
	int value = 0;
	socklen_t len = sizeof(value);
	if (getsockopt(place(o, 0)->fd, SOL_SOCKET, SO_ERROR, &value, &len) < 0)
		say_result(-1);
	else
		say("error %s", why(value));
}

static void do_shutdown(const struct order *o)
{
	say_result(shutdown(place(o, 0)->fd, (int)o->a[1]));
	shared->ends++;
}

/* Sends until the stream takes no more and nothing that is on its way makes room. */
static void do_fill(const struct order *o)
{
	struct place *p = place(o, 0);
	struct connection *c = connection(p);
	int size = 32768;
	struct view v;
	c->is_full = 1;
	bare(SYS_setsockopt, p->fd, SOL_SOCKET, SO_SNDBUF, (long)&size, sizeof(size), 0);
	for (int full = 0; full < 3; full++) {
		while (send_some(p, MOST) > 0)
			full = 0;
		CHECK(errno == EAGAIN);
		do {
			acknowledge(c);
			sched_yield();
			look(c, p->end, &v);
		} while (v.unacked);
	}
	say("full");
}

static void do_drain(const struct order *o)
{
	struct place *p = place(o, 0);
	struct connection *c = connection(p);
	while (c->read[p->end] < c->sent[1 - p->end]) {
		long n = recv_some(p, MOST);
		if (n == 0 || (n < 0 && errno != EAGAIN)) {
			say_result(n);
			return;
		}
		if (n < 0)
			sched_yield();
		acknowledge(c);
	}
	c->is_full = 0;
	c->base[1 - p->end] = c->sent[1 - p->end];
	for (;;) {
		struct view v;
		look(c, 1 - p->end, &v);
		if (!v.is_there || (v.unacked == 0 && v.unsent == 0))
			break;
		acknowledge(c);
		sched_yield();
	}
	say("empty");
}

static void spin_recv(const struct place *p)
{
	while (recv_some(p, 1) < 0) {
		CHECK(errno == EAGAIN);
		sched_yield();
	}
}

/* Enough exchanges for the ends to find each other. The ends are in this process (b), or the other has its own order
 * (b < 0), and c says which is first. */
static void do_warm(const struct order *o)
{
	struct place *p = place(o, 0);
	for (long long i = 0; i < o->a[3]; i++) {
		if (o->a[2])
			CHECK(send_some(p, 1) == 1);
		if (o->a[1] >= 0) {
			spin_recv(place(o, 1));
			CHECK(send_some(place(o, 1), 1) == 1);
		}
		spin_recv(p);
		if (!o->a[2])
			CHECK(send_some(p, 1) == 1);
	}
	settle(connection(p));
	say("0");
}

/* --- Numbers. --- */

static void do_close(const struct order *o)
{
	struct place *p = place(o, 0);
	CHECK(p->is_open);
	say_result(close(p->fd));
	hold(p, -1);
	p->is_open = 0;
	shared->ends++;
	settle_place(p);
}

static void do_dup(const struct order *o)
{
	struct place *p = place(o, 0);
	int fd = o->a[2] ? fcntl(p->fd, F_DUPFD_CLOEXEC, 0) : dup(p->fd);
	CHECK(p->is_open);
	put_at(o->a[1], fd, p->kind, p->number, p->end);
	say("%d", fd);
}

static void do_dup2(const struct order *o)
{
	struct place *p = place(o, 0), *q = place(o, 1), before = *q;
	CHECK(p->is_open && q->is_open);
	say_result(dup2(p->fd, q->fd));
	hold(q, -1);
	*q = *p;
	q->fd = before.fd;
	hold(q, 1);
	shared->ends++;
	settle_place(&before);
}

/* --- Files that are no streams. --- */

static void do_make(const struct order *o)
{
	int fd, pipes[2];
	if (!strcmp(o->word, "pipe")) {
		CHECK(pipe2(pipes, O_NONBLOCK) == 0);
		put_at(o->a[0], pipes[0], PIPE, 0, 0);
		put_at(o->a[1], pipes[1], PIPE, 0, 1);
		say("%d %d", pipes[0], pipes[1]);
		return;
	}
	if (!strcmp(o->word, "eventfd")) {
		fd = eventfd((unsigned)o->a[1], EFD_NONBLOCK);
		put_at(o->a[0], fd, EVENT, 0, 0);
	} else if (!strcmp(o->word, "timerfd")) {
		fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
		put_at(o->a[0], fd, TIMER, 0, 0);
	} else {
		fd = o->a[1] ? epoll_create(1) : epoll_create1(EPOLL_CLOEXEC);
		put_at(o->a[0], fd, SET, 0, 0);
	}
	say("%d", fd);
}

/* Writes to an eventfd or a pipe; b: reads. */
static void do_put(const struct order *o)
{
	uint64_t number = 1;
	struct place *p = place(o, 0);
	size_t n = p->kind == PIPE ? 1 : sizeof(number);
	if (!strcmp(o->word, "put"))
		say_result(write(p->fd, &number, n));
	else {
		long got = read(p->fd, &number, n);
		say_result(got);
		if (got == sizeof(number))
			say("%ld: %llu", got, (unsigned long long)number);
	}
}

/* Sets a timer and waits until it has expired; b: stops it. */
static void do_arm(const struct order *o)
{
	struct itimerspec at = {.it_value.tv_nsec = o->a[1] ? 0 : 1};
	struct pollfd p = {.fd = place(o, 0)->fd, .events = POLLIN};
	say_result(timerfd_settime(p.fd, 0, &at, NULL));
	while (!o->a[1] && bare(SYS_ppoll, (long)&p, 1, 0, 0, 0, 0) != 1)
		sched_yield();
}

/* --- Sets. --- */

static void *bad_pointer(void)
{
	static void *page;
	if (!page) {
		page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(page != MAP_FAILED);
	}
	return page;
}

static void do_ctl(const struct order *o)
{
	struct epoll_event event = {.events = (uint32_t)o->a[3], .data.u64 = (uint64_t)o->a[4]};
	/* The target's number may be another place's by now. */
	for (struct place *p = places; p < places + PLACES; p++) {
		if (!p->is_open || p->fd != place(o, 1)->fd)
			continue;
		if (p->kind == FRESH)
			p->number = 1;
		if (p->kind == STREAM && !connection(p)->is_watched) {
			connection(p)->is_watched = 1;
			settle(connection(p));
		}
	}
	int op = (int)(o->a[2] & 0xff), is_bad = (o->a[2] & 0x100) != 0;
	errno = 4095;
	say_result(epoll_ctl(place(o, 0)->fd, op, place(o, 1)->fd, is_bad ? bad_pointer() : &event));
}

static void do_bad_create(const struct order *o)
{
	if (o->a[0])
		say_result(epoll_create((int)o->a[0] - 1));
	else
		say_result(epoll_create1(1));
}

/* What a thread that waits is asked for, and what came of it. */
struct wait {
	int fd;
	int set;
	int api;
	long long timeout_us;
	int most;
	/* How many watches the set has at most: so many are to be reported when a wait returns fewer at once. */
	int watches;
	int n;
	int error;
	int is_overrun;
	int is_early;
	/* Whether one call has reported a watch twice. */
	int is_twice;
	struct epoll_event events[64];
};

static int one_wait(const struct wait *w, int api, long long timeout_us, struct epoll_event *events, int most)
{
	struct timespec limit = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
	int ms = timeout_us < 0 ? -1 : (int)((timeout_us + 999) / 1000);
	sigset_t none;
	sigemptyset(&none);
	switch (api) {
	case 1: return epoll_pwait(w->fd, events, most, ms, NULL);
	case 2: return epoll_pwait(w->fd, events, most, ms, &none);
	case 3: return epoll_pwait2(w->fd, events, most, timeout_us < 0 ? NULL : &limit, NULL);
	default: return epoll_wait(w->fd, events, most, ms);
	}
}

static int compare_events(const void *a, const void *b)
{
	const struct epoll_event *x = a, *y = b;
	if (x->data.u64 != y->data.u64)
		return x->data.u64 < y->data.u64 ? -1 : 1;
	return x->events < y->events ? -1 : x->events > y->events;
}

/* Data of a watch that is reported once for each of its events has this bit. */
#define IS_ONCE (1ull << 55)

/* Sorted, each watch's report once: in which order the kernel reports is not specified. */
static int merge(struct epoll_event *events, int n)
{
	int kept = 0;
	qsort(events, (size_t)n, sizeof(*events), compare_events);
	for (int i = 0; i < n; i++)
		if (i == 0 || (events[i].data.u64 & IS_ONCE) || compare_events(&events[i], &events[kept - 1]))
			events[kept++] = events[i];
	return kept;
}

/* Whether no other watch has this data: in some programs all have the same, without their places. */
static int has_own_data(uint64_t data)
{
	return (data & 0xffffffff) != 0;
}

/* Waits until every ready watch has been reported: with room for fewer, as often as that takes. */
static void run_wait(struct wait *w)
{
	struct epoll_event got[MOST_EVENTS];
	struct timespec begin, end;
	/* Rings and the kernel have turns of their own, so some are reported twice before others. */
	int total = 0, rounds = 3 * ((w->watches + w->most - 1) / w->most);
	w->error = w->is_overrun = w->is_early = w->is_twice = 0;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int round = 0; round < rounds || round == 0; round++) {
		memset(got, 0xee, sizeof(got));
		int n = one_wait(w, round ? 0 : w->api, round ? 0 : w->timeout_us, got, w->most);
		if (round == 0 && n == 0 && w->timeout_us > 0) {
			clock_gettime(CLOCK_MONOTONIC, &end);
			long long took = (end.tv_sec - begin.tv_sec) * 1000000ll + (end.tv_nsec - begin.tv_nsec) / 1000;
			w->is_early = took < w->timeout_us;
		}
		if (n < 0 && round == 0)
			w->error = errno;
		if (n < 0)
			break;
		CHECK(n <= w->most);
		/* A wait may use all of its room. */
		const unsigned char *rest = (const unsigned char *)(got + w->most);
		for (size_t i = 0; i < sizeof(got) - (size_t)w->most * sizeof(got[0]); i++)
			w->is_overrun |= rest[i] != 0xee;
		for (int i = 0; i < n; i++)
			for (int j = 0; j < i; j++)
				w->is_twice |= got[i].data.u64 == got[j].data.u64 && has_own_data(got[i].data.u64);
		for (int i = 0; i < n && total < (int)COUNT(w->events); i++)
			w->events[total++] = got[i];
		if (n < w->most)
			break;
	}
	w->n = merge(w->events, total);
}

static void say_events(const struct wait *w, const char *more)
{
	size_t at;
	if (w->error)
		say("%s%s", why(w->error), more);
	else
		say("%d%s%s%s%s", w->n, w->is_early ? " early" : "", w->is_overrun ? " overrun" : "",
		    w->is_twice ? " twice" : "", more);
	for (int i = 0; !w->error && i < w->n; i++) {
		at = strlen(answer);
		snprintf(answer + at, sizeof(answer) - at, " %llx:%x", (unsigned long long)w->events[i].data.u64,
			 w->events[i].events);
	}
}

static struct wait waits[THREADS];

/* Set, API, timeout, maxevents and watches. API 2 waits with a signal pending that the mask of the wait lets through,
 * 4 with a bad pointer. */
/* While rings have events, the library asks the kernel every 50 us, not in each wait. */
static void await_kernels_turn(void)
{
	usleep(60);
}

static void do_wait(const struct order *o)
{
	await_kernels_turn();
	struct wait *w = &waits[o->thread];
	*w = (struct wait){.fd = place(o, 0)->fd,
			   .set = (int)o->a[0],
			   .api = (int)o->a[1],
			   .timeout_us = o->a[2],
			   .most = (int)o->a[3],
			   .watches = (int)o->a[4]};
	if (w->most <= 0 || w->api == 4) {
		struct epoll_event *at = w->api == 4 ? bad_pointer() : w->events;
		say_result(one_wait(w, 0, w->timeout_us, at, w->most));
		return;
	}
	if (w->api != 2) {
		run_wait(w);
		say_events(w, "");
		return;
	}
	sigset_t one, before;
	sigemptyset(&one);
	sigaddset(&one, SIGUSR2);
	CHECK(pthread_sigmask(SIG_BLOCK, &one, &before) == 0);
	handled = 0;
	CHECK(pthread_kill(pthread_self(), SIGUSR2) == 0);
	run_wait(w);
	int inside = handled;
	CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	say_events(w, inside ? " handled" : handled ? " pending" : " lost");
}

static void do_poll(const struct order *o)
{
	enum { MANY = 80 };
	struct pollfd p[MANY];
	nfds_t n = 0;
	for (; n < 3 && o->a[n] >= 0; n++)
		p[n] = (struct pollfd){.fd = place(o, (int)n)->fd, .events = (short)o->a[3]};
	/* The others are passed over. */
	for (nfds_t i = n; i < MANY; i++)
		p[i] = (struct pollfd){.fd = -1};
	int is_many = (o->a[3] & 0x10000) != 0;
	int result = poll(p, is_many ? MANY : n, (int)o->a[4]);
	if (result < 0) {
		say_result(result);
		return;
	}
	say("%d", result);
	for (nfds_t i = 0; i < n; i++)
		snprintf(answer + strlen(answer), 16, " %x", (unsigned)(unsigned short)p[i].revents);
}

static void do_select(const struct order *o)
{
	fd_set sets[3];
	struct timeval limit = {.tv_usec = o->a[4]};
	int most = 0;
	for (int i = 0; i < 3; i++) {
		FD_ZERO(&sets[i]);
		for (int j = 0; j < 3 && o->a[j] >= 0; j++) {
			int fd = place(o, j)->fd;
			if (o->a[3] & (1 << i))
				FD_SET(fd, &sets[i]);
			most = fd > most ? fd : most;
		}
	}
	int n = select(most + 1, &sets[0], &sets[1], &sets[2], &limit);
	say_result(n);
	for (int j = 0; n >= 0 && j < 3 && o->a[j] >= 0; j++)
		snprintf(answer + strlen(answer), 16, " %d%d%d", FD_ISSET(place(o, j)->fd, &sets[0]) != 0,
			 FD_ISSET(place(o, j)->fd, &sets[1]) != 0, FD_ISSET(place(o, j)->fd, &sets[2]) != 0);
}

/* --- Threads. --- */

enum phase { IDLE, ORDERED, INSIDE, DONE };

static struct thread {
	pthread_t thread;
	sem_t begin, end;
	_Atomic int tid;
	_Atomic int phase;
	int is_wait;
	int stat;
} threads[THREADS];
static struct order current;

static void run(const struct order *o);

static void *work(void *arg)
{
	struct thread *t = arg;
	t->tid = (int)bare(SYS_gettid, 0, 0, 0, 0, 0, 0);
	for (;;) {
		while (sem_wait(&t->begin) < 0)
			;
		if (t->is_wait) {
			t->phase = INSIDE;
			run_wait(&waits[t - threads]);
			t->phase = DONE;
		} else {
			run(&current);
			sem_post(&t->end);
		}
	}
	return NULL;
}

static int move_high(int fd)
{
	int high = (int)bare(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH, 0, 0, 0);
	CHECK(high >= HIGH && bare(SYS_close, fd, 0, 0, 0, 0, 0) == 0);
	return high;
}

static int is_asleep(struct thread *t)
{
	char text[256];
	if (t->stat < 0) {
		snprintf(text, sizeof(text), "/proc/self/task/%d/stat", t->tid);
		t->stat = move_high((int)bare(SYS_openat, AT_FDCWD, (long)text, O_RDONLY | O_CLOEXEC, 0, 0, 0));
	}
	long n = bare(SYS_pread64, t->stat, (long)text, sizeof(text) - 1, 0, 0, 0);
	CHECK(n > 0);
	text[n] = 0;
	return !strncmp(strrchr(text, ')'), ") S", 3);
}

static long long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/* Sets, by their places, in which a thread has returned. */
static long long returned(void)
{
	long long sets = 0;
	for (int i = 1; i < THREADS; i++)
		if (threads[i].phase == DONE)
			sets |= 1ll << waits[i].set;
	return sets;
}

/* Waits until every thread that waits has returned or sleeps. With the library a thread may sleep for another reason
 * for a moment: one that is expected to return gets time. */
static void quiet(long long expect)
{
	long long begin = 0;
	for (int i = 1; i < THREADS; i++)
		while (threads[i].phase == ORDERED || threads[i].phase == INSIDE) {
			if (threads[i].phase == INSIDE && is_asleep(&threads[i])) {
				long long missing = expect < 0 ? 0 : expect & ~returned();
				if (!(missing & (1ll << waits[i].set)) && threads[i].phase == INSIDE)
					break;
				if (!begin)
					begin = now_ms();
				if (missing && now_ms() - begin > 1000)
					break;
			}
			sched_yield();
		}
}

/* As `wait`, but the others go on meanwhile. */
static void do_begin(const struct order *o)
{
	struct thread *t = &threads[o->thread];
	struct wait *w = &waits[o->thread];
	CHECK(o->thread > 0 && t->phase == IDLE);
	await_kernels_turn();
	*w = (struct wait){.fd = place(o, 0)->fd,
			   .set = (int)o->a[0],
			   .api = (int)o->a[1],
			   .timeout_us = o->a[2],
			   .most = (int)o->a[3],
			   .watches = (int)o->a[4]};
	t->is_wait = 1;
	t->phase = ORDERED;
	sem_post(&t->begin);
	say("begun");
}

/* Interrupts the threads that still wait, and says what each set has reported. */
static void do_end(void)
{
	char all[sizeof(answer)] = "";
	for (int i = 1; i < THREADS; i++) {
		struct thread *t = &threads[i];
		while (t->phase == INSIDE || t->phase == ORDERED) {
			pthread_kill(t->thread, SIGUSR1);
			for (int tries = 0; tries < 200 && t->phase == INSIDE; tries++)
				sched_yield();
		}
	}
	for (int i = 1; i < THREADS; i++) {
		struct wait group = {.n = 0};
		int members = 0;
		for (int j = i; j < THREADS; j++) {
			if (threads[j].phase != DONE || waits[j].set != waits[i].set)
				continue;
			threads[j].phase = IDLE;
			members++;
			group.is_overrun |= waits[j].is_overrun;
			group.is_twice |= waits[j].is_twice;
			if (waits[j].error)
				group.error = waits[j].error;
			for (int k = 0; !waits[j].error && k < waits[j].n && group.n < (int)COUNT(group.events); k++)
				group.events[group.n++] = waits[j].events[k];
		}
		if (!members)
			continue;
		/* Of several threads in one set, those that were not needed are interrupted. */
		if (group.n)
			group.error = 0;
		group.n = merge(group.events, group.n);
		say_events(&group, "");
		char head[16];
		snprintf(head, sizeof(head), "[%d: ", waits[i].set);
		CHECK(strlen(all) + strlen(head) + strlen(answer) + 2 < sizeof(all));
		strcat(strcat(strcat(all, head), answer), "]");
	}
	memcpy(answer, all, sizeof(all));
}

/* --- Processes. --- */

static char input[1 << 16];
static size_t input_at, input_end;
static int input_fd = 0, output_fd = 1;
static char output[1 << 16];
static size_t output_end;

static void flush(void)
{
	for (size_t at = 0; at < output_end;) {
		long n = bare(SYS_write, output_fd, (long)(output + at), (long)(output_end - at), 0, 0, 0);
		if (n == -EINTR)
			continue;
		CHECK(n > 0);
		at += (size_t)n;
	}
	output_end = 0;
}

static int get_line(int fd, char *line, size_t room_)
{
	for (;;) {
		char *end = memchr(input + input_at, '\n', input_end - input_at);
		if (end) {
			size_t n = (size_t)(end - (input + input_at));
			CHECK(n < room_);
			memcpy(line, input + input_at, n);
			line[n] = 0;
			input_at += n + 1;
			return 1;
		}
		flush();
		memmove(input, input + input_at, input_end - input_at);
		input_end -= input_at;
		input_at = 0;
		long n = bare(SYS_read, fd, (long)(input + input_end), (long)(sizeof(input) - input_end), 0, 0, 0);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			return 0;
		input_end += (size_t)n;
	}
}

static void parse(const char *line, struct order *o)
{
	char *at;
	size_t n = strcspn(line, " ");
	CHECK(n < sizeof(o->word));
	memcpy(o->word, line, n);
	o->word[n] = 0;
	long long numbers[8];
	at = (char *)line + n;
	for (int i = 0; i < 8; i++)
		numbers[i] = strtoll(at, &at, 0);
	o->child = (int)numbers[0];
	o->thread = (int)numbers[1];
	memcpy(o->a, numbers + 2, sizeof(o->a));
	o->expect = numbers[7];
}

static void serve(void);

static void do_fork(void)
{
	int down[2], up[2];
	CHECK(bare(SYS_pipe2, (long)down, O_CLOEXEC, 0, 0, 0, 0) == 0);
	CHECK(bare(SYS_pipe2, (long)up, O_CLOEXEC, 0, 0, 0, 0) == 0);
	for (int i = 0; i < 2; i++) {
		down[i] = move_high(down[i]);
		up[i] = move_high(up[i]);
	}
	for (struct place *p = places; p < places + PLACES; p++)
		if (p->is_open)
			hold(p, 1);
	flush();
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		bare(SYS_close, down[1], 0, 0, 0, 0, 0);
		bare(SYS_close, up[0], 0, 0, 0, 0, 0);
		input_fd = down[0];
		output_fd = up[1];
		input_at = input_end = output_end = 0;
		diag = (int)bare(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG, 0, 0, 0);
		diag = move_high(diag);
		serve();
		_exit(1);
	}
	bare(SYS_close, down[0], 0, 0, 0, 0, 0);
	bare(SYS_close, up[1], 0, 0, 0, 0, 0);
	child_orders = down[1];
	child_answers = up[0];
	child_pid = pid;
	say("forked");
}

/* The child ends, and its descriptors with it. */
static void do_exit(void)
{
	for (struct place *p = places; p < places + PLACES; p++)
		if (p->is_open)
			hold(p, -1);
	_exit(0);
}

static void reap(void)
{
	CHECK(waitpid(child_pid, NULL, 0) == child_pid);
	bare(SYS_close, child_orders, 0, 0, 0, 0, 0);
	bare(SYS_close, child_answers, 0, 0, 0, 0, 0);
	child_orders = child_answers = -1;
	child_pid = 0;
	settle_all();
	say("0");
}

static void order_child(const char *line)
{
	char text[256];
	int n = snprintf(text, sizeof(text), "%s\n", line);
	CHECK(bare(SYS_write, child_orders, (long)text, n, 0, 0, 0) == n);
	if (!strncmp(line, "exit ", 5)) {
		reap();
		return;
	}
	for (size_t got = 0;;) {
		long one = bare(SYS_read, child_answers, (long)(answer + got), 1, 0, 0, 0);
		if (one == -EINTR)
			continue;
		if (one != 1) {
			int status;
			waitpid(child_pid, &status, 0);
			fail("the child has died: %x", (unsigned)status);
		}
		if (answer[got] == '\n') {
			answer[got] = 0;
			return;
		}
		got++;
	}
}

/* Ends a program: closes everything. */
static void do_reset(void)
{
	struct linger now = {.l_onoff = 1};
	for (struct place *p = places; p < places + PLACES; p++) {
		if (p->is_open && p->kind == STREAM)
			/* So that no connection waits out its time. */
			setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		if (p->is_open)
			CHECK(close(p->fd) == 0);
		*p = (struct place){.fd = -1};
	}
	int lowest = (int)bare(SYS_fcntl, output_fd, F_DUPFD, 3, 0, 0, 0);
	CHECK(bare(SYS_close, lowest, 0, 0, 0, 0, 0) == 0);
	/* A descriptor that was left open below the program's has a number that the program would have got. */
	say("%d", lowest);
}

/* Acknowledges what another process sends, until it has made as many calls that end streams as a says. */
static void do_ack(const struct order *o)
{
	for (int tries = 0; shared->ends < (unsigned long)o->a[0]; tries++) {
		sched_yield();
		if (tries > 20)
			nap();
	}
	settle_all();
	say("0");
}

/* Until the kernel's clock has ticked, which a writer on a ring looks at the socket after. */
static void do_tick(void)
{
	struct timespec first, now;
	CHECK(clock_gettime(CLOCK_MONOTONIC_COARSE, &first) == 0);
	do {
		nap();
		CHECK(clock_gettime(CLOCK_MONOTONIC_COARSE, &now) == 0);
	} while (now.tv_sec * 1000 + now.tv_nsec / 1000000 == first.tv_sec * 1000 + first.tv_nsec / 1000000);
	say("0");
}

static void run(const struct order *o)
{
	static const struct {
		const char *word;
		void (*run)(const struct order *o);
	} ORDERS[] = {
		{"listen", do_listen},   {"socket", do_socket}, {"connect", do_connect}, {"refuse", do_refuse},
		{"accept", do_accept},   {"send", do_send},     {"recv", do_recv},       {"peek", do_peek},
		{"empty", do_empty},     {"urgent", do_urgent}, {"error", do_error},     {"shutdown", do_shutdown},
		{"fill", do_fill},       {"drain", do_drain},   {"warm", do_warm},       {"close", do_close},
		{"dup", do_dup},         {"dup2", do_dup2},     {"pipe", do_make},       {"eventfd", do_make},
		{"timerfd", do_make},    {"create", do_make},   {"put", do_put},         {"take", do_put},
		{"arm", do_arm},         {"ctl", do_ctl},       {"badcreate", do_bad_create},
		{"wait", do_wait},       {"poll", do_poll},     {"select", do_select},   {"begin", do_begin},
		{"ack", do_ack},
	};
	for (size_t i = 0; i < COUNT(ORDERS); i++)
		if (!strcmp(ORDERS[i].word, o->word)) {
			ORDERS[i].run(o);
			return;
		}
	if (!strcmp(o->word, "end"))
		do_end();
	else if (!strcmp(o->word, "fork"))
		do_fork();
	else if (!strcmp(o->word, "exit"))
		do_exit();
	else if (!strcmp(o->word, "reset"))
		do_reset();
	else if (!strcmp(o->word, "tick"))
		do_tick();
	else if (!strcmp(o->word, "quiet"))
		say("0");
	else if (!strcmp(o->word, "past")) {
		say("%d", shared->past_kernel);
		memset(shared, 0, sizeof(*shared));
	} else
		fail("what is %s?", o->word);
}

static int is_on_stream(const char *word)
{
	char padded[20];
	snprintf(padded, sizeof(padded), " %s ", word);
	return strstr(" send recv empty urgent shutdown fill drain ", padded) != NULL;
}

/* Nothing waits for ever: a call that takes so long ends the process. */
static void limit_time(unsigned seconds)
{
	bare(SYS_setitimer, ITIMER_REAL, (long)&(struct itimerval){.it_value.tv_sec = seconds}, 0, 0, 0, 0);
}

static void on_alarm(int number)
{
	char text[300];
	(void)number;
	int n = snprintf(text, sizeof(text), "epoll_net: too long: %s %d %d %lld %lld %lld %lld %lld, threads %d %d %d\n",
			 current.word, current.child, current.thread, current.a[0], current.a[1], current.a[2],
			 current.a[3], current.a[4], threads[1].phase, threads[2].phase, threads[3].phase);
	bare(SYS_write, 2, (long)text, n, 0, 0, 0);
	_exit(99);
}

static void serve(void)
{
	char line[256];
	for (;;) {
		limit_time(0);
		if (!get_line(input_fd, line, sizeof(line)))
			return;
		limit_time(30);
		parse(line, &current);
		CHECK(current.thread >= 0 && current.thread < THREADS);
		if (current.child && input_fd == 0)
			order_child(line);
		else if (current.thread && input_fd == 0 && strcmp(current.word, "begin")) {
			struct thread *t = &threads[current.thread];
			CHECK(t->phase == IDLE);
			t->is_wait = 0;
			sem_post(&t->begin);
			while (sem_wait(&t->end) < 0)
				;
		} else
			run(&current);
		if (is_on_stream(current.word) && places[current.a[0]].kind == STREAM)
			settle(&shared->connections[places[current.a[0]].number]);
		if (input_fd == 0) {
			quiet(current.expect);
			long long sets = returned();
			if (sets) {
				size_t at = strlen(answer);
				snprintf(answer + at, sizeof(answer) - at, " +%llx", (unsigned long long)sets);
			}
		}
		size_t n = strlen(answer);
		if (output_end + n + 1 > sizeof(output))
			flush();
		memcpy(output + output_end, answer, n);
		output_end += n;
		output[output_end++] = '\n';
	}
}

static void on_signal(int number)
{
	(void)number;
	handled++;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal}, alarm_action = {.sa_handler = on_alarm};
	CHECK(argc == 3 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	signal(SIGPIPE, SIG_IGN);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR2, &action, NULL) == 0);
	CHECK(sigaction(SIGALRM, &alarm_action, NULL) == 0);
	cpu_set_t may, one;
	CHECK(sched_getaffinity(0, sizeof(may), &may) == 0);
	int nth = atoi(argv[1]) % CPU_COUNT(&may), cpu = 0;
	for (;; cpu++)
		if (CPU_ISSET(cpu, &may) && nth-- == 0)
			break;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
	int file = open(argv[2], O_RDWR);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(file >= 0 && shared != MAP_FAILED && close(file) == 0);
	diag = move_high((int)bare(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG, 0, 0, 0));
	for (struct place *p = places; p < places + PLACES; p++)
		p->fd = -1;
	for (int i = 0; i < THREADS; i++) {
		threads[i].stat = -1;
		CHECK(sem_init(&threads[i].begin, 0, 0) == 0 && sem_init(&threads[i].end, 0, 0) == 0);
		if (i)
			CHECK(pthread_create(&threads[i].thread, NULL, work, &threads[i]) == 0);
	}
	for (int i = 1; i < THREADS; i++)
		while (!threads[i].tid)
			sched_yield();
	serve();
	return 0;
}
