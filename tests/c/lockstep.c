/* One process of a random program in lock step: does what it is told, call by call, and says what each call
 * returned. The ends of a connection are number 0, which connects, and 1, which accepts; both may be in one process.
 *
 * Reads lines `WORD END THREAD NUMBER NUMBER` and answers each with a line. Nothing waits for ever: a call that could
 * has a time limit. Between calls everything that is on its way is waited for (`settle`), so that what kernel TCP
 * returns does not depend on time. */
#include "common.h"
#include <linux/sockios.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

enum { MOST = 1 << 16, PARTS = 40 };

/* What an end has done so far. */
struct end {
	int fd;
	uint64_t sent;
	uint64_t read;
};

struct order {
	char word[16];
	int end;
	int thread;
	long a;
	long b;
};

static struct end ends[2] = {{.fd = -1}, {.fd = -1}};
static unsigned char room[MOST];
static char answer[256];
/* Of both ends: bytes sent past the kernel, which tell whether a ring was used. */
static uint64_t past_kernel;

static void say(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(answer, sizeof(answer), format, args);
	va_end(args);
}

static void say_result(long n)
{
	if (n < 0)
		say("%s", errno_name(errno));
	else
		say("%ld", n);
}

/* Bytes, by their number and a digest. */
static void say_bytes(long n)
{
	uint32_t digest = 2166136261u;
	for (long i = 0; i < n; i++)
		digest = (digest ^ room[i]) * 16777619u;
	if (n <= 0)
		say_result(n);
	else
		say("%ld:%08x", n, digest);
}

/* Cuts `n` bytes of `room` into `parts` pieces, some of them empty. */
static int cut(struct iovec *iov, size_t n, long parts)
{
	for (long i = 0; i < parts; i++) {
		size_t from = n * (size_t)i / (size_t)parts, to = n * (size_t)(i + 1) / (size_t)parts;
		iov[i] = (struct iovec){.iov_base = room + from, .iov_len = to - from};
	}
	return (int)parts;
}

static void sent(struct end *e, long n)
{
	if (n > 0)
		e->sent += (uint64_t)n;
	say_result(n);
}

static void do_send(struct end *e, const struct order *o)
{
	size_t n = (size_t)o->a;
	struct iovec iov[PARTS];
	struct msghdr msg = {.msg_iov = iov};
	fill_stream(room, n, (uint64_t)(e - ends) + 1, e->sent);
	if (!strcmp(o->word, "send"))
		sent(e, send(e->fd, room, n, MSG_NOSIGNAL));
	else if (!strcmp(o->word, "write"))
		sent(e, write(e->fd, room, n));
	else if (!strcmp(o->word, "writev"))
		sent(e, writev(e->fd, iov, cut(iov, n, o->b)));
	else {
		msg.msg_iovlen = (size_t)cut(iov, n, o->b);
		sent(e, sendmsg(e->fd, &msg, MSG_NOSIGNAL));
	}
}

/* From a file, or from a pipe. */
static void do_send_from(struct end *e, const struct order *o)
{
	size_t n = (size_t)o->a;
	fill_stream(room, n, (uint64_t)(e - ends) + 1, e->sent);
	if (!strcmp(o->word, "sendfile")) {
		int file = memfd_create("lockstep", 0);
		CHECK(file >= 0 && write(file, room, n) == (ssize_t)n);
		off_t at = 0;
		sent(e, sendfile(e->fd, file, &at, n));
		CHECK(close(file) == 0);
		return;
	}
	int pipes[2];
	CHECK(pipe(pipes) == 0 && write(pipes[1], room, n) == (ssize_t)n);
	sent(e, splice(pipes[0], NULL, e->fd, NULL, n, SPLICE_F_NONBLOCK));
	CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
}

