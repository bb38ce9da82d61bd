/* Descriptors: copied, replaced, closed in bulk, inherited, passed on. */
#include "common.h"
#include <linux/close_range.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* The peer echoes until the end. */
static void echo_server(int fd)
{
	static char buf[65536];
	ssize_t n;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		put(fd, buf, (size_t)n);
	printf("echo: %s\n", n == 0 ? "end" : errno_name(errno));
}

static void exchange(int out, int in, size_t n, uint64_t seed)
{
	put_stream(out, n, seed);
	get_stream(in, n, seed);
}

/* One stream under several numbers. */
static void dup_client(int fd)
{
	int other = dup(fd);
	CHECK(other > fd);
	exchange(fd, other, 100000, 1);
	exchange(other, fd, 100000, 2);
	int third = fcntl(fd, F_DUPFD_CLOEXEC, 50);
	printf("third %d, cloexec %d\n", third, fcntl(third, F_GETFD));
	exchange(third, other, 100000, 3);
	SHOW(close(fd));
	SHOW(recv(fd, &third, 0, 0));
	exchange(other, third, 100000, 4);
	CHECK(dup2(third, fd) == fd);
	SHOW(close(third));
	exchange(fd, other, 100000, 5);
	CHECK(dup3(other, 60, O_CLOEXEC) == 60);
	SHOW(dup3(other, other, 0));
	SHOW(dup2(other, other) == other);
	SHOW(dup2(-1, other));
	SHOW(dup2(999, other));
	exchange(60, other, 100000, 6);
	close(other);
	close(fd);
	exchange(60, 60, 100000, 7);
	SHOW(close(60));
	SHOW(close(60));
}

/* A stream's number becomes another stream's; the old one ends. */
static void replace_client(int fd)
{
	int again = connect_to_server();
	exchange(fd, fd, 50000, 1);
	exchange(again, again, 50000, 2);
	SHOW(dup2(again, fd) == fd);
	exchange(fd, again, 50000, 3);
	close(again);
	exchange(fd, fd, 50000, 4);
}

static void *echo_thread(void *fd)
{
	echo_server((int)(intptr_t)fd);
	return NULL;
}

static void replace_server(int fd)
{
	pthread_t thread;
	int again = accept_client();
	/* The first connection ends first. */
	CHECK(pthread_create(&thread, NULL, echo_thread, (void *)(intptr_t)again) == 0);
	echo_server(fd);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* Numbers are reused by other files, streams and back. */
static void reuse_client(int fd)
{
	for (int round = 0; round < 50; round++) {
		exchange(fd, fd, 5000, (uint64_t)round);
		CHECK(close(fd) == 0);
		int ends[2];
		CHECK(pipe(ends) == 0);
		CHECK(ends[0] == fd);
		put_stream(ends[1], 3000, 9);
		get_stream(ends[0], 3000, 9);
		close(ends[0]);
		int again = connect_to_server();
		CHECK(again == fd);
		close(ends[1]);
	}
	printf("50 rounds\n");
}

static void reuse_server(int fd)
{
	for (int round = 0; round <= 50; round++) {
		static char buf[8192];
		ssize_t n;
		while ((n = read(fd, buf, sizeof(buf))) > 0)
			put(fd, buf, (size_t)n);
		CHECK(n == 0);
		CHECK(close(fd) == 0);
		if (round < 50) {
			int again = accept_client();
			CHECK(again == fd);
		}
	}
	printf("50 rounds\n");
}

/* Behind libc's back: the kernel is told directly. */
static void raw_close_client(int fd)
{
	exchange(fd, fd, 300000, 1);
	CHECK(bare_syscall(SYS_close, fd, 0, 0, 0, 0, 0) == 0);
	int ends[2];
	CHECK(pipe(ends) == 0);
	CHECK(ends[0] == fd);
	printf("number reused\n");
	put_stream(ends[1], 3000, 9);
	get_stream(ends[0], 3000, 9);
	close(ends[0]);
	int again = connect_to_server();
	CHECK(again == fd);
	exchange(again, again, 300000, 2);
}

static void two_server(int fd)
{
	echo_server(fd);
	close(fd);
	fd = accept_client();
	echo_server(fd);
}

/* Everything above the standard streams goes at once. */
static void close_range_client(int fd)
{
	exchange(fd, fd, 100000, 1);
	SHOW(close_range(3, 2, 0));
	SHOW(close_range(3, ~0u, 1234));
	SHOW(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC));
	exchange(fd, fd, 100000, 2);
	SHOW(close_range(3, ~0u, 0));
	SHOW(write(fd, "x", 1));
	int again = connect_to_server();
	printf("again is %d\n", again);
	exchange(again, again, 300000, 3);
	closefrom(3);
	SHOW(write(again, "x", 1));
	again = connect_to_server();
	exchange(again, again, 300000, 4);
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	int most = limit.rlim_cur < 20000 ? (int)limit.rlim_cur : 20000;
	for (int i = 3; i < most; i++)
		close(i);
	again = connect_to_server();
	exchange(again, again, 300000, 5);
	fflush(stdout);
	int open_ = 0;
	for (int i = 0; i < most; i++)
		open_ += close(i) == 0;
	_exit(open_ >= 4 ? 0 : 1);
}

