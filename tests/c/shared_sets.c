/* Epoll sets that more than one process or another set has: inherited by `exec`, `posix_spawn` and `fork`, passed on, in
 * each other; and sets that are polled while their first stream comes. */
#include "common.h"
#include "passed.h"
#include <spawn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>

enum { SIZE = 5000, ROUNDS = 60 };

#define DATA 0xabcdef0123456789ull

static int new_set(int flags)
{
	int set = epoll_create1(flags);
	CHECK(set >= 0);
	return set;
}

static void add(int set, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = DATA};
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void await_input(int set)
{
	struct epoll_event event = {0};
	CHECK(epoll_wait(set, &event, 1, -1) == 1);
	CHECK(event.events == EPOLLIN && event.data.u64 == DATA);
}

/* Sends, and reads what comes back when `set` reports it. */
static void exchange(int set, int fd, uint64_t seed)
{
	unsigned char buf[SIZE];
	for (uint64_t round = 0; round < ROUNDS; round++) {
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

/* The peer echoes until the end. */
static void echo(int fd)
{
	static char buf[65536];
	ssize_t n;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		put(fd, buf, (size_t)n);
	printf("echo: %s\n", n == 0 ? "end" : errno_name(errno));
}

static void two_echoes(int fd)
{
	echo(fd);
	CHECK(close(fd) == 0);
	echo(accept_client());
}

/* This program again, to go on with two descriptors: see `resume`. */
static char **arguments(const char *how, int fd, int other)
{
	static char numbers[2][16];
	static char *args[6];
	snprintf(numbers[0], sizeof(numbers[0]), "%d", fd);
	snprintf(numbers[1], sizeof(numbers[1]), "%d", other);
	args[0] = (char *)"self", args[1] = (char *)"resume", args[2] = (char *)how;
	args[3] = numbers[0], args[4] = numbers[1];
	fflush(stdout);
	return args;
}

static void become_self(const char *how, int fd, int set)
{
	execv("/proc/self/exe", arguments(how, fd, set));
	fail("exec");
}

static pid_t start_self(const char *how, int fd, int other, const posix_spawn_file_actions_t *actions)
{
	pid_t child;
	CHECK(posix_spawn(&child, "/proc/self/exe", actions, NULL, arguments(how, fd, other), environ) == 0);
	return child;
}

static void wait_for(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	printf("status %x\n", (unsigned)status);
}

static void exec_set(int fd)
{
	int set = new_set(0);
	add(set, fd);
	exchange(set, fd, 1);
	become_self("exchange", fd, set);
}

/* The other program has no library. */
static void exec_set_alone(int fd)
{
	CHECK(unsetenv("LD_PRELOAD") == 0);
	exec_set(fd);
}

/* What the program has deleted is not in the set that the next program gets. */
static void exec_deleted(int fd)
{
	int set = new_set(0);
	add(set, fd);
	exchange(set, fd, 1);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
	become_self("deleted", fd, set);
}

static void exec_set_in_set(int fd)
{
	int inner = new_set(0), outer = new_set(0);
	add(inner, fd);
	add(outer, inner);
	exchange(outer, fd, 1);
	become_self("exchange", fd, outer);
}

/* A number of the set that was closed in the meantime names another set. */
static void exec_renamed(int fd)
{
	int set = new_set(0), other = dup(set);
	CHECK(other >= 0);
	add(set, fd);
	exchange(set, fd, 1);
	CHECK(close(set) == 0);
	CHECK(new_set(0) == set);
	become_self("exchange", fd, other);
}

/* The stream is the standard input of the program that is started, which has the set too. */
static void spawn_set(int fd)
{
	posix_spawn_file_actions_t actions;
	int set = new_set(0);
	add(set, fd);
	exchange(set, fd, 1);
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0);
	wait_for(start_self("exchange", 0, set, &actions));
	exchange(set, fd, 3);
}

/* As long as another process watches: see `watch`. */
static void be_watched(int fd, int over)
{
	for (int i = 0; i < 3; i++) {
		put_stream(fd, SIZE, 4);
		hear(over);
		get_stream(fd, SIZE, 4);
		tell(over);
		hear(over);
	}
}

/* The program that is started has the set alone. */
static void spawn_passed(int fd)
{
	posix_spawn_file_actions_t actions;
	int pair[2], set = new_set(EPOLL_CLOEXEC);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	add(set, fd);
	exchange(set, fd, 1);
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, set, 60) == 0);
	pid_t child = start_self("watch", pair[1], 60, &actions);
	be_watched(fd, pair[0]);
	wait_for(child);
	exchange(set, fd, 5);
}

