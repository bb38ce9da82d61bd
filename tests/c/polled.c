/* Each end polls many connections, a few of which are busy all the time. What happens on the others
 * is reported, although few of them are looked at by each call: what the peer does (`many`), and what
 * this process does itself (`here`, `forked`, `handlers`, `limits`). */
#include "common.h"
#include <dirent.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { N = 80, BUSY = 4, ROUNDS = 450, GAP = 40 };

static struct pollfd all[N];

/* What the server is asked to do, beside sending the message back. */
enum { NOTHING, SEND_ON, CLOSE, SHUT, RESET };

struct message {
	uint32_t round;
	/* What to do, and with which connection. */
	uint16_t what, which;
};

/* One by one, since a server need not accept connections in the order in which they are made. `turns`
 * is a further connection. */
static void connect_all(int turns, int is_server)
{
	for (int i = 0; i < N; i++) {
		all[i] = (struct pollfd){.fd = prepared_connection(is_server), .events = POLLIN};
		if (is_server)
			tell(turns);
		else
			hear(turns);
	}
}

static void close_all(void)
{
	for (int i = 0; i < N; i++)
		if (all[i].fd >= 0)
			CHECK(close(all[i].fd) == 0);
}

/* Ends connection `i` in a way, or sends a byte on it. */
static void act(int what, int i)
{
	switch (what) {
	case SEND_ON:
		put(all[i].fd, "!", 1);
		return;
	case CLOSE:
		CHECK(close(all[i].fd) == 0);
		break;
	case SHUT:
		CHECK(shutdown(all[i].fd, SHUT_WR) == 0);
		return;
	case RESET:
		close_with_reset(all[i].fd);
		break;
	default:
		return;
	}
	all[i].fd = -1;
}

/* Whether `select` is used for `poll`. */
static int is_selecting;

/* Waits for input on all. */
static void await_input(void)
{
	if (!is_selecting) {
		CHECK(poll(all, N, -1) > 0);
		return;
	}
	fd_set input;
	int most = -1;
	FD_ZERO(&input);
	for (int i = 0; i < N; i++)
		if (all[i].fd >= 0) {
			FD_SET(all[i].fd, &input);
			most = all[i].fd > most ? all[i].fd : most;
		}
	CHECK(select(most + 1, &input, NULL, NULL, NULL) > 0);
	for (int i = 0; i < N; i++)
		all[i].revents = all[i].fd >= 0 && FD_ISSET(all[i].fd, &input) ? POLLIN : 0;
}

/* How each connection ended: 0 if it has not, 1 by an end, 2 by a reset. */
static int ended[N];
/* Bytes that came on each but the busy ones. */
static int single[N];

/* Takes what is there on a connection that is not busy. */
static void take(int i)
{
	char byte;
	ssize_t n = recv(all[i].fd, &byte, 1, MSG_DONTWAIT);
	if (n == 1) {
		CHECK(byte == '!');
		single[i]++;
		return;
	}
	CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
	ended[i] = n == 0 ? 1 : 2;
	CHECK(close(all[i].fd) == 0);
	all[i].fd = -1;
}

static int is_done(void)
{
	for (int i = 0; i < N; i++)
		if (all[i].fd >= 0)
			return 0;
	return 1;
}

/* Shows what happened on connections that have not ended in the `usual` way, or had bytes. */
static void show(int usual)
{
	for (int i = BUSY; i < N; i++)
		if (ended[i] != usual || single[i])
			printf("%d: end %d, bytes %d\n", i, ended[i], single[i]);
}

static void many_server(int fd)
{
	struct message m;
	connect_all(fd, 1);
	while (!is_done()) {
		await_input();
		for (int i = BUSY; i < N; i++)
			if (all[i].fd >= 0 && all[i].revents)
				take(i);
		for (int i = 0; i < BUSY; i++) {
			if (all[i].fd < 0 || !all[i].revents)
				continue;
			char first;
			if (recv(all[i].fd, &first, 1, MSG_PEEK) == 0) {
				CHECK(close(all[i].fd) == 0);
				all[i].fd = -1;
				continue;
			}
			get(all[i].fd, &m, sizeof(m));
			act(m.what, m.which);
			put(all[i].fd, &m, sizeof(m));
		}
	}
	show(1);
}