static void four_server(int fd)
{
	for (int i = 0; i < 4; i++) {
		echo_server(fd);
		close(fd);
		if (i < 3)
			fd = accept_client();
	}
}

/* A server that forks for each connection. */
static void fork_server(int fd)
{
	for (int i = 0; i < 3; i++) {
		fflush(stdout);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			close(listener);
			echo_server(fd);
			fflush(stdout);
			_exit(3);
		}
		close(fd);
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		printf("status %x\n", (unsigned)status);
		if (i < 2)
			fd = accept_client();
	}
}

static void fork_server_client(int fd)
{
	for (int i = 0; i < 3; i++) {
		exchange(fd, fd, 500000, (uint64_t)i);
		close(fd);
		if (i < 2)
			fd = connect_to_server();
	}
	printf("3 connections\n");
}

/* A parent and its child write by turns to one stream, with unread bytes at the fork. */
static void fork_both_client(int fd)
{
	put_stream(fd, 20000, 1);
	fflush(stdout);
	await_bytes(fd, 20000);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		get_stream(fd, 20000, 1);
		exchange(fd, fd, 300000, 2);
		_exit(5);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	printf("status %x\n", (unsigned)status);
	exchange(fd, fd, 300000, 3);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

/* Workers that accept for themselves. */
static void prefork_server(int fd)
{
	pid_t workers[2];
	fflush(stdout);
	for (int i = 0; i < 2; i++) {
		workers[i] = fork();
		CHECK(workers[i] >= 0);
		if (workers[i] == 0) {
			close(fd);
			for (;;) {
				int new = accept_client();
				char c = 0;
				static char buf[65536];
				ssize_t n = recv(new, &c, 1, MSG_PEEK);
				if (n == 1 && c == 'Q') {
					_exit(0);
				}
				while ((n = read(new, buf, sizeof(buf))) > 0)
					put(new, buf, (size_t)n);
				close(new);
			}
		}
	}
	hear(fd);
	for (int i = 0; i < 2; i++) {
		int status;
		CHECK(waitpid(workers[i], &status, 0) > 0);
		printf("status %x\n", (unsigned)status);
	}
}

static void prefork_client(int fd)
{
	for (int i = 0; i < 10; i++) {
		int new = connect_to_server();
		exchange(new, new, 200000, (uint64_t)i);
		close(new);
	}
	for (int i = 0; i < 2; i++) {
		int new = connect_to_server();
		char c;
		put(new, "Q", 1);
		/* A reset: the byte was only looked at. */
		CHECK(read(new, &c, 1) <= 0);
		close(new);
	}
	tell(fd);
	printf("10 connections\n");
}

/* A vfork child edits its descriptors and execs; the parent's are as they were. */
static void vfork_client(int fd)
{
	exchange(fd, fd, 300000, 1);
	for (int i = 0; i < 5; i++) {
		int null = open("/dev/null", O_RDWR);
		CHECK(null > fd);
		pid_t child = vfork();
		CHECK(child >= 0);
		if (child == 0) {
			signal(SIGPIPE, SIG_DFL);
			dup2(null, 1);
			dup2(null, fd);
			close(fd);
			if (i & 1)
				close_range(3, ~0u, 0);
			execl("/bin/sh", "sh", "-c", "exit 6", (char *)NULL);
			_exit(127);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		printf("status %x\n", (unsigned)status);
		close(null);
		exchange(fd, fd, 300000, (uint64_t)i);
	}
	int status = system("exit 4");
	printf("status %x\n", (unsigned)status);
	exchange(fd, fd, 300000, 9);
}

/* The stream becomes the standard streams of another program. */
static void exec_server(int fd)
{
	get_stream(fd, 1000, 1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(dup2(fd, 0) == 0);
		CHECK(dup2(fd, 1) == 1);
		close(fd);
		execlp("cat", "cat", (char *)NULL);
		_exit(127);
	}
	close(fd);
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	printf("status %x\n", (unsigned)status);
}

static void exec_client(int fd)
{
	put_stream(fd, 1000, 1);
	for (int i = 0; i < 10; i++)
		exchange(fd, fd, 30000, (uint64_t)i);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

/* From here on: a stream whose peer has written bytes that are unread when the process becomes
 * another program. The peer goes on writing afterwards. */
enum { UNREAD = 20000, LATER = 300000 };

/* Until all of it lies there. */
static void await_unread(int fd)
{
	static char buf[UNREAD];
	ssize_t got;
	while ((got = recv(fd, buf, sizeof(buf), MSG_PEEK)) != UNREAD) {
		CHECK(got > 0);
		sched_yield();
	}
}

static void unread_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	put_stream(fd, LATER, 2);
	get_stream(fd, UNREAD, 1);
	get_stream(fd, LATER, 2);
	for (int i = 0; i < 10; i++)
		exchange(fd, fd, 30000, (uint64_t)i);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

static void become_cat(int fd)
{
	CHECK(dup2(fd, 0) == 0);
	CHECK(dup2(fd, 1) == 1);
	close(fd);
	close(listener);
	execlp("cat", "cat", (char *)NULL);
	_exit(127);
}

static void exec_unread_server(int fd)
{
	await_unread(fd);
	fflush(stdout);
	become_cat(fd);
}

/* The same in a child. */
static void wait_for(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	printf("status %x\n", (unsigned)status);
	SHOW(waitpid(-1, NULL, 0));
}

static void exec_child_server(int fd)
{
	await_unread(fd);
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		become_cat(fd);
	close(fd);
	wait_for(child);
}

static void exec_vfork_server(int fd)
{
	await_unread(fd);
	fflush(stdout);
	pid_t child = vfork();
	CHECK(child >= 0);
	if (child == 0) {
		dup2(fd, 0);
		dup2(fd, 1);
		close(fd);
		execlp("cat", "cat", (char *)NULL);
		_exit(127);
	}
	close(fd);
	wait_for(child);
}

static void spawn_server(int fd)
{
	await_unread(fd);
	fflush(stdout);
	posix_spawn_file_actions_t actions;
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
	CHECK(posix_spawn_file_actions_addclose(&actions, fd) == 0);
	char *args[] = {"cat", NULL};
	pid_t child;
	CHECK(posix_spawnp(&child, "cat", &actions, NULL, args, environ) == 0);
	CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
	close(fd);
	wait_for(child);
}

/* The parent shares its standard input with a command, and goes on where that stopped. */
static void exec_system_server(int fd)
{
	await_unread(fd);
	fflush(stdout);
	int out = dup(1);
	CHECK(dup2(fd, 0) == 0);
	CHECK(dup2(fd, 1) == 1);
	/* Byte by byte, so that the rest is the parent's. */
	int status = system("dd bs=1 count=5000 2>/dev/null");
	CHECK(dup2(out, 1) == 1);
	close(fd);
	printf("status %x\n", (unsigned)status);
	static unsigned char buf[UNREAD - 5000];
	get(0, buf, sizeof(buf));
	check_stream(buf, sizeof(buf), 1, 5000);
	put(0, buf, sizeof(buf));
	get_stream(0, LATER, 2);
	put_stream(0, LATER, 2);
	echo_server(0);
}

/* This program again, to go on with an inherited descriptor: see `resume`. */
static void become_self(const char *how, int fd)
{
	char number[16];
	snprintf(number, sizeof(number), "%d", fd);
	fflush(stdout);
	char *args[] = {"self", "resume", (char *)how, number, NULL};
	execv("/proc/self/exe", args);
	fail("exec");
}

static void exec_self_server(int fd)
{
	await_unread(fd);
	int other = dup(fd);
	CHECK(other >= 0);
	become_self("talk", other);
}

/* A child that is not the only owner at first. */
static void exec_late_server(int fd)
{
	await_unread(fd);
	fflush(stdout);
	int ready[2];
	char c;
	CHECK(pipe(ready) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(fcntl(ready[1], F_SETFD, FD_CLOEXEC) == 0);
		become_self("talk", fd);
	}
	close(ready[1]);
	/* Until it has become the other program. */
	CHECK(read(ready[0], &c, 1) == 0);
	close(fd);
	wait_for(child);
}

static void talk(int fd)
{
	get_stream(fd, UNREAD, 1);
	put_stream(fd, UNREAD, 1);
	exchange(fd, fd, 50000, 3);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
	SHOW(waitpid(-1, NULL, 0));
}

static void talk_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	get_stream(fd, UNREAD, 1);
	get_stream(fd, 50000, 3);
	put_stream(fd, 50000, 3);
	show_end(fd);
	put_stream(fd, LATER, 4);
	SHOW(shutdown(fd, SHUT_WR));
}

/* The peer ends its direction, and receives from the program after that. */
static void exec_half_close_server(int fd)
{
	await_unread(fd);
	become_self("answer", fd);
}

static void count(int fd)
{
	static char buf[4096];
	long n, total = 0;
	tell(fd);
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		total += n;
	printf("%ld, then %s\n", total, n == 0 ? "end" : errno_name(errno));
}

static void exec_half_close_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	hear(fd);
	put_stream(fd, LATER, 2);
	SHOW(shutdown(fd, SHUT_WR));
	get_stream(fd, LATER, 5);
	show_end(fd);
}

/* The peer is killed. */
static void exec_killed_server(int fd)
{
	await_unread(fd);
	become_self("listen", fd);
}

static void exec_killed_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	hear(fd);
	put_stream(fd, LATER, 2);
	kill(getpid(), SIGKILL);
}

