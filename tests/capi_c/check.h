/* What the C tests share: checks that say where they failed, and connected pairs. */
#ifndef CHECK_H
#define CHECK_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <rsock.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "expect.h"

/* The call fails, and with that errno. */
#define FAILS(call, number)                                                    \
	do {                                                                   \
		errno = 0;                                                     \
		CHECK((call) == -1);                                           \
		CHECK(errno == (number));                                      \
	} while (0)

static inline struct sockaddr_in loopback(uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return at;
}

#define SOCKADDR(at) ((struct sockaddr *)&(at))

/* A port that no other program takes, even while this one does not use it. */
static inline uint16_t own_port(void)
{
	const char *port = getenv("OWN_PORT");

	CHECK(port != NULL);
	return (uint16_t)atoi(port);
}

/* A listener on a port of the loopback address: any free one if it is 0. */
static inline int listener_at(struct sockaddr_in *at, uint16_t port)
{
	socklen_t len = sizeof(*at);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	*at = loopback(port);
	CHECK(rbind(fd, SOCKADDR(*at), sizeof(*at)) == 0);
	CHECK(rlisten(fd, 16) == 0);
	CHECK(rgetsockname(fd, SOCKADDR(*at), &len) == 0);
	CHECK(len == sizeof(*at) && at->sin_port != 0);
	return fd;
}

static inline int listener(struct sockaddr_in *at)
{
	return listener_at(at, 0);
}

static inline int connected(const struct sockaddr_in *at)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);

	CHECK(fd >= 0);
	CHECK(rconnect(fd, (const struct sockaddr *)at, sizeof(*at)) == 0);
	return fd;
}

/* A connected pair in one process: the connecting end, then the accepted one. */
static inline void pair(int fds[2])
{
	struct sockaddr_in at;
	int listening = listener(&at);

	fds[0] = connected(&at);
	fds[1] = raccept(listening, NULL, NULL);
	CHECK(fds[1] >= 0);
	CHECK(rclose(listening) == 0);
}

/* A child that does not outlive us. */
static inline pid_t child(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static inline int status_of(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

#endif
