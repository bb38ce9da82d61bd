/* Streams that go to other processes through Unix sockets. Part of `descriptors.c`. */
#ifndef DESCRIPTORS_PASSING_H
#define DESCRIPTORS_PASSING_H

/* A stream goes through a Unix socket, and comes back under another number. */
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

#endif
