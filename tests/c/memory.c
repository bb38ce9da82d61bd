/* What the library costs a program in memory and address space. */
#include "common.h"
#include <malloc.h>
#include <sys/resource.h>

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

/* The program's own memory is there although the connection has left TCP, or would have. */
static void limited(int fd, int is_server)
{
	static const size_t OWN = 400u << 20;
	long n_pages;
	FILE *statm = fopen("/proc/self/statm", "r");
	CHECK(statm != NULL && fscanf(statm, "%ld", &n_pages) == 1);
	fclose(statm);
	rlim_t used = (rlim_t)n_pages * (rlim_t)sysconf(_SC_PAGESIZE);
	struct rlimit limit = {used + OWN + (200u << 20), used + OWN + (200u << 20)};
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	warm_up(fd, is_server);
	char *own = malloc(OWN);
	printf("its own: %d\n", own != NULL);
	free(own);
	warm_up(fd, is_server);
}

static void limited_client(int fd)
{
	limited(fd, 0);
}

static void limited_server(int fd)
{
	limited(fd, 1);
}

/* Mappings that would fill a core dump. */
static void dumped(int fd)
{
	char line[512];
	unsigned long from = 0, to = 0;
	FILE *maps = fopen("/proc/self/smaps", "r");
	CHECK(maps != NULL);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long a, b;
		if (sscanf(line, "%lx-%lx ", &a, &b) == 2)
			from = a, to = b;
		else if (!strncmp(line, "VmFlags:", 8) && to - from >= 32u << 20 && !strstr(line, " dd "))
			printf("dumped: %lu MiB\n", (to - from) >> 20);
	}
	fclose(maps);
	CHECK(close(fd) == 0);
}

static const struct part PARTS[] = {
	{"limited", limited_client, limited_server},
	{"dumped", dumped, dumped},
	{"churn", churn_client, churn_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
