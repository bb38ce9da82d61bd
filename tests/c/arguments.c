/* Arguments that the kernel refuses, or takes in a way of its own. */
#include "asleep.h"
#include <limits.h>

enum { MANY = 1024 };

static unsigned char room[20000];

static void idle_server(int fd)
{
	put_stream(fd, 10, 1);
	hear(fd);
	show_end(fd);
}

/* `read` and `write` refuse memory that does not end in user space; nothing else looks at all of it. */
static void ranges_client(int fd)
{
	static const size_t LENGTHS[] = {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2 + 1};
	/* The compiler is not to see how much room there is. */
	unsigned char *volatile at = room;
	await_bytes(fd, 10);
	for (size_t i = 0; i < COUNT(LENGTHS); i++) {
		struct iovec iov[2] = {{room, 1}, {room, LENGTHS[i]}};
		SHOW(read(fd, at, LENGTHS[i]));
		SHOW(write(fd, at, LENGTHS[i]));
		SHOW(readv(fd, iov, 2));
		SHOW(writev(fd, iov, 2));
	}
	/* Kernels differ. */
	set_nonblocking(fd, 1);
	SHOW(read(fd, at, (size_t)1 << 62));
	SHOW(read(fd, at, (size_t)1 << 50));
	SHOW(read(fd, at, (size_t)1 << 31));
	set_nonblocking(fd, 0);
	tell(fd);
}

/* The lengths of vectors that a thread with the smallest stack sends, and receives. */
static const int LENGTHS[] = {16, 17, 64, 65, MANY};
static int stream;

/* Every third entry is empty, and every sixth is at no address. */
static size_t split(struct iovec *iov, int n)
{
	size_t at = 0;
	for (int i = 0; i < n; i++) {
		iov[i] = (struct iovec){i % 6 == 5 ? NULL : room + at, i % 3 == 2 ? 0 : 1 + (size_t)i % 7};
		at += iov[i].iov_len;
	}
	return at;
}

static void *send_many(void *unused)
{
	static struct iovec iov[MANY];
	for (size_t i = 0; i < COUNT(LENGTHS); i++) {
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)LENGTHS[i]};
		size_t n = split(iov, LENGTHS[i]);
		fill_stream(room, n, 1, 0);
		SHOW(writev(stream, iov, LENGTHS[i]));
		SHOW(sendmsg(stream, &msg, 0));
		hear(stream);
	}
	return unused;
}

static void *receive_many(void *unused)
{
	static struct iovec iov[MANY];
	for (size_t i = 0; i < COUNT(LENGTHS); i++) {
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)LENGTHS[i]};
		size_t n = split(iov, LENGTHS[i]);
		await_bytes(stream, 2 * n);
		SHOW(readv(stream, iov, LENGTHS[i]));
		check_stream(room, n, 1, 0);
		memset(room, 0, sizeof(room));
		SHOW(recvmsg(stream, &msg, 0));
		check_stream(room, n, 1, 0);
		tell(stream);
	}
	return unused;
}

static void vectors_client(int fd)
{
	/* A thread with so little stack does not look for the peer. */
	warm_up(fd, 0);
	stream = fd;
	with_stack((size_t)PTHREAD_STACK_MIN, send_many, NULL);
}

static void vectors_server(int fd)
{
	warm_up(fd, 1);
	stream = fd;
	with_stack((size_t)PTHREAD_STACK_MIN, receive_many, NULL);
}