/* The program ends with bytes unread: a reset. */
static void exec_reset_server(int fd)
{
	await_unread(fd);
	become_self("reset", fd);
}

static void reset(int fd)
{
	get_stream(fd, 100, 1);
	printf("100 bytes\n");
}

static void exec_reset_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	show_end(fd);
}

/* A program that does not exist, and one that is none: nothing has happened. */
static void exec_fails_server(int fd)
{
	int other = dup(fd), hidden = fcntl(fd, F_DUPFD_CLOEXEC, 60);
	CHECK(other >= 0 && hidden >= 60);
	await_unread(fd);
	char *args[] = {"none", NULL};
	SHOW(execv("/nonexistent/program", args));
	SHOW(execvp("no-such-program-anywhere", args));
	int file = memfd_create("none", 0);
	char path[32];
	CHECK(write(file, "\1\2\3\4", 4) == 4);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	SHOW(execv(path, args));
	printf("cloexec %d %d\n", fcntl(other, F_GETFD), fcntl(hidden, F_GETFD));
	get_stream(other, UNREAD, 1);
	put_stream(hidden, UNREAD, 1);
	get_stream(fd, LATER, 2);
	put_stream(other, LATER, 2);
	close(fd);
	close(other);
	SHOW(waitpid(-1, NULL, 0));
	echo_server(hidden);
}

