/*
 * One end of a quiet connection of rsocket(3), over the rsockets of the library that is named; with "-", of
 * ordinary sockets.
 *
 *     keepalive LIBRARY serve ADDRESS PORT     takes connections, and says nothing on any of them
 *     keepalive LIBRARY HOW ADDRESS PORT       connects, asks for keepalive, and waits: HOW is read or poll
 *
 * The second says how the wait ended.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <rsock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../capi_c/expect.h"

static void *library;

static void *symbol(const char *name)
{
	/* What rsocket(3) has is named after what sockets have. */
	void *found = library ? dlsym(library, name) : dlsym(RTLD_DEFAULT, name + 1);

	CHECK(found);
	return found;
}

/* Calls the library's function of this name and type. */
#define R(name, ...) ((__typeof__(&name))symbol(#name))(__VA_ARGS__)

static void set(int fd, int level, int name, int value)
{
	CHECK(R(rsetsockopt, fd, level, name, &value, sizeof(value)) == 0);
}

static void serve(int listener, struct sockaddr_in *at)
{
	set(listener, SOL_SOCKET, SO_REUSEADDR, 1);
	CHECK(R(rbind, listener, (struct sockaddr *)at, sizeof(*at)) == 0);
	CHECK(R(rlisten, listener, 8) == 0);
	puts("listening");
	for (;;)
		CHECK(R(raccept, listener, NULL, NULL) >= 0);
}

static void wait_quietly(int fd, const char *how)
{
	char byte;
	ssize_t n;

	if (strcmp(how, "poll") == 0) {
		struct pollfd entry = { fd, POLLIN, 0 };

		CHECK(R(rpoll, &entry, 1, -1) == 1);
	}
	n = R(rrecv, fd, &byte, 1, 0);
	puts(n < 0 ? strerrorname_np(errno) : n == 0 ? "the end" : "a byte");
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int fd;

	CHECK(argc == 5);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (strcmp(argv[1], "-") != 0) {
		library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
		CHECK(library);
	}
	CHECK(inet_pton(AF_INET, argv[3], &at.sin_addr) == 1);
	at.sin_port = htons(atoi(argv[4]));
	fd = R(rsocket, AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	if (strcmp(argv[2], "serve") == 0)
		serve(fd, &at);
	CHECK(R(rconnect, fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2);
	set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	puts("connected");
	wait_quietly(fd, argv[2]);
	return 0;
}
