/* `splice` and `sendfile`: calls that the kernel refuses, pipes without a reader, and threads that are
 * cancelled in them. */
#include "common.h"
#include <limits.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

/* `SENT` is more than the buffers of a connection take, `MUCH` more than a pipe takes. */
enum { SENT = 24 << 20, MUCH = 100000, LATER = 1000 };

static void refused_client(int fd)
{
	int ends[2], others[2];
	FILE *file = tmpfile();
	CHECK(file != NULL && pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, others) == 0);
	await_bytes(fd, LATER);
	SHOW(splice(fd, NULL, fileno(file), NULL, LATER, 0));
	SHOW(splice(fd, NULL, others[0], NULL, LATER, 0));
	SHOW(splice(fd, NULL, -1, NULL, LATER, 0));
	loff_t at = 0;
	SHOW(splice(fd, &at, ends[1], NULL, LATER, 0));
	SHOW(splice(fd, NULL, ends[1], &at, LATER, 0));
	SHOW(splice(fd, NULL, ends[1], NULL, LATER, 1 << 10));
	SHOW(splice(fd, NULL, ends[0], NULL, LATER, 0));
	SHOW(splice(fd, NULL, ends[1], NULL, LATER, 0));
	get_stream(ends[0], LATER, 1);
	SHOW(splice(fd, NULL, ends[1], NULL, 0, 0));
	SHOW(lseek(fileno(file), 0, SEEK_END));
	tell(fd);
	hear(fd);
}

static void refused_server(int fd)
{
	put_stream(fd, LATER, 1);
	hear(fd);
	tell(fd);
}

/* A pipe that is filled and emptied by turns, by one thread. */
static void filled_client(int fd)
{
	static unsigned char buf[MUCH];
	int ends[2];
	CHECK(pipe(ends) == 0);
	await_bytes(fd, MUCH);
	for (size_t done = 0; done < MUCH;) {
		ssize_t n;
		size_t moved = 0;
		while ((n = splice(fd, NULL, ends[1], NULL, MUCH - done - moved, SPLICE_F_NONBLOCK)) > 0)
			moved += (size_t)n;
		CHECK(done + moved == MUCH ? n == 0 : n < 0 && errno == EAGAIN);
		get(ends[0], buf, moved);
		check_stream(buf, moved, 3, done);
		done += moved;
	}
	tell(fd);
	await_bytes(fd, LATER);
	SHOW(sendfile(ends[1], fd, NULL, LATER));
	get_stream(ends[0], LATER, 4);
	tell(fd);
}

static void filled_server(int fd)
{
	put_stream(fd, MUCH, 3);
	hear(fd);
	put_stream(fd, LATER, 4);
	hear(fd);
}

/* A reset that comes behind the bytes is for the next call. The peer's process has ended, so the library
 * looks for the reset, too, wherever the bytes are. */
static void reset_client(int fd)
{
	int ends[2];
	pid_t peer;
	char c;
	CHECK(pipe(ends) == 0);
	tell(fd);
	get(fd, &peer, sizeof(peer));
	struct pollfd process = {.fd = (int)syscall(SYS_pidfd_open, peer, 0), .events = POLLIN};
	CHECK(process.fd >= 0);
	await_bytes(fd, LATER);
	tell(fd);
	await_end(fd);
	while (poll(&process, 1, -1) != 1)
		CHECK(errno == EINTR);
	SHOW(splice(fd, NULL, ends[1], NULL, MUCH, 0));
	get_stream(ends[0], LATER, 1);
	SHOW(recv(fd, &c, 1, 0));
	SHOW(recv(fd, &c, 1, 0));
}

static void reset_server(int fd)
{
	pid_t self = getpid();
	hear(fd);
	put(fd, &self, sizeof(self));
	put_stream(fd, LATER, 1);
	hear(fd);
	close_with_reset(fd);
}

static atomic_int n_sigpipe;

static void count_sigpipe(int signal)
{
	(void)signal;
	n_sigpipe++;
}

/* The kernel looks for a reader before it looks for bytes. */
static void no_reader_client(int fd)
{
	int ends[2];
	CHECK(pipe(ends) == 0 && close(ends[0]) == 0);
	CHECK(signal(SIGPIPE, count_sigpipe) != SIG_ERR);
	SHOW(splice(fd, NULL, ends[1], NULL, LATER, 0));
	SHOW(splice(fd, NULL, ends[1], NULL, LATER, SPLICE_F_NONBLOCK));
	printf("%d signals\n", n_sigpipe);
	tell(fd);
	await_bytes(fd, LATER);
	SHOW(splice(fd, NULL, ends[1], NULL, LATER, 0));
	SHOW(sendfile(ends[1], fd, NULL, LATER));
	printf("%d signals\n", n_sigpipe);
	get_stream(fd, LATER, 1);
	tell(fd);
}

static void no_reader_server(int fd)
{
	hear(fd);
	put_stream(fd, LATER, 1);
	hear(fd);
}

struct full {
	int fd;
	int pipe;
	/* The thread that is about to wait. */
	_Atomic pid_t id;
};

static void *splice_to_full(void *arg)
{
	struct full *full = arg;
	full->id = (pid_t)syscall(SYS_gettid);
	SHOW(splice(full->fd, NULL, full->pipe, NULL, LATER, 0));
	return NULL;
}

