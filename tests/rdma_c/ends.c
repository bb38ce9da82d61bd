/*
 * Two ends of rsocket(3) connections that check every byte, over the rsockets of the library that is
 * named; with "-", a program of ordinary sockets.
 *
 *     ends LIBRARY server|client ADDRESS PORT MODE
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rsock.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
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

static struct sockaddr_storage address;
static socklen_t address_len;
static int is_server;

static void set_address(const char *ip, int port)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;

	if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		address_len = sizeof(*v4);
	} else {
		CHECK(inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1);
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
		address_len = sizeof(*v6);
	}
}

/* What is asked for with RDMA_INLINE, if anything. */
static int inline_bytes = -1;

static int new_socket(void)
{
	int told = -1;
	socklen_t len = sizeof(told);
	int fd = R(rsocket, address.ss_family, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	if (inline_bytes >= 0) {
		CHECK(R(rsetsockopt, fd, SOL_RDMA, RDMA_INLINE, &inline_bytes,
			sizeof(inline_bytes)) == 0);
		CHECK(R(rgetsockopt, fd, SOL_RDMA, RDMA_INLINE, &told, &len) == 0);
		CHECK(told == inline_bytes);
	}
	return fd;
}

static int listener(void)
{
	int one = 1;
	int fd = new_socket();

	CHECK(R(rsetsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(R(rbind, fd, (struct sockaddr *)&address, address_len) == 0);
	CHECK(R(rlisten, fd, 128) == 0);
	return fd;
}

static int accepted(int from)
{
	int fd = R(raccept, from, NULL, NULL);

	CHECK(fd >= 0);
	return fd;
}

static int connected(void)
{
	int fd = new_socket();

	CHECK(R(rconnect, fd, (struct sockaddr *)&address, address_len) == 0);
	return fd;
}

/* Byte `at` of the stream that the server, or the client, sends. */
static uint8_t byte(uint64_t at, int from_server)
{
	return (uint8_t)(at * 31 + (at >> 8) * 7 + (at >> 16) + from_server);
}

static void send_all(int fd, uint64_t total, size_t step)
{
	uint8_t *buf = malloc(step);

	CHECK(buf);
	for (uint64_t at = 0; at < total;) {
		size_t want = total - at < step ? total - at : step;
		size_t done = 0;

		for (size_t i = 0; i < want; i++)
			buf[i] = byte(at + i, is_server);
		while (done < want) {
			ssize_t n = R(rsend, fd, buf + done, want - done, 0);

			CHECK(n > 0);
			done += n;
		}
		at += want;
	}
	free(buf);
}

/* Checks `total` bytes; afterwards nothing but the end, if `to_end`. */
static void receive_all(int fd, uint64_t total, size_t step, int to_end)
{
	uint8_t *buf = malloc(step);
	uint64_t at = 0;

	CHECK(buf);
	while (at < total) {
		size_t want = total - at < step ? total - at : step;
		ssize_t n = R(rrecv, fd, buf, want, 0);

		CHECK(n > 0);
		for (ssize_t i = 0; i < n; i++)
			CHECK(buf[i] == byte(at + i, !is_server));
		at += n;
	}
	if (to_end)
		CHECK(R(rrecv, fd, buf, 1, 0) == 0);
	free(buf);
}

static int n_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Tells how many descriptors there are, and goes on when told so. */
static void pause_for_inspection(void)
{
	char line[16];

	printf("descriptors %d\n", n_descriptors());
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
}

/* Connections one after the other; a look at both ends after some, and after all. */
static void connects(void)
{
	int from = is_server ? listener() : -1;

	for (int i = 0; i < 500; i++) {
		int fd;

		if (i == 20)
			pause_for_inspection();
		if (is_server) {
			fd = accepted(from);
			receive_all(fd, 32, 32, 0);
			send_all(fd, 32, 32);
			receive_all(fd, 0, 1, 1);
		} else {
			fd = connected();
			send_all(fd, 32, 32);
			receive_all(fd, 32, 32, 0);
		}
		CHECK(R(rclose, fd) == 0);
	}
	pause_for_inspection();
	if (from >= 0)
		CHECK(R(rclose, from) == 0);
}

enum { N_MANY = 64, MANY_BYTES = 5000 };

static void *serve_one(void *arg)
{
	int fd = (int)(intptr_t)arg;

	receive_all(fd, MANY_BYTES, 777, 0);
	send_all(fd, MANY_BYTES, 1234);
	receive_all(fd, 0, 1, 1);
	CHECK(R(rclose, fd) == 0);
	return NULL;
}

/* Connections that are all there at the same time, each used. */
static void many(void)
{
	pthread_t threads[N_MANY];
	int fds[N_MANY];
	int from = is_server ? listener() : -1;

	for (int i = 0; i < N_MANY; i++) {
		fds[i] = is_server ? accepted(from) : connected();
		if (is_server)
			CHECK(!pthread_create(&threads[i], NULL, serve_one, (void *)(intptr_t)fds[i]));
	}
	for (int i = 0; i < N_MANY; i++) {
		if (is_server)
			CHECK(!pthread_join(threads[i], NULL));
		else
			send_all(fds[i], MANY_BYTES, 500);
	}
	for (int i = 0; i < N_MANY && !is_server; i++)
		receive_all(fds[i], MANY_BYTES, 4096, 0);
	for (int i = 0; i < N_MANY && !is_server; i++)
		CHECK(R(rclose, fds[i]) == 0);
	if (from >= 0)
		CHECK(R(rclose, from) == 0);
}

/* One connection; the listener is not needed for long. */
static int single(void)
{
	int from, fd;

	if (!is_server)
		return connected();
	from = listener();
	fd = accepted(from);
	CHECK(R(rclose, from) == 0);
	return fd;
}

static const uint64_t TOTAL = (3 << 20) + 17;

static void *send_total(void *arg)
{
	send_all((int)(intptr_t)arg, TOTAL, 100003);
	return NULL;
}

/* Both directions at once. */
static void both(void)
{
	pthread_t sender;
	int fd = single();

	CHECK(!pthread_create(&sender, NULL, send_total, (void *)(intptr_t)fd));
	receive_all(fd, TOTAL, 65536 - 7, 0);
	CHECK(!pthread_join(sender, NULL));
	CHECK(R(rshutdown, fd, SHUT_RDWR) == 0);
	CHECK(R(rclose, fd) == 0);
}

/* One end closes its direction first; the other one reads to the end and answers then. */
static void half_close(int is_first)
{
	int fd = single();

	if (is_first) {
		send_all(fd, 300001, 10000);
		CHECK(R(rshutdown, fd, SHUT_WR) == 0);
		receive_all(fd, 200003, 30000, 1);
	} else {
		receive_all(fd, 300001, 5000, 1);
		send_all(fd, 200003, 70000);
		CHECK(R(rshutdown, fd, SHUT_WR) == 0);
	}
	CHECK(R(rclose, fd) == 0);
}

/* One end closes with data under way; the other one reads slowly, all of it. */
static void in_flight(int is_closing)
{
	int fd = single();

	if (is_closing)
		send_all(fd, 700001, 50000);
	else
		receive_all(fd, 700001, 1000, 1);
	CHECK(R(rclose, fd) == 0);
}

/* Messages of every small length to and fro, on both sides of what goes inline. */
static void small(void)
{
	int fd = single();

	for (int len = 1; len <= 200; len++) {
		if (is_server) {
			receive_all(fd, len, len, 0);
			send_all(fd, len, len);
		} else {
			send_all(fd, len, len);
			receive_all(fd, len, len, 0);
		}
	}
	CHECK(R(rshutdown, fd, SHUT_RDWR) == 0);
	CHECK(R(rclose, fd) == 0);
}

/*
 * One end closes a socket that lingers, and its process ends; the other one begins to read when told so,
 * and gets all of it. It fits into the receiver's memory: closing must not need the reader.
 */
static void lingering(int is_closing)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = 60 };
	int fd = single();

	if (is_closing) {
		CHECK(R(rsetsockopt, fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
		send_all(fd, 4003, 4003);
	} else {
		pause_for_inspection();
		receive_all(fd, 4003, 1000, 1);
	}
	CHECK(R(rclose, fd) == 0);
}

int main(int argc, char **argv)
{
	const char *mode;

	CHECK(argc == 6);
	if (strcmp(argv[1], "-")) {
		library = dlopen(argv[1], RTLD_NOW);
		if (!library)
			fprintf(stderr, "%s\n", dlerror());
		CHECK(library);
	}
	is_server = !strcmp(argv[2], "server");
	set_address(argv[3], atoi(argv[4]));
	mode = argv[5];
	if (!strcmp(mode, "connects"))
		connects();
	else if (!strcmp(mode, "many"))
		many();
	else if (!strcmp(mode, "both"))
		both();
	else if (!strcmp(mode, "client-ends-first"))
		half_close(!is_server);
	else if (!strcmp(mode, "server-ends-first"))
		half_close(is_server);
	else if (!strcmp(mode, "client-closes"))
		in_flight(!is_server);
	else if (!strcmp(mode, "server-closes"))
		in_flight(is_server);
	else if (!strcmp(mode, "client-lingers"))
		lingering(!is_server);
	else if (!strcmp(mode, "server-lingers"))
		lingering(is_server);
	else if (sscanf(mode, "inline-%d", &inline_bytes) == 1)
		small();
	else
		CHECK(!"a known mode");
	return 0;
}
