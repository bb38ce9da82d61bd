/* Peers that die, ends that run out of a resource, meeting points that another process has taken,
 * and bytes written past the library. */
#include "common.h"
#include <dirent.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>

static int connect_from(int below)
{
	int on = 1;
	uint16_t port;
	int fd = bound_socket(below, &port);
	CHECK(connect(fd, (struct sockaddr *)&server_address, sizeof(server_address)) == 0);
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	return fd;
}

/* What the dying process does in its last calls, and what the surviving one does meanwhile. */
enum {
	ECHO,          /* asks and reads answers; the survivor blocks in read */
	ECHO_POLLED,   /* the same, and the survivor waits in poll */
	ECHO_SELECTED, /* the same without blocking, in select */
	WRITES,        /* writes; everything must arrive */
	READS,         /* reads less and less of what the survivor writes until it blocks */
	SHUTS,         /* ends its direction first, then reads */
	BOTH,          /* the survivor blocks in a read and in a write */
	ANY_INSTANT,   /* asks and reads answers until a timer ends it, in any call */
	N_MODES,
};

enum { PIECE = 30000, SMALL = 100 };

static void die(void)
{
	kill(getpid(), SIGKILL);
}

static int mortal(int mode, int calls, uint16_t port)
{
	static unsigned char buf[PIECE];
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	set_server(port);
	int fd = connect_from(calls & 1);
	if (mode == SHUTS) {
		for (int i = 0; i < calls % 40; i++) {
			put(fd, buf, SMALL);
			get(fd, buf, SMALL);
		}
		CHECK(shutdown(fd, SHUT_WR) == 0);
	}
	if (mode == ANY_INSTANT) {
		struct itimerval timer = {.it_value.tv_usec = 1 + calls * 23};
		CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
		for (;;) {
			put(fd, buf, 9000);
			get(fd, buf, 9000);
		}
	}
	for (int call = 0;; call++) {
		if (call == calls)
			die();
		switch (mode) {
		case WRITES:
			put(fd, buf, PIECE);
			break;
		case READS:
		case SHUTS:
			get(fd, buf, PIECE);
			break;
		case BOTH:
			put(fd, buf, PIECE);
			get(fd, buf, PIECE);
			break;
		default:
			if (call % 2)
				get(fd, buf, SMALL);
			else
				put(fd, buf, SMALL);
		}
	}
}

static int is_end(ssize_t n)
{
	return n == 0 || (n < 0 && (errno == ECONNRESET || errno == EPIPE));
}

/* Waits for input with the call of this mode; select's needs no more than the other's. */
static void await_input(int fd, int mode)
{
	if (mode == ECHO_POLLED) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		CHECK(poll(&p, 1, -1) == 1);
	} else if (mode == ECHO_SELECTED) {
		fd_set rd;
		FD_ZERO(&rd);
		FD_SET(fd, &rd);
		CHECK(select(fd + 1, &rd, NULL, NULL, NULL) == 1);
	}
}

static long echo(int fd, int mode)
{
	static unsigned char buf[PIECE];
	for (;;) {
		await_input(fd, mode);
		ssize_t n = read(fd, buf, sizeof(buf));
		if (n < 0 && errno == EAGAIN)
			continue;
		if (is_end(n))
			return 0;
		CHECK(n > 0);
		n = send(fd, buf, (size_t)n, MSG_NOSIGNAL);
		if (is_end(n))
			return 0;
		CHECK(n > 0);
	}
}

static long read_to_end(int fd)
{
	static unsigned char buf[PIECE];
	long total = 0;
	ssize_t n;
	while (!is_end(n = read(fd, buf, sizeof(buf)))) {
		CHECK(n > 0);
		total += n;
	}
	return total;
}

static void *write_to_end(void *fd)
{
	static unsigned char buf[PIECE];
	ssize_t n;
	while (!is_end(n = send(*(int *)fd, buf, sizeof(buf), MSG_NOSIGNAL)))
		CHECK(n > 0);
	return NULL;
}