/* Lengths of control data that the kernel refuses. */
static void control_client(int fd)
{
	static const size_t LENGTHS_OF_DATA[] = {SIZE_MAX, SIZE_MAX - 15, 4096, sizeof(struct cmsghdr) - 1, 0};
	union {
		char bytes[64];
		struct cmsghdr header;
	} control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	int pair[2];
	struct iovec piece = {(char *)"x", 1};
	struct msghdr msg = {
		.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	await_bytes(fd, 10);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	for (size_t i = 0; i < COUNT(LENGTHS_OF_DATA); i++) {
		control.header.cmsg_len = LENGTHS_OF_DATA[i];
		SHOW(sendmsg(pair[0], &msg, 0));
		SHOW(sendmsg(fd, &msg, 0));
	}
	msg.msg_control = (void *)8;
	SHOW(sendmsg(pair[0], &msg, 0));
	SHOW(sendmsg(fd, &msg, 0));
	get(fd, room, 10);
	tell(fd);
}

/* A null pointer, or memory that is not there, behind room enough, and alone. */
static void nowhere_client(int fd)
{
	char some[5], *volatile null = NULL;
	struct iovec with_null[2] = {{some, 5}, {null, 5}}, with_none[2] = {{some, 5}, {(void *)8, 5}};
	struct msghdr msg = {.msg_iov = with_null, .msg_iovlen = 2};
	await_bytes(fd, 10);
	SHOW(recv(fd, null, 5, 0));
	SHOW(recv(fd, null, 5, MSG_PEEK));
	SHOW(read(fd, null, 5));
	SHOW(recv(fd, some, 5, 0));
	SHOW(readv(fd, with_null, 2));
	tell(fd);
	await_bytes(fd, 5);
	SHOW(recvmsg(fd, &msg, 0));
	SHOW(recv(fd, null, 5, MSG_DONTWAIT));
	tell(fd);
	await_bytes(fd, 5);
	SHOW(readv(fd, with_none, 2));
	tell(fd);
	await_end(fd);
	SHOW(recv(fd, null, 5, 0));
	SHOW(read(fd, null, 5));
}

static void nowhere_server(int fd)
{
	put(fd, "0123456789", 10);
	for (int i = 0; i < 2; i++) {
		hear(fd);
		put(fd, "01234", 5);
	}
	hear(fd);
}

/* Addresses, which a stream ignores, but for where they lie and how long they are. */
static void addresses_client(int fd)
{
	struct sockaddr_in some = {.sin_family = AF_INET};
	struct sockaddr *at = (struct sockaddr *)&some, *nowhere = (struct sockaddr *)8;
	socklen_t len = (socklen_t)-1;
	struct iovec piece = {(char *)"x", 1};
	struct msghdr msg = {.msg_name = nowhere, .msg_namelen = sizeof(some), .msg_iov = &piece, .msg_iovlen = 1};
	char byte;
	await_bytes(fd, 10);
	SHOW(recvfrom(fd, &byte, 1, 0, at, &len));
	SHOW((int)len);
	SHOW(recvfrom(fd, &byte, 1, 0, at, (socklen_t *)8));
	len = sizeof(some);
	SHOW(recvfrom(fd, &byte, 1, 0, nowhere, &len));
	SHOW(len);
	SHOW(sendto(fd, "x", 1, 0, at, (socklen_t)-1));
	SHOW(sendto(fd, "x", 1, 0, nowhere, sizeof(some)));
	SHOW(sendmsg(fd, &msg, 0));
	msg.msg_namelen = 0;
	SHOW(sendmsg(fd, &msg, 0));
	SHOW(sendto(fd, "x", 1, 0, nowhere, 0));
	get(fd, room, 7);
}

static void addresses_server(int fd)
{
	put_stream(fd, 10, 1);
	show_end(fd);
}

static void ignore(int number)
{
	(void)number;
}

static pthread_t calling;
static pid_t caller;

static void *interrupt(void *unused)
{
	await_sleep(caller);
	CHECK(pthread_kill(calling, SIGALRM) == 0);
	return unused;
}

/* A receive of nothing waits for bytes, and ends without an error whatever ends the wait. */
static void nothing_client(int fd)
{
	struct sigaction action = {.sa_handler = ignore};
	struct timeval soon = {0, 20000}, never = {0};
	struct msghdr msg = {.msg_iovlen = 0};
	pthread_t helper;
	char none;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	SHOW(recv(fd, &none, 0, MSG_DONTWAIT));
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)) == 0);
	SHOW(recv(fd, &none, 0, 0));
	SHOW(recvmsg(fd, &msg, 0));
	SHOW(recv(fd, &none, 1, 0));
	set_nonblocking(fd, 1);
	SHOW(recv(fd, &none, 0, 0));
	set_nonblocking(fd, 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof(never)) == 0);
	caller = gettid();
	calling = pthread_self();
	CHECK(pthread_create(&helper, NULL, interrupt, NULL) == 0);
	SHOW(recv(fd, &none, 0, 0));
	CHECK(pthread_join(helper, NULL) == 0);
	tell(fd);
	SHOW(recv(fd, &none, 0, 0));
	SHOW(recv(fd, &none, 1, 0));
}

static void nothing_server(int fd)
{
	hear(fd);
	put(fd, "x", 1);
}

static const struct part PARTS[] = {
	{"ranges", ranges_client, idle_server},
	{"vectors", vectors_client, vectors_server},
	{"control", control_client, idle_server},
	{"nowhere", nowhere_client, nowhere_server},
	{"addresses", addresses_client, addresses_server},
	{"nothing", nothing_client, nothing_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
