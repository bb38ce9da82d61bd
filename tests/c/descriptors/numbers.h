/* Descriptors that are copied, replaced, closed and reused. Part of `descriptors.c`. */
#ifndef DESCRIPTORS_NUMBERS_H
#define DESCRIPTORS_NUMBERS_H

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

/* So many questions that the stream leaves TCP. */
static void ask_often(int fd)
{
	for (uint64_t i = 0; i < 40; i++) {
		put_stream(fd, 1000, i);
		get_stream(fd, 1000, i);
	}
}

/* The same while the peer neither sends nor closes: a read waits for the file that has the number now. */
static void raw_close_idle_client(int fd)
{
	char got[3] = "";
	int ends[2];
	ask_often(fd);
	for (int is_pair = 0; is_pair < 2; is_pair++) {
		CHECK(bare_syscall(SYS_close, fd, 0, 0, 0, 0, 0) == 0);
		CHECK((is_pair ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends)) == 0);
		CHECK(ends[0] == fd);
		put(ends[1], "abc", 3);
		SHOW(read(ends[0], got, 3));
		printf("%.3s\n", got);
		close(ends[0]);
		close(ends[1]);
		fd = connect_to_server();
		ask_often(fd);
	}
}

static void raw_close_idle_server(int fd)
{
	for (int round = 0; round < 3; round++) {
		for (uint64_t i = 0; i < 40; i++) {
			get_stream(fd, 1000, i);
			put_stream(fd, 1000, i);
		}
		if (round < 2)
			fd = accept_client();
	}
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

/* Tells the peer something and hears of it, or the other way round. */
static void take_turn(int fd, int is_server)
{
	if (is_server)
		hear(fd);
	tell(fd);
	if (!is_server)
		hear(fd);
}

/* The process may have so many descriptors, and nearly as many are connections and other sockets.
 * Each connection carries a few messages, and then rests. */
static void limited(int fd, int is_server, int n_connections)
{
	enum { LIMIT = 256, MOST = 240, TRIPS = 4 };
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max > LIMIT);
	limit.rlim_cur = LIMIT;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	int fds[MOST];
	for (int i = 0; i < n_connections; i++) {
		fds[i] = i == 0 ? fd : cold_connection(is_server);
		for (int trip = 0; trip < TRIPS; trip++)
			take_turn(fds[i], is_server);
	}
	for (int i = n_connections; i < MOST; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(fds[i] >= 0);
	}
	for (int i = 0; i < n_connections; i++)
		take_turn(fds[i], is_server);
	printf("%d connections\n", n_connections);
}

static void limited_client(int fd)
{
	limited(fd, 0, 220);
}

static void limited_server(int fd)
{
	limited(fd, 1, 220);
}

/* Fewer connections, so that none has a high number. */
static void limited_few_client(int fd)
{
	limited(fd, 0, 60);
}

static void limited_few_server(int fd)
{
	limited(fd, 1, 60);
}

#endif
