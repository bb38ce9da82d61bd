/* Servers that fork, and children of `vfork`. Part of `descriptors.c`. */
#ifndef DESCRIPTORS_FORKS_H
#define DESCRIPTORS_FORKS_H

/* What the child of a forking server does. */
static int serve_in_child(void *fd)
{
	close(listener);
	echo_server(*(int *)fd);
	fflush(stdout);
	_exit(3);
}

/* Makes a process that goes on where this one does, or serves `fd`. */
typedef pid_t maker(int *fd);

static pid_t by_fork(int *fd)
{
	(void)fd;
	return fork();
}

static pid_t by_bare_fork(int *fd)
{
	(void)fd;
	return _Fork();
}

static pid_t by_clone(int *fd)
{
	static char stack[1 << 16] __attribute__((aligned(16)));
	return clone(serve_in_child, stack + sizeof(stack), SIGCHLD, fd);
}

static pid_t by_number(int *fd)
{
	(void)fd;
	return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static pid_t by_third_number(int *fd)
{
	(void)fd;
	struct clone_args args = {.exit_signal = SIGCHLD};
	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

/* A server that makes a process for each connection. */
static void serve_by(int fd, maker *make)
{
	for (int i = 0; i < 3; i++) {
		fflush(stdout);
		pid_t child = make(&fd);
		CHECK(child >= 0);
		if (child == 0)
			serve_in_child(&fd);
		close(fd);
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		printf("status %x\n", (unsigned)status);
		if (i < 2)
			fd = accept_client();
	}
}

static void fork_server(int fd)
{
	serve_by(fd, by_fork);
}

static void bare_fork_server(int fd)
{
	serve_by(fd, by_bare_fork);
}

static void clone_server(int fd)
{
	serve_by(fd, by_clone);
}

static void clone_number_server(int fd)
{
	serve_by(fd, by_number);
}

static void clone3_number_server(int fd)
{
	serve_by(fd, by_third_number);
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

/* A vfork child closes everything; the parent's epoll set watches the stream as before. */
static void vfork_epoll_client(int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
	int set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	exchange(fd, fd, 300000, 1);
	for (int i = 0; i < 4; i++) {
		pid_t child = vfork();
		CHECK(child >= 0);
		if (child == 0) {
			if (i & 1)
				close_range(3, ~0u, 0);
			else
				closefrom(3);
			execl("/bin/sh", "sh", "-c", "exit 5", (char *)NULL);
			_exit(127);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		printf("status %x\n", (unsigned)status);
		put(fd, "echo", 4);
		SHOW(epoll_wait(set, &event, 1, -1));
		printf("data %d\n", (int)event.data.u64);
		char back[4];
		get(fd, back, sizeof(back));
	}
	CHECK(close(set) == 0);
}

#endif