static void do_recv(struct end *e, const struct order *o)
{
	size_t n = (size_t)o->a;
	struct iovec iov[PARTS];
	struct msghdr msg = {.msg_iov = iov};
	memset(room, 0, n);
	if (!strcmp(o->word, "recv"))
		say_bytes(recv(e->fd, room, n, 0));
	else if (!strcmp(o->word, "read"))
		say_bytes(read(e->fd, room, n));
	else if (!strcmp(o->word, "readv"))
		say_bytes(readv(e->fd, iov, cut(iov, n, o->b)));
	else if (!strcmp(o->word, "peek"))
		say_bytes(recv(e->fd, room, n, MSG_PEEK));
	else if (!strcmp(o->word, "waitall"))
		say_bytes(recv(e->fd, room, n, MSG_WAITALL));
	else if (!strcmp(o->word, "none"))
		say_bytes(recv(e->fd, room, 0, 0));
	else if (!strcmp(o->word, "discard"))
		say_result(recv(e->fd, NULL, n, MSG_TRUNC));
	else if (!strcmp(o->word, "urgent"))
		say_bytes(recv(e->fd, room, 1, MSG_OOB));
	else {
		msg.msg_iovlen = (size_t)cut(iov, n, o->b);
		int is_peek = !strcmp(o->word, "peekv");
		long got = recvmsg(e->fd, &msg, is_peek ? MSG_PEEK : 0);
		say_bytes(got);
		if (got >= 0)
			snprintf(answer + strlen(answer), 16, " %x", (unsigned)msg.msg_flags);
	}
}

/* Into a pipe, and from there to the reader. */
static void do_splice_out(struct end *e, const struct order *o)
{
	int pipes[2];
	CHECK(pipe2(pipes, O_NONBLOCK) == 0);
	long n = splice(e->fd, NULL, pipes[1], NULL, (size_t)o->a, SPLICE_F_NONBLOCK);
	if (n > 0)
		CHECK(read(pipes[0], room, MOST) == n);
	say_bytes(n);
	CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
}

/* A blocking receive with a limit of time: it takes as long as that if not enough is there. */
static void do_timed(struct end *e, const struct order *o)
{
	struct timeval limit = {.tv_usec = 8000}, none = {0};
	CHECK(setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	set_nonblocking(e->fd, 0);
	say_bytes(recv(e->fd, room, (size_t)o->a, o->b ? MSG_WAITALL : 0));
	set_nonblocking(e->fd, 1);
	CHECK(setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none)) == 0);
}

static void do_timed_send(struct end *e, const struct order *o)
{
	struct timeval limit = {.tv_usec = 8000}, none = {0};
	fill_stream(room, (size_t)o->a, (uint64_t)(e - ends) + 1, e->sent);
	CHECK(setsockopt(e->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0);
	set_nonblocking(e->fd, 0);
	sent(e, send(e->fd, room, (size_t)o->a, MSG_NOSIGNAL));
	set_nonblocking(e->fd, 1);
	CHECK(setsockopt(e->fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none)) == 0);
}

static void do_poll(const struct end *e, const struct order *o)
{
	enum { MANY = 80 };
	struct pollfd p[MANY];
	int is_many = (o->b & 2) != 0;
	for (int i = 0; i < MANY; i++)
		p[i] = (struct pollfd){.fd = -1, .revents = -1};
	/* The others are passed over. */
	struct pollfd *at = &p[is_many ? 50 : 0];
	*at = (struct pollfd){.fd = e->fd, .events = (short)o->a};
	int n = poll(p, is_many ? MANY : 1, o->b & 1);
	say("%d %x %d", n, (unsigned)at->revents, is_many ? p[7].revents : 0);
}

static void do_select(const struct end *e)
{
	fd_set sets[3];
	struct timeval now = {0};
	for (int i = 0; i < 3; i++) {
		FD_ZERO(&sets[i]);
		FD_SET(e->fd, &sets[i]);
	}
	int n = select(e->fd + 1, &sets[0], &sets[1], &sets[2], &now);
	say("%d %d%d%d", n, FD_ISSET(e->fd, &sets[0]) != 0, FD_ISSET(e->fd, &sets[1]) != 0,
	    FD_ISSET(e->fd, &sets[2]) != 0);
}

static int option(const struct end *e, int level, int name)
{
	int value = 0;
	socklen_t len = sizeof(value);
	CHECK(getsockopt(e->fd, level, name, &value, &len) == 0);
	return value;
}

