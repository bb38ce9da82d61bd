#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the processes share: whose turn it is, and the ports of listeners. */
static struct {
	volatile int turn;
	uint16_t ports[8];
} *shared;
static int role, f[40];
static pid_t child;
static char room[1 << 16];
static void *bad;

/* Ends this process if the step of another one takes too long: that one has ended, was never started, or is stuck. */
static void await_turn(int n)
{
	enum { MOST_LOOKS = 300000 };
	int turn = shared->turn, looks = 0;
	while (turn != n) {
		usleep(100);
		int now = shared->turn;
		looks = now == turn ? looks + 1 : 0;
		turn = now;
		if (looks > MOST_LOOKS) {
			fprintf(stderr, "step %d has not ended, and step %d waits for it\n", turn, n);
			_exit(1);
		}
	}
}

/* Whether this process takes step `n`, which is process `p`'s. */
static int mine(int p, int n, const char *text)
{
	if (role != p)
		return 0;
	await_turn(n);
	printf("%-50s ", text);
	return 1;
}

static void done(void)
{
	printf("\n");
	fflush(stdout);
	/* Until everything has arrived. */
	usleep(15000);
	shared->turn++;
}

static long show(long result)
{
	if (result < 0)
		printf("%s", strerrorname_np(errno));
	else
		printf("%ld", result);
	return result;
}

static void start(int argc, char **argv, int processes)
{
	role = argc > 1;
	int memory = argc > 1 ? atoi(argv[1]) : memfd_create("steps", 0);
	if (argc == 1) {
		if (ftruncate(memory, 4096) < 0)
			abort();
		memory = fcntl(memory, F_DUPFD, 700);
		close(3);
	}
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	signal(SIGPIPE, SIG_IGN);
	if (role == 0 && processes == 2 && vfork() == 0) {
		char number[16];
		snprintf(number, sizeof(number), "%d", memory);
		execl("/proc/self/exe", argv[0], number, NULL);
		_exit(1);
	}
}

static void nonblocking(int fd)
{
	int on = 1;
	fcntl(fd, F_SETFL, O_NONBLOCK);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int listen_at(int number)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	bind(fd, (struct sockaddr *)&at, len);
	listen(fd, 8);
	getsockname(fd, (struct sockaddr *)&at, &len);
	shared->ports[number] = at.sin_port;
	return fd;
}

static void connect_to(int fd, int port, int no_wait)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	at.sin_port = port < 0 ? htons(1) : shared->ports[port];
	if (no_wait)
		nonblocking(fd);
	show(connect(fd, (struct sockaddr *)&at, sizeof(at)));
	nonblocking(fd);
}

static int accept_from(int listener)
{
	int fd = (int)show(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
	if (fd >= 0)
		nonblocking(fd);
	return fd;
}

static void empty(int fd)
{
	long n, total = 0;
	while ((n = recv(fd, room, sizeof(room), 0)) > 0)
		total += n;
	printf("%ld, then %s", total, n == 0 ? "end" : strerrorname_np(errno));
}

static void error_of(int fd)
{
	int value = 0;
	socklen_t len = sizeof(value);
	show(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len));
	printf(" %d", value);
}

static void recv_one(int fd)
{
	while (recv(fd, room, 1, 0) != 1)
		usleep(1);
}

/* Exchanges that move a stream off TCP. `other` is -1 if another process has that end. */
static void warm(int fd, int other, int is_first, int n)
{
	for (int i = 0; i < n; i++) {
		if (is_first)
			send(fd, "w", 1, 0);
		if (other >= 0) {
			recv_one(other);
			send(other, "w", 1, 0);
		}
		recv_one(fd);
		if (!is_first)
			send(fd, "w", 1, 0);
	}
}

static void fill(int fd)
{
	int size = 32768;
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	for (int i = 0; i < 30; i++) {
		while (send(fd, room, sizeof(room), MSG_NOSIGNAL) > 0)
			;
		usleep(10000);
	}
}

static void drain(int fd)
{
	for (int i = 0; i < 30; i++) {
		while (recv(fd, room, sizeof(room), 0) > 0)
			;
		usleep(10000);
	}
}

static void ctl(int set, int op, int fd, uint32_t events, uint64_t data, int is_bad)
{
	struct epoll_event event = {.events = events, .data.u64 = data};
	show(epoll_ctl(set, op, fd, is_bad ? bad : &event));
}

struct waiting {
	int set, api, most, watches, is_begun;
	long long us;
	pthread_t thread;
	char text[1024];
};

static struct waiting waits[4];
static volatile sig_atomic_t handled;

static void on_signal(int number)
{
	(void)number;
	handled++;
}

