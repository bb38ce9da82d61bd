/* MSG_TRUNC: bytes are received and discarded, and the program's buffer is neither written nor looked at. */
#include "asleep.h"

enum { FIRST = 20000, LATER = 3000, WHOLE = 8192 };

/* No process has memory there. */
static char *const NOWHERE = (char *)8;

static void await_readable(int fd, int wanted)
{
	int n = 0;
	while (n != wanted) {
		CHECK(ioctl(fd, FIONREAD, &n) == 0);
		sched_yield();
	}
}

static void discards_client(int fd)
{
	struct iovec iov[2] = {{.iov_base = NULL, .iov_len = 60}, {.iov_base = NOWHERE, .iov_len = 40}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2, .msg_flags = -1};
	unsigned char buf[5000];
	char kept = '.', *volatile byte = &kept;
	await_readable(fd, FIRST);
	SHOW(recv(fd, byte, 10000, MSG_TRUNC | MSG_PEEK));
	SHOW(recv(fd, NULL, 1 << 20, MSG_TRUNC | MSG_PEEK));
	SHOW(recv(fd, NOWHERE, 1, MSG_TRUNC | MSG_PEEK));
	SHOW(recv(fd, byte, 5000, MSG_TRUNC));
	SHOW(recvfrom(fd, NOWHERE, 100, MSG_TRUNC, NULL, NULL));
	SHOW(recvmsg(fd, &msg, MSG_TRUNC));
	printf("flags %x\n", (unsigned)msg.msg_flags);
	CHECK(kept == '.');
	get(fd, buf, sizeof(buf));
	check_stream(buf, sizeof(buf), 1, 5200);
	SHOW(recv(fd, NULL, 1000, MSG_TRUNC | MSG_WAITALL));
	SHOW(recv(fd, NULL, 0, MSG_TRUNC));
	await_readable(fd, FIRST - 11200);
	SHOW(recv(fd, NULL, 1 << 20, MSG_TRUNC));
	SHOW(recv(fd, NULL, 1, MSG_TRUNC | MSG_DONTWAIT));
	tell(fd);
	/* It comes in two pieces. */
	SHOW(recv(fd, byte, LATER, MSG_TRUNC | MSG_WAITALL));
	CHECK(kept == '.');
	tell(fd);
	await_end(fd);
	SHOW(recv(fd, byte, LATER, MSG_TRUNC | MSG_WAITALL));
	SHOW(recv(fd, byte, LATER, MSG_TRUNC));
}

static void discards_server(int fd)
{
	put_stream(fd, FIRST, 1);
	hear(fd);
	put_stream(fd, LATER - 1, 2);
	usleep(20000);
	put_stream(fd, 1, 3);
	hear(fd);
	put_stream(fd, 10, 4);
}

static void ignore(int number)
{
	(void)number;
}

/* A signal handler ends a wait for more, after several pieces of a size that the library discards at once. */
static void interrupted_client(int fd)
{
	struct sigaction action = {.sa_handler = ignore};
	struct itimerval often = {{0, 30000}, {0, 30000}}, never = {0};
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	await_readable(fd, FIRST);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	SHOW(recv(fd, NULL, 2 * FIRST, MSG_TRUNC | MSG_WAITALL));
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	tell(fd);
	/* The same by a handler after which a call that has received nothing begins again. */
	action.sa_flags = SA_RESTART;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	await_readable(fd, WHOLE);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	SHOW(recv(fd, NULL, 2 * FIRST, MSG_TRUNC | MSG_WAITALL));
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	tell(fd);
}

static void interrupted_server(int fd)
{
	put_stream(fd, FIRST, 1);
	hear(fd);
	put_stream(fd, WHOLE, 1);
	hear(fd);
}

/* A reset that comes while the call waits for more is left for the next call. */
static void reset_client(int fd)
{
	struct asleep asleep;
	pid_t peer;
	char byte;
	get(fd, &peer, sizeof(peer));
	await_readable(fd, WHOLE);
	begin_asleep(&asleep, peer);
	SHOW(recv(fd, NULL, FIRST, MSG_TRUNC | MSG_WAITALL));
	end_asleep(&asleep);
	SHOW(recv(fd, &byte, 1, 0));
	SHOW(recv(fd, &byte, 1, 0));
}

static void reset_server(int fd)
{
	introduce(fd);
	put_stream(fd, WHOLE, 1);
	await_signal();
	close_with_reset(fd);
}

/* A peek at more bytes than are there waits for all of them. */
static void peek_all_client(int fd)
{
	struct asleep asleep;
	pid_t peer;
	get(fd, &peer, sizeof(peer));
	await_readable(fd, FIRST);
	begin_asleep(&asleep, peer);
	SHOW(recv(fd, NULL, FIRST + 1, MSG_PEEK | MSG_TRUNC | MSG_WAITALL));
	end_asleep(&asleep);
	await_readable(fd, FIRST + LATER);
	SHOW(recv(fd, NULL, FIRST + 2, MSG_PEEK | MSG_TRUNC | MSG_WAITALL));
	SHOW(recv(fd, NULL, 2 * FIRST, MSG_PEEK | MSG_TRUNC));
	get_stream(fd, FIRST, 1);
	get_stream(fd, LATER, 2);
	tell(fd);
	await_end(fd);
	SHOW(recv(fd, NULL, FIRST, MSG_PEEK | MSG_TRUNC | MSG_WAITALL));
	SHOW(recv(fd, NULL, FIRST, MSG_TRUNC));
	SHOW(recv(fd, NULL, FIRST, MSG_PEEK | MSG_TRUNC | MSG_WAITALL));
}

static void peek_all_server(int fd)
{
	introduce(fd);
	put_stream(fd, FIRST, 1);
	await_signal();
	put_stream(fd, LATER, 2);
	hear(fd);
	put_stream(fd, LATER, 3);
}

static const struct part PARTS[] = {
	{"discards", discards_client, discards_server},
	{"interrupted", interrupted_client, interrupted_server},
	{"reset", reset_client, reset_server},
	{"peek_all", peek_all_client, peek_all_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