/* A helper inherits the stream because it was not closed: the parent's bytes are the parent's. */
static void exec_leak_server(int fd)
{
	int ends[2];
	await_unread(fd);
	fflush(stdout);
	CHECK(pipe(ends) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(dup2(ends[0], 0) == 0);
		close(ends[0]);
		close(ends[1]);
		execlp("cat", "cat", (char *)NULL);
		_exit(127);
	}
	close(ends[0]);
	get_stream(fd, UNREAD, 1);
	put_stream(fd, UNREAD, 1);
	get_stream(fd, LATER, 2);
	close(ends[1]);
	wait_for(child);
	put_stream(fd, LATER, 2);
	echo_server(fd);
}

static int resume(const char *how, int fd)
{
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	if (!strcmp(how, "talk")) {
		talk(fd);
	} else if (!strcmp(how, "listen")) {
		count(fd);
	} else if (!strcmp(how, "answer")) {
		count(fd);
		put_stream(fd, LATER, 5);
	} else {
		CHECK(!strcmp(how, "reset"));
		reset(fd);
	}
	fflush(stdout);
	return 0;
}

/* Standard streams without a fork. */
static void stdio_client(int fd)
{
	exchange(fd, fd, 100000, 1);
	FILE *file = fdopen(fd, "r+");
	CHECK(file != NULL);
	for (int i = 0; i < 1000; i++)
		fprintf(file, "line %d\n", i);
	fflush(file);
	char line[100], want[100];
	for (int i = 0; i < 1000; i++) {
		CHECK(fgets(line, sizeof(line), file) != NULL);
		snprintf(want, sizeof(want), "line %d\n", i);
		CHECK(!strcmp(line, want));
	}
	printf("1000 lines\n");
	SHOW(fclose(file));
	SHOW(write(fd, "x", 1));
	int again = connect_to_server();
	CHECK(again == fd);
	exchange(again, again, 300000, 2);
}

static void read_stdio(FILE *in, size_t n, uint64_t seed)
{
	static unsigned char buf[LATER];
	CHECK(fread(buf, 1, n, in) == n);
	check_stream(buf, n, seed, 0);
}

static void write_stdio(FILE *out, size_t n, uint64_t seed)
{
	static unsigned char buf[LATER];
	fill_stream(buf, n, seed, 0);
	CHECK(fwrite(buf, 1, n, out) == n);
	CHECK(fflush(out) == 0);
}

/* The other side of `unread_client`, by way of libc's streams. */
static void answer_stdio(FILE *in, FILE *out)
{
	read_stdio(in, UNREAD, 1);
	read_stdio(in, LATER, 2);
	write_stdio(out, UNREAD, 1);
	write_stdio(out, LATER, 2);
	for (int i = 0; i < 10; i++) {
		read_stdio(in, 30000, (uint64_t)i);
		write_stdio(out, 30000, (uint64_t)i);
	}
	int last = getc(in);
	printf("then %d, end %d, error %d\n", last, feof(in) != 0, ferror(in) != 0);
}

