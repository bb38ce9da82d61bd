/* Threads with little stack: the search for the peer takes more than other calls, so one that is begun must end
 * in the stack that there is. Each thread has used up another part of its stack before it connects. */
#include "common.h"
#include <alloca.h>
#include <limits.h>
#include <sys/epoll.h>

enum { ROUNDS = 40, LEN = 64, STEP = 512, LEFT = 14 << 10, LARGER = 26 << 10 };

static void (*wait_for)(int fd, int set);
static int is_server;

static void no_wait(int fd, int set)
{
	(void)fd, (void)set;
}

static void by_poll(int fd, int set)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	(void)set;
	CHECK(poll(&p, 1, -1) == 1);
}

static void by_select(int fd, int set)
{
	fd_set wanted;
	(void)set;
	FD_ZERO(&wanted);
	FD_SET(fd, &wanted);
	CHECK(select(fd + 1, &wanted, NULL, NULL, NULL) == 1);
}

static void by_epoll(int fd, int set)
{
	struct epoll_event event;
	(void)fd;
	CHECK(epoll_wait(set, &event, 1, -1) == 1);
}

static int meet(void)
{
	int fd;
	if (is_server)
		return accept(listener, NULL, NULL);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(fd, (struct sockaddr *)&server_address, sizeof(server_address)) == 0);
	return fd;
}

static void get_awaited(int fd, int set, char *bytes)
{
	for (int at = 0; at < LEN;) {
		ssize_t n;
		wait_for(fd, set);
		n = read(fd, bytes + at, (size_t)(LEN - at));
		CHECK(n > 0);
		at += (int)n;
	}
}

static void answer(int fd, int set)
{
	char bytes[LEN];
	get_awaited(fd, set, bytes);
	put(fd, bytes, LEN);
}

static void ask(int fd, int set, int round)
{
	char bytes[LEN];
	memset(bytes, round, LEN);
	put(fd, bytes, LEN);
	get_awaited(fd, set, bytes);
	CHECK(bytes[0] == (char)round && bytes[LEN - 1] == (char)round);
}

static void *exchange(void *used)
{
	size_t n = *(size_t *)used;
	volatile char *pad = alloca(n + 1);
	struct epoll_event event = {.events = EPOLLIN};
	int set = -1, fd = meet();
	pad[0] = pad[n] = 1;
	CHECK(fd >= 0);
	if (wait_for == by_epoll) {
		set = epoll_create1(0);
		CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	}
	for (int i = 0; i < ROUNDS; i++)
		if (is_server)
			answer(fd, set);
		else
			ask(fd, set, i);
	CHECK(close(fd) == 0 && (set < 0 || close(set) == 0));
	return NULL;
}

static void in_threads(size_t stack)
{
	int n = 0;
	for (size_t used = 0; used + LEFT <= stack; used += STEP, n++)
		with_stack(stack, exchange, &used);
	printf("%d threads\n", n);
}

static void play_with(int fd, int serves, void (*wait)(int, int))
{
	is_server = serves;
	wait_for = wait;
	in_threads((size_t)PTHREAD_STACK_MIN);
	in_threads(LARGER);
	if (serves)
		tell(fd);
	else
		hear(fd);
}

#define PART(name, wait) \
	static void name##_client(int fd) \
	{ \
		play_with(fd, 0, wait); \
	} \
	static void name##_server(int fd) \
	{ \
		play_with(fd, 1, wait); \
	}

PART(read, no_wait)
PART(poll, by_poll)
PART(select, by_select)
PART(epoll, by_epoll)

static const struct part PARTS[] = {
	{"read", read_client, read_server},
	{"poll", poll_client, poll_server},
	{"select", select_client, select_server},
	{"epoll", epoll_client, epoll_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