static void do_set(struct end *e, const struct order *o)
{
	int value = (int)o->a;
	if (!strcmp(o->word, "lowat"))
		say_result(setsockopt(e->fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value)));
	else if (!strcmp(o->word, "inline"))
		say_result(setsockopt(e->fd, SOL_SOCKET, SO_OOBINLINE, &value, sizeof(value)));
	else {
		struct linger linger = {.l_onoff = (int)o->a, .l_linger = (int)o->b};
		say_result(setsockopt(e->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	}
}

static void do_ask(struct end *e, const struct order *o)
{
	struct sockaddr_in at;
	socklen_t len = sizeof(at);
	int n = 0;
	if (!strcmp(o->word, "readable")) {
		say_result(ioctl(e->fd, FIONREAD, &n));
		if (answer[0] == '0')
			say("%d", n);
	} else if (!strcmp(o->word, "error"))
		say("%s", errno_name(option(e, SOL_SOCKET, SO_ERROR)));
	else if (!strcmp(o->word, "state"))
		say("%d", option(e, IPPROTO_TCP, TCP_INFO) & 0xff);
	else if (!strcmp(o->word, "atmark"))
		say_result(sockatmark(e->fd));
	else if (!strcmp(o->word, "unsent")) {
		CHECK(ioctl(e->fd, SIOCOUTQ, &n) == 0);
		say("%d", n);
	} else
		say_result(getpeername(e->fd, (struct sockaddr *)&at, &len));
}

static void do_name(struct end *e, const struct order *o)
{
	if (!strcmp(o->word, "dup")) {
		int fd = dup(e->fd);
		CHECK(fd >= 0 && close(e->fd) == 0);
		e->fd = fd;
	} else if (!strcmp(o->word, "dup2")) {
		int fd = open("/dev/null", O_RDONLY);
		CHECK(fd >= 0 && dup2(e->fd, fd) == fd && close(e->fd) == 0);
		e->fd = fd;
	} else {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0)
			_exit(0);
		CHECK(waitpid(child, NULL, 0) == child);
	}
	say("0");
}

static uint64_t info(const struct end *e, size_t at)
{
	/* Newer than some headers know it. */
	unsigned char bytes[256] = {0};
	socklen_t len = sizeof(bytes);
	uint64_t value;
	CHECK(getsockopt(e->fd, IPPROTO_TCP, TCP_INFO, bytes, &len) == 0);
	memcpy(&value, bytes + at, sizeof(value));
	return value;
}

/* Bytes that the kernel has sent for an end. */
static uint64_t sent_by_kernel(const struct end *e)
{
	enum { BYTES_SENT = 200, BYTES_RETRANS = 208 };
	return info(e, BYTES_SENT) - info(e, BYTES_RETRANS);
}

/* How much of what an end sent went past its kernel; it is closed next. */
static void count_past_kernel(const struct end *e)
{
	uint64_t by_kernel = sent_by_kernel(e);
	past_kernel += by_kernel < e->sent ? e->sent - by_kernel : 0;
}

static void do_close(struct end *e)
{
	count_past_kernel(e);
	say_result(close(e->fd));
	e->fd = -1;
}

static void do_listen(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&at, len) == 0);
	CHECK(listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
	say("%d", ntohs(at.sin_port));
}

