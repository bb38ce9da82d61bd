/* A stream is sent back to TCP at every kind of moment, by everything that does so: no byte is
 * lost, doubled or out of place. */
#include "common.h"
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

enum { KINDS = 4, MOST = 200000 };

/* What the ring cannot honour. */
static void force(int fd, int kind)
{
	int on = 1, status;
	switch (kind) {
	case 0:
		CHECK(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof(on)) == 0);
		return;
	case 1: {
		struct epoll_event event = {.events = EPOLLIN};
		int set = epoll_create1(EPOLL_CLOEXEC);
		CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
		CHECK(close(set) == 0);
		return;
	}
	case 2: {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0)
			_exit(0);
		CHECK(waitpid(child, &status, 0) == child);
		return;
	}
	default: {
		int before = dup(STDIN_FILENO);
		CHECK(before >= 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO);
		CHECK(dup2(before, STDIN_FILENO) == STDIN_FILENO && close(before) == 0);
	}
	}
}

/* Which ends force: bit 0 the client, bit 1 the server. */
static int forces(int ends, int is_server)
{
	return ends >> is_server & 1;
}

/* Every way to force, by each end and by both, each on a connection of its own. */
static void each(int is_server, void (*moment)(int fd, int is_server, int ends, int kind))
{
	for (int kind = 0; kind < KINDS; kind++)
		for (int ends = 1; ends <= 3; ends++) {
			int fd = prepared_connection(is_server);
			moment(fd, is_server, ends, kind);
			CHECK(shutdown(fd, SHUT_WR) == 0 || errno == ENOTCONN);
			printf("way %d by %d: ", kind, ends);
			show_end(fd);
			CHECK(close(fd) == 0);
		}
}

static size_t draw(struct pattern *sizes, size_t left)
{
	size_t n = 1 + next_random(sizes) % (1u << next_random(sizes) % 18);
	return n < left ? n : left;
}

/* When `at` bytes of a transfer have passed, `reached` is posted. */
struct transfer {
	int fd;
	size_t total, at;
	uint64_t seed;
	sem_t *reached;
};

static void *send_random(void *argument)
{
	struct transfer *t = argument;
	struct pattern sizes = pattern_of(t->seed);
	unsigned char *buf = malloc(MOST);
	for (size_t done = 0; done < t->total;) {
		if (t->reached && done >= t->at) {
			CHECK(sem_post(t->reached) == 0);
			t->reached = NULL;
		}
		size_t n = draw(&sizes, t->total - done);
		fill_stream(buf, n, t->seed, done);
		put(t->fd, buf, n);
		done += n;
	}
	free(buf);
	return NULL;
}

static void *recv_random(void *argument)
{
	struct transfer *t = argument;
	struct pattern sizes = pattern_of(t->seed + 1000);
	unsigned char *buf = malloc(MOST);
	for (size_t done = 0; done < t->total;) {
		if (t->reached && done >= t->at) {
			CHECK(sem_post(t->reached) == 0);
			t->reached = NULL;
		}
		ssize_t n = read(t->fd, buf, draw(&sizes, t->total - done));
		CHECK(n > 0);
		check_stream(buf, (size_t)n, t->seed, done);
		done += (size_t)n;
	}
	free(buf);
	return NULL;
}

static pthread_t start(void *(*run)(void *), void *argument)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, run, argument) == 0);
	return thread;
}

static void join(pthread_t thread)
{
	CHECK(pthread_join(thread, NULL) == 0);
}

/* There and back, to see that the stream is whole. */
static void there_and_back(int fd, int is_server, uint64_t seed)
{
	if (is_server)
		get_stream(fd, 60000, seed);
	put_stream(fd, 60000, seed);
	if (!is_server)
		get_stream(fd, 60000, seed);
}

static void first(int fd, int is_server, int ends, int kind)
{
	if (forces(ends, is_server))
		force(fd, kind);
	there_and_back(fd, is_server, 1);
	if (is_warm)
		warm_up(fd, is_server);
}

static void first_byte(int unused, int is_server)
{
	(void)unused;
	int warm = is_warm;
	for (is_warm = 0; is_warm <= warm; is_warm++)
		each(is_server, first);
}

/* The client writes, the server reads, and one end or both force meanwhile. */
static void writing(int fd, int is_server, int ends, int kind)
{
	sem_t reached;
	CHECK(sem_init(&reached, 0, 0) == 0);
	struct transfer t = {
		.fd = fd,
		.total = 1500000,
		.at = (size_t)(100000 + 300000 * kind + 50000 * ends),
		.seed = 7,
		.reached = forces(ends, is_server) ? &reached : NULL,
	};
	int is_forcing = t.reached != NULL;
	pthread_t thread = start(is_server ? recv_random : send_random, &t);
	if (is_forcing) {
		while (sem_wait(&reached) < 0)
			CHECK(errno == EINTR);
		force(fd, kind);
	}
	join(thread);
	there_and_back(fd, is_server, 2);
}