/* What happens, and by which end, on connections of their own. */
static const struct { int by_server, what; } EVENTS[] = {
	{0, SEND_ON}, {1, SEND_ON}, {0, CLOSE}, {1, CLOSE}, {0, SHUT}, {1, SHUT}, {0, RESET},
	{1, RESET}, {1, SEND_ON}, {0, SEND_ON},
};

/* One round of the busy connections. */
static void round_of(uint32_t round, int what, int which)
{
	int left = 0;
	for (int i = 0; i < BUSY; i++) {
		struct message m = {.round = round * BUSY + i, .what = NOTHING};
		if (i == (int)(round % BUSY) && what != NOTHING) {
			m.what = what;
			m.which = which;
		}
		put(all[i].fd, &m, sizeof(m));
		left++;
	}
	while (left > 0) {
		await_input();
		for (int i = BUSY; i < N; i++)
			if (all[i].fd >= 0 && all[i].revents)
				take(i);
		for (int i = 0; i < BUSY; i++)
			if (all[i].revents) {
				struct message m;
				get(all[i].fd, &m, sizeof(m));
				CHECK(m.round == round * BUSY + i);
				left--;
			}
	}
}

static void many_client(int fd)
{
	uint32_t round = 0;
	connect_all(fd, 0);
	for (size_t event = 0; event < COUNT(EVENTS); event++) {
		int which = BUSY + 7 * (int)event;
		for (int i = 0; i < GAP; i++)
			round_of(round++, NOTHING, 0);
		if (EVENTS[event].by_server)
			round_of(round++, EVENTS[event].what, which);
		else
			act(EVENTS[event].what, which);
		/* The busy ones go on until this end has seen what the other has done. */
		while (EVENTS[event].by_server && all[which].fd >= 0 && !single[which])
			round_of(round++, NOTHING, 0);
	}
	while (round < ROUNDS)
		round_of(round++, NOTHING, 0);
	/* Nothing but what happened was reported. */
	show(0);
	close_all();
}

static void selected_client(int fd)
{
	is_selecting = 1;
	many_client(fd);
}

static void selected_server(int fd)
{
	is_selecting = 1;
	many_server(fd);
}

/* Rounds after which the others have been found quiet often. */
static uint32_t settle(uint32_t round)
{
	for (int i = 0; i < 60; i++)
		round_of(round++, NOTHING, 0);
	return round;
}

/* Has the server do something, which it has done when this returns. */
static void ask(int what, int which)
{
	struct message m = {.what = what, .which = which};
	put(all[0].fd, &m, sizeof(m));
	get(all[0].fd, &m, sizeof(m));
}

/* A thread that polls all connections but the busy ones. */
struct poller {
	pthread_t thread;
	_Atomic pid_t id;
	struct pollfd all[N];
	int limit, n, error;
};

static void *poll_all(void *arg)
{
	struct poller *p = arg;
	p->id = (pid_t)syscall(SYS_gettid);
	p->n = poll(p->all, N, p->limit);
	p->error = errno;
	return NULL;
}

/* Starts it; returns when it sleeps. */
static void start(struct poller *p, int limit)
{
	p->id = 0;
	p->limit = limit;
	memcpy(p->all, all, sizeof(all));
	/* The server answers on these what it is asked for. */
	for (int i = 0; i < BUSY; i++)
		p->all[i].fd = -1;
	CHECK(pthread_create(&p->thread, NULL, poll_all, p) == 0);
	while (!p->id)
		sched_yield();
	await_sleep(p->id);
}

/* Shows what it has found, of connection `i` and of the others. */
static void finish(struct poller *p, const char *what, int i)
{
	CHECK(pthread_join(p->thread, NULL) == 0);
	int others = 0;
	for (int j = 0; j < N; j++)
		others += j != i && p->all[j].revents != 0;
	printf("%s: %d %s, revents %x, others %d\n", what, p->n, p->n < 0 ? errno_name(p->error) : "-",
	       (unsigned)p->all[i].revents, others);
}

static void take_one(int fd)
{
	char byte = 0;
	CHECK(recv(fd, &byte, 1, 0) == 1 && byte == '!');
}

static void on_signal(int number)
{
	(void)number;
}

