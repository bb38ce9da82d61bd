/* Non-blocking mode, rpoll and rselect. */
#include "check.h"
#include <time.h>

static char buf[65536];

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void flags(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	CHECK(rfcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
	CHECK(rfcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(rfcntl(fd, F_SETFL, 0) == 0 && rfcntl(fd, F_GETFL) == O_RDWR);
	CHECK(rfcntl(fd, F_SETFD, 0) == 0 && rfcntl(fd, F_GETFD) == 0);
	CHECK(rclose(fd) == 0);
}

static void connecting(void)
{
	struct sockaddr_in at;
	int listening = listener(&at), error = -1, fd, accepted;
	socklen_t len = sizeof(error);
	struct pollfd fds[2];

	CHECK(rfcntl(listening, F_SETFL, O_NONBLOCK) == 0);
	FAILS(raccept(listening, NULL, NULL), EAGAIN);
	fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (rconnect(fd, SOCKADDR(at), sizeof(at)) == -1)
		CHECK(errno == EINPROGRESS);
	fds[0] = (struct pollfd){ .fd = fd, .events = POLLOUT };
	fds[1] = (struct pollfd){ .fd = listening, .events = POLLIN };
	for (accepted = -1; accepted < 0 || !(fds[0].revents & POLLOUT);) {
		CHECK(rpoll(fds, 2, -1) >= 1);
		if (fds[1].revents & POLLIN)
			accepted = raccept(listening, NULL, NULL);
	}
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
	CHECK(rfcntl(accepted, F_GETFL) & O_NONBLOCK);
	FAILS(rrecv(accepted, buf, 1, 0), EAGAIN);
	CHECK(rsend(fd, "x", 1, 0) == 1);
	CHECK(rrecv(accepted, buf, 9, 0) == 1);
	CHECK(rclose(fd) == 0 && rclose(accepted) == 0 && rclose(listening) == 0);
}

static void polling(void)
{
	int fds[2], pipes[2];
	struct pollfd p[4];
	long before;

	pair(fds);
	CHECK(pipe(pipes) == 0);
	p[0] = (struct pollfd){ .fd = fds[1], .events = POLLIN };
	p[1] = (struct pollfd){ .fd = pipes[0], .events = POLLIN };
	p[2] = (struct pollfd){ .fd = -1, .events = POLLIN, .revents = 9 };
	p[3] = (struct pollfd){ .fd = fds[0], .events = POLLOUT };
	CHECK(rpoll(p, 3, 0) == 0 && p[2].revents == 0);
	CHECK(rpoll(p, 4, -1) == 1 && p[3].revents == POLLOUT);

	/* COMPAT: C's finite timeouts end early, or never. */
	before = now_ms();
	CHECK(rpoll(p, 3, 60) == 0);
	CHECK(now_ms() - before >= 59);
	CHECK(rpoll(NULL, 0, 5) == 0);

	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(rpoll(p, 3, -1) == 1 && p[1].revents == POLLIN && p[0].revents == 0);
	CHECK(rsend(fds[0], "x", 1, 0) == 1);
	CHECK(rpoll(p, 3, -1) >= 1);
	CHECK(rclose(fds[0]) == 0);
	CHECK(rrecv(fds[1], buf, 1, 0) == 1);
	CHECK(rpoll(p, 1, -1) == 1);
	CHECK(p[0].revents == (POLLIN | POLLHUP));
	CHECK(rclose(fds[1]) == 0);
	close(pipes[0]);
	close(pipes[1]);
}

/* COMPAT: C's rselect never looks at descriptor 0. */
static void selecting(void)
{
	struct timeval none = { 0, 0 }, short_time = { 0, 20000 };
	int fds[2], pipes[2], most;
	fd_set in, out;

	pair(fds);
	CHECK(pipe(pipes) == 0);
	CHECK(dup2(pipes[0], 0) == 0);
	most = fds[0] > fds[1] ? fds[0] : fds[1];
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(0, &in);
	FD_SET(fds[1], &in);
	FD_SET(fds[0], &out);
	CHECK(rselect(most + 1, &in, &out, NULL, NULL) == 1);
	CHECK(!FD_ISSET(0, &in) && !FD_ISSET(fds[1], &in) && FD_ISSET(fds[0], &out));

	CHECK(write(pipes[1], "x", 1) == 1);
	FD_SET(0, &in);
	FD_SET(fds[1], &in);
	CHECK(rselect(most + 1, &in, NULL, NULL, NULL) == 1 && FD_ISSET(0, &in));

	CHECK(rsend(fds[0], "x", 1, 0) == 1);
	FD_SET(fds[1], &in);
	CHECK(rselect(most + 1, &in, &out, NULL, &none) == 3);
	CHECK(FD_ISSET(0, &in) && FD_ISSET(fds[1], &in) && FD_ISSET(fds[0], &out));

	FD_ZERO(&in);
	FD_SET(fds[0], &in);
	CHECK(rselect(most + 1, &in, NULL, NULL, &short_time) == 0);
	CHECK(!FD_ISSET(fds[0], &in));
	FD_SET(900, &in);
	FAILS(rselect(901, &in, NULL, NULL, &none), EBADF);
	CHECK(rclose(fds[0]) == 0 && rclose(fds[1]) == 0);
}

/* A poll that sleeps is woken by another process. */
static void woken(void)
{
	struct sockaddr_in at;
	int listening = listener(&at), fd;
	struct pollfd p = { .fd = listening, .events = POLLIN };
	pid_t pid = child();

	if (pid == 0) {
		fd = connected(&at);
		p = (struct pollfd){ .fd = fd, .events = POLLIN };
		for (int i = 0; i < 200; i++) {
			CHECK(rpoll(&p, 1, -1) == 1 && p.revents == POLLIN);
			CHECK(rrecv(fd, buf, sizeof(buf), 0) == 1);
			if (i % 50 == 0)
				usleep(20000);
			CHECK(rsend(fd, buf, 1, 0) == 1);
		}
		_exit(0);
	}
	CHECK(rpoll(&p, 1, -1) == 1);
	fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0);
	p.fd = fd;
	for (int i = 0; i < 200; i++) {
		CHECK(rsend(fd, buf, 1, 0) == 1);
		CHECK(rpoll(&p, 1, -1) == 1 && p.revents == POLLIN);
		CHECK(rrecv(fd, buf, sizeof(buf), 0) == 1);
	}
	CHECK(status_of(pid) == 0);
	CHECK(rpoll(&p, 1, -1) == 1 && p.revents == (POLLIN | POLLHUP));
	CHECK(rclose(fd) == 0 && rclose(listening) == 0);
}

int main(void)
{
	flags();
	connecting();
	polling();
	selecting();
	woken();
	return 0;
}
