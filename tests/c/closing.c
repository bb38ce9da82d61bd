/* A descriptor is closed while another thread is in a call on it, and its number is given to another
 * connection. The call goes on with the connection that it began with, as in the kernel.
 *
 * `play`'s connection carries signals between the ends; "old" is closed under a call, "new" is given its
 * number. */
#include "common.h"
#include <sys/sendfile.h>
#include <sys/syscall.h>

enum { BULK = 8 << 20, SHORT = 10000, MORE_THAN_SHORT = 50000 };

enum action { RECV, RECV_ALL, RECV_MESSAGES, SEND, POLL, SELECT, SEND_FILE, SEND_SHORT_FILE };

struct caller {
	pthread_t thread;
	enum action action;
	int fd;
	int file;
	_Atomic pid_t id;
	_Atomic int is_back;
	long result;
	short revents;
	char got[16];
};

static unsigned char bulk[BULK];

static void *call(void *arg)
{
	struct caller *c = arg;
	c->id = (pid_t)syscall(SYS_gettid);
	switch (c->action) {
	case RECV:
		c->result = recv(c->fd, c->got, 3, 0);
		break;
	case RECV_ALL:
		c->result = recv(c->fd, c->got, 6, MSG_WAITALL);
		break;
	case RECV_MESSAGES: {
		struct iovec parts[2] = {{c->got, 3}, {c->got + 3, 3}};
		struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
		                              {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
		c->result = recvmmsg(c->fd, messages, 2, MSG_WAITFORONE, NULL);
		break;
	}
	case SEND:
		c->result = send(c->fd, bulk, BULK, 0);
		break;
	case POLL: {
		struct pollfd p = {.fd = c->fd, .events = POLLIN};
		c->result = poll(&p, 1, -1);
		c->revents = p.revents;
		break;
	}
	case SELECT: {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(c->fd, &set);
		c->result = select(c->fd + 1, &set, NULL, NULL, NULL);
		break;
	}
	case SEND_FILE: {
		off_t at = 0;
		c->result = sendfile(c->fd, c->file, &at, BULK);
		break;
	}
	case SEND_SHORT_FILE:
		c->result = sendfile(c->fd, c->file, NULL, MORE_THAN_SHORT);
		break;
	}
	c->is_back = 1;
	return NULL;
}

static void start(struct caller *c)
{
	CHECK(pthread_create(&c->thread, NULL, call, c) == 0);
	while (!c->id)
		sched_yield();
}

static void begin(struct caller *c)
{
	start(c);
	await_sleep(c->id);
}

/* As many calls as a connection makes before it looks for its peer, or until it has left TCP. */
static void prepare(int fd, int is_server)
{
	int on = 1;
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	for (int i = 0; i < 20 && is_warm == 2; i++) {
		if (is_server)
			tell(fd);
		hear(fd);
		if (!is_server)
			tell(fd);
	}
	if (is_warm == 1)
		warm_up(fd, is_server);
}

static int accept_old(void)
{
	int old = accept_client();
	prepare(old, 1);
	return old;
}

static int connect_old(void)
{
	int old = connect_to_server();
	prepare(old, 0);
	return old;
}

static int connect_new(void)
{
	int fd = connect_to_server();
	put(fd, "NEW", 3);
	return fd;
}

static void show_new(int fd)
{
	char got[4] = {0};
	get(fd, got, 3);
	printf("new: %s\n", got);
}

/* The old connection brings something once the number is another's. */
static void receives(int fd, enum action action)
{
	struct caller c = {.action = action, .fd = accept_old()};
	hear(fd);
	if (action == RECV_ALL)
		await_bytes(c.fd, 3);
	begin(&c);
	CHECK(close(c.fd) == 0);
	int new = accept_client();
	CHECK(new == c.fd);
	CHECK(!c.is_back);
	tell(fd);
	CHECK(pthread_join(c.thread, NULL) == 0);
	printf("old: %ld %s %d\n", c.result, c.got, c.revents);
	show_new(new);
	tell(fd);
	CHECK(close(new) == 0);
	hear(fd);
}

static void sends_old(int fd)
{
	int old = connect_old();
	int new = connect_new();
	tell(fd);
	hear(fd);
	put(old, "OLD", 3);
	hear(fd);
	show_end(old);
	show_end(new);
	tell(fd);
}

static void sends_old_in_two(int fd)
{
	int old = connect_old();
	put(old, "TWO", 3);
	int new = connect_new();
	tell(fd);
	hear(fd);
	put(old, "OLD", 3);
	hear(fd);
	show_end(old);
	show_end(new);
	tell(fd);
}

/* `poll` and `select` say that bytes have come, and leave them: the close resets. */
static void sends_old_unread(int fd)
{
	int old = connect_old();
	int new = connect_new();
	tell(fd);
	hear(fd);
	put(old, "OLD", 3);
	hear(fd);
	show_end(new);
	CHECK(close(old) == 0);
	tell(fd);
}

static void recv_server(int fd)
{
	receives(fd, RECV);
}

static void recv_all_server(int fd)
{
	receives(fd, RECV_ALL);
}

static void recv_messages_server(int fd)
{
	receives(fd, RECV_MESSAGES);
}

static void poll_server(int fd)
{
	receives(fd, POLL);
}

static void select_server(int fd)
{
	receives(fd, SELECT);
}

/* The number is replaced by `dup2` instead of closed and given out again. */
static void replaced_server(int fd)
{
	struct caller c = {.action = RECV, .fd = accept_old()};
	hear(fd);
	int other = accept_client();
	begin(&c);
	CHECK(dup2(other, c.fd) == c.fd);
	CHECK(close(other) == 0);
	CHECK(!c.is_back);
	tell(fd);
	CHECK(pthread_join(c.thread, NULL) == 0);
	printf("old: %ld %s\n", c.result, c.got);
	show_new(c.fd);
	tell(fd);
	CHECK(close(c.fd) == 0);
	hear(fd);
}

/* Two numbers name the connection; the one that the call came by is closed first. */
static void two_names_server(int fd)
{
	struct caller c = {.action = RECV, .fd = accept_old()};
	int second = dup(c.fd);
	CHECK(second >= 0);
	hear(fd);
	begin(&c);
	CHECK(close(c.fd) == 0);
	int new = accept_client();
	CHECK(new == c.fd);
	CHECK(close(second) == 0);
	tell(fd);
	CHECK(pthread_join(c.thread, NULL) == 0);
	printf("old: %ld %s\n", c.result, c.got);
	show_new(new);
	tell(fd);
	CHECK(close(new) == 0);
	hear(fd);
}

/* A child inherits the connection while another thread of its parent is in a call on it. The child has no such
 * thread, so its close is complete, and the peer sees the end once the parent has closed too. */
static void forked_server(int fd)
{
	struct caller c = {.action = RECV, .fd = accept_old()};
	int closed[2];
	char byte = 0;
	hear(fd);
	begin(&c);
	CHECK(pipe(closed) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		if (close(c.fd) == 0 && write(closed[1], &byte, 1) == 1)
			pause();
		_exit(1);
	}
	CHECK(read(closed[0], &byte, 1) == 1);
	tell(fd);
	CHECK(pthread_join(c.thread, NULL) == 0);
	printf("old: %ld %s\n", c.result, c.got);
	CHECK(close(c.fd) == 0);
	hear(fd);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void forked_client(int fd)
{
	int old = connect_old();
	char byte;
	tell(fd);
	hear(fd);
	put(old, "OLD", 3);
	CHECK(read(old, &byte, 1) == 0);
	tell(fd);
	CHECK(close(old) == 0);
}

/* A shutdown ends the call while its number goes to the next connection, again and again. */
static void shut_server(int fd)
{
	for (int round = 0; round < 50; round++) {
		struct caller c = {.action = RECV, .fd = accept_old()};
		hear(fd);
		begin(&c);
		CHECK(shutdown(c.fd, SHUT_RDWR) == 0);
		CHECK(close(c.fd) == 0);
		int new = accept_client();
		CHECK(pthread_join(c.thread, NULL) == 0);
		if (c.result != 0)
			fail("round %d: %ld %s", round, c.result, c.got);
		char got[3];
		get(new, got, 3);
		CHECK(!memcmp(got, "NEW", 3));
		CHECK(close(new) == 0);
	}
	printf("all ended\n");
}

static void shut_client(int fd)
{
	for (int round = 0; round < 50; round++) {
		int old = connect_old();
		int new = connect_new();
		tell(fd);
		char c;
		CHECK(read(old, &c, 1) == 0);
		CHECK(close(old) == 0);
		CHECK(read(new, &c, 1) == 0);
		CHECK(close(new) == 0);
	}
}

/* A writer waits for room on the old connection. */
static void send_server(int fd)
{
	fill_stream(bulk, BULK, 5, 0);
	struct caller c = {.action = SEND, .fd = accept_old()};
	hear(fd);
	begin(&c);
	CHECK(close(c.fd) == 0);
	int new = accept_client();
	CHECK(new == c.fd);
	put(new, "NEW", 3);
	tell(fd);
	CHECK(pthread_join(c.thread, NULL) == 0);
	printf("old: %ld\n", c.result);
	CHECK(close(new) == 0);
	hear(fd);
}

static void gets_bulk(int fd)
{
	int old = connect_old();
	int new = connect_to_server();
	tell(fd);
	hear(fd);
	get_stream(old, BULK, 5);
	show_end(old);
	show_new(new);
	show_end(new);
	tell(fd);
}

/* The file's number goes to another file. */
static void send_file_server(int fd)
{
	fill_stream(bulk, BULK, 5, 0);
	FILE *first = tmpfile(), *second = tmpfile();
	CHECK(first && second);
	CHECK(fwrite(bulk, BULK, 1, first) == 1 && fflush(first) == 0);
	CHECK(ftruncate(fileno(second), BULK) == 0);
	struct caller c = {.action = SEND_FILE, .fd = accept_old(), .file = dup(fileno(first))};
	hear(fd);
	begin(&c);
	CHECK(dup2(fileno(second), c.file) == c.file);
	tell(fd);
	CHECK(pthread_join(c.thread, NULL) == 0);
	printf("old: %s\n", c.result > 0 ? "sent" : errno_name(errno));
	/* As much as the call has sent was the file's. */
	uint64_t sent = (uint64_t)c.result;
	put(fd, &sent, sizeof(sent));
	CHECK(close(c.fd) == 0);
	hear(fd);
}

/* Sends up to `most` bytes until the connection takes no more, and the kernel has passed on what it can;
 * returns how many. */
static size_t send_all_it_takes(int fd, size_t most)
{
	size_t sent = 0;
	for (int is_full = 0; !is_full;) {
		ssize_t n = send(fd, bulk + sent, most - sent, MSG_DONTWAIT);
		is_full = n < 0;
		for (; n > 0; n = send(fd, bulk + sent, most - sent, MSG_DONTWAIT))
			sent += (size_t)n;
		CHECK(n < 0 && errno == EAGAIN);
		usleep(100 * 1000);
	}
	return sent;
}

/* As above, of a file that is shorter than the call asks for, from its own offset on, behind as many bytes
 * as the connection takes. */
static void send_short_file_server(int fd)
{
	fill_stream(bulk, BULK, 5, 0);
	FILE *first = tmpfile(), *second = tmpfile();
	CHECK(first && second && ftruncate(fileno(second), BULK) == 0);
	struct caller c = {.action = SEND_SHORT_FILE, .fd = accept_old(), .file = dup(fileno(first))};
	hear(fd);
	uint64_t sent = send_all_it_takes(c.fd, BULK - SHORT);
	CHECK(fwrite(bulk + sent, SHORT, 1, first) == 1 && fseek(first, 0, SEEK_SET) == 0);
	start(&c);
	/* It need not sleep if the connection has left TCP meanwhile, where there was no room. */
	has_slept(c.id);
	CHECK(dup2(fileno(second), c.file) == c.file);
	tell(fd);
	CHECK(pthread_join(c.thread, NULL) == 0);
	CHECK(c.result == SHORT);
	printf("at %ld and %ld\n", (long)lseek(fileno(first), 0, SEEK_CUR),
	       (long)lseek(fileno(second), 0, SEEK_CUR));
	sent += SHORT;
	put(fd, &sent, sizeof(sent));
	CHECK(close(c.fd) == 0);
	hear(fd);
}

static void gets_file(int fd)
{
	int old = connect_old();
	tell(fd);
	hear(fd);
	static unsigned char buf[BULK];
	size_t at = 0;
	ssize_t n;
	while ((n = read(old, buf, sizeof(buf))) > 0) {
		check_stream(buf, (size_t)n, 5, at);
		at += (size_t)n;
	}
	uint64_t sent;
	get(fd, &sent, sizeof(sent));
	printf("%s\n", n == 0 && at == sent ? "all of it" : "something else");
	tell(fd);
}

static const struct part PARTS[] = {
	{"recv", sends_old, recv_server},
	{"recv_all", sends_old_in_two, recv_all_server},
	{"recv_messages", sends_old, recv_messages_server},
	{"poll", sends_old_unread, poll_server},
	{"select", sends_old_unread, select_server},
	{"replaced", sends_old, replaced_server},
	{"two_names", sends_old, two_names_server},
	{"forked", forked_client, forked_server},
	{"shut", shut_client, shut_server},
	{"send", gets_bulk, send_server},
	{"send_file", gets_file, send_file_server},
	{"send_short_file", gets_file, send_short_file_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