/* The other process reports to this one what a set of this one's reports there. */
static void watch_for(int fd, int set, int in_set)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	add(in_set, fd);
	exchange(set, fd, 1);
	pid_t child = start_self("take", pair[1], 0, NULL);
	CHECK(close(pair[1]) == 0);
	SHOW(pass(pair[0], set));
	be_watched(fd, pair[0]);
	wait_for(child);
	exchange(set, fd, 5);
	/* A stream that enters the set later stays on TCP too. */
	CHECK(close(fd) == 0);
	fd = connect_to_server();
	add(in_set, fd);
	exchange(set, fd, 6);
}

static void pass_set(int fd)
{
	int set = new_set(EPOLL_CLOEXEC);
	watch_for(fd, set, set);
}

static void pass_set_alone(int fd)
{
	CHECK(unsetenv("LD_PRELOAD") == 0);
	pass_set(fd);
}

static void pass_set_in_set(int fd)
{
	int inner = new_set(EPOLL_CLOEXEC), outer = new_set(EPOLL_CLOEXEC);
	add(outer, inner);
	watch_for(fd, outer, inner);
}

/* A stream that the program has deleted from a set is passed on, with unread bytes. */
static void pass_deleted(int fd)
{
	int pair[2], set = new_set(EPOLL_CLOEXEC);
	struct epoll_event event;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	add(set, fd);
	exchange(set, fd, 1);
	put_stream(fd, SIZE, 2);
	await_bytes(fd, SIZE);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
	SHOW(pass(pair[0], fd));
	SHOW(epoll_wait(set, &event, 1, 0));
	get_stream(fd, SIZE, 2);
	add(set, fd);
	exchange(set, fd, 3);
}

/* The set that is passed is in another. */
static void pass_inner(int fd)
{
	int pair[2], inner = new_set(EPOLL_CLOEXEC), outer = new_set(EPOLL_CLOEXEC);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	add(inner, fd);
	add(outer, inner);
	exchange(outer, fd, 1);
	pid_t child = start_self("take", pair[1], 0, NULL);
	SHOW(pass(pair[0], inner));
	exchange(outer, fd, 2);
	be_watched(fd, pair[0]);
	wait_for(child);
	exchange(outer, fd, 3);
	exchange(inner, fd, 4);
}

/* Says when the set of another process reports something here, and then that it reports no more. */
static void watch(int over, int set)
{
	for (int i = 0; i < 3; i++) {
		struct pollfd p = {.fd = set, .events = POLLIN};
		struct epoll_event event;
		if (i == 2)
			CHECK(poll(&p, 1, -1) == 1);
		await_input(set);
		tell(over);
		hear(over);
		SHOW(epoll_wait(set, &event, 1, 0));
		SHOW(poll(&p, 1, 0));
		tell(over);
	}
}

static int resume(const char *how, int fd, int other)
{
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	if (!strcmp(how, "exchange")) {
		exchange(other, fd, 2);
	} else if (!strcmp(how, "deleted")) {
		struct epoll_event event;
		put_stream(fd, SIZE, 2);
		await_bytes(fd, SIZE);
		SHOW(epoll_wait(other, &event, 1, 0));
		add(other, fd);
		await_input(other);
		get_stream(fd, SIZE, 2);
	} else if (!strcmp(how, "watch")) {
		watch(fd, other);
	} else {
		CHECK(!strcmp(how, "take"));
		watch(fd, take(fd));
	}
	fflush(stdout);
	return 0;
}

