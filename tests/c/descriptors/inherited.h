/* Streams that programs inherit which start beside this one, by numbers above the standard ones.
 * Part of `descriptors.c`. */
#ifndef DESCRIPTORS_INHERITED_H
#define DESCRIPTORS_INHERITED_H

/* The program goes on with a stream that this one has read empty. */
static void spawn_number_server(int fd)
{
	get_stream(fd, 1000, 1);
	fflush(stdout);
	char number[16];
	snprintf(number, sizeof(number), "%d", fd);
	char *args[] = {"self", "resume", "greet", number, NULL};
	pid_t child;
	CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, args, environ) == 0);
	close(fd);
	wait_for(child);
}

/* A `vfork` child means the stream for its program, by this number: also the bytes that lie unread
 * are that program's. */
static void become_by_vfork(int fd, int number)
{
	await_unread(fd);
	fflush(stdout);
	CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
	pid_t child = vfork();
	CHECK(child >= 0);
	if (child == 0) {
		if (number == fd)
			fcntl(fd, F_SETFD, 0);
		else
			dup2(fd, number);
		become_self("talk", number);
	}
	close(fd);
	wait_for(child);
}

/* As Python's `subprocess` does with `pass_fds`. */
static void vfork_number_server(int fd)
{
	become_by_vfork(fd, fd);
}

static void vfork_chosen_server(int fd)
{
	become_by_vfork(fd, 100);
}

/* What `unread_client` needs until its echo. */
static void answer_unread(int fd)
{
	get_stream(fd, UNREAD, 1);
	get_stream(fd, LATER, 2);
	put_stream(fd, UNREAD, 1);
	put_stream(fd, LATER, 2);
}

/* What a child before has meant for its program is not meant for the next one. */
static void vfork_leak_server(int fd)
{
	await_unread(fd);
	fflush(stdout);
	for (int i = 0; i < 2; i++) {
		pid_t child = vfork();
		CHECK(child >= 0);
		if (child == 0) {
			if (i == 0) {
				dup2(fd, 100);
				_exit(4);
			}
			execlp("true", "true", (char *)NULL);
			_exit(127);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		printf("status %x\n", (unsigned)status);
	}
	answer_unread(fd);
	echo_server(fd);
}

/* A command finds the stream by a number that this program has left open, and begins. */
static void system_number_server(int fd)
{
	get_stream(fd, 1000, 1);
	fflush(stdout);
	CHECK(dup2(fd, 9) == 9);
	close(fd);
	int status = system("echo >&9; cat <&9 >&9");
	close(9);
	printf("status %x\n", (unsigned)status);
}

static void number_client(int fd)
{
	put_stream(fd, 1000, 1);
	char c;
	get(fd, &c, 1);
	for (int i = 0; i < 10; i++)
		exchange(fd, fd, 30000, (uint64_t)i);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

/* A command that inherits the stream and does not use it: this program goes on with it. */
static void system_leak_server(int fd)
{
	await_unread(fd);
	fflush(stdout);
	printf("status %x\n", (unsigned)system("true"));
	answer_unread(fd);
	printf("status %x\n", (unsigned)system("true"));
	echo_server(fd);
}

#endif