static long echo_small_then_write(int fd, int calls)
{
	static unsigned char buf[PIECE];
	for (int i = 0; i < calls % 40; i++) {
		get(fd, buf, SMALL);
		put(fd, buf, SMALL);
	}
	ssize_t n = read(fd, buf, sizeof(buf));
	CHECK(is_end(n));
	write_to_end(&fd);
	return 0;
}

static long survive(int fd, int mode, int calls)
{
	pthread_t writer;
	long total;
	switch (mode) {
	case WRITES:
		return read_to_end(fd);
	case READS:
		write_to_end(&fd);
		return 0;
	case SHUTS:
		return echo_small_then_write(fd, calls);
	case BOTH:
		CHECK(pthread_create(&writer, NULL, write_to_end, &fd) == 0);
		total = read_to_end(fd);
		CHECK(pthread_join(writer, NULL) == 0);
		/* Bytes that it did not read make its end a reset: what it wrote may be lost. */
		CHECK(total <= (long)calls * PIECE);
		return 0;
	case ECHO_SELECTED:
		set_nonblocking(fd, 1);
		/* fall through */
	default:
		return echo(fd, mode);
	}
}

/* What rsock keeps in this process. */
static int n_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	CHECK(dir != NULL);
	int n = 0;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static int n_lines(const char *path, const char *part, const char *other, const char *without)
{
	FILE *file = fopen(path, "r");
	CHECK(file != NULL);
	char line[512];
	int n = 0;
	while (fgets(line, sizeof(line), file))
		n += strstr(line, part) && strstr(line, other) && !strstr(line, without);
	fclose(file);
	return n;
}

static int n_mappings(void)
{
	return n_lines("/proc/self/maps", "/memfd:rsock", "", "no such mapping");
}

/* Meeting points of connections to the server, other than this one. */
static int n_names(int fd)
{
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer);
	char address[32], own[32];
	CHECK(getpeername(fd, (struct sockaddr *)&peer, &len) == 0);
	snprintf(address, sizeof(address), "7f000001%04x", ntohs(server_address.sin_port));
	snprintf(own, sizeof(own), "7f000001%04x", ntohs(peer.sin_port));
	return n_lines("/proc/net/unix", "@rsock-pair", address, own);
}

static int calls_of(int round)
{
	/* Each of the first calls, in which the ends find each other; then further ones. */
	return round < 44 ? round : 44 + (round - 44) * 23;
}

enum { ROUNDS = 52 };

/* The control connection carries one byte per death. */
static void deaths_client(int fd)
{
	for (int mode = 0; mode < N_MODES; mode++)
		for (int round = 0; round < ROUNDS; round++) {
			pid_t child = start_again("mortal", mode, calls_of(round));
			int status;
			CHECK(waitpid(child, &status, 0) == child);
			CHECK(WIFSIGNALED(status));
			CHECK(WTERMSIG(status) == (mode == ANY_INSTANT ? SIGALRM : SIGKILL));
			hear(fd);
		}
	printf("%d deaths\n", N_MODES * ROUNDS);
}

static void deaths_server(int fd)
{
	int descriptors = 0, mappings = 0;
	for (int mode = 0; mode < N_MODES; mode++) {
		for (int round = 0; round < ROUNDS; round++) {
			int calls = calls_of(round);
			int mortal_ = accept_client();
			long total = survive(mortal_, mode, calls);
			CHECK(mode != WRITES || total == (long)calls * PIECE);
			CHECK(close(mortal_) == 0);
			tell(fd);
		}
		printf("mode %d survived\n", mode);
		if (mode == 0) {
			descriptors = n_descriptors();
			mappings = n_mappings();
		}
	}
	if (n_descriptors() > descriptors + 4 || n_mappings() > mappings + 4)
		fail("%d descriptors and %d mappings have become %d and %d", descriptors, mappings,
		     n_descriptors(), n_mappings());
	printf("%d names left\n", n_names(fd));
}

