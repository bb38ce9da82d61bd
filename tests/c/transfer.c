/* Random amounts by every call that moves bytes, checked byte by byte.
 *
 * Each part differs in how an end waits; within it, sizes and calls are drawn at random, the same
 * in each run. */
#include "common.h"

enum { MOST = 80000 };

/* Bytes of each direction. */
static const uint64_t TOTAL = 6u << 20;

/* Whether the last bytes before a wait may be held back for more. */
static int may_cork = 1;

static void split(struct iovec *iov, int n, unsigned char *buf, size_t len, struct pattern *p)
{
	for (int i = 0; i < n; i++) {
		size_t part = i == n - 1 ? len : next_random(p) % (len + 1);
		iov[i].iov_base = part ? buf : NULL;
		iov[i].iov_len = part;
		buf += part;
		len -= part;
	}
}

static ssize_t send_some(int fd, unsigned char *buf, size_t len, struct pattern *p, int flags)
{
	struct iovec iov[20];
	int n = 1 + (int)(next_random(p) % COUNT(iov));
	split(iov, n, buf, len, p);
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
	switch (next_random(p) % 8) {
	case 0:
		return flags ? send(fd, buf, len, flags) : write(fd, buf, len);
	case 1:
		return send(fd, buf, len, flags | MSG_NOSIGNAL);
	case 2:
		return sendto(fd, buf, len, flags, NULL, 0);
	case 3:
		return flags ? sendmsg(fd, &msg, flags) : writev(fd, iov, n);
	case 4:
		return sendmsg(fd, &msg, flags | MSG_NOSIGNAL);
	case 5:
		return send(fd, buf, len, flags | (next_random(p) % 2 && may_cork ? MSG_MORE : 0));
	case 6: {
		struct mmsghdr many[2] = {{.msg_hdr = msg}, {.msg_hdr = {.msg_iovlen = 0}}};
		return sendmmsg(fd, many, 2, flags) < 0 ? -1 : (ssize_t)many[0].msg_len;
	}
	default:
		return flags ? send(fd, buf, len, flags) : pwritev2(fd, iov, n, -1, 0);
	}
}

static ssize_t recv_some(int fd, unsigned char *buf, size_t len, struct pattern *p, int flags)
{
	struct iovec iov[20];
	int n = 1 + (int)(next_random(p) % COUNT(iov));
	split(iov, n, buf, len, p);
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
	unsigned char peeked[512];
	switch (next_random(p) % 9) {
	case 0:
		return flags ? recv(fd, buf, len, flags) : read(fd, buf, len);
	case 1:
		return recv(fd, buf, len, flags);
	case 2: {
		struct sockaddr_in from;
		socklen_t from_len = sizeof(from);
		ssize_t got = recvfrom(fd, buf, len, flags, (struct sockaddr *)&from, &from_len);
		CHECK(got < 0 || from_len == 0);
		return got;
	}
	case 3:
		return flags ? recvmsg(fd, &msg, flags) : readv(fd, iov, n);
	case 4: {
		char control[64];
		struct sockaddr_in from;
		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		msg.msg_name = &from;
		msg.msg_namelen = sizeof(from);
		msg.msg_flags = -1;
		ssize_t got = recvmsg(fd, &msg, flags);
		CHECK(got < 0 || (msg.msg_controllen == 0 && msg.msg_namelen == 0 && msg.msg_flags == 0));
		return got;
	}
	case 5: {
		/* What was peeked at is what is read next. */
		ssize_t seen = recv(fd, peeked, sizeof(peeked), flags | MSG_PEEK);
		if (seen <= 0)
			return seen;
		size_t want = (size_t)seen < len ? (size_t)seen : len;
		ssize_t got = recv(fd, buf, want, flags | MSG_WAITALL);
		CHECK(got == (ssize_t)want);
		CHECK(!memcmp(buf, peeked, want));
		return got;
	}
	case 6: {
		struct mmsghdr many[1] = {{.msg_hdr = msg}};
		return recvmmsg(fd, many, 1, flags, NULL) < 0 ? -1 : (ssize_t)many[0].msg_len;
	}
	case 7: {
		int ready = -1;
		CHECK(ioctl(fd, FIONREAD, &ready) == 0);
		CHECK(ready >= 0);
		if (ready == 0)
			return recv(fd, buf, len, flags);
		size_t want = (size_t)ready < len ? (size_t)ready : len;
		ssize_t got = recv(fd, buf, want, flags);
		CHECK(got == (ssize_t)want);
		return got;
	}
	default:
		return flags ? recv(fd, buf, len, flags) : preadv2(fd, iov, n, -1, 0);
	}
}

struct direction {
	int fd;
	uint64_t seed;
	uint64_t at;
	struct pattern sizes;
	unsigned char buf[MOST];
};

static struct direction out, in;

static void begin(int fd, int is_server)
{
	out.fd = in.fd = fd;
	out.seed = is_server ? 1 : 2;
	in.seed = is_server ? 2 : 1;
	out.sizes = pattern_of(out.seed + 10);
	in.sizes = pattern_of(in.seed + 20);
}