static void stdio_unread_server(int fd)
{
	await_unread(fd);
	int other = dup(fd);
	FILE *in = fdopen(fd, "r"), *out = fdopen(other, "w");
	CHECK(in != NULL && out != NULL);
	answer_stdio(in, out);
	SHOW(fclose(in));
	SHOW(fclose(out));
	SHOW(write(fd, "x", 1));
	SHOW(waitpid(-1, NULL, 0));
}

/* libc's standard input reads what another number of the stream has left, without being told. */
static void stdin_unread_server(int fd)
{
	await_unread(fd);
	CHECK(dup2(fd, 0) == 0);
	FILE *out = fdopen(fd, "a");
	CHECK(out != NULL);
	answer_stdio(stdin, out);
	SHOW(fclose(out));
}

/* From now on there is no descriptor left for anything. */
static void use_up_descriptors(void)
{
	int null;
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	/* Some of those in use may lie above. */
	limit.rlim_cur = 64;
	CHECK(limit.rlim_max >= 1024);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while ((null = open("/dev/null", O_RDONLY)) >= 0)
		CHECK(null < 64);
	CHECK(errno == EMFILE);
}

static void stdio_full_server(int fd)
{
	await_unread(fd);
	int other = dup(fd);
	use_up_descriptors();
	FILE *in = fdopen(fd, "r"), *out = fdopen(other, "w");
	CHECK(in != NULL && out != NULL);
	printf("open %d\n", open("/dev/null", O_RDONLY));
	answer_stdio(in, out);
}

/* The peer does nothing while the stream goes over to libc, and then writes. */
static void idle_client(int fd)
{
	introduce(fd);
	for (int i = 0; i < 3; i++) {
		await_signal();
		put_stream(fd, LATER, 2);
		get_stream(fd, LATER, 3);
	}
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

static void stdio_idle_server(int fd)
{
	pid_t peer;
	get(fd, &peer, sizeof(peer));
	FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
	CHECK(in != NULL && out != NULL);
	for (int i = 0; i < 3; i++) {
		CHECK(kill(peer, SIGUSR1) == 0);
		read_stdio(in, LATER, 2);
		write_stdio(out, LATER, 3);
	}
	printf("then %d\n", getc(in));
}

/* The peer is stopped meanwhile. */
static void stdio_stopped_server(int fd)
{
	pid_t peer;
	get(fd, &peer, sizeof(peer));
	CHECK(kill(peer, SIGSTOP) == 0);
	FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
	CHECK(in != NULL && out != NULL);
	CHECK(kill(peer, SIGCONT) == 0);
	for (int i = 0; i < 3; i++) {
		CHECK(kill(peer, SIGUSR1) == 0);
		read_stdio(in, LATER, 2);
		write_stdio(out, LATER, 3);
	}
	printf("then %d\n", getc(in));
}

/* This end has said that it is done before; then the other has. */
static void stdio_shut_server(int fd)
{
	await_unread(fd);
	SHOW(shutdown(fd, SHUT_WR));
	FILE *in = fdopen(fd, "r");
	CHECK(in != NULL);
	SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
	read_stdio(in, UNREAD, 1);
	read_stdio(in, LATER, 2);
	printf("then %d\n", getc(in));
	SHOW(fclose(in));
}

static void shut_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	show_end(fd);
	put_stream(fd, LATER, 2);
	SHOW(shutdown(fd, SHUT_WR));
}

static void stdio_ended_server(int fd)
{
	await_unread(fd);
	await_end(fd);
	FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
	CHECK(in != NULL && out != NULL);
	read_stdio(in, UNREAD, 1);
	printf("then %d\n", getc(in));
	write_stdio(out, LATER, 2);
	SHOW(fclose(in));
	SHOW(fclose(out));
}

static void ended_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	SHOW(shutdown(fd, SHUT_WR));
	get_stream(fd, LATER, 2);
	show_end(fd);
}

/* A thread goes on reading while the stream becomes one that libc writes to. */
static void *read_lines(void *fd)
{
	for (int i = 0; i < 1000; i++) {
		char got[20], want[20];
		int n = snprintf(want, sizeof(want), "line %d\n", i);
		get((int)(intptr_t)fd, got, (size_t)n);
		CHECK(!memcmp(got, want, (size_t)n));
	}
	return NULL;
}

static void stdio_threads_client(int fd)
{
	pthread_t thread;
	exchange(fd, fd, 100000, 1);
	CHECK(pthread_create(&thread, NULL, read_lines, (void *)(intptr_t)fd) == 0);
	FILE *out = fdopen(dup(fd), "w");
	CHECK(out != NULL && setvbuf(out, NULL, _IOLBF, 0) == 0);
	for (int i = 0; i < 1000; i++)
		fprintf(out, "line %d\n", i);
	CHECK(pthread_join(thread, NULL) == 0);
	SHOW(fclose(out));
	exchange(fd, fd, 100000, 2);
}

