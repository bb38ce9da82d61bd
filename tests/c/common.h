/* What the test programs share: two ends of one TCP connection, in two processes.
 *
 *   PROGRAM server NAME WARM          prints "port N", accepts one connection, plays its part
 *   PROGRAM client NAME WARM PORT     connects and plays the other part
 *
 * What an end prints afterwards is compared with what it prints without rsock, so it prints
 * nothing that depends on time or on how bytes were cut. With WARM not 0 the ends first exchange
 * enough for the connection to have left TCP, if both run rsock. */
#ifndef RSOCK_TEST_COMMON_H
#define RSOCK_TEST_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

extern char **environ;

/* The listening socket of the server, and its address; for tests that connect again. */
static int listener = -1;
static struct sockaddr_in server_address;

/* Whether connections are warmed up. */
static int is_warm;

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
	int saved = errno;
	va_list args;
	va_start(args, format);
	fflush(stdout);
	vfprintf(stderr, format, args);
	fprintf(stderr, " (%s)\n", strerror(saved));
	va_end(args);
	exit(99);
}

#define CHECK(what) \
	do { \
		if (!(what)) \
			fail("%s:%d: %s", __FILE__, __LINE__, #what); \
	} while (0)

static inline const char *errno_name(int e)
{
	switch (e) {
	case 0: return "0";
	case EAGAIN: return "EAGAIN";
	case EBADF: return "EBADF";
	case ECONNREFUSED: return "ECONNREFUSED";
	case ECONNRESET: return "ECONNRESET";
	case EFAULT: return "EFAULT";
	case EINPROGRESS: return "EINPROGRESS";
	case EINTR: return "EINTR";
	case EINVAL: return "EINVAL";
	case EMSGSIZE: return "EMSGSIZE";
	case ENOTCONN: return "ENOTCONN";
	case ENOTSOCK: return "ENOTSOCK";
	case EOPNOTSUPP: return "EOPNOTSUPP";
	case EPIPE: return "EPIPE";
	case ESPIPE: return "ESPIPE";
	}
	static char number[16];
	snprintf(number, sizeof(number), "%d", e);
	return number;
}

/* Prints what a call returned and, if it failed, why. A success must leave errno alone. */
#define SHOW(call) \
	do { \
		errno = 4095; \
		long shown_ = (long)(call); \
		int errno_ = errno; \
		if (shown_ < 0) \
			printf("%s = %ld %s\n", #call, shown_, errno_name(errno_)); \
		else \
			printf("%s = %ld%s\n", #call, shown_, errno_ == 4095 ? "" : " ERRNO CHANGED"); \
	} while (0)

/* A byte stream that both ends can compute. */
struct pattern {
	uint64_t state;
};

static inline uint32_t next_random(struct pattern *p)
{
	p->state ^= p->state << 13;
	p->state ^= p->state >> 7;
	p->state ^= p->state << 17;
	return (uint32_t)(p->state >> 16);
}

static inline struct pattern pattern_of(uint64_t seed)
{
	struct pattern p = {seed * 0x9e3779b97f4a7c15ull + 1};
	for (int i = 0; i < 8; i++)
		next_random(&p);
	return p;
}

/* Byte `at` of the stream of `seed`: cheap, and different everywhere. */
static inline unsigned char stream_byte(uint64_t seed, uint64_t at)
{
	uint64_t x = (at >> 3) + seed * 0x100000001b3ull;
	x *= 0x9e3779b97f4a7c15ull;
	return (unsigned char)(x >> (8 * (at & 7)));
}

static inline void fill_stream(unsigned char *to, size_t n, uint64_t seed, uint64_t at)
{
	for (size_t i = 0; i < n; i++)
		to[i] = stream_byte(seed, at + i);
}

static inline void check_stream(const unsigned char *got, size_t n, uint64_t seed, uint64_t at)
{
	for (size_t i = 0; i < n; i++)
		if (got[i] != stream_byte(seed, at + i))
			fail("byte %llu of stream %llu is %02x, not %02x", (unsigned long long)(at + i),
			     (unsigned long long)seed, got[i], stream_byte(seed, at + i));
}

static inline void put(int fd, const void *from, size_t n)
{
	const char *at = from;
	while (n) {
		ssize_t put_ = write(fd, at, n);
		if (put_ < 0 && errno == EINTR)
			continue;
		if (put_ <= 0)
			fail("put");
		at += put_;
		n -= (size_t)put_;
	}
}

static inline void get(int fd, void *to, size_t n)
{
	char *at = to;
	while (n) {
		ssize_t got = read(fd, at, n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			fail("get: %zd", got);
		at += got;
		n -= (size_t)got;
	}
}

/* A system call by an instruction of the program's own, which no library can see. As `syscall`, but an error is
 * a negative number. */
static inline long bare_syscall(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "+a"(number)
			 : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return number;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
#else
#error "no bare system calls for this processor"
#endif
}

/* Runs `run` in a thread with so many bytes of stack, and waits for its end. */
static inline void with_stack(size_t stack, void *(*run)(void *), void *argument)
{
	pthread_attr_t attributes;
	pthread_t thread;
	CHECK(pthread_attr_init(&attributes) == 0);
	CHECK(pthread_attr_setstacksize(&attributes, stack) == 0);
	CHECK(pthread_create(&thread, &attributes, run, argument) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* One end lets the other go on. */
static inline void tell(int fd)
{
	put(fd, "!", 1);
}

static inline void hear(int fd)
{
	char c = 0;
	get(fd, &c, 1);
	if (c != '!')
		fail("heard %d", c);
}

/* An end that goes on only when the other one tells it by a signal, and not by the stream,
 * sends its process number first. */
static inline void introduce(int fd)
{
	sigset_t go;
	pid_t self = getpid();
	sigemptyset(&go);
	sigaddset(&go, SIGUSR1);
	CHECK(pthread_sigmask(SIG_BLOCK, &go, NULL) == 0);
	put(fd, &self, sizeof(self));
}

static inline void await_signal(void)
{
	sigset_t go;
	int got;
	sigemptyset(&go);
	sigaddset(&go, SIGUSR1);
	CHECK(sigwait(&go, &got) == 0);
}

static inline void put_stream(int fd, size_t n, uint64_t seed)
{
	unsigned char buf[8192];
	for (size_t at = 0; at < n;) {
		size_t len = n - at < sizeof(buf) ? n - at : sizeof(buf);
		fill_stream(buf, len, seed, at);
		put(fd, buf, len);
		at += len;
	}
}

static inline void get_stream(int fd, size_t n, uint64_t seed)
{
	unsigned char buf[8192];
	for (size_t at = 0; at < n;) {
		size_t len = n - at < sizeof(buf) ? n - at : sizeof(buf);
		get(fd, buf, len);
		check_stream(buf, len, seed, at);
		at += len;
	}
}

/* Reads up to the end of the stream and says how it ended. */
static inline void show_end(int fd)
{
	char rest[4096];
	long n, total = 0;
	while ((n = read(fd, rest, sizeof(rest))) > 0)
		total += n;
	printf("%ld more, then %s\n", total, n == 0 ? "end" : errno_name(errno));
}

/* Until the peer's end has arrived here. A reset shows its error a moment before its end. */
static inline short await_end(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLRDHUP};
	while (!(p.revents & POLLRDHUP))
		CHECK(poll(&p, 1, -1) >= 0 || errno == EINTR);
	return p.revents;
}

/* Until `n` bytes can be read. */
static inline void await_bytes(int fd, size_t n)
{
	char *buf = malloc(n);
	ssize_t got;
	while ((got = recv(fd, buf, n, MSG_PEEK)) != (ssize_t)n) {
		CHECK(got > 0 || (got < 0 && errno == EINTR));
		sched_yield();
	}
	free(buf);
}

/* Closes the connection with a reset. */
static inline void close_with_reset(int fd)
{
	struct linger none = {.l_onoff = 1};
	CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none)) == 0);
	CHECK(close(fd) == 0);
}

/* Until nothing more has come for a while: the other end has filled all buffers. */
static inline void await_full(int fd)
{
	int before, now = -1;
	struct pollfd never = {.fd = -1};
	do {
		before = now;
		poll(&never, 1, 100);
		CHECK(ioctl(fd, FIONREAD, &now) == 0);
	} while (now != before);
}

/* Until a thread of this process sleeps in the kernel, or has ended; whether it sleeps. */
static inline int has_slept(pid_t thread)
{
	char path[64], text[512];
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
	for (;;) {
		int fd = open(path, O_RDONLY);
		ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
		if (fd >= 0)
			close(fd);
		if (n <= 0)
			return 0;
		text[n] = 0;
		if (!strncmp(strrchr(text, ')'), ") S", 3))
			return 1;
		sched_yield();
	}
}

/* Until a thread of this process sleeps in the kernel. */
static inline void await_sleep(pid_t thread)
{
	CHECK(has_slept(thread));
}

static inline void set_nonblocking(int fd, int on)
{
	int flags = fcntl(fd, F_GETFL);
	CHECK(flags >= 0);
	CHECK(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0);
}

static inline void warm_up(int fd, int is_server)
{
	static unsigned char buf[65536];
	for (int round = 0; round < 240; round++) {
		size_t n = round < 220 ? 100 : sizeof(buf);
		if (is_server) {
			get(fd, buf, n);
			check_stream(buf, n, 77, (uint64_t)round);
		}
		fill_stream(buf, n, 77, (uint64_t)round);
		put(fd, buf, n);
		if (!is_server) {
			get(fd, buf, n);
			check_stream(buf, n, 77, (uint64_t)round);
		}
	}
}

struct part {
	const char *name;
	void (*client)(int fd);
	void (*server)(int fd);
};

static inline void set_server(uint16_t port)
{
	server_address.sin_family = AF_INET;
	server_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	server_address.sin_port = htons(port);
}

/* Starts this program again with these arguments: a process of its own, not a fork. */
static inline pid_t start_again(const char *role, int mode, int n)
{
	char numbers[3][16];
	int values[3] = {mode, n, ntohs(server_address.sin_port)};
	for (int i = 0; i < 3; i++)
		snprintf(numbers[i], sizeof(numbers[i]), "%d", values[i]);
	char *args[] = {(char *)"/proc/self/exe", (char *)role, numbers[0], numbers[1], numbers[2], NULL};
	pid_t child;
	CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, args, environ) == 0);
	return child;
}

