/* Every way to send and receive, between two processes and within one. */
#include "check.h"

static char text[] = "the quick brown fox jumps over the lazy dog";
#define LEN ((ssize_t)sizeof(text))

static void one_way_and_back(int from, int to)
{
	char buf[256], rest[8];
	struct sockaddr_in peer, own;
	socklen_t peer_len = sizeof(peer), own_len = sizeof(own);
	struct iovec out[3] = { { text, 4 }, { NULL, 0 }, { text + 4, LEN - 4 } };
	struct iovec in[2] = { { rest, sizeof(rest) }, { buf, sizeof(buf) } };
	struct msghdr msg = { .msg_iov = out, .msg_iovlen = 3 };

	CHECK(rsend(from, text, LEN, 0) == LEN);
	CHECK(rrecv(to, buf, 9, MSG_PEEK) == 9);
	CHECK(rrecv(to, buf, LEN, MSG_WAITALL) == LEN);
	CHECK(memcmp(buf, text, LEN) == 0);
	FAILS(rrecv(to, buf, 1, MSG_DONTWAIT), EAGAIN);

	CHECK(rwrite(from, text, LEN) == LEN);
	CHECK(rread(to, buf, sizeof(buf)) == LEN);
	CHECK(memcmp(buf, text, LEN) == 0);

	CHECK(rwritev(from, out, 3) == LEN);
	CHECK(rreadv(to, in, 2) == LEN);
	CHECK(memcmp(rest, text, 8) == 0 && memcmp(buf, text + 8, LEN - 8) == 0);

	CHECK(rsendmsg(from, &msg, MSG_NOSIGNAL) == LEN);
	memset(buf, 0, sizeof(buf));
	msg = (struct msghdr){ .msg_iov = in, .msg_iovlen = 2,
			       .msg_name = &peer, .msg_namelen = sizeof(peer) };
	CHECK(rrecvmsg(to, &msg, MSG_WAITALL | MSG_DONTWAIT) == LEN);
	CHECK(memcmp(rest, text, 8) == 0 && memcmp(buf, text + 8, LEN - 8) == 0);
	CHECK(rgetsockname(from, SOCKADDR(own), &own_len) == 0);
	CHECK(memcmp(&peer, &own, sizeof(own)) == 0);

	memset(&peer, 0, sizeof(peer));
	CHECK(rsendto(from, text, LEN, 0, NULL, 0) == LEN);
	CHECK(rrecvfrom(to, buf, sizeof(buf), 0, SOCKADDR(peer), &peer_len) == LEN);
	CHECK(peer_len == sizeof(peer) && memcmp(&peer, &own, sizeof(own)) == 0);

	CHECK(rsend(from, NULL, 0, 0) == 0);
}

static void within_one_process(void)
{
	int fds[2];

	pair(fds);
	for (int i = 0; i < 100; i++) {
		one_way_and_back(fds[0], fds[1]);
		one_way_and_back(fds[1], fds[0]);
	}
	CHECK(rclose(fds[0]) == 0);
	CHECK(rclose(fds[1]) == 0);
}

static unsigned char pattern(size_t at)
{
	return (unsigned char)((at * 2654435761u) >> 13);
}

/* Sizes that are different at both ends, in both directions at once. */
static void stream(int fd, size_t step)
{
	enum { TOTAL = 8 << 20, MOST = 100000 };
	static unsigned char out[MOST], in[MOST];
	size_t sent = 0, got = 0;

	while (sent < TOTAL || got < TOTAL) {
		struct pollfd p = { .fd = fd };
		size_t n = 1 + (sent * step) % MOST;

		p.events = (sent < TOTAL ? POLLOUT : 0) | (got < TOTAL ? POLLIN : 0);
		CHECK(rpoll(&p, 1, -1) == 1);
		CHECK(!(p.revents & POLLERR));
		if (p.revents & POLLOUT) {
			if (n > TOTAL - sent)
				n = TOTAL - sent;
			for (size_t i = 0; i < n; i++)
				out[i] = pattern(sent + i);
			ssize_t r = rsend(fd, out, n, MSG_DONTWAIT);
			CHECK(r > 0 || errno == EAGAIN);
			if (r > 0)
				sent += (size_t)r;
		}
		if (p.revents & POLLIN) {
			ssize_t r = rrecv(fd, in, 1 + (got * (step + 7)) % MOST, MSG_DONTWAIT);
			CHECK(r > 0);
			for (ssize_t i = 0; i < r; i++)
				CHECK(in[i] == pattern(got + (size_t)i));
			got += (size_t)r;
		}
	}
}

static void between_two_processes(void)
{
	struct sockaddr_in at;
	int listening = listener(&at), fd;
	pid_t pid = child();

	if (pid == 0) {
		fd = connected(&at);
		stream(fd, 31);
		CHECK(rclose(fd) == 0);
		_exit(0);
	}
	fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0);
	stream(fd, 977);
	CHECK(rrecv(fd, text, 1, 0) == 0);
	CHECK(status_of(pid) == 0);
	CHECK(rclose(fd) == 0 && rclose(listening) == 0);
}

int main(void)
{
	within_one_process();
	between_two_processes();
	return 0;
}