/* Puts `n` sets into each other, the first outermost, from the inside or from the outside. */
static void nest(int *sets, int n, int from_inside)
{
	for (int i = 0; i < n; i++)
		sets[i] = new_set(EPOLL_CLOEXEC);
	for (int i = 0; i + 1 < n; i++) {
		int at = from_inside ? n - 2 - i : i;
		struct epoll_event event = {.events = EPOLLIN, .data.u64 = DATA};
		SHOW(epoll_ctl(sets[at], EPOLL_CTL_ADD, sets[at + 1], &event));
	}
}

/* The stream is in the innermost set; the outermost is waited for, unless the kernel refuses so many. */
static void deep(int fd, int from_inside)
{
	for (int n = 3; n <= 7; n++) {
		int sets[7];
		nest(sets, n, from_inside);
		if (n <= 5) {
			struct epoll_event event = {.events = EPOLLIN, .data.u64 = DATA};
			SHOW(epoll_ctl(sets[n - 1], EPOLL_CTL_ADD, fd, &event));
			exchange(sets[0], fd, (uint64_t)n);
			SHOW(epoll_ctl(sets[n - 1], EPOLL_CTL_DEL, fd, &event));
		}
		for (int i = 0; i < n; i++)
			CHECK(close(sets[i]) == 0);
	}
}

static void deep_from_inside(int fd)
{
	deep(fd, 1);
}
static void deep_from_outside(int fd)
{
	deep(fd, 0);
}

/* The innermost set has the stream, and has waited for it, when it enters the next. */
static void deep_late(int fd)
{
	int a = new_set(EPOLL_CLOEXEC), b = new_set(EPOLL_CLOEXEC), c = new_set(EPOLL_CLOEXEC);
	add(a, fd);
	exchange(a, fd, 1);
	add(b, a);
	exchange(b, fd, 2);
	add(c, b);
	exchange(c, fd, 3);
	exchange(b, fd, 4);
	exchange(a, fd, 5);
}

/* A set enters one that the library has not seen being made. */
static void in_unknown(int fd)
{
	int set = new_set(EPOLL_CLOEXEC), outer = (int)bare_syscall(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0, 0);
	CHECK(outer >= 0);
	add(set, fd);
	exchange(set, fd, 1);
	add(outer, set);
	exchange(outer, fd, 2);
}

/* A set enters one that a child has too. */
static void in_inherited(int fd)
{
	int outer = new_set(EPOLL_CLOEXEC), ends[2];
	char c;
	CHECK(pipe(ends) == 0);
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(close(ends[1]) == 0 && close(fd) == 0);
		CHECK(read(ends[0], &c, 1) == 0);
		_exit(0);
	}
	CHECK(close(fd) == 0);
	fd = connect_to_server();
	int set = new_set(EPOLL_CLOEXEC);
	add(set, fd);
	exchange(set, fd, 1);
	add(outer, set);
	exchange(outer, fd, 2);
	CHECK(close(ends[1]) == 0);
	wait_for(child);
	exchange(outer, fd, 3);
}

/* After a fork the set is one: what the child changes is changed for the parent. */
static void fork_changes(int fd)
{
	int set = new_set(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
	add(set, fd);
	exchange(set, fd, 1);
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		exchange(set, fd, 2);
		CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
		_exit(0);
	}
	wait_for(child);
	put_stream(fd, SIZE, 3);
	await_bytes(fd, SIZE);
	SHOW(epoll_wait(set, &event, 1, -1));
	printf("data %lx\n", (unsigned long)event.data.u64);
	get_stream(fd, SIZE, 3);
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
	add(set, fd);
	exchange(set, fd, 4);
}