static size_t draw(struct direction *d)
{
	/* Small sizes are as frequent as large ones. */
	uint32_t most = 1u << (next_random(&d->sizes) % 17);
	size_t n = 1 + next_random(&d->sizes) % most;
	uint64_t left = TOTAL - d->at;
	return n < left ? n : (size_t)left;
}

static ssize_t step_out(struct direction *d, size_t n, int flags)
{
	fill_stream(d->buf, n, d->seed, d->at);
	ssize_t put_ = send_some(d->fd, d->buf, n, &d->sizes, flags);
	if (put_ >= 0) {
		CHECK((size_t)put_ <= n && put_ > 0);
		d->at += (uint64_t)put_;
	}
	return put_;
}

static ssize_t step_in(struct direction *d, size_t n, int flags)
{
	memset(d->buf, 0xee, n);
	ssize_t got = recv_some(d->fd, d->buf, n, &d->sizes, flags);
	if (got > 0) {
		CHECK((size_t)got <= n);
		check_stream(d->buf, (size_t)got, d->seed, d->at);
		d->at += (uint64_t)got;
	}
	return got;
}

static void finish(int fd)
{
	printf("out %llu in %llu\n", (unsigned long long)out.at, (unsigned long long)in.at);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
	CHECK(close(fd) == 0);
}

/* Two threads, each blocking in its own direction. */
static void *send_all(void *unused)
{
	while (out.at < TOTAL)
		CHECK(step_out(&out, draw(&out), 0) > 0);
	return unused;
}

static void *recv_all(void *unused)
{
	while (in.at < TOTAL)
		CHECK(step_in(&in, draw(&in), 0) > 0);
	return unused;
}

static void threads(int fd, int is_server)
{
	pthread_t sender, receiver;
	begin(fd, is_server);
	CHECK(pthread_create(&sender, NULL, send_all, NULL) == 0);
	CHECK(pthread_create(&receiver, NULL, recv_all, NULL) == 0);
	CHECK(pthread_join(sender, NULL) == 0);
	CHECK(pthread_join(receiver, NULL) == 0);
	finish(fd);
}

/* In turns: what one end writes, the other reads before it answers. */
static void turns(int fd, int is_server)
{
	begin(fd, is_server);
	may_cork = 0;
	struct pattern lengths = pattern_of(5);
	int mine = !is_server;
	while (out.at < TOTAL || in.at < TOTAL) {
		uint64_t n = 1 + next_random(&lengths) % (1u << (next_random(&lengths) % 18));
		struct direction *d = mine ? &out : &in;
		uint64_t end = d->at + n < TOTAL ? d->at + n : TOTAL;
		while (d->at < end) {
			size_t want = draw(d);
			if (want > end - d->at)
				want = (size_t)(end - d->at);
			CHECK((mine ? step_out(d, want, 0) : step_in(d, want, 0)) > 0);
		}
		mine = !mine;
	}
	finish(fd);
}

/* One thread, both directions, never blocking in a transfer. */
static void wait_by_poll(int fd, int want_out, int want_in, int kind)
{
	struct pollfd p[3] = {
		{.fd = -1, .events = POLLIN, .revents = -1},
		{.fd = fd, .events = (short)((want_out ? POLLOUT : 0) | (want_in ? POLLIN : 0))},
		{.fd = listener, .events = POLLOUT},
	};
	struct timespec limit = {.tv_sec = 100};
	int n = kind ? ppoll(p, 3, &limit, NULL) : poll(p, 3, -1);
	CHECK(n == 1 && p[0].revents == 0 && p[2].revents == 0);
	CHECK((p[1].revents & ~(POLLIN | POLLOUT)) == 0);
	CHECK((p[1].revents & ~p[1].events) == 0);
}

static void wait_by_select(int fd, int want_out, int want_in, int kind)
{
	fd_set rd, wr;
	FD_ZERO(&rd);
	FD_ZERO(&wr);
	if (want_in)
		FD_SET(fd, &rd);
	if (want_out)
		FD_SET(fd, &wr);
	struct timespec limit = {.tv_sec = 100};
	int n = kind ? pselect(FD_SETSIZE, &rd, &wr, NULL, &limit, NULL)
		     : select(fd + 1, &rd, &wr, NULL, NULL);
	CHECK(n == !!FD_ISSET(fd, &rd) + !!FD_ISSET(fd, &wr));
	CHECK(n > 0);
	CHECK(want_in || !FD_ISSET(fd, &rd));
	CHECK(want_out || !FD_ISSET(fd, &wr));
}

