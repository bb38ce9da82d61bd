/* Calls on epoll sets that the kernel refuses, with a stream in a set: the errno is the same, nothing changes, and the
 * stream goes on. */
#include "common.h"
#include <limits.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define SIZE 5000

/* Numbers of events that a compiler would complain of. */
static volatile int negative = -1, least = INT_MIN, too_many = INT_MAX;

/* What the program has a set say of a stream. */
static const uint64_t DATA = 0xabcdef0123456789;

static int new_set(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0);
	return set;
}

static void add(int set, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = DATA};
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* Waits until `set` reports bytes of the stream. */
static void await_input(int set)
{
	struct epoll_event event = {0};
	CHECK(epoll_wait(set, &event, 1, -1) == 1);
	CHECK(event.events == EPOLLIN && event.data.u64 == DATA);
}

/* Both ends send, and read what their sets report. */
static void exchange(int set, int fd, uint64_t seed)
{
	unsigned char buf[SIZE];
	for (uint64_t round = 0; round < 60; round++) {
		fill_stream(buf, SIZE, seed, round * SIZE);
		put(fd, buf, SIZE);
		for (size_t had = 0; had < SIZE;) {
			await_input(set);
			ssize_t n = read(fd, buf, SIZE - had);
			CHECK(n > 0);
			check_stream(buf, (size_t)n, seed, round * SIZE + had);
			had += (size_t)n;
		}
	}
}

static void *no_memory(void)
{
	void *at = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

static int closed_number(void)
{
	int fd = dup(0);
	CHECK(fd >= 0 && close(fd) == 0);
	return fd;
}

static void control(int fd)
{
	int set = new_set(), closed = closed_number();
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
	struct epoll_event *bad = no_memory();
	add(set, fd);
	for (int i = 0; i < 2; i++) {
		exchange(set, fd, 1);
		SHOW(epoll_ctl(set, EPOLL_CTL_ADD, closed, &event));
		SHOW(epoll_ctl(set, EPOLL_CTL_MOD, closed, &event));
		SHOW(epoll_ctl(set, EPOLL_CTL_DEL, closed, &event));
		SHOW(epoll_ctl(set, EPOLL_CTL_ADD, -1, &event));
		SHOW(epoll_ctl(set, EPOLL_CTL_ADD, INT_MAX, &event));
		SHOW(epoll_ctl(set, EPOLL_CTL_ADD, set, &event));
		SHOW(epoll_ctl(set, EPOLL_CTL_MOD, set, &event));
		SHOW(epoll_ctl(set, EPOLL_CTL_DEL, set, &event));
		SHOW(epoll_ctl(closed, EPOLL_CTL_ADD, fd, &event));
		SHOW(epoll_ctl(-1, EPOLL_CTL_DEL, fd, &event));
		SHOW(epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event));
		SHOW(epoll_ctl(fd, EPOLL_CTL_ADD, set, &event));
		SHOW(epoll_ctl(set, 77, fd, &event));
		SHOW(epoll_ctl(set, 0, fd, bad));
		SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
		SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, bad));
		SHOW(epoll_ctl(set, EPOLL_CTL_MOD, fd, bad));
		SHOW(epoll_ctl(set, EPOLL_CTL_MOD, fd, NULL));
		event.events = EPOLLIN | EPOLLEXCLUSIVE;
		SHOW(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
		event.events = EPOLLIN;
		int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
		CHECK(file >= 0);
		SHOW(epoll_ctl(set, EPOLL_CTL_ADD, file, &event));
		SHOW(epoll_ctl(set, EPOLL_CTL_DEL, file, NULL));
		CHECK(close(file) == 0);
	}
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, bad));
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, bad));
	add(set, fd);
	exchange(set, fd, 2);
}