static void do_begin(struct end *e, const struct order *o)
{
	int on = 1;
	if (!strcmp(o->word, "connect")) {
		set_server((uint16_t)o->a);
		e->fd = connect_to_server();
	} else {
		e->fd = accept_client();
		CHECK(close(listener) == 0);
	}
	CHECK(setsockopt(e->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	set_nonblocking(e->fd, 1);
	e->sent = e->read = 0;
	say("0");
}

/* Has the kernel acknowledge at once what has come: it might wait 40 ms for something to send along. */
static void acknowledge(void)
{
	int on = 1;
	for (struct end *e = ends; e < ends + 2; e++)
		if (e->fd >= 0)
			setsockopt(e->fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
}

/* Whether nothing is under way between an end and its peer, of whose bytes the kernel has sent `due`. With `ended` the
 * peer has closed, and the end of its stream must have arrived too.
 *
 * Arrival is what counts, not the acknowledgement: the receiver's kernel may delay that by 40 ms. */
static int is_settled(const struct end *e, int ended, uint64_t due)
{
	enum { BYTES_RECEIVED = 128 };
	int state = option(e, IPPROTO_TCP, TCP_INFO) & 0xff, unsent = 0;
	if (state == TCP_CLOSE)
		return 1;
	/* What a shutdown is answered with shows in the state. */
	if (state == TCP_FIN_WAIT1 || state == TCP_CLOSING || state == TCP_LAST_ACK)
		return 0;
	if (!ended)
		return info(e, BYTES_RECEIVED) >= due;
	CHECK(ioctl(e->fd, SIOCOUTQ, &unsent) == 0);
	return unsent == 0 && state != TCP_ESTABLISHED && state != TCP_FIN_WAIT2;
}

/* Waits until nothing is under way between this process's ends and their peers. `due` is of a peer in another process.
 * Returns how much the kernel has sent for an end of this process. */
static uint64_t settle(int ended, uint64_t due)
{
	uint64_t sent = 0;
	for (struct end *e = ends; e < ends + 2; e++) {
		const struct end *peer = &ends[e == ends];
		while (e->fd >= 0) {
			if (is_settled(e, ended, peer->fd >= 0 ? sent_by_kernel(peer) : due))
				break;
			acknowledge();
			sched_yield();
		}
		if (e->fd >= 0)
			sent = sent_by_kernel(e);
	}
	return sent;
}

/* Until the kernel's clock has ticked, which a writer on a ring looks at the socket after. */
static void await_tick(void)
{
	struct timespec first, now;
	CHECK(clock_gettime(CLOCK_MONOTONIC_COARSE, &first) == 0);
	do {
		sched_yield();
		CHECK(clock_gettime(CLOCK_MONOTONIC_COARSE, &now) == 0);
	} while (now.tv_sec * 1000 + now.tv_nsec / 1000000 == first.tv_sec * 1000 + first.tv_nsec / 1000000);
}

static void run(const struct order *o)
{
	static const struct {
		const char *words;
		void (*run)(struct end *e, const struct order *o);
	} ORDERS[] = {
		{" send write writev sendmsg ", do_send},
		{" sendfile splice ", do_send_from},
		{" recv read readv peek peekv recvmsg waitall none discard urgent ", do_recv},
		{" spliceout ", do_splice_out},
		{" timed ", do_timed},
		{" timedsend ", do_timed_send},
		{" lowat inline linger ", do_set},
		{" readable error state atmark unsent peername ", do_ask},
		{" dup dup2 fork ", do_name},
		{" connect accept ", do_begin},
	};
	char padded[20];
	struct end *e = &ends[o->end];
	snprintf(padded, sizeof(padded), " %s ", o->word);
	for (size_t i = 0; i < COUNT(ORDERS); i++)
		if (strstr(ORDERS[i].words, padded)) {
			ORDERS[i].run(e, o);
			return;
		}
	if (!strcmp(o->word, "poll"))
		do_poll(e, o);
	else if (!strcmp(o->word, "select"))
		do_select(e);
	else if (!strcmp(o->word, "shutdown"))
		say_result(shutdown(e->fd, (int)o->a));
	else if (!strcmp(o->word, "oob"))
		say_result(send(e->fd, "!", 1, MSG_OOB | MSG_NOSIGNAL));
	else if (!strcmp(o->word, "close"))
		do_close(e);
	else if (!strcmp(o->word, "listen"))
		do_listen();
	else if (!strcmp(o->word, "settle"))
		return;
	else if (!strcmp(o->word, "tick")) {
		await_tick();
		say("0");
	} else if (!strcmp(o->word, "past")) {
		say("%llu", (unsigned long long)past_kernel);
		past_kernel = 0;
	} else
		fail("what is %s?", o->word);
}

/* The other thread of this process, which does what it is told while the first one waits. */
static sem_t begin, done;
static struct order current;

static void *other(void *unused)
{
	(void)unused;
	for (;;) {
		while (sem_wait(&begin) < 0)
			;
		run(&current);
		sem_post(&done);
	}
	return NULL;
}

int main(void)
{
	char line[128];
	pthread_t thread;
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	signal(SIGPIPE, SIG_IGN);
	CHECK(sem_init(&begin, 0, 0) == 0 && sem_init(&done, 0, 0) == 0);
	CHECK(pthread_create(&thread, NULL, other, NULL) == 0);
	while (fgets(line, sizeof(line), stdin)) {
		int n = sscanf(line, "%15s %d %d %ld %ld", current.word, &current.end, &current.thread,
			       &current.a, &current.b);
		CHECK(n == 5 && current.end >= 0 && current.end < 2 && current.a <= MOST);
		if (current.thread) {
			sem_post(&begin);
			while (sem_wait(&done) < 0)
				;
		} else
			run(&current);
		acknowledge();
		/* With the other end in another process both are told to, one after the other. */
		if (!strcmp(current.word, "settle"))
			say("%llu", (unsigned long long)settle(current.a != 0, (uint64_t)current.b));
		else if (ends[0].fd >= 0 && ends[1].fd >= 0)
			settle(0, 0);
		puts(answer);
		fflush(stdout);
	}
	return 0;
}
