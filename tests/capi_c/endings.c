/* Half-close, close, reset, death, and descriptors that are used again. */
#include "check.h"

static char buf[100000];

static void half_close(void)
{
	int fds[2];

	pair(fds);
	CHECK(rsend(fds[0], "last", 4, 0) == 4);
	CHECK(rshutdown(fds[0], SHUT_WR) == 0);
	FAILS(rsend(fds[0], "x", 1, 0), ECONNRESET);
	CHECK(rrecv(fds[1], buf, 9, MSG_WAITALL) == 4);
	CHECK(rrecv(fds[1], buf, 9, 0) == 0);
	CHECK(rsend(fds[1], "answer", 6, 0) == 6);
	CHECK(rrecv(fds[0], buf, 9, 0) == 6);
	CHECK(rclose(fds[1]) == 0);
	CHECK(rrecv(fds[0], buf, 9, 0) == 0);
	CHECK(rclose(fds[0]) == 0);
}

/* COMPAT: C ignores SO_LINGER; here time zero resets, as for TCP. */
static void reset(void)
{
	struct linger none = { 1, 0 };
	int fds[2], error = 0;
	socklen_t len = sizeof(error);
	struct pollfd p;

	pair(fds);
	CHECK(rsetsockopt(fds[0], SOL_SOCKET, SO_LINGER, &none, sizeof(none)) == 0);
	CHECK(rclose(fds[0]) == 0);
	p = (struct pollfd){ .fd = fds[1], .events = POLLIN };
	CHECK(rpoll(&p, 1, -1) == 1 && (p.revents & POLLERR));
	CHECK(rgetsockopt(fds[1], SOL_SOCKET, SO_ERROR, &error, &len) == 0);
	CHECK(error == ECONNRESET);
	/* COMPAT: C reads a failed connection as a clean end. */
	FAILS(rrecv(fds[1], buf, 1, 0), ECONNRESET);
	FAILS(rsend(fds[1], buf, 1, 0), ECONNRESET);
	CHECK(rclose(fds[1]) == 0);
}

/* kill -9 while we wait, to read and to write; there is no SIGPIPE. */
static void death(int writing)
{
	struct sockaddr_in at;
	int listening = listener(&at), fd;
	pid_t pid = child();

	if (pid == 0) {
		fd = connected(&at);
		CHECK(rsend(fd, "last", 4, 0) == 4);
		CHECK(rrecv(fd, buf, 1, 0) == 1);
		kill(getpid(), SIGKILL);
	}
	fd = raccept(listening, NULL, NULL);
	CHECK(rrecv(fd, buf, 4, MSG_WAITALL) == 4);
	CHECK(rsend(fd, "!", 1, 0) == 1);
	if (writing) {
		while (rsend(fd, buf, sizeof(buf), 0) > 0)
			;
		CHECK(errno == ECONNRESET);
	} else {
		CHECK(rrecv(fd, buf, 1, 0) == 0);
	}
	FAILS(rsend(fd, "x", 1, 0), ECONNRESET);
	CHECK(status_of(pid) == SIGKILL);
	CHECK(rclose(fd) == 0 && rclose(listening) == 0);
}

/* What a process sent just before it ended arrives. */
static void exits(void)
{
	struct sockaddr_in at;
	int listening = listener(&at), fd;
	pid_t pid = child();

	if (pid == 0) {
		fd = connected(&at);
		CHECK(rsend(fd, buf, sizeof(buf), 0) == sizeof(buf));
		_exit(0);
	}
	fd = raccept(listening, NULL, NULL);
	CHECK(status_of(pid) == 0);
	CHECK(rrecv(fd, buf, sizeof(buf), MSG_WAITALL) == sizeof(buf));
	CHECK(rrecv(fd, buf, 1, 0) == 0);
	CHECK(rclose(fd) == 0 && rclose(listening) == 0);
}

/* A number that close(2) or rclose freed may name another file. */
static void numbers(void)
{
	int fds[2], file, again;

	pair(fds);
	CHECK(rclose(fds[0]) == 0);
	file = open("/dev/null", O_RDWR);
	CHECK(dup2(file, fds[0]) == fds[0]);
	FAILS(rsend(fds[0], "x", 1, 0), EBADF);
	close(file);
	close(fds[0]);

	/* Closed behind our back, then the number is a new socket's. */
	close(fds[1]);
	do {
		again = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(again >= 0 && again <= fds[1]);
	} while (again != fds[1]);
	FAILS(rsend(again, "x", 1, 0), ENOTCONN);
	CHECK(fcntl(again, F_GETFD) != -1);
	CHECK(rclose(again) == 0);
}

/* A new socket that gets this number. */
static int datagrams_at(int number)
{
	int fd;

	do {
		fd = rsocket(AF_INET, SOCK_DGRAM, 0);
		CHECK(fd >= 0 && fd <= number);
	} while (fd != number);
	return fd;
}

