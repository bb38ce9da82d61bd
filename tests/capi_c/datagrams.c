/* Datagram sockets: every call, within a process and between processes, one of which dies. */
#include "check.h"

static char buf[70000];

static int bound(struct sockaddr_in *at)
{
	socklen_t len = sizeof(*at);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);

	CHECK(fd >= 0);
	CHECK(rbind(fd, SOCKADDR(*at), sizeof(*at)) == 0);
	CHECK(rgetsockname(fd, SOCKADDR(*at), &len) == 0);
	CHECK(len == sizeof(*at) && at->sin_port != 0);
	return fd;
}

static int same(const struct sockaddr_in *a, const struct sockaddr_in *b)
{
	return a->sin_family == b->sin_family && a->sin_port == b->sin_port &&
	       a->sin_addr.s_addr == b->sin_addr.s_addr;
}

/* Whether memory is shared with another process. */
static int shares_memory(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int found = 0;

	CHECK(maps);
	while (fgets(buf, sizeof(buf), maps))
		found |= strstr(buf, "memfd:rsock-segment") != NULL;
	fclose(maps);
	return found;
}

static void addresses(void)
{
	struct sockaddr_in at_a = loopback(0), at_b = loopback(0), from;
	int a = bound(&at_a), b = bound(&at_b), i;
	struct iovec out[2] = { { "hel", 3 }, { "lo", 2 } };
	struct iovec in[2] = { { buf, 2 }, { buf + 10, 2 } };
	struct msghdr msg = { .msg_name = &at_b, .msg_namelen = sizeof(at_b),
			      .msg_iov = out, .msg_iovlen = 2 };
	socklen_t len;

	/* By UDP at first, through memory soon. */
	for (i = 0; i < 100; i++) {
		len = sizeof(from);
		CHECK(rsendto(a, &i, sizeof(i), 0, SOCKADDR(at_b), sizeof(at_b)) == sizeof(i));
		CHECK(rrecvfrom(b, buf, sizeof(buf), 0, SOCKADDR(from), &len) == sizeof(i));
		CHECK(memcmp(buf, &i, sizeof(i)) == 0);
		CHECK(len == sizeof(from) && same(&from, &at_a));
		CHECK(rsendto(b, "back", 4, 0, SOCKADDR(from), len) == 4);
		CHECK(rrecv(a, buf, sizeof(buf), 0) == 4);

		CHECK(rsendmsg(a, &msg, 0) == 5);
		CHECK(rrecvfrom(b, buf, 2, MSG_PEEK, NULL, NULL) == 2);
		CHECK(rrecv(b, buf, 2, MSG_PEEK | MSG_TRUNC) == 5);
		struct msghdr got = { .msg_name = &from, .msg_namelen = sizeof(from),
				      .msg_iov = in, .msg_iovlen = 2 };
		CHECK(rrecvmsg(b, &got, 0) == 4);
		CHECK(got.msg_flags == MSG_TRUNC && same(&from, &at_a));
		CHECK(memcmp(buf, "he", 2) == 0 && memcmp(buf + 10, "ll", 2) == 0);
		FAILS(rrecv(b, buf, 1, MSG_DONTWAIT), EAGAIN);
	}
	CHECK(shares_memory());
	CHECK(rsendto(a, buf, 60000, 0, SOCKADDR(at_b), sizeof(at_b)) == 60000);
	CHECK(rread(b, buf, sizeof(buf)) == 60000);
	FAILS(rsendto(a, buf, 65507, 0, SOCKADDR(at_b), sizeof(at_b)), EMSGSIZE);
	FAILS(rsend(a, "x", 1, 0), EDESTADDRREQ);
	FAILS(rsendto(a, "x", 1, 0, NULL, sizeof(at_b)), EDESTADDRREQ);
	FAILS(rgetpeername(a, SOCKADDR(from), &len), ENOTCONN);

	CHECK(rconnect(a, SOCKADDR(at_b), sizeof(at_b)) == 0);
	CHECK(rgetpeername(a, SOCKADDR(from), &len) == 0 && same(&from, &at_b));
	CHECK(rsend(a, "x", 1, 0) == 1 && rwrite(a, "yz", 2) == 2);
	CHECK(rrecv(b, buf, 9, 0) == 1 && rrecv(b, buf, 9, 0) == 2);
	/* Without an address its length does not count, and without a length the address. */
	CHECK(rsendto(a, "x", 1, 0, NULL, sizeof(at_b)) == 1 && rrecv(b, buf, 9, 0) == 1);
	for (i = 0; i < 2; i++) {
		msg.msg_name = i ? &at_a : NULL;
		msg.msg_namelen = i ? 0 : sizeof(at_b);
		CHECK(rsendmsg(a, &msg, 0) == 5 && rrecv(b, buf, 9, 0) == 5);
	}
	CHECK(rclose(a) == 0 && rclose(b) == 0);
	FAILS(rclose(a), EBADF);
}

