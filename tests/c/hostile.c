/* A peer that writes garbage into everything it shares with the server, or announces to the server's epoll set what is
 * not there. The server survives it, and its other stream does not notice. */
#include "common.h"
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { PIECE = 30000 };

/* Whether a good part of `total` bytes was received past the kernel's socket. */
static int went_past_tcp(int fd, uint64_t total)
{
	/* tcpi_bytes_received, which older headers do not name. */
	enum { AT = 128 };
	char info[256];
	socklen_t len = sizeof(info);
	uint64_t by_tcp;
	CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0 && len >= AT + sizeof(by_tcp));
	memcpy(&by_tcp, info + AT, sizeof(by_tcp));
	return by_tcp < total / 2;
}

/* A stream of the server's that has nothing to do with the hostile one, and ends with the server. */
static int friend(uint16_t port)
{
	static unsigned char buf[PIECE];
	set_server(port);
	int fd = connect_to_server();
	ssize_t n;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		put(fd, buf, (size_t)n);
	CHECK(n == 0);
	return 0;
}

static struct pattern garbage;

/* Wrong values: edges of their range, and any. */
static uint32_t wrong(uint32_t now)
{
	static const uint32_t EDGES[] = {0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff};
	uint32_t any = next_random(&garbage);
	switch (next_random(&garbage) % 5) {
	case 0: return EDGES[any % COUNT(EDGES)];
	case 1: return now + 1 + any % 3;
	case 2: return now ^ 1u << any % 32;
	case 3: return any % 200;
	default: return any;
	}
}

/* Writes garbage into every page in use of what is shared with the server. */
static int scribble(int words)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps != NULL);
	char line[512];
	int n_pages = 0;
	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to;
		if (!strstr(line, "/memfd:rsock-segment") || sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		static unsigned char resident[1 << 18];
		for (; from < to; from += (unsigned long)sizeof(resident) << 12) {
			size_t len = to - from < sizeof(resident) << 12 ? to - from : sizeof(resident) << 12;
			if (from != (from & ~0xffful) || mincore((void *)from, len, resident) < 0)
				break;
			for (size_t page = 0; page < len >> 12; page++) {
				if (!(resident[page] & 1))
					continue;
				n_pages++;
				volatile uint32_t *at = (uint32_t *)(from + (page << 12));
				for (int i = 0; i < words; i++) {
					/* The front of a page holds what steers more often than the rest. */
					uint32_t where = next_random(&garbage) % (next_random(&garbage) % 2 ? 96 : 1024);
					at[where] = wrong(at[where]);
				}
			}
			/* What is in use lies at the front. */
			if (from > 0 && len == sizeof(resident) << 12)
				break;
		}
	}
	fclose(maps);
	return n_pages;
}

