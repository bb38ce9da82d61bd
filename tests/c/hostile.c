/* A peer that writes garbage into everything it shares with the server, which survives it, and
 * whose other stream does not notice. */
#include "common.h"
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

static const struct part PARTS[] = {
	{"hostile", hostile_client, hostile_server},
};

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "friend"))
		return friend((uint16_t)atoi(argv[4]));
	return play(argc, argv, PARTS, COUNT(PARTS));
}