static void here_client(int fd)
{
	static struct poller first, second;
	uint32_t round = 0;
	struct sigaction action = {.sa_handler = on_signal};
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	connect_all(fd, 0);
	round = settle(round);

	start(&first, -1);
	ask(SEND_ON, 10);
	finish(&first, "asleep", 10);
	take_one(all[10].fd);

	start(&first, -1);
	start(&second, -1);
	ask(SEND_ON, 11);
	finish(&first, "one of two", 11);
	finish(&second, "the other", 11);
	take_one(all[11].fd);

	start(&first, -1);
	CHECK(pthread_kill(first.thread, SIGUSR1) == 0);
	finish(&first, "interrupted", 12);
	start(&first, 20);
	finish(&first, "late", 12);
	all[12].events = POLLIN | POLLPRI;
	CHECK(poll(all, N, 0) == 0);
	all[12].events = POLLIN | POLLOUT;
	printf("for output: %d", poll(all, N, -1));
	printf(" %x\n", (unsigned)all[12].revents);
	all[12].events = POLLIN;

	/* Another number of the same connection, which takes the place of the first. */
	round = settle(round);
	int copy = dup(all[13].fd);
	CHECK(copy >= 0);
	start(&first, -1);
	ask(SEND_ON, 13);
	finish(&first, "copied", 13);
	take_one(copy);
	round = settle(round);
	CHECK(close(all[13].fd) == 0);
	all[13].fd = copy;
	start(&first, -1);
	ask(SEND_ON, 13);
	finish(&first, "by the copy", 13);
	take_one(copy);

	/* Another connection by the same number. */
	round = settle(round);
	int number = all[14].fd, pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(close(number) == 0);
	CHECK(dup2(pair[0], number) == number);
	round = settle(round);
	start(&first, -1);
	put(pair[1], "!", 1);
	finish(&first, "another file", 14);
	take_one(number);
	/* A connection in place of one that is still open. */
	CHECK(dup2(all[15].fd, number) == number);
	all[15].fd = -1;
	round = settle(round);
	start(&first, -1);
	ask(SEND_ON, 15);
	finish(&first, "another connection", 14);
	take_one(number);

	/* A set that watches it, too. */
	round = settle(round);
	int set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0);
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = 16};
	start(&first, -1);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, all[16].fd, &event) == 0);
	ask(SEND_ON, 16);
	finish(&first, "also in a set", 16);
	event.data.u32 = 0;
	CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u32 == 16);
	take_one(all[16].fd);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, all[16].fd, NULL) == 0);
	round = settle(round);
	start(&first, -1);
	ask(SEND_ON, 16);
	finish(&first, "no more in a set", 16);
	take_one(all[16].fd);

	/* A set that begins to watch a connection, of which it reports nothing. */
	all[20].fd = -all[20].fd;
	struct pollfd before = all[21];
	all[21].fd = epoll_create1(EPOLL_CLOEXEC);
	CHECK(all[21].fd >= 0);
	start(&first, 50);
	event = (struct epoll_event){.events = EPOLLPRI};
	CHECK(epoll_ctl(all[21].fd, EPOLL_CTL_ADD, -all[20].fd, &event) == 0);
	ask(SEND_ON, 20);
	finish(&first, "beside a set", 21);
	CHECK(close(all[21].fd) == 0);
	all[20].fd = -all[20].fd;
	take_one(all[20].fd);
	all[21] = before;

	/* Ends. */
	start(&first, -1);
	CHECK(shutdown(all[17].fd, SHUT_RD) == 0);
	finish(&first, "shut here", 17);
	all[17].events = 0;
	round = settle(round);
	start(&first, -1);
	ask(CLOSE, 18);
	finish(&first, "closed there", 18);
	CHECK(close(all[18].fd) == 0);
	all[18].fd = -1;
	all[19].events = POLLIN | POLLRDHUP;
	round = settle(round);
	start(&first, -1);
	ask(SHUT, 19);
	finish(&first, "shut there", 19);
	close_all();
}

static int n_fds(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Descriptors of the library in a process, and in children of children that poll too. */
static void grow_up(uint32_t round)
{
	round = settle(round);
	int n = n_fds();
	for (int i = 0; i < 5; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child) {
			int status;
			CHECK(waitpid(child, &status, 0) == child);
			if (i)
				_exit(WEXITSTATUS(status));
			printf("children have more descriptors: %d\n", WEXITSTATUS(status));
			return;
		}
		round = settle(round);
	}
	_exit(n_fds() > n);
}