/* A socket whose descriptor close(2) closed leaves the next of its number alone. */
static void numbers_of_others(void)
{
	struct sockaddr_in at;
	socklen_t len = sizeof(at);
	int fds[2], fd = rsocket(AF_INET, SOCK_DGRAM, 0);

	CHECK(fd >= 0);
	for (int accepted = 0; accepted < 2; accepted++) {
		if (accepted) {
			pair(fds);
			fd = fds[1];
		}
		close(fd);
		CHECK(datagrams_at(fd) == fd);
		at = loopback(0);
		CHECK(rbind(fd, SOCKADDR(at), sizeof(at)) == 0);
		CHECK(rgetsockname(fd, SOCKADDR(at), &len) == 0);
		for (int i = 0; i < 3; i++) {
			CHECK(rsendto(fd, "hello", 5, 0, SOCKADDR(at), len) == 5);
			CHECK(rrecv(fd, buf, 9, 0) == 5);
		}
		CHECK(rclose(fd) == 0);
	}
	CHECK(rrecv(fds[0], buf, 1, 0) <= 0);
	CHECK(rclose(fds[0]) == 0);
}

struct connecting {
	int fd;
	struct sockaddr_in to;
};

static void *connects(void *arg)
{
	struct connecting *c = arg;

	CHECK(rconnect(c->fd, SOCKADDR(c->to), sizeof(c->to)) == 0);
	return NULL;
}

/* Waits for the connect as well, once that has begun. */
static void *sends(void *arg)
{
	struct connecting *c = arg;
	ssize_t n;

	do
		n = rsend(c->fd, "x", 1, 0);
	while (n == -1 && errno == ENOTCONN);
	CHECK(n == 1);
	return NULL;
}

/* Of two threads that wait for a connect, one takes the answer. */
static void connecting(void)
{
	enum { ROUNDS = 200 };
	struct connecting c;
	int listening = listener(&c.to), go[2];
	pthread_t threads[2];
	pid_t pid;
	char word;

	CHECK(pipe(go) == 0);
	pid = child();
	if (pid == 0) {
		close(go[1]);
		while (read(go[0], &word, 1) == 1) {
			int fd = raccept(listening, NULL, NULL);

			CHECK(fd >= 0 && rrecv(fd, &word, 1, 0) == 1 && rclose(fd) == 0);
		}
		_exit(0);
	}
	for (int i = 0; i < ROUNDS; i++) {
		c.fd = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(c.fd >= 0);
		CHECK(pthread_create(&threads[0], NULL, connects, &c) == 0);
		CHECK(pthread_create(&threads[1], NULL, sends, &c) == 0);
		CHECK(write(go[1], "", 1) == 1);
		for (int j = 0; j < 2; j++)
			CHECK(pthread_join(threads[j], NULL) == 0);
		CHECK(rclose(c.fd) == 0);
	}
	close(go[1]);
	CHECK(status_of(pid) == 0);
	CHECK(rclose(listening) == 0);
}

static void *client(void *at)
{
	char word[8];

	for (int i = 0; i < 30; i++) {
		int fd = connected(at);

		CHECK(rsend(fd, &i, sizeof(i), 0) == sizeof(i));
		CHECK(rrecv(fd, word, sizeof(i), MSG_WAITALL) == sizeof(i));
		CHECK(memcmp(word, &i, sizeof(i)) == 0);
		CHECK(rclose(fd) == 0);
	}
	return NULL;
}

static void *server(void *listening)
{
	char word[8];

	for (int i = 0; i < 30; i++) {
		int fd = raccept(*(int *)listening, NULL, NULL);

		CHECK(fd >= 0);
		CHECK(rrecv(fd, word, 4, MSG_WAITALL) == 4);
		CHECK(rsend(fd, word, 4, 0) == 4);
		CHECK(rclose(fd) == 0);
	}
	return NULL;
}

static void threads(void)
{
	enum { N = 4 };
	struct sockaddr_in at;
	int listening = listener(&at);
	pthread_t all[2 * N];

	for (int i = 0; i < N; i++) {
		CHECK(pthread_create(&all[i], NULL, server, &listening) == 0);
		CHECK(pthread_create(&all[N + i], NULL, client, &at) == 0);
	}
	for (int i = 0; i < 2 * N; i++)
		CHECK(pthread_join(all[i], NULL) == 0);
	CHECK(rclose(listening) == 0);
}

/* Children share their parent's listener; each serves the connections that it accepts. */
static void prefork(void)
{
	enum { CHILDREN = 3, CLIENTS = 12 };
	struct sockaddr_in at;
	int listening = listener(&at);
	pid_t pids[CHILDREN];

	for (int i = 0; i < CHILDREN; i++) {
		pids[i] = child();
		if (pids[i] == 0) {
			for (;;) {
				char word[4];
				int fd = raccept(listening, NULL, NULL);

				CHECK(fd >= 0);
				CHECK(rrecv(fd, word, 4, MSG_WAITALL) == 4);
				CHECK(rsend(fd, word, 4, 0) == 4);
				CHECK(rrecv(fd, word, 4, 0) == 0);
				CHECK(rclose(fd) == 0);
			}
		}
	}
	for (int i = 0; i < CLIENTS; i++) {
		int fd = connected(&at), word = 0;

		CHECK(rsend(fd, &i, sizeof(i), 0) == sizeof(i));
		CHECK(rrecv(fd, &word, sizeof(word), MSG_WAITALL) == sizeof(word));
		CHECK(word == i);
		CHECK(rclose(fd) == 0);
	}
	for (int i = 0; i < CHILDREN; i++) {
		kill(pids[i], SIGKILL);
		CHECK(status_of(pids[i]) == SIGKILL);
	}
	CHECK(rclose(listening) == 0);
}

int main(void)
{
	half_close();
	reset();
	death(0);
	death(1);
	exits();
	numbers();
	numbers_of_others();
	connecting();
	prefork();
	threads();
	return 0;
}