/* libc's own writes in the midst of others; and numbers of every kind, to see the arguments pass. */
static void print_client(int fd)
{
	char got[200];
	for (int i = 0; i < 40; i++) {
		exchange(fd, fd, 500, (uint64_t)i);
		int n = dprintf(fd, "%d %s %.3f %.3f %ld %c %.2f %d %d %d %.1f\n", i, "text", i * 0.5, 2.25,
				123456789012L, 'c', 3.5, 7, 8, 9, 0.5);
		CHECK(n > 0 && n < (int)sizeof(got));
		get(fd, got, (size_t)n);
		got[n] = 0;
		if (i % 20 == 0)
			fputs(got, stdout);
	}
}

/* A stream goes through a Unix socket, and comes back under another number. */
static int pass(int over, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	char c = 'p';
	struct iovec iov = {.iov_base = &c, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	return (int)sendmsg(over, &msg, 0);
}

static int take(int over)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char c;
	struct iovec iov = {.iov_base = &c, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	CHECK(recvmsg(over, &msg, 0) == 1);
	int fd;
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

static void pass_client(int fd)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	exchange(fd, fd, 200000, 1);
	SHOW(pass(pair[0], fd));
	int other = take(pair[1]);
	CHECK(other > fd);
	exchange(fd, fd, 200000, 2);
	exchange(other, other, 200000, 3);
	close(fd);
	exchange(other, other, 200000, 4);
	printf("passed\n");
}

static void pass_unread_server(int fd)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	await_unread(fd);
	SHOW(pass(pair[0], fd));
	int other = take(pair[1]);
	get_stream(other, UNREAD, 1);
	put_stream(fd, UNREAD, 1);
	CHECK(close(fd) == 0);
	get_stream(other, LATER, 2);
	put_stream(other, LATER, 2);
	echo_server(other);
}

/* An epoll set watches the stream before and after. */
static void pass_epoll_server(int fd)
{
	static unsigned char buf[4096];
	int pair[2], set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0xabcdef0123456789ull};
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	await_unread(fd);
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	SHOW(pass(pair[0], fd));
	CHECK(close(take(pair[1])) == 0);
	for (size_t in = 0; in < UNREAD + LATER;) {
		CHECK(epoll_wait(set, &event, 1, -1) == 1);
		CHECK(event.data.u64 == 0xabcdef0123456789ull);
		size_t left = in < UNREAD ? UNREAD - in : UNREAD + LATER - in;
		ssize_t n = read(fd, buf, left < sizeof(buf) ? left : sizeof(buf));
		CHECK(n > 0);
		check_stream(buf, (size_t)n, in < UNREAD ? 1 : 2, in < UNREAD ? in : in - UNREAD);
		in += (size_t)n;
	}
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
	put_stream(fd, UNREAD, 1);
	put_stream(fd, LATER, 2);
	echo_server(fd);
}

/* Its last owner is another process, which has never seen it before. */
static void pass_idle_server(int fd)
{
	pid_t peer;
	int pair[2];
	get(fd, &peer, sizeof(peer));
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	SHOW(pass(pair[0], fd));
	CHECK(close(fd) == 0);
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		fd = take(pair[1]);
		for (int i = 0; i < 3; i++) {
			CHECK(kill(peer, SIGUSR1) == 0);
			get_stream(fd, LATER, 2);
			put_stream(fd, LATER, 3);
		}
		_exit(7);
	}
	close(pair[0]);
	close(pair[1]);
	wait_for(child);
}

/* An epoll set, entered early and late. */
static void epoll_exchange(int set, int fd, size_t n, uint64_t seed)
{
	static unsigned char buf[4096];
	size_t in = 0;
	put_stream(fd, n, seed);
	while (in < n) {
		struct epoll_event event;
		int found = epoll_wait(set, &event, 1, -1);
		CHECK(found == 1 && event.data.u64 == 0xabcdef0123456789ull);
		CHECK(event.events == EPOLLIN);
		ssize_t got = read(fd, buf, sizeof(buf));
		CHECK(got > 0);
		check_stream(buf, (size_t)got, seed, in);
		in += (size_t)got;
	}
}