/* The same of a set in a set, and both processes wait in turn. */
static void fork_nested(int fd)
{
	int inner = new_set(EPOLL_CLOEXEC), outer = new_set(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
	add(inner, fd);
	add(outer, inner);
	exchange(outer, fd, 1);
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		exchange(outer, fd, 2);
		CHECK(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &event) == 0);
		_exit(0);
	}
	wait_for(child);
	put_stream(fd, SIZE, 3);
	await_bytes(fd, SIZE);
	SHOW(epoll_wait(outer, &event, 1, -1));
	printf("data %lx\n", (unsigned long)event.data.u64);
	get_stream(fd, SIZE, 3);
	SHOW(epoll_wait(outer, &event, 1, 0));
}

/* Bytes on the ring are unread at the fork, so the stream stays there. A child takes nothing from its parent. */
static void fork_unread(int fd, void (*in_child)(int set, int fd))
{
	int set = new_set(EPOLL_CLOEXEC), pair[2];
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = DATA};
	pid_t peer;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	get(fd, &peer, sizeof(peer));
	await_bytes(fd, SIZE);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	await_input(set);
	SHOW(epoll_wait(set, &event, 1, 0));
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		for (size_t n = 2; n <= 4; n++) {
			CHECK(kill(peer, SIGUSR1) == 0);
			if (fcntl(fd, F_GETFD) >= 0)
				await_bytes(fd, n * SIZE);
			if (n >= 3)
				in_child(set, fd);
			tell(pair[1]);
			hear(pair[1]);
		}
		_exit(0);
	}
	for (int i = 2; i <= 4; i++) {
		hear(pair[0]);
		await_input(set);
		SHOW(epoll_wait(set, &event, 1, 0));
		tell(pair[0]);
	}
	wait_for(child);
	get_stream(fd, 4 * SIZE, 2);
	event.events = EPOLLIN;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
	exchange(set, fd, 3);
}

static void poll_twice(int set, int fd)
{
	struct pollfd p = {.fd = set, .events = POLLIN};
	(void)fd;
	for (int i = 0; i < 2; i++)
		CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLIN);
}

static void child_polls(int fd)
{
	fork_unread(fd, poll_twice);
}

/* Nothing has been reported of the set, in which the library has just begun to watch a stream that stays on the ring. */
static void child_polls_at_once(int fd)
{
	int set = new_set(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLRDHUP, .data.u64 = DATA};
	struct pollfd p = {.fd = set, .events = POLLIN};
	pid_t peer;
	get(fd, &peer, sizeof(peer));
	await_bytes(fd, SIZE);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(poll(&p, 1, 0));
	wait_for(child);
	for (size_t n = 2; n <= 4; n++) {
		CHECK(kill(peer, SIGUSR1) == 0);
		await_bytes(fd, n * SIZE);
	}
	get_stream(fd, 4 * SIZE, 2);
	event.events = EPOLLIN;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
	exchange(set, fd, 3);
}

static void close_both(int set, int fd)
{
	close(fd);
	close(set);
}

static void child_closes(int fd)
{
	fork_unread(fd, close_both);
}

static void close_set(int set, int fd)
{
	(void)fd;
	close(set);
}

static void child_closes_set(int fd)
{
	fork_unread(fd, close_set);
}

static atomic_int n_asked;

static void note_asked(int number)
{
	(void)number;
	n_asked++;
}

static void unread_peer(int fd)
{
	unsigned char buf[SIZE];
	pid_t self = getpid();
	CHECK(signal(SIGUSR1, note_asked) != SIG_ERR);
	put(fd, &self, sizeof(self));
	for (int i = 0; i < 4; i++) {
		while (n_asked < i)
			sched_yield();
		fill_stream(buf, SIZE, 2, (uint64_t)i * SIZE);
		put(fd, buf, SIZE);
	}
	echo(fd);
}

static atomic_int waited_for = -1;

static void *wait_again_and_again(void *arg)
{
	int set;
	while ((set = waited_for) != -2) {
		struct epoll_event event;
		if (set >= 0)
			CHECK(epoll_wait(set, &event, 1, 0) >= 0 || errno == EBADF);
	}
	return arg;
}