/* A process writes past the library: nothing is ever out of order. What is lost is reported. */
static void foreign_client(int fd)
{
	unsigned char buf[600];
	for (uint64_t i = 0; i < 400; i++) {
		fill_stream(buf, sizeof(buf), 1, i * sizeof(buf));
		/* A hundred by the library, then every seventh past it. */
		if (i > 100 && i % 7 == 0) {
			if (bare_syscall(SYS_write, fd, (long)buf, sizeof(buf), 0, 0, 0) != sizeof(buf))
				break;
		} else if (send(fd, buf, sizeof(buf), MSG_NOSIGNAL) != sizeof(buf)) {
			break;
		}
	}
	close(fd);
}

static void foreign_server(int fd)
{
	unsigned char block[600];
	uint64_t next = 0, missing = 0;
	ssize_t n;
	while ((n = recv(fd, block, sizeof(block), MSG_WAITALL)) == sizeof(block)) {
		/* Blocks that went past the library may be missing, never misplaced. */
		while (block[0] != stream_byte(1, next * sizeof(block)) ||
		       block[8] != stream_byte(1, next * sizeof(block) + 8)) {
			CHECK(next > 100 && next % 7 == 0);
			missing++;
			next++;
		}
		check_stream(block, sizeof(block), 1, next * sizeof(block));
		next++;
	}
	CHECK(n <= 0);
	int is_complete = n == 0 && next == 400 && missing == 0;
	printf("%s\n", is_complete ? "complete" : n < 0 && errno == EPROTO ? "reported" : "LOST");
}

/* The same from the first byte on. */
static void foreign_first_client(int fd)
{
	unsigned char buf[600];
	for (uint64_t i = 0; i < 400; i++) {
		fill_stream(buf, sizeof(buf), 1, i * sizeof(buf));
		long n = i % 7 == 0 ? bare_syscall(SYS_write, fd, (long)buf, sizeof(buf), 0, 0, 0)
				    : write(fd, buf, sizeof(buf));
		CHECK(n == sizeof(buf));
	}
	close(fd);
}

/* Both ends exchange enough to have left TCP, and are looked at while their input is open. */
static void hold(int fd, int is_server)
{
	char c;
	warm_up(fd, is_server);
	printf("ready\n");
	fflush(stdout);
	while (read(STDIN_FILENO, &c, 1) > 0)
		;
	warm_up(fd, is_server);
	printf("whole\n");
}

static void hold_client(int fd)
{
	hold(fd, 0);
}

static void hold_server(int fd)
{
	hold(fd, 1);
}

/* The server has no descriptor left when a thread of its waits for the first time. */
static void *wait_without(void *socket)
{
	int fd = *(int *)socket;
	struct timeval moment = {.tv_usec = 50000}, again = moment, never = {0};
	struct pollfd p = {.fd = fd, .events = POLLIN};
	fd_set rd;
	char c;
	FD_ZERO(&rd);
	FD_SET(fd, &rd);
	SHOW(poll(&p, 1, 50));
	SHOW(select(fd + 1, &rd, NULL, NULL, &again));
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof(moment)) == 0);
	SHOW(read(fd, &c, 1));
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof(never)) == 0);
	tell(fd);
	hear(fd);
	put_stream(fd, 3000000, 12);
	CHECK(poll(&p, 1, -1) == 1);
	get_stream(fd, 3000000, 13);
	return NULL;
}

