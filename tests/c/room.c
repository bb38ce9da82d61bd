/* A sender that does not wait, and whose peer does not read: a program that takes EAGAIN for a peer that reads no
 * more must not get it earlier than on TCP, whose buffers hold some megabytes. */
#include "common.h"
#include <sys/epoll.h>

enum { TOTAL = 1 << 20, SEED = 29, SMALL = 13, LARGE = 20000 };

static void send_at_once(int fd, size_t len)
{
	static unsigned char bytes[TOTAL];
	fill_stream(bytes, TOTAL, SEED, 0);
	for (size_t at = 0, tries = 0; at < TOTAL; tries++) {
		size_t left = TOTAL - at, asked = left < len ? left : len;
		ssize_t n = send(fd, bytes + at, asked, MSG_DONTWAIT);
		if (n < 0)
			fail("after %zu bytes, in call %zu", at, tries + 1);
		at += (size_t)n;
	}
}

static void send_all(int fd, size_t len)
{
	pid_t reader;
	get(fd, &reader, sizeof(reader));
	send_at_once(fd, len);
	CHECK(kill(reader, SIGUSR1) == 0);
	hear(fd);
}

static void small_client(int fd)
{
	send_all(fd, SMALL);
}

static void large_client(int fd)
{
	send_all(fd, LARGE);
}

/* A program that has asked for room, and was told of it, may still break when there is none. */
static void polled_client(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT};
	CHECK(poll(&p, 1, -1) == 1);
	send_all(fd, LARGE);
}

static void watched_client(int fd)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
	int set = epoll_create1(0);
	CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	CHECK(epoll_wait(set, &event, 1, -1) == 1);
	send_all(fd, SMALL);
	CHECK(close(set) == 0);
}

/* A program that takes a part for a full buffer, as epoll(7) says it may, and waits for the edge. */
static void edges_client(int fd)
{
	static unsigned char bytes[TOTAL];
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
	int set = epoll_create1(0);
	pid_t reader;
	CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	get(fd, &reader, sizeof(reader));
	fill_stream(bytes, TOTAL, SEED, 0);
	CHECK(epoll_wait(set, &event, 1, -1) == 1);
	for (size_t at = 0; at < TOTAL;) {
		size_t left = TOTAL - at, asked = left < 10 * LARGE ? left : 10 * LARGE;
		ssize_t n = send(fd, bytes + at, asked, MSG_DONTWAIT);
		CHECK(n >= 0 || errno == EAGAIN);
		at += n < 0 ? 0 : (size_t)n;
		event.events = 0;
		while (n != (ssize_t)asked && !(event.events & EPOLLOUT))
			CHECK(epoll_wait(set, &event, 1, -1) == 1);
	}
	CHECK(kill(reader, SIGUSR1) == 0);
	hear(fd);
	CHECK(close(set) == 0);
}

static void reader(int fd)
{
	introduce(fd);
	await_signal();
	get_stream(fd, TOTAL, SEED);
	tell(fd);
}

static const struct part PARTS[] = {
	{"small", small_client, reader},
	{"large", large_client, reader},
	{"polled", polled_client, reader},
	{"watched", watched_client, reader},
	{"edges", edges_client, reader},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