/* A thread waits for a set in which there is another while the process forks. */
static void fork_beside_waits(int fd)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, wait_again_and_again, NULL) == 0);
	fflush(stdout);
	for (int i = 0; i < 300; i++) {
		int inner = new_set(EPOLL_CLOEXEC), outer = new_set(EPOLL_CLOEXEC), status;
		add(outer, inner);
		waited_for = outer;
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0)
			_exit(0);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		waited_for = -1;
		CHECK(close(inner) == 0 && close(outer) == 0);
	}
	waited_for = -2;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(close(fd) == 0);
}

struct poller {
	int set;
	int (*call)(int set);
	_Atomic pid_t thread;
};

static int by_poll(int set)
{
	struct pollfd p = {.fd = set, .events = POLLIN};
	return poll(&p, 1, -1);
}

static int by_ppoll(int set)
{
	struct pollfd p = {.fd = set, .events = POLLIN};
	struct timespec most = {.tv_sec = 100};
	return ppoll(&p, 1, &most, NULL);
}

static int by_select(int set)
{
	fd_set bits;
	FD_ZERO(&bits);
	FD_SET(set, &bits);
	int n = select(set + 1, &bits, NULL, NULL, NULL);
	CHECK(FD_ISSET(set, &bits));
	return n;
}

static int by_select_most(int set)
{
	struct timeval most = {.tv_sec = 100};
	fd_set bits, none;
	FD_ZERO(&bits);
	FD_ZERO(&none);
	FD_SET(set, &bits);
	int n = select(set + 1, &bits, NULL, &none, &most);
	CHECK(FD_ISSET(set, &bits) && most.tv_sec < 100);
	return n;
}

static int by_pselect(int set)
{
	struct timespec most = {.tv_sec = 100};
	fd_set bits;
	FD_ZERO(&bits);
	FD_SET(set, &bits);
	int n = pselect(set + 1, &bits, NULL, NULL, &most, NULL);
	CHECK(FD_ISSET(set, &bits));
	return n;
}

static void *poll_set(void *arg)
{
	struct poller *poller = arg;
	struct epoll_event event;
	poller->thread = (pid_t)syscall(SYS_gettid);
	SHOW(poller->call(poller->set));
	SHOW(epoll_wait(poller->set, &event, 1, 0));
	return NULL;
}

/* Has a thread wait as `poller` says, and returns when it sleeps. */
static pthread_t start(struct poller *poller)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, poll_set, poller) == 0);
	while (!poller->thread)
		sched_yield();
	await_sleep(poller->thread);
	return thread;
}

/* A thread polls a set whose first stream comes then, without anything to report. */
static void poll_first(int fd, int (*call)(int set))
{
	struct poller poller = {.set = new_set(EPOLL_CLOEXEC), .call = call};
	pthread_t thread = start(&poller);
	add(poller.set, fd);
	for (int i = 0; i < 1000; i++)
		sched_yield();
	await_sleep(poller.thread);
	put_stream(fd, SIZE, 2);
	CHECK(pthread_join(thread, NULL) == 0);
	await_input(poller.set);
	get_stream(fd, SIZE, 2);
	exchange(poller.set, fd, 3);
}

static void polled_first(int fd)
{
	poll_first(fd, by_poll);
}

static void ppolled_first(int fd)
{
	poll_first(fd, by_ppoll);
}

static void selected_first(int fd)
{
	poll_first(fd, by_select);
}

static void selected_first_most(int fd)
{
	poll_first(fd, by_select_most);
}

static void pselected_first(int fd)
{
	poll_first(fd, by_pselect);
}

static int by_wait(int set)
{
	struct epoll_event event;
	return epoll_wait(set, &event, 1, -1);
}