static void loops(int fd)
{
	int a = new_set(), b = new_set(), c = new_set();
	struct epoll_event event = {.events = EPOLLIN};
	add(a, fd);
	exchange(a, fd, 1);
	SHOW(epoll_ctl(b, EPOLL_CTL_ADD, a, &event));
	SHOW(epoll_ctl(a, EPOLL_CTL_ADD, b, &event));
	SHOW(epoll_ctl(b, EPOLL_CTL_ADD, a, &event));
	exchange(a, fd, 2);
	SHOW(epoll_ctl(c, EPOLL_CTL_ADD, b, &event));
	SHOW(epoll_ctl(a, EPOLL_CTL_ADD, c, &event));
	SHOW(epoll_ctl(b, EPOLL_CTL_ADD, c, &event));
	exchange(a, fd, 3);
	event.events = EPOLLIN | EPOLLEXCLUSIVE;
	SHOW(epoll_ctl(c, EPOLL_CTL_ADD, a, &event));
}

static void waits(int fd)
{
	int set = new_set(), closed = closed_number();
	struct epoll_event event;
	struct epoll_event *bad = no_memory();
	add(set, fd);
	exchange(set, fd, 1);
	for (int i = 0; i < 3; i++) {
		SHOW(epoll_wait(set, &event, 0, 0));
		SHOW(epoll_wait(set, &event, 0, -1));
		SHOW(epoll_wait(set, &event, negative, -1));
		SHOW(epoll_wait(set, &event, least, 0));
		SHOW(epoll_wait(set, &event, too_many, 0));
		SHOW(epoll_wait(closed, &event, 1, -1));
		SHOW(epoll_wait(-1, &event, 1, -1));
		SHOW(epoll_wait(fd, &event, 1, -1));
		SHOW(epoll_pwait(set, &event, 0, -1, NULL));
		tell(fd);
		await_bytes(fd, 1);
		SHOW(epoll_wait(set, bad, 1, -1));
		SHOW(epoll_wait(set, bad, 1, 0));
		SHOW(epoll_wait(set, &event, 0, -1));
		await_input(set);
		hear(fd);
	}
	exchange(set, fd, 2);
}

/* Room for events where the memory ends or may not be written: as many as fit are reported, and the others later. */
static void page_edge(int fd)
{
	int set = new_set(), ready = eventfd(1, 0);
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED && ready >= 0);
	add(set, fd);
	exchange(set, fd, 1);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
	event.data.u64 = 2;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ready, &event) == 0);
	static const int EDGES[] = {PROT_NONE, PROT_READ};
	for (size_t i = 0; i < 2 * COUNT(EDGES); i++) {
		uint32_t edge = i % 2 ? EPOLLET : 0;
		CHECK(mprotect(pages + 4096, 4096, EDGES[i / 2]) == 0);
		tell(fd);
		await_bytes(fd, 1);
		event = (struct epoll_event){.events = EPOLLIN | edge, .data.u64 = 1};
		CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
		struct epoll_event *one = (struct epoll_event *)(pages + 4096) - 1;
		struct epoll_event *half = (struct epoll_event *)(pages + 4096 - sizeof(*one) / 2);
		SHOW(epoll_wait(set, half, 3, 0));
		SHOW(epoll_wait(set, one, 3, 0));
		uint64_t first = one->data.u64;
		SHOW(epoll_wait(set, one, 3, 0));
		CHECK((first == 1 && one->data.u64 == 2) || (first == 2 && one->data.u64 == 1));
		CHECK(one->events == EPOLLIN);
		hear(fd);
	}
}

/* Takes every number that the limit leaves. */
static int take_all(int *taken, int most)
{
	int n = 0;
	while (n < most && (taken[n] = dup(0)) >= 0)
		n++;
	CHECK(n < most && errno == EMFILE);
	return n;
}

/* The limit is reached; returns how many numbers were taken for that. */
static int use_up(int *taken, int most)
{
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = 64;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	return take_all(taken, most);
}

/* The stream is in a set already. */
static void at_limit(int fd)
{
	int taken[512], set = new_set();
	add(set, fd);
	exchange(set, fd, 1);
	int n = use_up(taken, COUNT(taken));
	SHOW(epoll_create1(0));
	SHOW(epoll_create(1));
	SHOW(dup(set));
	exchange(set, fd, 2);
	/* A number that becomes free is the program's. */
	CHECK(close(taken[--n]) == 0);
	int other = new_set();
	CHECK(other == taken[n]);
	SHOW(epoll_create1(0));
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
	add(other, fd);
	exchange(other, fd, 3);
}

