/* Waits for streams at the limit of descriptors, for connections that are made meanwhile, and for many. Part of `descriptors.c`. */
#ifndef DESCRIPTORS_WAITS_H
#define DESCRIPTORS_WAITS_H

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

#endif
