/* Streams that other programs inherit. Part of `descriptors.c`. */
#ifndef DESCRIPTORS_EXEC_H
#define DESCRIPTORS_EXEC_H

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
	} else if (!strcmp(how, "greet")) {
		put(fd, "\n", 1);
		echo_server(fd);
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

#endif
