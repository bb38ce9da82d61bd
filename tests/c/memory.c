/* What the library costs a program in memory and address space. */
#include "common.h"
#include <malloc.h>

enum { SETTLED = 200, MORE = 600, EXCHANGES = 40 };

/* Bytes that malloc has given out, in all arenas. */
static size_t in_use(void)
{
	return mallinfo2().uordblks;
}

static void exchange(int fd, int n, int is_server)
{
	char buf[100] = {0};
	for (int i = 0; i < n; i++) {
		if (is_server)
			get(fd, buf, sizeof(buf));
		put(fd, buf, sizeof(buf));
		if (!is_server)
			get(fd, buf, sizeof(buf));
	}
}

/* Connections that come, move to the ring and go, one at a time. */
static void churn(int fd, int is_server)
{
	size_t before = 0;
	for (int i = 0; i < SETTLED + MORE; i++) {
		if (i == SETTLED)
			before = in_use();
		int one = is_server ? accept_client() : connect_to_server();
		exchange(one, EXCHANGES, is_server);
		if (is_server) {
			/* The end, so that both ends have closed when the next one comes. */
			char c;
			CHECK(read(one, &c, 1) == 0);
		}
		CHECK(close(one) == 0);
	}
	size_t after = in_use();
	/* Lists that are tidied now and then are no leak: they stay below this. */
	int has_grown = after > before + (16 << 10);
	printf("grown: %d\n", has_grown);
	if (has_grown)
		fprintf(stderr, "%zu bytes, then %zu\n", before, after);
	CHECK(close(fd) == 0);
}

static void churn_client(int fd)
{
	churn(fd, 0);
}

static void churn_server(int fd)
{
	churn(fd, 1);
}

static const struct part PARTS[] = {
	{"churn", churn_client, churn_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