static void mixed(int fd, int is_server, int flags,
		  void (*wait_)(int fd, int want_out, int want_in, int kind))
{
	begin(fd, is_server);
	while (out.at < TOTAL || in.at < TOTAL) {
		int moved = 0;
		if (out.at < TOTAL) {
			ssize_t n = step_out(&out, draw(&out), flags);
			CHECK(n > 0 || errno == EAGAIN);
			moved |= n > 0;
		}
		if (in.at < TOTAL) {
			ssize_t n = step_in(&in, draw(&in), flags);
			CHECK(n > 0 || (n < 0 && errno == EAGAIN));
			moved |= n > 0;
		}
		if (!moved)
			wait_(fd, out.at < TOTAL, in.at < TOTAL, next_random(&in.sizes) % 2);
	}
	set_nonblocking(fd, 0);
	finish(fd);
}

static void polled(int fd, int is_server)
{
	set_nonblocking(fd, 1);
	mixed(fd, is_server, 0, wait_by_poll);
}

static void selected(int fd, int is_server)
{
	set_nonblocking(fd, 1);
	mixed(fd, is_server, 0, wait_by_select);
}

static void dontwait(int fd, int is_server)
{
	mixed(fd, is_server, MSG_DONTWAIT, wait_by_poll);
}

/* Both ends write more than either buffer before they read. */
static void both_write_first(int fd, int is_server)
{
	put_stream(fd, 2u << 20, is_server ? 1 : 2);
	get_stream(fd, 2u << 20, is_server ? 2 : 1);
	printf("2 MiB each way\n");
	finish(fd);
}

#define PART(name) \
	static void name##_client(int fd) { name(fd, 0); } \
	static void name##_server(int fd) { name(fd, 1); }

PART(threads)
PART(turns)
PART(polled)
PART(selected)
PART(dontwait)
PART(both_write_first)

/* A peek at all of twenty bytes waits for the last. */
static void peek_all_client(int fd)
{
	char buf[20];
	tell(fd);
	SHOW(recv(fd, buf, sizeof(buf), MSG_PEEK | MSG_WAITALL));
	SHOW(recv(fd, buf, sizeof(buf), MSG_WAITALL));
	SHOW(recv(fd, buf, sizeof(buf), MSG_PEEK | MSG_WAITALL));
	SHOW(recv(fd, buf, sizeof(buf), MSG_WAITALL));
}

static void peek_all_server(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	hear(fd);
	for (int i = 0; i < 5; i++) {
		put(fd, "12345", 5);
		CHECK(poll(&p, 1, 20) == 0);
	}
	CHECK(shutdown(fd, SHUT_WR) == 0);
}

/* Flags of `preadv2` and `pwritev2` that mean nothing on a socket. */
static void file_flags(int fd, int is_server)
{
	static const int FLAGS[] = {RWF_DSYNC, 0, RWF_HIPRI, 0, RWF_APPEND, 0, RWF_SYNC};
	char byte = 'x';
	struct iovec piece = {&byte, 1};
	for (size_t i = 0; i < COUNT(FLAGS); i++)
		for (int turn = 0; turn < 2; turn++)
			/* The other end makes an ordinary call. */
			if (turn == is_server)
				SHOW(i % 2 ? write(fd, &byte, 1) : pwritev2(fd, &piece, 1, -1, FLAGS[i]));
			else
				SHOW(i % 2 ? preadv2(fd, &piece, 1, -1, RWF_HIPRI) : read(fd, &byte, 1));
}

PART(file_flags)

/* Flags of `preadv2` and `pwritev2` that only some kernels know, or none. */
static const int NEWER[] = {0x20, 0x20 | RWF_APPEND, 0x40, 0x80, 0x100, 0x20 | 0x100, 1 << 20};

static void newer_flags_client(int fd)
{
	char byte = 'x', room[COUNT(NEWER)];
	struct iovec from = {&byte, 1}, to = {room, 1};
	await_bytes(fd, COUNT(NEWER));
	for (size_t i = 0; i < COUNT(NEWER); i++) {
		SHOW(preadv2(fd, &to, 1, -1, NEWER[i]));
		SHOW(pwritev2(fd, &from, 1, -1, NEWER[i]));
	}
	CHECK(write(fd, "yz", 2) == 2);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
	/* The signal is blocked where its only sign is that it is pending. */
	sigset_t pipe, pending;
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	CHECK(pthread_sigmask(SIG_BLOCK, &pipe, NULL) == 0);
	SHOW(pwritev2(fd, &from, 1, -1, 0x100));
	CHECK(sigpending(&pending) == 0);
	SHOW(sigismember(&pending, SIGPIPE));
}

static void newer_flags_server(int fd)
{
	put_stream(fd, COUNT(NEWER), 1);
	show_end(fd);
}

static const struct part PARTS[] = {
	{"threads", threads_client, threads_server},
	{"turns", turns_client, turns_server},
	{"polled", polled_client, polled_server},
	{"selected", selected_client, selected_server},
	{"dontwait", dontwait_client, dontwait_server},
	{"both_write_first", both_write_first_client, both_write_first_server},
	{"peek_all", peek_all_client, peek_all_server},
	{"file_flags", file_flags_client, file_flags_server},
	{"newer_flags", newer_flags_client, newer_flags_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