static void first_at_limit(int fd)
{
	int taken[512];
	int n = use_up(taken, COUNT(taken));
	SHOW(epoll_create1(0));
	CHECK(close(taken[--n]) == 0);
	int set = new_set();
	CHECK(set == taken[n]);
	add(set, fd);
	exchange(set, fd, 1);
}

/* An exclusive watch, which the kernel lets a program add and never change. */
static void exclusive_at_limit(int fd)
{
	int taken[512], set = new_set();
	struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = DATA};
	int n = use_up(taken, COUNT(taken));
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	exchange(set, fd, 1);
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	SHOW(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
	exchange(set, fd, 2);
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	CHECK(close(taken[--n]) == 0);
	exchange(set, fd, 3);
}

static int next_connection(void)
{
	if (listener >= 0)
		return accept(listener, NULL, NULL);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0);
	CHECK(connect(fd, (struct sockaddr *)&server_address, sizeof(server_address)) == 0);
	return fd;
}

/* --- Two streams that are always ready, and room for one event: each has its turn. --- */

static void turns(int fd)
{
	int set = new_set(), other = next_connection();
	struct epoll_event event = {.events = EPOLLIN};
	int n[2] = {0};
	char byte = 'x';
	CHECK(other >= 0);
	/* Both leave TCP, one after the other. */
	add(set, fd);
	exchange(set, fd, 1);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
	add(set, other);
	exchange(set, other, 2);
	put(fd, &byte, 1);
	put(other, &byte, 1);
	event.data.u64 = 0;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	event.data.u64 = 1;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, other, &event) == 0);
	struct pollfd both[2] = {{.fd = fd, .events = POLLIN}, {.fd = other, .events = POLLIN}};
	while (poll(both, 2, -1) != 2)
		sched_yield();
	for (int i = 0; i < 200; i++) {
		/* Longer than the library goes without a look at the kernel. */
		CHECK(usleep(100) == 0);
		CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.events == EPOLLIN && event.data.u64 < 2);
		n[event.data.u64]++;
	}
	printf("each had its turn: %d\n", n[0] > 50 && n[1] > 50);
	CHECK(read(fd, &byte, 1) == 1 && read(other, &byte, 1) == 1);
}

/* --- Connections that have carried hardly anything: the kernel alone watches them. --- */

/* A byte there and back, for which this end waits in `set` if there is one. */
static void ping(int set, int fd)
{
	char byte = 'x';
	if (listener < 0)
		put(fd, &byte, 1);
	if (set >= 0)
		await_input(set);
	CHECK(read(fd, &byte, 1) == 1 && byte == 'x');
	if (listener >= 0)
		put(fd, &byte, 1);
}

static void ends_of_first_watches(int known)
{
	(void)known;
	int fd = next_connection();
	CHECK(fd >= 0);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
	struct epoll_event *bad = no_memory();
	int set = new_set(), gone = new_set();
	SHOW(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, bad));
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	SHOW(epoll_ctl(set, EPOLL_CTL_MOD, fd, bad));
	SHOW(epoll_ctl(gone, EPOLL_CTL_DEL, fd, NULL));
	event.events = EPOLLOUT;
	event.data.u64 = 8;
	SHOW(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
	event.data.u64 = 0;
	SHOW(epoll_wait(set, &event, 1, -1));
	CHECK(event.events == EPOLLOUT && event.data.u64 == 8);
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
	SHOW(epoll_wait(set, &event, 1, 0));
	/* A set that is closed, and perhaps used again for another, takes its watch with it. */
	add(gone, fd);
	CHECK(close(gone) == 0);
	int next = new_set();
	for (int n = 0; n < 400; n++) {
		ping(-1, fd);
		CHECK(epoll_wait(next, &event, 1, 0) == 0);
	}
	add(set, fd);
	exchange(set, fd, 1);
	SHOW(epoll_wait(next, &event, 1, 0));
	add(next, fd);
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
	exchange(next, fd, 2);
}