static void mid_write(int unused, int is_server)
{
	(void)unused;
	each(is_server, writing);
}

/* Both ends write and read at once. */
static void flowing(int fd, int is_server, int ends, int kind)
{
	sem_t reached;
	CHECK(sem_init(&reached, 0, 0) == 0);
	struct transfer out = {.fd = fd, .total = 1000000, .seed = is_server ? 3 : 4};
	struct transfer in = {.fd = fd, .total = 1000000, .seed = is_server ? 4 : 3};
	struct transfer *t = kind % 2 ? &in : &out;
	t->at = (size_t)(1 + 200000 * kind + 30000 * ends);
	t->reached = forces(ends, is_server) ? &reached : NULL;
	int is_forcing = t->reached != NULL;
	pthread_t sender = start(send_random, &out), receiver = start(recv_random, &in);
	if (is_forcing) {
		while (sem_wait(&reached) < 0)
			CHECK(errno == EINTR);
		force(fd, kind);
	}
	join(sender);
	join(receiver);
	there_and_back(fd, is_server, 5);
}

static void both_directions(int unused, int is_server)
{
	(void)unused;
	each(is_server, flowing);
}

/* A thread of the client sleeps in recv. */
struct sleeper {
	int fd;
	sem_t begun;
	pid_t thread;
};

static void *sleep_in_recv(void *argument)
{
	struct sleeper *s = argument;
	s->thread = (pid_t)syscall(SYS_gettid);
	CHECK(sem_post(&s->begun) == 0);
	get_stream(s->fd, 100000, 6);
	return NULL;
}

static void sleeping(int fd, int is_server, int ends, int kind)
{
	if (is_server) {
		hear(fd);
		if (forces(ends, 1))
			force(fd, kind);
		put_stream(fd, 100000, 6);
	} else {
		struct sleeper s = {.fd = fd};
		CHECK(sem_init(&s.begun, 0, 0) == 0);
		pthread_t thread = start(sleep_in_recv, &s);
		while (sem_wait(&s.begun) < 0)
			CHECK(errno == EINTR);
		await_sleep(s.thread);
		if (forces(ends, 0))
			force(fd, kind);
		tell(fd);
		join(thread);
	}
	there_and_back(fd, is_server, 7);
}

static void blocked_recv(int unused, int is_server)
{
	(void)unused;
	each(is_server, sleeping);
}

/* Bytes that are unread. */
static void unreading(int fd, int is_server, int ends, int kind)
{
	if (is_server) {
		put_stream(fd, 30000, 8);
		hear(fd);
		if (forces(ends, 1))
			force(fd, kind);
		unsigned char rest[50000];
		fill_stream(rest, sizeof(rest), 8, 30000);
		put(fd, rest, sizeof(rest));
	} else {
		await_bytes(fd, 30000);
		if (forces(ends, 0))
			force(fd, kind);
		tell(fd);
		get_stream(fd, 80000, 8);
	}
	there_and_back(fd, is_server, 9);
}

static void unread(int unused, int is_server)
{
	(void)unused;
	each(is_server, unreading);
}

/* The client has ended its direction. */
static void half_closed(int fd, int is_server, int ends, int kind)
{
	char c;
	if (is_server) {
		get_stream(fd, 5000, 10);
		CHECK(read(fd, &c, 1) == 0);
		if (forces(ends, 1))
			force(fd, kind);
		put_stream(fd, 1000000, 11);
	} else {
		put_stream(fd, 5000, 10);
		CHECK(shutdown(fd, SHUT_WR) == 0);
		if (forces(ends, 0))
			force(fd, kind);
		get_stream(fd, 1000000, 11);
	}
}

static void half_close(int unused, int is_server)
{
	(void)unused;
	each(is_server, half_closed);
}

#define PART(name) \
	static void name##_client(int fd) { name(fd, 0); } \
	static void name##_server(int fd) { name(fd, 1); }

PART(first_byte)
PART(mid_write)
PART(both_directions)
PART(blocked_recv)
PART(unread)
PART(half_close)

static const struct part PARTS[] = {
	{"first_byte", first_byte_client, first_byte_server},
	{"mid_write", mid_write_client, mid_write_server},
	{"both_directions", both_directions_client, both_directions_server},
	{"blocked_recv", blocked_recv_client, blocked_recv_server},
	{"unread", unread_client, unread_server},
	{"half_close", half_close_client, half_close_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