/* A sender, and where it sends to. */
struct later {
	int fd;
	struct sockaddr_in to;
};

/* Sends when the other thread is likely to sleep. */
static void *send_later(void *arg)
{
	struct later *later = arg;

	usleep(50000);
	CHECK(rsendto(later->fd, "x", 1, 0, SOCKADDR(later->to), sizeof(later->to)) == 1);
	return NULL;
}

/* POLLRDNORM alone asks for input too. */
static void waiting_for_normal_data(void)
{
	struct sockaddr_in at_a = loopback(0), at_b = loopback(0);
	int a = bound(&at_a), b = bound(&at_b), i;
	struct later later = { a, at_b };
	struct pollfd p = { b, POLLRDNORM, 0 };
	pthread_t thread;

	for (i = 0; i < 3; i++) {
		CHECK(pthread_create(&thread, NULL, send_later, &later) == 0);
		CHECK(rpoll(&p, 1, -1) == 1 && p.revents == POLLRDNORM);
		CHECK(rrecv(b, buf, 9, 0) == 1);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	CHECK(rclose(a) == 0 && rclose(b) == 0);
}

static void waiting(void)
{
	struct sockaddr_in at_a = loopback(0), at_b = loopback(0);
	int a = bound(&at_a), b = bound(&at_b), i, fds[2];
	struct pollfd p[3] = { { a, POLLIN, 0 }, { b, POLLIN | POLLOUT, 0 }, { 0, POLLIN, 0 } };
	struct timeval none = { 0, 0 }, some = { 10, 0 };
	fd_set set;

	/* Beside a stream. */
	pair(fds);
	p[2].fd = fds[0];
	CHECK(rpoll(p, 3, 0) == 1 && p[1].revents == POLLOUT);
	p[1].events = POLLIN;
	CHECK(rpoll(p, 3, 20) == 0);
	for (i = 0; i < 100; i++) {
		CHECK(rsendto(a, "x", 1, 0, SOCKADDR(at_b), sizeof(at_b)) == 1);
		CHECK(rpoll(p, 3, -1) == 1 && p[1].revents == POLLIN);
		FD_ZERO(&set);
		FD_SET(b, &set);
		CHECK(rselect(b + 1, &set, NULL, NULL, &some) == 1 && FD_ISSET(b, &set));
		CHECK(rrecv(b, buf, 9, 0) == 1);
		CHECK(rselect(b + 1, &set, NULL, NULL, &none) == 0);
		CHECK(rsendto(b, "x", 1, 0, SOCKADDR(at_a), sizeof(at_a)) == 1);
		CHECK(rpoll(p, 1, -1) == 1 && p[0].revents == POLLIN);
		CHECK(rrecv(a, buf, 9, 0) == 1);
	}
	CHECK(rsend(fds[1], "x", 1, 0) == 1);
	CHECK(rpoll(p, 3, -1) == 1 && p[2].revents == POLLIN);
	CHECK(rclose(a) == 0 && rclose(b) == 0 && rclose(fds[0]) == 0 && rclose(fds[1]) == 0);
}

static void options(void)
{
	struct sockaddr_in at = loopback(0);
	int fd = bound(&at), value = 65536;
	socklen_t len = sizeof(value);

	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, len) == 0);
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, len) == 0);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &len) == 0 && value >= 65536);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len) == 0 && value == SOCK_DGRAM);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, 1), EINVAL);
	FAILS(rlisten(fd, 1), EOPNOTSUPP);
	FAILS(raccept(fd, NULL, NULL), EOPNOTSUPP);
	FAILS(riomap(fd, buf, 1, PROT_WRITE, 0, 0), EOPNOTSUPP);
	FAILS(rbind(fd, SOCKADDR(at), sizeof(at)), EINVAL);
	CHECK(rfcntl(fd, F_SETFL, O_NONBLOCK) == 0 && rfcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
	FAILS(rrecv(fd, buf, 1, 0), EAGAIN);
	CHECK(rclose(fd) == 0);
}