static int full_pipe(int ends[2])
{
	static unsigned char buf[PIPE_BUF];
	int filled = 0;
	CHECK(pipe(ends) == 0);
	set_nonblocking(ends[1], 1);
	for (ssize_t n; (n = write(ends[1], buf, sizeof(buf))) > 0;)
		filled += (int)n;
	set_nonblocking(ends[1], 0);
	return filled;
}

/* The last reader of a full pipe goes while a thread waits for room there; or it reads. */
static void full_client(int fd)
{
	static unsigned char buf[MUCH];
	for (int reads = 0; reads < 2; reads++) {
		int ends[2];
		pthread_t thread;
		int filled = full_pipe(ends);
		struct full full = {.fd = fd, .pipe = ends[1]};
		CHECK(filled <= MUCH && signal(SIGPIPE, count_sigpipe) != SIG_ERR);
		SHOW(splice(fd, NULL, ends[1], NULL, LATER, SPLICE_F_NONBLOCK));
		CHECK(pthread_create(&thread, NULL, splice_to_full, &full) == 0);
		while (!full.id)
			sched_yield();
		await_sleep(full.id);
		if (reads) {
			get(ends[0], buf, (size_t)filled);
			tell(fd);
			get_stream(ends[0], LATER, 1);
		} else {
			CHECK(close(ends[0]) == 0);
		}
		CHECK(pthread_join(thread, NULL) == 0);
		printf("%d signals\n", n_sigpipe);
	}
	tell(fd);
}

static void full_server(int fd)
{
	hear(fd);
	put_stream(fd, LATER, 1);
	hear(fd);
}

/* The process has as many descriptors as it may. */
static void no_number_client(int fd)
{
	struct rlimit few = {64, 64};
	int ends[2], last = fd;
	CHECK(pipe(ends) == 0);
	await_bytes(fd, LATER);
	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
	for (int next; (next = dup(ends[0])) >= 0;)
		last = next;
	SHOW(last);
	SHOW(splice(fd, NULL, ends[1], NULL, LATER, 0));
	set_nonblocking(ends[0], 1);
	get_stream(ends[0], LATER, 1);
	tell(fd);
}

static void no_number_server(int fd)
{
	put_stream(fd, LATER, 1);
	hear(fd);
}

static void cleaned(void *what)
{
	printf("clean-up %s\n", (char *)what);
}

static atomic_int is_cancelled;
/* The thread that is about to wait. */
static _Atomic pid_t waiting;

static void *splice_for_ever(void *fd)
{
	int ends[2];
	CHECK(pipe(ends) == 0);
	waiting = (pid_t)syscall(SYS_gettid);
	pthread_cleanup_push(cleaned, "splice");
	while (splice(*(int *)fd, NULL, ends[1], NULL, 1, 0) < 0 && errno == EINTR)
		;
	pthread_cleanup_pop(0);
	return NULL;
}

/* `sendfile` is no cancellation point: the thread goes on, and ends in the next one. */
static void *send_file(void *fd)
{
	FILE *file = tmpfile();
	off_t at = 0;
	long interrupted = 0;
	CHECK(file != NULL);
	put_stream(fileno(file), SENT, 2);
	waiting = (pid_t)syscall(SYS_gettid);
	while (at < SENT)
		if (sendfile(*(int *)fd, fileno(file), &at, (size_t)(SENT - at)) < 0) {
			CHECK(errno == EINTR);
			interrupted++;
		}
	while (!is_cancelled)
		sched_yield();
	printf("sent %ld, interrupted %ld times\n", (long)at, interrupted);
	pthread_cleanup_push(cleaned, "sendfile");
	pthread_testcancel();
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel(int fd, void *(*run)(void *), int answers)
{
	pthread_t thread;
	void *result;
	is_cancelled = 0;
	waiting = 0;
	CHECK(pthread_create(&thread, NULL, run, &fd) == 0);
	while (!waiting)
		usleep(1000);
	await_sleep(waiting);
	CHECK(pthread_cancel(thread) == 0);
	is_cancelled = 1;
	if (answers >= 0) {
		usleep(20000);
		tell(answers);
	}
	CHECK(pthread_join(thread, &result) == 0);
	printf("%s\n", result == PTHREAD_CANCELED ? "cancelled" : "ended");
}

static void cancelled_client(int fd)
{
	/* The server begins to read when it is told to. */
	int other = connect_to_server();
	cancel(fd, send_file, other);
	hear(fd);
	cancel(fd, splice_for_ever, -1);
	tell(fd);
	hear(fd);
	CHECK(close(other) == 0);
}

static void cancelled_server(int fd)
{
	int other = accept_client();
	hear(other);
	get_stream(fd, SENT, 2);
	tell(fd);
	hear(fd);
	tell(fd);
	CHECK(close(other) == 0);
}

static const struct part PARTS[] = {
	{"refused", refused_client, refused_server},
	{"filled", filled_client, filled_server},
	{"reset", reset_client, reset_server},
	{"no_reader", no_reader_client, no_reader_server},
	{"full", full_client, full_server},
	{"no_number", no_number_client, no_number_server},
	{"cancelled", cancelled_client, cancelled_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
