/* Memory that is not there: what is to be sent lies past the end of a file, or what is received is to go there. A call
 * answers EFAULT, moves nothing, and the stream goes on. */
#include "common.h"
#include <setjmp.h>
#include <sys/mman.h>

#define PAGES 40

static size_t page;
/* Room of which only the first page is there. */
static unsigned char *room;

/* An address that no process has anything at, which compilers do not see through. */
static volatile unsigned char *volatile hidden = (unsigned char *)8;
#define nowhere ((unsigned char *)hidden)

static void make_room(void)
{
	page = (size_t)sysconf(_SC_PAGESIZE);
	int file = memfd_create("room", MFD_CLOEXEC);
	CHECK(file >= 0 && ftruncate(file, (off_t)(PAGES * page)) == 0);
	room = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(room != MAP_FAILED);
	memset(room, 'x', PAGES * page);
	CHECK(ftruncate(file, (off_t)page) == 0);
	close(file);
}

/* Sizes on both sides of every limit between ways to copy. */
static const size_t sizes[] = {1, 3, 7, 8, 20, 47, 48, 49, 64, 65, 200, 2000, 4000, 4096, 10000, 70000};

/* Sends `good` bytes of the stream that are there and `bad` that are not; how many have gone. */
static size_t send_half(int fd, uint64_t at, size_t good, size_t bad, int how)
{
	unsigned char *from = room + page - good;
	struct iovec iov[2] = {{.iov_base = from, .iov_len = good}, {.iov_base = room + page, .iov_len = bad}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	fill_stream(from, good, 3, at);
	ssize_t n = -1;
	errno = 0;
	switch (how % 4) {
	case 0: n = write(fd, from, good + bad); break;
	case 1: n = send(fd, from, good + bad, MSG_NOSIGNAL); break;
	case 2: n = writev(fd, iov, 2); break;
	case 3: n = sendmsg(fd, &msg, MSG_NOSIGNAL); break;
	}
	if (n < 0 ? errno != EFAULT : n == 0 || (size_t)n > good)
		fail("%zu and %zu bytes, by %d: %zd", good, bad, how % 4, n);
	return n < 0 ? 0 : (size_t)n;
}

static void send_all(int fd)
{
	uint64_t at = 0;
	unsigned char whole[300];
	for (size_t i = 0; i < COUNT(sizes) * 4; i++) {
		size_t bad = sizes[i / 4];
		errno = 0;
		CHECK(send_half(fd, at, 0, bad, (int)i) == 0);
		for (size_t k = 0; k < COUNT(sizes) && sizes[k] <= page; k++)
			at += send_half(fd, at, sizes[k], bad, (int)i);
		fill_stream(whole, sizeof(whole), 3, at);
		put(fd, whole, sizeof(whole));
		at += sizeof(whole);
	}
}

static void check_all(int fd)
{
	unsigned char buf[4096];
	uint64_t at = 0;
	ssize_t n;
	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		check_stream(buf, (size_t)n, 3, at);
		at += (uint64_t)n;
	}
	printf("%zd\n", n);
}

static void write_client(int fd)
{
	make_room();
	SHOW(write(fd, room + page, 10));
	SHOW(write(fd, room + page, 1000));
	SHOW(write(fd, room + page, 10000));
	send_all(fd);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
}

/* As many bytes as there are, in pieces, into memory that ends. */
static void read_client(int fd)
{
	make_room();
	unsigned char buf[4096];
	uint64_t at = 0;
	for (size_t i = 0; i < COUNT(sizes) * 4; i++) {
		size_t good = i % 3 == 0 ? 0 : sizes[i / 4] % page, bad = 2 * sizes[i / 4];
		unsigned char *to = room + page - good;
		struct iovec iov[2] = {{.iov_base = to, .iov_len = good}, {.iov_base = room + page, .iov_len = bad}};
		tell(fd);
		await_bytes(fd, sizes[i / 4] < 4096 ? sizes[i / 4] : 4096);
		errno = 0;
		ssize_t n = i % 2 ? read(fd, to, good + bad) : readv(fd, iov, 2);
		if (n < 0 ? errno != EFAULT : n == 0 || (size_t)n > good)
			fail("%zu and %zu bytes: %zd", good, bad, n);
		size_t had = n < 0 ? 0 : (size_t)n;
		check_stream(to, had, 3, at);
		at += had;
		for (size_t left = sizes[i / 4] - had; left;) {
			size_t len = left < sizeof(buf) ? left : sizeof(buf);
			get(fd, buf, len);
			check_stream(buf, len, 3, at);
			at += len;
			left -= len;
		}
	}
	printf("%llu bytes\n", (unsigned long long)at);
}