static void epoll_client(int fd)
{
	int set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0xabcdef0123456789ull};
	exchange(fd, fd, 300000, 1);
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	epoll_exchange(set, fd, 100000, 2);
	SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	SHOW(connect(fd, (struct sockaddr *)&server_address, sizeof(server_address)) == 0 || errno == EINPROGRESS);
	event.events = EPOLLOUT;
	SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	CHECK(epoll_wait(set, &event, 1, -1) == 1);
	event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 0xabcdef0123456789ull};
	SHOW(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
	set_nonblocking(fd, 0);
	for (int i = 0; i < 100; i++)
		epoll_exchange(set, fd, 10000, (uint64_t)i);
	printf("100 rounds\n");
}

/* Nothing that comes later draws attention to the first bytes. */
static void epoll_full_client(int fd)
{
	put_stream(fd, UNREAD, 1);
	get_stream(fd, UNREAD, 1);
	exchange(fd, fd, LATER, 2);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

/* A set is entered where nothing can be made for it: it shows all bytes. */
static void epoll_full_server(int fd)
{
	static unsigned char buf[4096];
	int set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
	await_unread(fd);
	use_up_descriptors();
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	for (size_t in = 0; in < UNREAD;) {
		CHECK(epoll_wait(set, &event, 1, -1) == 1);
		size_t left = UNREAD - in;
		ssize_t n = read(fd, buf, left < sizeof(buf) ? left : sizeof(buf));
		CHECK(n > 0);
		check_stream(buf, (size_t)n, 1, in);
		in += (size_t)n;
	}
	put_stream(fd, UNREAD, 1);
	echo_server(fd);
}

/* As many entries as there may be descriptors, and one more. */
static void poll_most_server(int fd)
{
	enum { MOST = 64 };
	static struct pollfd p[MOST + 1];
	struct rlimit limit;
	await_unread(fd);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = MOST;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (int i = 0; i <= MOST; i++)
		p[i].fd = -1;
	p[MOST / 2] = (struct pollfd){.fd = fd, .events = POLLIN};
	SHOW(poll(p, MOST, -1));
	SHOW(poll(p, MOST + 1, 0));
	get_stream(fd, UNREAD, 1);
	get_stream(fd, LATER, 2);
	/* Nothing is there until the peer has its answer. */
	SHOW(poll(p, MOST, 20));
	put_stream(fd, UNREAD, 1);
	put_stream(fd, LATER, 2);
	static char buf[4096];
	ssize_t n;
	do {
		CHECK(poll(p, MOST, -1) == 1);
		n = read(fd, buf, sizeof(buf));
		CHECK(n >= 0);
		put(fd, buf, (size_t)n);
	} while (n > 0);
}

/* A connection that is made while the program does something else. */
static void nonblocking_client(int fd)
{
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(fd >= 0);
	char c;
	SHOW(recv(fd, &c, 1, 0));
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	SHOW(connect(fd, (struct sockaddr *)&server_address, sizeof(server_address)));
	CHECK(poll(&p, 1, -1) == 1);
	printf("revents %x\n", (unsigned)p.revents);
	int error = -1;
	socklen_t len = sizeof(error);
	SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	printf("error %d\n", error);
	SHOW(recv(fd, &c, 1, 0));
	set_nonblocking(fd, 0);
	exchange(fd, fd, 500000, 1);
	close(fd);
	/* And one to a port without a listener. */
	int other = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in unbound = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	len = sizeof(unbound);
	CHECK(bind(other, (struct sockaddr *)&unbound, len) == 0);
	CHECK(getsockname(other, (struct sockaddr *)&unbound, &len) == 0);
	int refused = socket(AF_INET, SOCK_STREAM, 0);
	SHOW(connect(refused, (struct sockaddr *)&unbound, sizeof(unbound)));
	SHOW(send(refused, &c, 1, MSG_NOSIGNAL));
	CHECK(connect(refused, (struct sockaddr *)&server_address, sizeof(server_address)) == 0);
	exchange(refused, refused, 500000, 2);
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	SHOW(connect(refused, &none, sizeof(none)));
	SHOW(send(refused, &c, 1, MSG_NOSIGNAL));
}

static void three_server(int fd)
{
	for (int i = 0; i < 3; i++) {
		static char buf[65536];
		ssize_t n;
		while ((n = read(fd, buf, sizeof(buf))) > 0)
			put(fd, buf, (size_t)n);
		close(fd);
		if (i < 2)
			fd = accept_client();
	}
	printf("3 connections\n");
}

/* Both ends in one process, and many streams at once. */
static void many_client(int fd)
{
	enum { N = 40 };
	int own = socket(AF_INET, SOCK_STREAM, 0), near[N], far[N];
	struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(here);
	CHECK(bind(own, (struct sockaddr *)&here, len) == 0);
	CHECK(getsockname(own, (struct sockaddr *)&here, &len) == 0);
	CHECK(listen(own, N) == 0);
	for (int i = 0; i < N; i++) {
		near[i] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(connect(near[i], (struct sockaddr *)&here, sizeof(here)) == 0);
		far[i] = accept4(own, NULL, NULL, SOCK_CLOEXEC);
		CHECK(far[i] >= 0);
	}
	for (int round = 0; round < 60; round++)
		for (int i = 0; i < N; i++) {
			exchange(near[i], far[i], 3000, (uint64_t)(round * N + i));
			exchange(far[i], near[i], 3000, (uint64_t)i);
		}
	struct pollfd p[N];
	for (int i = 0; i < N; i++)
		p[i] = (struct pollfd){.fd = near[i], .events = POLLIN};
	SHOW(poll(p, N, 0));
	tell(far[N / 2]);
	SHOW(poll(p, N, -1));
	printf("revents %x\n", (unsigned)p[N / 2].revents);
	for (int i = 0; i < N; i++)
		close(far[i]);
	for (int i = 0; i < N; i++)
		CHECK(await_end(near[i]) & POLLRDHUP);
	SHOW(poll(p, N, -1));
	tell(fd);
	hear(fd);
}

/* `select` beyond 1024, where the process may open nothing more. */
static void select_most_server(int fd)
{
	enum { HIGH = 1500, WORDS = 2048 / 64 };
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max > HIGH);
	limit.rlim_cur = HIGH + 1;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	int high = fcntl(fd, F_DUPFD, HIGH);
	CHECK(high == HIGH && close(fd) == 0);
	limit.rlim_cur = 64;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while (open("/dev/null", O_RDONLY) >= 0)
		;
	CHECK(errno == EMFILE);
	static uint64_t bits[WORDS];
	char c;
	do {
		memset(bits, 0, sizeof(bits));
		bits[HIGH / 64] = 1ull << (HIGH % 64);
		struct timeval most = {.tv_sec = 60};
		if (select(HIGH + 1, (void *)bits, NULL, NULL, &most) != 1)
			fail("hangs");
		CHECK(bits[HIGH / 64] == 1ull << (HIGH % 64));
		get(high, &c, 1);
		put(high, &c, 1);
	} while (c != '!');
	show_end(high);
}