static void forked_client(int fd)
{
	static struct poller first;
	uint32_t round = 0;
	connect_all(fd, 0);
	round = settle(round);
	int go[2];
	CHECK(pipe(go) == 0);
	start(&first, -1);
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		hear(go[0]);
		/* The first poll of the child, and one after its own rounds. */
		CHECK(poll(all, N, -1) == 1 && all[20].revents == POLLIN);
		take_one(all[20].fd);
		settle(round);
		ask(SEND_ON, 21);
		CHECK(poll(all, N, -1) == 1 && all[21].revents == POLLIN);
		take_one(all[21].fd);
		_exit(0);
	}
	ask(SEND_ON, 20);
	finish(&first, "in the parent", 20);
	tell(go[1]);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	round = settle(round);
	start(&first, -1);
	ask(SEND_ON, 22);
	finish(&first, "afterwards", 22);
	take_one(all[22].fd);
	grow_up(round);
	for (int i = 0; i < N; i++)
		CHECK(close(all[i].fd) == 0);
}

static volatile sig_atomic_t next_closed;

static void close_next(int number)
{
	(void)number;
	if (next_closed < N)
		close(all[next_closed++].fd);
}

static sigjmp_buf out;

static void jump(int number)
{
	(void)number;
	siglongjmp(out, 1);
}

/* Handlers close connections while the program allocates memory, and leave `poll` by a jump. */
static void handlers_client(int fd)
{
	static struct poller first;
	static uint32_t round;
	connect_all(fd, 0);
	round = settle(round);
	struct sigaction action = {.sa_handler = jump};
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	static int n;
	for (volatile int i = 0; i < 12; i++) {
		struct itimerval soon = {.it_value.tv_usec = 3000};
		if (!sigsetjmp(out, 1)) {
			CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
			poll(all, N, -1);
		}
		round = settle(round);
		/* By now the connections have moved as far as they do. */
		n = i == 4 ? n_fds() : n;
	}
	/* Each of the seven jumps loses a doorbell, and each end may have got a pipe meanwhile. */
	printf("descriptors of the set lost by jumps: %d\n", n_fds() > n + 12);
	action.sa_handler = close_next;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	next_closed = N / 2;
	struct itimerval often = {.it_value.tv_usec = 200, .it_interval.tv_usec = 200};
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	void *blocks[64] = {0};
	for (unsigned i = 0; next_closed < N; i++) {
		free(blocks[i % 64]);
		blocks[i % 64] = malloc(i * 7919 % 5000);
	}
	CHECK(signal(SIGALRM, SIG_IGN) != SIG_ERR);
	for (int i = N / 2; i < N; i++)
		all[i].fd = -1;
	round = settle(round);
	start(&first, -1);
	ask(SEND_ON, 10);
	finish(&first, "after handlers", 10);
	close_all();
}

static volatile sig_atomic_t n_handled;

static void on_pending(int number)
{
	(void)number;
	n_handled++;
}

static void limits_client(int fd)
{
	uint32_t round = 0;
	connect_all(fd, 0);
	round = settle(round);
	/* As many entries as there may be descriptors, none of which is passed over; and more. */
	struct rlimit before, now;
	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	now = before;
	now.rlim_cur = N;
	for (int i = 0; i < N; i++)
		all[i].events = POLLPRI;
	CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
	SHOW(poll(all, N, 0));
	SHOW(poll(all, N, 2));
	now.rlim_cur = N - 1;
	CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
	SHOW(poll(all, N, 0));
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
	for (int i = 0; i < N; i++)
		all[i].events = POLLIN;
	round = settle(round);

	/* A signal that waits until the mask of the call lets it through. */
	struct sigaction action = {.sa_handler = on_pending};
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	sigset_t blocked, none;
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
	static const long TIMES[] = {0, 1, 1000000, 999999999};
	for (size_t i = 0; i < COUNT(TIMES); i++) {
		struct timespec time = {.tv_nsec = TIMES[i]};
		CHECK(raise(SIGUSR1) == 0);
		SHOW(ppoll(all, N, &time, &none));
		SHOW(n_handled);
		CHECK(raise(SIGUSR1) == 0);
		SHOW(ppoll(all, 10, &time, &none));
	}
	for (int i = 0; i < N; i++)
		CHECK(close(all[i].fd) == 0);
}

static const struct part PARTS[] = {
	{"handlers", handlers_client, many_server},
	{"limits", limits_client, many_server},
	{"many", many_client, many_server},
	{"selected", selected_client, selected_server},
	{"here", here_client, many_server},
	{"forked", forked_client, many_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