static void read_server(int fd)
{
	static unsigned char buf[70000];
	uint64_t at = 0;
	for (size_t i = 0; i < COUNT(sizes) * 4; i++) {
		hear(fd);
		fill_stream(buf, sizes[i / 4], 3, at);
		put(fd, buf, sizes[i / 4]);
		at += sizes[i / 4];
	}
	show_end(fd);
}

static sigjmp_buf back;
static volatile sig_atomic_t faults;

static void leave(int number)
{
	(void)number;
	faults++;
	siglongjmp(back, 1);
}

/* A program's handlers are called for its own faults, and for no other. */
static void handled_client(int fd)
{
	make_room();
	struct sigaction action = {.sa_handler = leave}, old;
	CHECK(sigaction(SIGBUS, &action, &old) == 0);
	printf("%s before\n", old.sa_handler == SIG_DFL ? "default" : "something");
	CHECK(sigaction(SIGSEGV, &action, &old) == 0);
	printf("%s before\n", old.sa_handler == SIG_DFL ? "default" : "something");
	SHOW(write(fd, room + page, 100));
	SHOW(write(fd, nowhere, 5000));
	printf("%d faults\n", (int)faults);
	if (!sigsetjmp(back, 1))
		*(volatile unsigned char *)(room + page) = 1;
	if (!sigsetjmp(back, 1))
		*hidden = 1;
	printf("%d faults\n", (int)faults);
	SHOW(write(fd, room + page, 5000));
	/* One that is called once only. */
	action.sa_flags = SA_RESETHAND;
	CHECK(sigaction(SIGBUS, &action, NULL) == 0);
	if (!sigsetjmp(back, 1))
		*(volatile unsigned char *)(room + page) = 1;
	printf("%d faults\n", (int)faults);
	CHECK(sigaction(SIGBUS, NULL, &old) == 0);
	printf("%s after\n", old.sa_handler == SIG_DFL ? "default" : "something");
	SHOW(write(fd, room + page, 5000));
	send_all(fd);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
}

/* What kills a program without the library kills it with it. */
static void killed_client(int fd)
{
	make_room();
	for (int i = 0; i < 4; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			if (i == 0)
				*hidden = 1;
			if (i == 1)
				*(volatile unsigned char *)(room + page) = 1;
			raise(i == 2 ? SIGSEGV : SIGBUS);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		printf("signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	}
	signal(SIGSEGV, SIG_IGN);
	raise(SIGSEGV);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
}

/* Memory that comes and goes during calls, and signals that come meanwhile. */
static volatile int is_over;

static void *flip(void *at)
{
	while (!is_over) {
		CHECK(mprotect(at, page, PROT_NONE) == 0);
		sched_yield();
		CHECK(mprotect(at, page, PROT_READ | PROT_WRITE) == 0);
	}
	return NULL;
}

static void count_up(int number)
{
	faults += number > 0;
}

static void flip_client(int fd)
{
	page = (size_t)sysconf(_SC_PAGESIZE);
	room = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(room != MAP_FAILED);
	memset(room, 'x', 8 * page);
	struct sigaction action = {.sa_handler = count_up, .sa_flags = SA_RESTART};
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval every = {.it_interval.tv_usec = 500, .it_value.tv_usec = 500};
	CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
	pthread_t other;
	CHECK(pthread_create(&other, NULL, flip, room + 2 * page) == 0);
	struct pattern random = pattern_of(11);
	uint64_t sent = 0, counted = 0;
	for (int i = 0; i < 20000; i++) {
		size_t begin = next_random(&random) % (3 * page), len = 1 + next_random(&random) % (4 * page);
		if (i % 2)
			begin = 3 * page - 20, len = 1 + len % 100;
		ssize_t n = write(fd, room + begin, len);
		CHECK(n > 0 || (n < 0 && (errno == EFAULT || errno == EINTR)));
		if (n > 0)
			sent += (uint64_t)n;
	}
	is_over = 1;
	CHECK(pthread_join(other, NULL) == 0);
	every = (struct itimerval){0};
	CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	get(fd, &counted, sizeof(counted));
	printf("%s\n", sent == counted ? "as many" : "others");
}

static void flip_server(int fd)
{
	unsigned char buf[8192];
	uint64_t counted = 0;
	ssize_t n;
	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		for (ssize_t i = 0; i < n; i++)
			CHECK(buf[i] == 'x');
		counted += (uint64_t)n;
	}
	put(fd, &counted, sizeof(counted));
}

static const struct part parts[] = {
	{"write", write_client, check_all},
	{"read", read_client, read_server},
	{"handled", handled_client, check_all},
	{"killed", killed_client, check_all},
	{"flip", flip_client, flip_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, parts, COUNT(parts));
}