static void select_most_client(int fd)
{
	for (int i = 0; i < 300; i++) {
		char c = i < 299 ? 'x' : '!', answer;
		put(fd, &c, 1);
		get(fd, &answer, 1);
		CHECK(answer == c);
	}
}

static const struct part PARTS[] = {
	{"dup", dup_client, echo_server},
	{"replace", replace_client, replace_server},
	{"reuse", reuse_client, reuse_server},
	{"raw_close", raw_close_client, two_server},
	{"close_range", close_range_client, four_server},
	{"fork_server", fork_server_client, fork_server},
	{"fork_both", fork_both_client, echo_server},
	{"prefork", prefork_client, prefork_server},
	{"vfork", vfork_client, echo_server},
	{"exec", exec_client, exec_server},
	{"exec_unread", unread_client, exec_unread_server},
	{"exec_child", unread_client, exec_child_server},
	{"exec_vfork", unread_client, exec_vfork_server},
	{"spawn", unread_client, spawn_server},
	{"exec_system", unread_client, exec_system_server},
	{"exec_self", talk_client, exec_self_server},
	{"exec_late", talk_client, exec_late_server},
	{"exec_half_close", exec_half_close_client, exec_half_close_server},
	{"exec_killed", exec_killed_client, exec_killed_server},
	{"exec_reset", exec_reset_client, exec_reset_server},
	{"exec_fails", unread_client, exec_fails_server},
	{"exec_leak", unread_client, exec_leak_server},
	{"stdio", stdio_client, two_server},
	{"stdio_unread", unread_client, stdio_unread_server},
	{"stdin_unread", unread_client, stdin_unread_server},
	{"stdio_full", unread_client, stdio_full_server},
	{"stdio_idle", idle_client, stdio_idle_server},
	{"stdio_stopped", idle_client, stdio_stopped_server},
	{"stdio_shut", shut_client, stdio_shut_server},
	{"stdio_ended", ended_client, stdio_ended_server},
	{"stdio_threads", stdio_threads_client, echo_server},
	{"print", print_client, echo_server},
	{"pass", pass_client, echo_server},
	{"pass_unread", unread_client, pass_unread_server},
	{"pass_epoll", unread_client, pass_epoll_server},
	{"pass_idle", idle_client, pass_idle_server},
	{"epoll", epoll_client, two_server},
	{"epoll_full", epoll_full_client, epoll_full_server},
	{"select_most", select_most_client, select_most_server},
	{"poll_most", unread_client, poll_most_server},
	{"nonblocking", nonblocking_client, three_server},
	{"many", many_client, echo_server},
};

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "resume"))
		return resume(argv[2], atoi(argv[3]));
	return play(argc, argv, PARTS, COUNT(PARTS));
}
