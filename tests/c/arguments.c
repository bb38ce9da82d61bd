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

static void with_small_stack(int fd, void *(*run)(void *))
{
	pthread_attr_t attributes;
	pthread_t thread;
	stream = fd;
	CHECK(pthread_attr_init(&attributes) == 0);
	CHECK(pthread_attr_setstacksize(&attributes, (size_t)PTHREAD_STACK_MIN) == 0);
	CHECK(pthread_create(&thread, &attributes, run, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void vectors_client(int fd)
{
	/* To look for the peer takes more stack. */
	warm_up(fd, 0);
	with_small_stack(fd, send_many);
}

static void vectors_server(int fd)
{
	warm_up(fd, 1);
	with_small_stack(fd, receive_many);
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

static const struct part PARTS[] = {
	{"ranges", ranges_client, idle_server},
	{"vectors", vectors_client, vectors_server},
	{"control", control_client, idle_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