/* A socket bound to the next free port below or above the server's: that decides which of the two ends publishes
 * its meeting point, and which searches. */
static inline int bound_socket(int below, uint16_t *port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	struct sockaddr_in from = server_address;
	do {
		*port = (uint16_t)(ntohs(from.sin_port) + (below ? -1 : 1));
		CHECK(*port > 1024);
		from.sin_port = htons(*port);
	} while (bind(fd, (struct sockaddr *)&from, sizeof(from)) < 0 && errno == EADDRINUSE);
	return fd;
}

static inline int connect_to_server(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	const char *port = getenv("CLIENT_PORT");
	if (port) {
		struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = server_address.sin_addr};
		int on = 1;
		from.sin_port = htons((uint16_t)atoi(port));
		CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
		CHECK(bind(fd, (struct sockaddr *)&from, sizeof(from)) == 0);
	}
	CHECK(connect(fd, (struct sockaddr *)&server_address, sizeof(server_address)) == 0);
	return fd;
}

static inline int accept_client(void)
{
	int fd;
	do
		fd = accept(listener, NULL, NULL);
	while (fd < 0 && errno == EINTR);
	CHECK(fd >= 0);
	return fd;
}

/* The next connection of this end, before its first call. */
static inline int cold_connection(int is_server)
{
	int on = 1;
	int fd = is_server ? accept_client() : connect_to_server();
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	return fd;
}