/* A process that echoes, at the port of its predecessor if there was one. Says its port. */
static pid_t echo(struct sockaddr_in *at)
{
	int says[2];
	pid_t pid;

	CHECK(pipe(says) == 0);
	pid = child();
	if (pid == 0) {
		struct sockaddr_in from;
		int fd = bound(at);

		CHECK(write(says[1], &at->sin_port, 2) == 2);
		for (;;) {
			socklen_t len = sizeof(from);
			ssize_t n = rrecvfrom(fd, buf, sizeof(buf), 0, SOCKADDR(from), &len);

			CHECK(n >= 0);
			CHECK(rsendto(fd, buf, n, 0, SOCKADDR(from), len) == n);
		}
	}
	CHECK(read(says[0], &at->sin_port, 2) == 2);
	CHECK(close(says[0]) == 0 && close(says[1]) == 0);
	return pid;
}

static void processes(void)
{
	struct sockaddr_in at = loopback(own_port());
	int fd = rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP), life, i, seen;
	struct pollfd p = { fd, POLLIN, 0 };

	for (life = 0; life < 3; life++) {
		pid_t pid = echo(&at);

		if (life == 0)
			CHECK(rconnect(fd, SOCKADDR(at), sizeof(at)) == 0);
		/* To a new process: what goes to the old one is lost or refused, for a moment. */
		for (i = -1; i != life; ) {
			rsend(fd, &life, sizeof(life), 0);
			while (rpoll(&p, 1, 20) == 1 && rrecv(fd, &seen, sizeof(seen), 0) > 0)
				i = seen;
		}
		while (rpoll(&p, 1, 100) == 1)
			rrecv(fd, buf, sizeof(buf), 0);
		for (i = 0; i < 1000; i++) {
			CHECK(rsend(fd, &i, sizeof(i), 0) == sizeof(i));
			CHECK(rrecv(fd, &seen, sizeof(seen), 0) == sizeof(seen) && seen == i);
		}
		CHECK(shares_memory());
		CHECK(kill(pid, SIGKILL) == 0);
		status_of(pid);
	}
	CHECK(rclose(fd) == 0);
}

static void trips(int fd, int n)
{
	int i, seen;

	for (i = 0; i < n; i++) {
		CHECK(rsend(fd, &i, sizeof(i), 0) == sizeof(i));
		CHECK(rrecv(fd, &seen, sizeof(seen), 0) == sizeof(seen) && seen == i);
	}
}

/* A socket that parent and child have: either goes on with the peer that is known. */
static void forks(void)
{
	struct sockaddr_in at = loopback(0);
	pid_t peer = echo(&at), pid;
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), life;

	CHECK(rconnect(fd, SOCKADDR(at), sizeof(at)) == 0);
	trips(fd, 500);
	CHECK(shares_memory());
	for (life = 0; life < 3; life++) {
		pid = child();
		if (pid == 0) {
			trips(fd, 500);
			CHECK(rclose(fd) == 0);
			_exit(0);
		}
		CHECK(status_of(pid) == 0);
		trips(fd, 500);
	}
	/* What the child keeps does not hold up the parent's end. */
	CHECK(rclose(fd) == 0);
	CHECK(kill(peer, SIGKILL) == 0);
	status_of(peer);
}

int main(void)
{
	addresses();
	waiting();
	waiting_for_normal_data();
	options();
	processes();
	forks();
	return 0;
}