static void exhausted_server(int fd)
{
	struct rlimit few;
	pthread_t thread;
	CHECK(getrlimit(RLIMIT_NOFILE, &few) == 0);
	few.rlim_cur = 64;
	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
	while (dup(fd) >= 0)
		;
	CHECK(errno == EMFILE);
	CHECK(pthread_create(&thread, NULL, wait_without, &fd) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void exhausted_client(int fd)
{
	hear(fd);
	tell(fd);
	get_stream(fd, 3000000, 12);
	put_stream(fd, 3000000, 13);
}

/* LIMIT is a resource, a colon and what is left of it. */
static void set_limit(const char *text)
{
	static const struct {
		const char *name;
		int resource;
	} KNOWN[] = {{"nofile", RLIMIT_NOFILE}, {"fsize", RLIMIT_FSIZE}, {"memlock", RLIMIT_MEMLOCK}, {"as", RLIMIT_AS}};
	const char *colon = strchr(text, ':');
	CHECK(colon != NULL);
	rlim_t value = (rlim_t)atoll(colon + 1);
	for (size_t i = 0; i < COUNT(KNOWN); i++) {
		if (strncmp(text, KNOWN[i].name, (size_t)(colon - text)))
			continue;
		if (KNOWN[i].resource == RLIMIT_AS) {
			unsigned long pages;
			FILE *statm = fopen("/proc/self/statm", "r");
			CHECK(statm != NULL && fscanf(statm, "%lu", &pages) == 1);
			fclose(statm);
			value += (rlim_t)pages * 4096;
		}
		struct rlimit limit = {.rlim_cur = value, .rlim_max = value};
		CHECK(setrlimit(KNOWN[i].resource, &limit) == 0);
		return;
	}
	fail("%s", text);
}

/* Where the ends of a connection from the port that is printed meet. Its client may use the port. */
static socklen_t reserve(int below, uint16_t server_port, struct sockaddr_un *at)
{
	uint16_t port;
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	set_server(server_port);
	int on = 1, reserved = bound_socket(below, &port);
	CHECK(setsockopt(reserved, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	at->sun_family = AF_UNIX;
	int n = snprintf(at->sun_path + 1, sizeof(at->sun_path) - 1, "rsock-pair-1-7f000001%04x7f000001%04x",
			 below ? port : server_port, below ? server_port : port);
	printf("%d\n", port);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Takes the meeting point, and answers every process that connects with garbage. */
static int squat(int below, uint16_t server_port)
{
	struct sockaddr_un at = {0};
	socklen_t len = reserve(below, server_port, &at);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	CHECK(fd >= 0);
	CHECK(bind(fd, (struct sockaddr *)&at, len) == 0);
	CHECK(listen(fd, 8) == 0);
	fflush(stdout);
	struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
	while (poll(p, 2, -1) > 0 && !p[1].revents) {
		int visitor = accept(fd, NULL, NULL);
		CHECK(visitor >= 0);
		CHECK(send(visitor, "garbage", 7, MSG_NOSIGNAL) == 7);
	}
	return 0;
}

/* A message of the handshake: right at the front, any content, and descriptors that are not what
 * they should be. */
static void pester_once(int fd, int kind)
{
	/* What a message begins with, and the hello of a link in it. */
	enum { HELLO = 80, LENGTH = HELLO + 80 };
	static const char MAGIC[] = {'R', 'S', 'K', 'P', 2}, HELLO_MAGIC[] = "rsocksft";
	unsigned char text[LENGTH] = {0};
	int fds[2] = {STDIN_FILENO, STDERR_FILENO};
	char control[CMSG_SPACE(sizeof(fds))] = {0};
	struct pattern any = pattern_of((uint64_t)kind);
	for (int i = 8; i < LENGTH; i++)
		text[i] = (unsigned char)next_random(&any);
	memcpy(text, MAGIC, sizeof(MAGIC));
	text[5] = (unsigned char)(kind % 6);
	memcpy(text + HELLO, HELLO_MAGIC, 8);
	if (kind > 6)
		memcpy(text + HELLO + 8, &(uint32_t){5}, 4);
	struct iovec part = {.iov_base = text, .iov_len = kind ? LENGTH : 7};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(c), fds, sizeof(fds));
	sendmsg(fd, &m, MSG_NOSIGNAL);
}

/* Comes to the meeting point before the other end does, with garbage of every kind. */
static int pester(int below, uint16_t server_port)
{
	struct sockaddr_un at = {0};
	socklen_t len = reserve(below, server_port, &at);
	fflush(stdout);
	for (int kind = 0; kind < 12;) {
		struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
		if (poll(&in, 1, 0) > 0)
			break;
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
		CHECK(fd >= 0);
		if (connect(fd, (struct sockaddr *)&at, len) == 0)
			pester_once(fd, kind++);
		close(fd);
		sched_yield();
	}
	return 0;
}

/* The server dies, and leaves a child that holds no descriptor of the connection. */
static void orphan_server(int fd)
{
	warm_up(fd, 1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, 0) == 0);
		close(fd);
		close(listener);
		for (;;)
			pause();
	}
	put(fd, &child, sizeof(child));
	hear(fd);
	die();
}

static void orphan_client(int fd)
{
	pid_t child;
	char c;
	warm_up(fd, 0);
	get(fd, &child, sizeof(child));
	tell(fd);
	CHECK(is_end(read(fd, &c, 1)));
	SHOW(kill(child, SIGKILL));
}

/* What the survivor does when a peer is killed that has not read for a while. */
enum {
	UNREAD_READ,       /* blocks in read */
	UNREAD_POLL,       /* waits in poll, then reads */
	UNREAD_HALF_CLOSE, /* has ended its direction, and blocks in read */
	UNREAD_WRITE,      /* blocks in send */
	UNREAD_LATER,      /* calls nothing until the peer has gone, then sends */
	N_UNREAD,
};

static int heedless(uint16_t port)
{
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	set_server(port);
	int fd = connect_from(1);
	warm_up(fd, 0);
	for (;;)
		pause();
}

static void unread_client(int fd)
{
	for (int way = 0; way < N_UNREAD; way++) {
		pid_t child = start_again("heedless", 0, 0);
		int status;
		hear(fd);
		CHECK(kill(child, SIGKILL) == 0);
		CHECK(waitpid(child, &status, 0) == child);
		tell(fd);
	}
}

static void unread_server(int fd)
{
	static unsigned char buf[1 << 16];
	for (int way = 0; way < N_UNREAD; way++) {
		int mortal_ = accept_client();
		struct pollfd in = {.fd = mortal_, .events = POLLIN};
		warm_up(mortal_, 1);
		put(mortal_, buf, SMALL);
		if (way == UNREAD_HALF_CLOSE)
			CHECK(shutdown(mortal_, SHUT_WR) == 0);
		while (way == UNREAD_WRITE && send(mortal_, buf, sizeof(buf), MSG_DONTWAIT) > 0)
			;
		/* What is sent in the moment of the end may have come after it. */
		if (way == UNREAD_LATER)
			poll(NULL, 0, 100);
		tell(fd);
		printf("way %d\n", way);
		if (way == UNREAD_LATER)
			hear(fd);
		if (way == UNREAD_POLL)
			SHOW(poll(&in, 1, -1));
		if (way >= UNREAD_WRITE) {
			/* On the ring the first may still find room. */
			while (send(mortal_, buf, sizeof(buf), MSG_NOSIGNAL) > 0)
				;
			printf("send: %s\n", errno_name(errno));
		}
		SHOW(read(mortal_, buf, 1));
		SHOW(read(mortal_, buf, 1));
		SHOW(send(mortal_, buf, 1, MSG_NOSIGNAL));
		CHECK(close(mortal_) == 0);
		if (way != UNREAD_LATER)
			hear(fd);
	}
}

static const struct part PARTS[] = {
	{"deaths", deaths_client, deaths_server},
	{"foreign", foreign_client, foreign_server},
	{"foreign_first", foreign_first_client, foreign_server},
	{"hold", hold_client, hold_server},
	{"orphan", orphan_client, orphan_server},
	{"unread", unread_client, unread_server},
	{"exhausted", exhausted_client, exhausted_server},
};

int main(int argc, char **argv)
{
	if (getenv("LIMIT"))
		set_limit(getenv("LIMIT"));
	if (argc == 5 && !strcmp(argv[1], "mortal"))
		return mortal(atoi(argv[2]), atoi(argv[3]), (uint16_t)atoi(argv[4]));
	if (argc == 5 && !strcmp(argv[1], "heedless"))
		return heedless((uint16_t)atoi(argv[4]));
	if (argc == 4 && !strcmp(argv[1], "squat"))
		return squat(atoi(argv[2]), (uint16_t)atoi(argv[3]));
	if (argc == 4 && !strcmp(argv[1], "pester"))
		return pester(atoi(argv[2]), (uint16_t)atoi(argv[3]));
	return play(argc, argv, PARTS, COUNT(PARTS));
}