/* A thread sleeps in a set that becomes the kernel's alone. */
static void sleep_meanwhile(int fd, int (*call)(int set), int forks)
{
	struct poller poller = {.set = new_set(EPOLL_CLOEXEC), .call = call};
	add(poller.set, fd);
	exchange(poller.set, fd, 1);
	pthread_t thread = start(&poller);
	if (forks) {
		fflush(stdout);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0)
			_exit(0);
		wait_for(child);
	} else {
		int pair[2];
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		SHOW(pass(pair[0], poller.set));
	}
	await_sleep(poller.thread);
	put_stream(fd, SIZE, 2);
	CHECK(pthread_join(thread, NULL) == 0);
	get_stream(fd, SIZE, 2);
	exchange(poller.set, fd, 3);
}

static void fork_beside_wait(int fd)
{
	sleep_meanwhile(fd, by_wait, 1);
}

static void fork_beside_poll(int fd)
{
	sleep_meanwhile(fd, by_ppoll, 1);
}

static void pass_beside_wait(int fd)
{
	sleep_meanwhile(fd, by_wait, 0);
}

static void pass_beside_poll(int fd)
{
	sleep_meanwhile(fd, by_poll, 0);
}

/* A thread sleeps in a set that has another one in it, or polls it, while a change in the inner one makes its stream
 * ready. */
static void changed_inside(int fd)
{
	put_stream(fd, SIZE, 2);
	await_bytes(fd, SIZE);
	for (int i = 0; i < 4; i++) {
		int inner = new_set(EPOLL_CLOEXEC);
		struct poller poller = {.set = new_set(EPOLL_CLOEXEC), .call = i & 1 ? by_poll : by_wait};
		struct epoll_event event = {.events = EPOLLRDHUP};
		add(poller.set, inner);
		CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, fd, &event) == 0);
		pthread_t thread = start(&poller);
		event.events = EPOLLIN;
		if (i & 2) {
			CHECK(epoll_ctl(inner, EPOLL_CTL_DEL, fd, NULL) == 0);
			CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, fd, &event) == 0);
		} else {
			CHECK(epoll_ctl(inner, EPOLL_CTL_MOD, fd, &event) == 0);
		}
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(close(inner) == 0 && close(poller.set) == 0);
	}
	get_stream(fd, SIZE, 2);
}

static const struct part PARTS[] = {
	{"exec_set", echo, exec_set},
	{"exec_set_alone", echo, exec_set_alone},
	{"exec_deleted", echo, exec_deleted},
	{"exec_set_in_set", echo, exec_set_in_set},
	{"exec_renamed", echo, exec_renamed},
	{"spawn_set", echo, spawn_set},
	{"spawn_passed", echo, spawn_passed},
	{"pass_set", pass_set, two_echoes},
	{"pass_set_alone", pass_set_alone, two_echoes},
	{"pass_set_in_set", pass_set_in_set, two_echoes},
	{"pass_deleted", pass_deleted, echo},
	{"pass_inner", pass_inner, echo},
	{"deep_from_inside", deep_from_inside, echo},
	{"deep_from_outside", deep_from_outside, echo},
	{"deep_late", deep_late, echo},
	{"changed_inside", changed_inside, echo},
	{"in_unknown", in_unknown, echo},
	{"in_inherited", in_inherited, two_echoes},
	{"fork_changes", fork_changes, echo},
	{"fork_nested", fork_nested, echo},
	{"fork_beside_waits", echo, fork_beside_waits},
	{"child_polls", unread_peer, child_polls},
	{"child_polls_at_once", unread_peer, child_polls_at_once},
	{"child_closes", unread_peer, child_closes},
	{"child_closes_set", unread_peer, child_closes_set},
	{"polled_first", polled_first, echo},
	{"ppolled_first", ppolled_first, echo},
	{"selected_first", selected_first, echo},
	{"selected_first_most", selected_first_most, echo},
	{"pselected_first", pselected_first, echo},
	{"fork_beside_wait", fork_beside_wait, echo},
	{"fork_beside_poll", fork_beside_poll, echo},
	{"pass_beside_wait", pass_beside_wait, echo},
	{"pass_beside_poll", pass_beside_poll, echo},
};

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "resume"))
		return resume(argv[2], atoi(argv[3]), atoi(argv[4]));
	return play(argc, argv, PARTS, COUNT(PARTS));
}