/* The next connection of this end, warmed up if all are. */
static inline int prepared_connection(int is_server)
{
	int fd = cold_connection(is_server);
	if (is_warm)
		warm_up(fd, is_server);
	return fd;
}

static inline int play(int argc, char **argv, const struct part *parts, size_t n)
{
	/* No process stays behind when a test is given up. */
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	CHECK(argc >= 4);
	int is_server = !strcmp(argv[1], "server");
	const struct part *part = NULL;
	for (size_t i = 0; i < n; i++)
		if (!strcmp(parts[i].name, argv[2]))
			part = &parts[i];
	CHECK(part != NULL);
	const char *address = getenv("SERVER_ADDRESS");
	server_address.sin_family = AF_INET;
	server_address.sin_addr.s_addr = address ? inet_addr(address) : htonl(INADDR_LOOPBACK);
	if (is_server) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(listener >= 0);
		socklen_t len = sizeof(server_address);
		CHECK(bind(listener, (struct sockaddr *)&server_address, len) == 0);
		CHECK(listen(listener, 16) == 0);
		CHECK(getsockname(listener, (struct sockaddr *)&server_address, &len) == 0);
		printf("port %d\n", ntohs(server_address.sin_port));
		fflush(stdout);
	} else {
		CHECK(argc == 5);
		server_address.sin_port = htons((uint16_t)atoi(argv[4]));
	}
	is_warm = atoi(argv[3]);
	int fd = prepared_connection(is_server);
	(is_server ? part->server : part->client)(fd);
	fflush(stdout);
	return 0;
}

#endif