struct addition {
	int set, fd;
};

static void *add_in_thread(void *arg)
{
	struct addition *what = arg;
	add(what->set, what->fd);
	return NULL;
}

/* A thread adds connections to sets, while another one makes so many calls that the library takes them over. */
static void added_meanwhile(int fd)
{
	(void)fd;
	for (int i = 0; i < 36; i++) {
		struct addition what = {.set = new_set(), .fd = next_connection()};
		CHECK(what.fd >= 0);
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, add_in_thread, &what) == 0);
		for (int n = 0; n < 2 + i % 6; n++)
			ping(-1, what.fd);
		CHECK(pthread_join(thread, NULL) == 0);
		for (int n = 0; n < 400; n++)
			ping(what.set, what.fd);
		CHECK(close(i % 2 ? what.set : what.fd) == 0 && close(i % 2 ? what.fd : what.set) == 0);
	}
}

/* --- The kernel allows no more epoll watches. Only in a guest of the lab: the limit is the whole kernel's. --- */

#define LIMIT "/proc/sys/fs/epoll/max_user_watches"
static char limit_before[32];

static void set_limit(const char *text)
{
	int fd = open(LIMIT, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	if (!limit_before[0])
		CHECK(read(fd, limit_before, sizeof(limit_before) - 1) > 0);
	CHECK(pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text) && close(fd) == 0);
}

static void reset_limit(void)
{
	set_limit(limit_before);
}

/* Uses up all watches but as many as `left`. */
static void use_up_watches(int left)
{
	enum { MOST = 400 };
	static int dups[MOST];
	int filler = new_set(), event_fd = eventfd(0, EFD_CLOEXEC), n = 0;
	struct epoll_event event = {.events = EPOLLIN};
	CHECK(event_fd >= 0 && atexit(reset_limit) == 0);
	set_limit("300");
	for (;; n++) {
		CHECK(n < MOST && (dups[n] = dup(event_fd)) >= 0);
		if (epoll_ctl(filler, EPOLL_CTL_ADD, dups[n], &event) < 0)
			break;
	}
	CHECK(errno == ENOSPC && n > left);
	while (left--)
		CHECK(epoll_ctl(filler, EPOLL_CTL_DEL, dups[--n], NULL) == 0);
}

/* Without a set. */
static void echo(int fd)
{
	char buf[SIZE];
	ssize_t n;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		put(fd, buf, (size_t)n);
	CHECK(n == 0);
}

/* Adds the stream where a single watch is left, which is all that the kernel needs. */
static void last_watch(int fd)
{
	int set = new_set();
	use_up_watches(1);
	add(set, fd);
	exchange(set, fd, 1);
	struct epoll_event event = {.events = EPOLLIN};
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

/* The stream goes back to TCP while no watch is left. */
static void back_without_watch(int fd)
{
	int set = new_set();
	add(set, fd);
	exchange(set, fd, 1);
	use_up_watches(0);
	CHECK(send(fd, "!", 1, MSG_OOB) == 1);
	exchange(set, fd, 2);
}

static const struct part parts[] = {
	{"control", control, control},
	{"loops", loops, loops},
	{"waits", waits, waits},
	{"page_edge", page_edge, page_edge},
	{"at_limit", at_limit, at_limit},
	{"first_at_limit", first_at_limit, first_at_limit},
	{"exclusive_at_limit", exclusive_at_limit, exclusive_at_limit},
	{"turns", turns, turns},
	{"ends_of_first_watches", ends_of_first_watches, ends_of_first_watches},
	{"added_meanwhile", added_meanwhile, added_meanwhile},
	{"last_watch", echo, last_watch},
	{"back_without_watch", echo, back_without_watch},
};

int main(int argc, char **argv)
{
	return play(argc, argv, parts, COUNT(parts));
}
