/* What the kernel knows of a connection, and waiting until it has nothing under way. Part of `epoll_net.c`. */
#ifndef EPOLL_NET_KERNEL_VIEW_H
#define EPOLL_NET_KERNEL_VIEW_H

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

#endif
