/* Calls on sockets. Part of `epoll_net.c`. */
#ifndef EPOLL_NET_SOCKETS_H
#define EPOLL_NET_SOCKETS_H

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

#endif