static void hostile_client(int fd)
{
	garbage = pattern_of((uint64_t)atoi(getenv("SEED")));
	/* The friend is not to hold it when we are gone. */
	CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
	start_again("friend", 0, 0);
	hear(fd);
	for (int round = 0; round < 60; round++) {
		scribble(1 + (int)(next_random(&garbage) % 20));
		/* Raw: what is said to the kernel's socket is as false as the rest. */
		if (round % 8 == 7)
			bare_syscall(SYS_sendto, fd, (long)"garbage", 7, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
		sched_yield();
	}
	/* No exit handler may run over the garbage. */
	syscall(SYS_exit_group, 0);
}

static void hostile_server(int fd)
{
	static unsigned char buf[PIECE];
	uint64_t total = 0;
	int friend_ = accept_client(), rounds_after = 0, answer;
	for (uint64_t seed = 0; rounds_after < 50; seed++) {
		put_stream(friend_, 20000, seed);
		get_stream(friend_, 20000, seed);
		total += 20000;
		if (seed == 30)
			tell(fd);
		if (seed <= 30)
			continue;
		/* Every kind of call on the hostile one: it may fail, or bring rubbish, no more. */
		if (rounds_after > 0) {
			rounds_after++;
			continue;
		}
		struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
		CHECK(poll(&p, 1, 0) >= 0);
		CHECK(ioctl(fd, FIONREAD, &answer) == 0);
		ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
		int over = n == 0 || (n < 0 && errno != EAGAIN);
		n = send(fd, buf, 1 + seed % sizeof(buf), MSG_DONTWAIT | MSG_NOSIGNAL);
		if (over && n < 0 && errno != EAGAIN)
			rounds_after = 1;
		if (p.revents & (POLLHUP | POLLERR))
			rounds_after = 1;
	}
	printf("past tcp: %d\n", went_past_tcp(friend_, total));
	CHECK(close(fd) == 0);
	put_stream(friend_, 500000, 1);
	get_stream(friend_, 500000, 1);
	CHECK(close(friend_) == 0);
}

/* --- A server that waits in an epoll set. --- */

/* A page in which the peer announces, as in crates/rsock-verbs/src/sync/ready_set.rs, and the wait line that names it,
 * as in waiter.rs there. */
struct ready_page {
	uint32_t line[32];
	uint64_t summary[8], reserved[8], words[480];
};

struct wait_line {
	uint32_t armed, number;
	uint64_t bells[5], ready_page;
};

/* The page of the server's set, of which the wait lines in the server's segment tell: all of them are read. */
static struct ready_page *find_ready_page(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps != NULL);
	char line[512];
	unsigned long from, to, found = 0;
	while (!found && fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "/memfd:rsock-segment") || sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		for (unsigned long at = from; at < to && !found; at += 4096) {
			unsigned char resident;
			CHECK(mincore((void *)at, 4096, &resident) == 0);
			for (int i = 0; resident & 1 && i < 4096; i += 128) {
				volatile struct wait_line *l = (struct wait_line *)(at + (unsigned long)i);
				uint64_t page = l->ready_page;
				if (page && page % 4096 == 0 && page < to - from && l->number < 16)
					found = from + page;
			}
		}
	}
	fclose(maps);
	return (struct ready_page *)found;
}

/* What the hostile peer announces. */
enum { EVERYTHING, SMALL_NUMBERS, GARBAGE_IN_PAGE, GARBAGE_EVERYWHERE, LIES };

static void announce(volatile struct ready_page *page, int lie)
{
	volatile uint32_t *any = (volatile uint32_t *)page;
	switch (lie) {
	case EVERYTHING:
		for (size_t i = 0; i < COUNT(page->words); i++)
			page->words[i] = ~0ull;
		/* Also of words that are not there. */
		for (size_t i = 0; i < COUNT(page->summary); i++)
			page->summary[i] = ~0ull;
		break;
	case SMALL_NUMBERS:
		page->words[0] = 0xff;
		page->summary[0] = 1;
		break;
	case GARBAGE_IN_PAGE:
		for (int i = 0; i < 20; i++) {
			uint32_t at = next_random(&garbage) % 1024;
			any[at] = wrong(any[at]);
		}
		break;
	default: scribble(2);
	}
}

/* Lies as long as the server has the stream, which it ends without having been told anything. */
static void announcing_client(int fd)
{
	int seed = atoi(getenv("SEED"));
	char c;
	garbage = pattern_of((uint64_t)seed);
	CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
	start_again("friend", 0, 0);
	hear(fd);
	struct ready_page *page = find_ready_page();
	CHECK(page != NULL);
	/* Garbage everywhere may end this stream, by which the server is told. */
	if (seed % LIES != GARBAGE_EVERYWHERE)
		announce(page, seed % LIES);
	tell(fd);
	do
		announce(page, seed % LIES);
	while (bare_syscall(SYS_recvfrom, fd, (long)&c, 1, MSG_DONTWAIT | MSG_PEEK, 0, 0) == -EAGAIN);
	syscall(SYS_exit_group, 0);
}

enum { ROUNDS = 400, ROUND = 5000 };

/* What the threads of the server share: a set that watches the friend's stream, the hostile one, and `over`. */
static struct {
	int set, friend_, hostile, over;
	/* The round, and how much of it has come back. The thread that the watch of the friend has reported to has these. */
	_Atomic int round;
	size_t had;
} served;