static int one_wait(const struct waiting *w, struct epoll_event *events, int api, long long us)
{
	struct timespec limit = {us / 1000000, us % 1000000 * 1000};
	int ms = us < 0 ? -1 : (int)((us + 999) / 1000);
	sigset_t none;
	sigemptyset(&none);
	switch (api) {
	case 1: return epoll_pwait(w->set, events, w->most, ms, NULL);
	case 2: return epoll_pwait(w->set, events, w->most, ms, &none);
	case 3: return epoll_pwait2(w->set, events, w->most, us < 0 ? NULL : &limit, NULL);
	case 4: return epoll_wait(w->set, bad, w->most, ms);
	default: return epoll_wait(w->set, events, w->most, ms);
	}
}

static void *do_wait(void *arg)
{
	struct waiting *w = arg;
	struct epoll_event events[8];
	w->text[0] = 0;
	/* With room for fewer events than there may be, as often as it takes to get them all. */
	for (int round = 0; round == 0 || round * w->most < w->watches; round++) {
		int n = one_wait(w, events, round ? 0 : w->api, round ? 0 : w->us);
		size_t at = strlen(w->text);
		if (n < 0)
			snprintf(w->text + at, sizeof(w->text) - at, "%s ", strerrorname_np(errno));
		else
			snprintf(w->text + at, sizeof(w->text) - at, "%d ", n);
		for (int i = 0; i < n; i++) {
			at = strlen(w->text);
			snprintf(w->text + at, sizeof(w->text) - at, "%llx:%x ",
				 (unsigned long long)events[i].data.u64, events[i].events);
		}
		if (n < w->most || w->most <= 0)
			break;
	}
	return NULL;
}

static void wait_in(int thread, int set, int api, long long us, int most, int watches, int is_begin)
{
	struct waiting *w = &waits[thread];
	struct sigaction action = {.sa_handler = on_signal};
	sigset_t one, before;
	*w = (struct waiting){.set = set, .api = api, .most = most, .watches = watches, .us = us};
	sigaction(SIGUSR2, &action, NULL);
	if (is_begin) {
		w->is_begun = 1;
		pthread_create(&w->thread, NULL, do_wait, w);
		usleep(20000);
		return;
	}
	sigemptyset(&one);
	sigaddset(&one, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &one, &before);
	handled = 0;
	if (api == 2)
		pthread_kill(pthread_self(), SIGUSR2);
	do_wait(w);
	printf("%s%s", w->text, handled ? "handled" : "");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void end_waits(void)
{
	for (int i = 0; i < 4; i++) {
		if (!waits[i].is_begun)
			continue;
		waits[i].is_begun = 0;
		while (pthread_tryjoin_np(waits[i].thread, NULL) == EBUSY) {
			pthread_kill(waits[i].thread, SIGUSR2);
			usleep(1000);
		}
		printf("[thread %d: %s]", i, waits[i].text);
	}
}

static void poll_at(int a, int b, int c, int events, int ms)
{
	enum { MANY = 80 };
	int places[3] = {a, b, c}, n = 0;
	struct pollfd p[MANY];
	for (; n < 3 && places[n] >= 0; n++)
		p[n] = (struct pollfd){.fd = f[places[n]], .events = (short)events};
	for (int i = n; i < MANY; i++)
		p[i] = (struct pollfd){.fd = -1};
	show(poll(p, events & 0x10000 ? MANY : (nfds_t)n, ms));
	for (int i = 0; i < n; i++)
		printf(" %x", (unsigned)p[i].revents);
}

static void select_at(int a, int b, int c, int which, int us)
{
	int places[3] = {a, b, c}, n = 0, most = 0;
	struct timeval limit = {.tv_usec = us};
	fd_set sets[3];
	for (int i = 0; i < 3; i++)
		FD_ZERO(&sets[i]);
	for (; n < 3 && places[n] >= 0; n++)
		for (int i = 0; i < 3; i++) {
			if (which & (1 << i))
				FD_SET(f[places[n]], &sets[i]);
			most = f[places[n]] > most ? f[places[n]] : most;
		}
	show(select(most + 1, &sets[0], &sets[1], &sets[2], &limit));
	for (int j = 0; j < n; j++)
		printf(" %d%d%d", FD_ISSET(f[places[j]], &sets[0]) != 0, FD_ISSET(f[places[j]], &sets[1]) != 0,
		       FD_ISSET(f[places[j]], &sets[2]) != 0);
}

static void arm(int fd, int stop)
{
	struct itimerspec at = {.it_value.tv_nsec = stop ? 0 : 1};
	show(timerfd_settime(fd, 0, &at, NULL));
}

static void fork_here(void)
{
	fflush(stdout);
	child = fork();
	if (child == 0)
		role += 2;
}

static void exit_child(int p, int n)
{
	if (role == p) {
		await_turn(n);
		_exit(0);
	}
	if (role == p - 2) {
		await_turn(n);
		shared->turn = n;
		waitpid(child, NULL, 0);
		printf("the child ends");
		done();
	}
}
