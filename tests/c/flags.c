/* O_NONBLOCK and time limits that are set between calls, and while one waits. */
#include "common.h"
#include <sys/resource.h>
#include <sys/syscall.h>

/* Makes calls on `fd` wait, or not, in one of three ways. */
static void change_flags(int fd, int way, int is_nonblocking)
{
	int flags = fcntl(fd, F_GETFL);
	flags = is_nonblocking ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
	switch (way) {
	case 0:
		CHECK(fcntl(fd, F_SETFL, flags) == 0);
		return;
	case 1:
		CHECK(ioctl(fd, FIONBIO, &is_nonblocking) == 0);
		return;
	default:
		CHECK(syscall(SYS_fcntl, fd, F_SETFL, flags) == 0);
	}
}

/* Answers `n` bytes so late that the other end sleeps. */
static void answer_late(int fd, int n)
{
	char byte;
	for (int i = 0; i < n; i++) {
		get(fd, &byte, 1);
		usleep(300);
		put(fd, &byte, 1);
	}
	/* Until then the other end must not find that this one has closed. */
	get(fd, &byte, 1);
	printf("%d answers\n", n);
}

enum { BETWEEN_ROUNDS = 60 };

static void between_calls_client(int fd)
{
	answer_late(fd, BETWEEN_ROUNDS);
}

/* A call that must not wait does not sleep, although the calls just before it waited. */
static void between_calls_server(int fd)
{
	int slept = 0;
	for (int i = 0; i < BETWEEN_ROUNDS; i++) {
		char byte = 'x';
		struct rusage before, after;
		put(fd, &byte, 1);
		CHECK(recv(fd, &byte, 1, 0) == 1);
		change_flags(fd, i % 3, 1);
		CHECK(getrusage(RUSAGE_THREAD, &before) == 0);
		CHECK(recv(fd, &byte, 1, 0) == -1 && errno == EAGAIN);
		CHECK(getrusage(RUSAGE_THREAD, &after) == 0);
		slept += after.ru_nvcsw != before.ru_nvcsw;
		change_flags(fd, (i + 1) % 3, 0);
	}
	put(fd, "x", 1);
	/* A page of the program may be read from disk meanwhile. */
	printf("%s\n", slept < BETWEEN_ROUNDS / 10 ? "did not sleep" : "slept");
}

/* A thread that makes calls on `fd`, of which the last waits. */
struct caller {
	int fd;
	long result;
	int error;
	_Atomic pid_t thread;
};

static void *end_with(struct caller *caller, long result)
{
	caller->error = result < 0 ? errno : 0;
	caller->result = result;
	return NULL;
}

/* Sets `option`, a time limit, or `O_NONBLOCK` while the last call of `calls` waits, longer than
 * the library sleeps without looking; then lets the call end, and says what it returned. */
static void change_meanwhile(int round, int fd, void *(*calls)(void *), int option,
			     void (*let_end)(int fd))
{
	struct caller caller = {.fd = fd};
	struct timeval limit = {.tv_usec = 20000}, none = {0};
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, calls, &caller) == 0);
	while (caller.thread == 0)
		sched_yield();
	await_sleep(caller.thread);
	if (round % 4 == 3)
		CHECK(setsockopt(fd, SOL_SOCKET, option, &limit, sizeof(limit)) == 0);
	else
		change_flags(fd, round % 4, 1);
	usleep(60000);
	let_end(fd);
	CHECK(pthread_join(thread, NULL) == 0);
	printf("%ld %s\n", caller.result, errno_name(caller.error));
	change_flags(fd, round % 3, 0);
	CHECK(setsockopt(fd, SOL_SOCKET, option, &none, sizeof(none)) == 0);
}

enum { RECEIVES = 8, BEFORE_LAST = 10 };

static void during_receive_client(int fd)
{
	answer_late(fd, RECEIVES * (BEFORE_LAST + 1));
}

/* Waits for several answers, and then for one that nothing was asked for. */
static void *receive_late(void *arg)
{
	struct caller *caller = arg;
	char byte = 'x';
	for (int i = 0; i < BEFORE_LAST; i++) {
		put(caller->fd, &byte, 1);
		CHECK(recv(caller->fd, &byte, 1, 0) == 1);
	}
	caller->thread = gettid();
	return end_with(caller, recv(caller->fd, &byte, 1, 0));
}

static void ask(int fd)
{
	put(fd, "x", 1);
}

static void during_receive_server(int fd)
{
	for (int i = 0; i < RECEIVES; i++)
		change_meanwhile(i, fd, receive_late, SO_RCVTIMEO, ask);
	put(fd, "x", 1);
}

/* More bytes than any buffer holds. */
enum { SENDS = 4, SENT = 16 << 20 };

static pid_t reader;

static void during_send_client(int fd)
{
	introduce(fd);
	for (int i = 0; i < SENDS; i++) {
		await_signal();
		get_stream(fd, SENT, (uint64_t)i);
	}
	tell(fd);
}

static void *send_late(void *arg)
{
	static int round;
	static unsigned char bytes[SENT];
	struct caller *caller = arg;
	fill_stream(bytes, SENT, (uint64_t)round++, 0);
	caller->thread = gettid();
	return end_with(caller, send(caller->fd, bytes, SENT, 0));
}

static void let_read(int fd)
{
	(void)fd;
	CHECK(kill(reader, SIGUSR1) == 0);
}

static void during_send_server(int fd)
{
	get(fd, &reader, sizeof(reader));
	for (int i = 0; i < SENDS; i++)
		change_meanwhile(i, fd, send_late, SO_SNDTIMEO, let_read);
	hear(fd);
}

static const struct part PARTS[] = {
	{"between_calls", between_calls_client, between_calls_server},
	{"during_receive", during_receive_client, during_receive_server},
	{"during_send", during_send_client, during_send_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