static void watch(int op, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.fd = fd};
	CHECK(epoll_ctl(served.set, op, fd, &event) == 0);
}

/* There are bytes of the friend's: otherwise the event was one that the kernel would not have given. */
static void serve_friend(uint32_t events)
{
	unsigned char buf[ROUND];
	CHECK(events == EPOLLIN);
	ssize_t n = recv(served.friend_, buf, sizeof(buf), MSG_DONTWAIT);
	if (n <= 0)
		fail("an event of nothing in round %d: %zd", served.round, n);
	check_stream(buf, (size_t)n, (uint64_t)served.round, served.had);
	served.had += (size_t)n;
	if (served.had < ROUND) {
		watch(EPOLL_CTL_MOD, served.friend_, EPOLLIN | EPOLLONESHOT);
		return;
	}
	served.had = 0;
	uint64_t round = (uint64_t)++served.round;
	if (round == ROUNDS) {
		eventfd_write(served.over, 1);
		return;
	}
	/* From here on a thread may be told of the friend, which has sent nothing. */
	watch(EPOLL_CTL_MOD, served.friend_, EPOLLIN | EPOLLONESHOT);
	struct epoll_event none[3];
	int n_events = epoll_wait(served.set, none, COUNT(none), 0);
	for (int i = 0; i < n_events; i++)
		CHECK(none[i].data.fd != served.friend_);
	put_stream(served.friend_, ROUND, round);
}

/* What it has is read, and says nothing. */
static void serve_hostile(void)
{
	static _Thread_local unsigned char buf[PIECE];
	ssize_t n = recv(served.hostile, buf, sizeof(buf), MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN))
		/* Another thread may have done so. */
		epoll_ctl(served.set, EPOLL_CTL_DEL, served.hostile, NULL);
}

static void *event_loop(void *unused)
{
	(void)unused;
	struct epoll_event events[3];
	for (;;) {
		int n = epoll_wait(served.set, events, COUNT(events), -1);
		CHECK(n > 0);
		for (int i = 0; i < n; i++) {
			if (events[i].data.fd == served.friend_)
				serve_friend(events[i].events);
			else if (events[i].data.fd == served.hostile)
				serve_hostile();
			else
				return NULL;
		}
	}
}

static void event_server(int fd)
{
	pthread_t threads[2];
	served.set = epoll_create1(0);
	served.hostile = fd;
	served.friend_ = accept_client();
	served.over = eventfd(0, 0);
	CHECK(served.set >= 0 && served.over >= 0);
	watch(EPOLL_CTL_ADD, served.over, EPOLLIN);
	watch(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP);
	watch(EPOLL_CTL_ADD, served.friend_, EPOLLIN);
	/* Waits have both streams watched on their rings. */
	struct epoll_event event;
	for (uint64_t seed = 0; seed < 60; seed++) {
		put_stream(served.friend_, ROUND, seed);
		CHECK(epoll_wait(served.set, &event, 1, -1) == 1 && event.data.fd == served.friend_);
		get_stream(served.friend_, ROUND, seed);
	}
	watch(EPOLL_CTL_MOD, served.friend_, EPOLLIN | EPOLLONESHOT);
	tell(fd);
	hear(fd);
	put_stream(served.friend_, ROUND, 0);
	for (size_t i = 0; i < COUNT(threads); i++)
		CHECK(pthread_create(&threads[i], NULL, event_loop, NULL) == 0);
	for (size_t i = 0; i < COUNT(threads); i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	printf("past tcp: %d\n", went_past_tcp(served.friend_, (ROUNDS + 60ull) * ROUND));
	CHECK(close(fd) == 0);
	put_stream(served.friend_, 500000, 1);
	get_stream(served.friend_, 500000, 1);
	CHECK(close(served.friend_) == 0);
}

static const struct part PARTS[] = {
	{"hostile", hostile_client, hostile_server},
	{"announcing", announcing_client, event_server},
};

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "friend"))
		return friend((uint16_t)atoi(argv[4]));
	return play(argc, argv, PARTS, COUNT(PARTS));
}
