/* How connections end, and what calls at the edges answer. */
#include "common.h"
#include <sys/sendfile.h>

static volatile sig_atomic_t pipes;

static void count_pipe(int number)
{
	pipes += number == SIGPIPE;
}

/* Half-close: the other direction goes on. */
static void half_close_client(int fd)
{
	put_stream(fd, 300000, 1);
	SHOW(shutdown(fd, SHUT_WR));
	signal(SIGPIPE, SIG_IGN);
	SHOW(send(fd, "x", 1, 0));
	SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
	get_stream(fd, 3000000, 2);
	show_end(fd);
	SHOW(close(fd));
}

static void half_close_server(int fd)
{
	get_stream(fd, 300000, 1);
	show_end(fd);
	SHOW(recv(fd, NULL, 0, MSG_DONTWAIT));
	put_stream(fd, 3000000, 2);
	SHOW(shutdown(fd, SHUT_WR));
	SHOW(close(fd));
}

/* Half-close while the peer is blocked in a read, both ways round. */
static void both_half_close_client(int fd)
{
	show_end(fd);
	SHOW(shutdown(fd, SHUT_WR));
	close(fd);
}

static void both_half_close_server(int fd)
{
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
	printf("revents %x\n", (unsigned)await_end(fd));
	close(fd);
}

/* Writing to a peer that has closed: first nothing, then EPIPE and SIGPIPE. */
static void write_until_error(int fd, int flags)
{
	ssize_t n;
	while ((n = send(fd, "data", 4, flags)) > 0)
		;
	printf("write: %s, %d signals\n", errno_name(errno), (int)pipes);
}

static void closed_peer_client(int fd)
{
	signal(SIGPIPE, count_pipe);
	hear(fd);
	await_end(fd);
	write_until_error(fd, MSG_NOSIGNAL);
	write_until_error(fd, 0);
	struct iovec iov = {.iov_base = "v", .iov_len = 1};
	SHOW(writev(fd, &iov, 1));
	SHOW(write(fd, "w", 1));
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	SHOW(sendmsg(fd, &msg, 0));
	printf("%d signals\n", (int)pipes);
	show_end(fd);
}

static void closed_peer_server(int fd)
{
	tell(fd);
	close(fd);
}

/* A writer of small pieces that never reads: TCP takes one piece after the end, then no more. Here
 * it may take a few, but not as many as there is room for. */
static void late_writer_client(int fd)
{
	signal(SIGPIPE, count_pipe);
	hear(fd);
	await_end(fd);
	struct pollfd never = {.fd = -1};
	int pieces = 0;
	while (write(fd, "piece", 5) == 5 && pieces < 100) {
		pieces++;
		poll(&never, 1, 20);
	}
	printf("write: %s, %d signals, soon %d\n", errno_name(errno), (int)pipes, pieces < 8);
	SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
}

static void late_writer_killed_server(int fd)
{
	tell(fd);
	kill(getpid(), SIGKILL);
}

/* The same after a half-close, which alone ends nothing. */
static void late_half_close_client(int fd)
{
	signal(SIGPIPE, count_pipe);
	await_end(fd);
	struct pollfd never = {.fd = -1};
	for (int i = 0; i < 20; i++) {
		put(fd, "piece", 5);
		poll(&never, 1, 5);
	}
	put_stream(fd, 1000000, 1);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

static void late_half_close_server(int fd)
{
	SHOW(shutdown(fd, SHUT_WR));
	char pieces[100];
	get(fd, pieces, sizeof(pieces));
	get_stream(fd, 1000000, 1);
	show_end(fd);
}

/* The default action of SIGPIPE ends the program. */
static void killed_by_sigpipe_client(int fd)
{
	hear(fd);
	await_end(fd);
	printf("writing\n");
	fflush(stdout);
	write_until_error(fd, 0);
	printf("not reached\n");
}

/* Closing with unread bytes resets. */
static void unread_client(int fd)
{
	put_stream(fd, 1000, 1);
	hear(fd);
	short revents = await_end(fd);
	printf("revents %x\n", (unsigned)revents);
	char c;
	SHOW(recv(fd, &c, 1, 0));
	SHOW(recv(fd, &c, 1, 0));
	SHOW(send(fd, &c, 1, MSG_NOSIGNAL));
}

static void unread_server(int fd)
{
	await_bytes(fd, 1000);
	tell(fd);
	SHOW(close(fd));
}

/* A linger time of nothing resets too. */
static void linger_client(int fd)
{
	hear(fd);
	printf("revents %x\n", (unsigned)await_end(fd));
	char c;
	SHOW(recv(fd, &c, 1, 0));
	SHOW(recv(fd, &c, 1, 0));
}

static void linger_server(int fd)
{
	struct linger linger = {.l_onoff = 1};
	SHOW(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	tell(fd);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	SHOW(poll(&p, 1, 20));
	SHOW(close(fd));
}

/* What was written just before the end arrives, and the end after it. */
static void exit_client(int fd)
{
	get_stream(fd, 200000, 1);
	show_end(fd);
}

static void exit_server(int fd)
{
	put_stream(fd, 200000, 1);
	_exit(7);
}

static void killed_server(int fd)
{
	put_stream(fd, 200000, 1);
	kill(getpid(), SIGKILL);
}

/* A blocked writer whose peer dies. */
static void blocked_writer_client(int fd)
{
	signal(SIGPIPE, count_pipe);
	static char zeros[65536];
	ssize_t n;
	while ((n = write(fd, zeros, sizeof(zeros))) > 0)
		;
	printf("write: %s or so, %d signals\n", errno == EPIPE || errno == ECONNRESET ? "EPIPE" : errno_name(errno), errno == EPIPE ? (int)pipes : 1);
}

static void blocked_writer_server(int fd)
{
	await_full(fd);
	kill(getpid(), SIGKILL);
}

/* Shutting down one's own reading, from another thread that waits for it. */
static void *shut_down(void *fd)
{
	struct pollfd never = {.fd = -1};
	poll(&never, 1, 50);
	CHECK(shutdown(*(int *)fd, SHUT_RD) == 0);
	return NULL;
}

static void shut_read_client(int fd)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, shut_down, &fd) == 0);
	char c;
	SHOW(recv(fd, &c, 1, 0));
	SHOW(recv(fd, &c, 1, MSG_DONTWAIT));
	CHECK(pthread_join(thread, NULL) == 0);
	put_stream(fd, 100000, 1);
	SHOW(shutdown(fd, SHUT_WR));
	close(fd);
}

static void shut_read_server(int fd)
{
	get_stream(fd, 100000, 1);
	show_end(fd);
}

/* Calls at the edges. */
static void edges_client(int fd)
{
	char buf[100];
	struct iovec none = {0}, one = {.iov_base = buf, .iov_len = 10};
	static struct iovec many[1025];
	for (size_t i = 0; i < COUNT(many); i++)
		many[i] = (struct iovec){.iov_base = buf, .iov_len = 1};
	struct msghdr msg = {.msg_iov = many, .msg_iovlen = COUNT(many)};
	char *volatile nowhere = NULL;
	volatile int minus_one = -1;
	SHOW(recv(fd, buf, sizeof(buf), MSG_DONTWAIT));
	SHOW(recv(fd, buf, 0, MSG_DONTWAIT));
	SHOW(read(fd, buf, 0));
	SHOW(write(fd, buf, 0));
	SHOW(send(fd, buf, 0, 0));
	SHOW(readv(fd, &none, 1));
	SHOW(readv(fd, many, 0));
	SHOW(writev(fd, &none, 1));
	SHOW(readv(fd, many, minus_one));
	SHOW(readv(fd, many, 1025));
	SHOW(writev(fd, many, 1025));
	SHOW(sendmsg(fd, &msg, 0));
	SHOW(recvmsg(fd, &msg, MSG_DONTWAIT));
	SHOW(preadv2(fd, &one, 1, 0, 0));
	SHOW(preadv2(fd, &one, 1, -1, RWF_NOWAIT));
	SHOW(pread(fd, buf, 1, 0));
	SHOW(lseek(fd, 0, SEEK_SET));
	SHOW(send(fd, nowhere, 1, 0));
	SHOW(recv(fd, buf, 1, MSG_ERRQUEUE | MSG_DONTWAIT));
	SHOW(shutdown(fd, 99));
	SHOW(listen(fd, 1));
	SHOW(bind(fd, (struct sockaddr *)&server_address, sizeof(server_address)));
	SHOW(sendto(fd, "a", 1, 0, (struct sockaddr *)&server_address, 1000));
	SHOW(sendto(fd, "b", 1, 0, (struct sockaddr *)&server_address, sizeof(server_address)));
	await_bytes(fd, 20);
	SHOW(recv(fd, NULL, 0, 0));
	SHOW(recv(fd, buf, 0, MSG_DONTWAIT));
	SHOW(recv(fd, NULL, 5, MSG_TRUNC));
	memset(buf, '.', sizeof(buf));
	SHOW(recv(fd, buf, 5, MSG_TRUNC));
	printf("%.5s\n", buf);
	SHOW(recv(fd, buf, 5, MSG_PEEK));
	SHOW(recv(fd, buf, 5, MSG_CMSG_CLOEXEC));
	printf("%.5s\n", buf);
	socklen_t len = sizeof(struct sockaddr_in);
	SHOW(recvfrom(fd, buf, 5, 0, (struct sockaddr *)(buf + 20), &len));
	printf("%.5s %u\n", buf, len);
	tell(fd);
	hear(fd);
}

static void edges_server(int fd)
{
	char c;
	get(fd, &c, 1);
	printf("%c\n", c);
	put(fd, "0123456789abcdefghij", 20);
	hear(fd);
	tell(fd);
}

/* Counters and readiness at known states. */
static void state_client(int fd)
{
	int n;
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLWRNORM};
	SHOW(poll(&p, 1, 0));
	printf("revents %x\n", (unsigned)p.revents);
	tell(fd);
	await_bytes(fd, 1000);
	SHOW(ioctl(fd, FIONREAD, &n));
	printf("%d readable\n", n);
	SHOW(poll(&p, 1, 0));
	printf("revents %x\n", (unsigned)p.revents);
	get_stream(fd, 1000, 1);
	SHOW(ioctl(fd, FIONREAD, &n));
	printf("%d readable\n", n);
	tell(fd);
	hear(fd);
	SHOW(ioctl(fd, TIOCOUTQ, &n));
	tell(fd);
	printf("revents %x\n", (unsigned)await_end(fd));
	SHOW(poll(&p, 1, 0));
	printf("revents %x\n", (unsigned)p.revents);
	shutdown(fd, SHUT_WR);
	SHOW(poll(&p, 1, 0));
	printf("revents %x\n", (unsigned)p.revents);
	fd_set rd, wr, ex;
	FD_ZERO(&rd);
	FD_ZERO(&wr);
	FD_ZERO(&ex);
	FD_SET(fd, &rd);
	FD_SET(fd, &wr);
	FD_SET(fd, &ex);
	struct timeval now = {0};
	SHOW(select(fd + 1, &rd, &wr, &ex, &now));
	printf("%d %d %d\n", !!FD_ISSET(fd, &rd), !!FD_ISSET(fd, &wr), !!FD_ISSET(fd, &ex));
	close(fd);
	FD_SET(fd, &rd);
	SHOW(select(fd + 1, &rd, NULL, NULL, &now));
	SHOW(poll(&p, 1, 0));
	printf("revents %x\n", (unsigned)p.revents);
}

static void state_server(int fd)
{
	hear(fd);
	put_stream(fd, 1000, 1);
	hear(fd);
	tell(fd);
	hear(fd);
	shutdown(fd, SHUT_WR);
	show_end(fd);
}

/* Time-outs: the socket's own, poll's and select's. */
static void timeouts_client(int fd)
{
	char c;
	struct timeval limit = {.tv_usec = 30000};
	SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	SHOW(recv(fd, &c, 1, 0));
	SHOW(read(fd, &c, 1));
	struct pollfd p = {.fd = fd, .events = POLLIN};
	SHOW(poll(&p, 1, 30));
	struct timespec span = {.tv_nsec = 30000000};
	SHOW(ppoll(&p, 1, &span, NULL));
	printf("span kept %d\n", span.tv_nsec == 30000000);
	fd_set rd;
	FD_ZERO(&rd);
	FD_SET(fd, &rd);
	SHOW(select(fd + 1, &rd, NULL, NULL, &limit));
	printf("set %d left %ld.%06ld\n", !!FD_ISSET(fd, &rd), (long)limit.tv_sec, (long)limit.tv_usec);
	struct timeval zero = {0};
	SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &zero, sizeof(zero)));
	tell(fd);
	hear(fd);
}

static void timeouts_server(int fd)
{
	hear(fd);
	tell(fd);
}

/* A file by sendfile, and by splice over a pipe. */
static void files_client(int fd)
{
	FILE *file = tmpfile();
	CHECK(file != NULL);
	int from = fileno(file);
	put_stream(from, 500000, 1);
	off_t at = 100;
	CHECK(lseek(from, 7, SEEK_SET) == 7);
	for (size_t left = 1000; left;) {
		ssize_t n = sendfile(fd, from, &at, left);
		CHECK(n > 0);
		left -= (size_t)n;
	}
	printf("at %ld, offset %ld\n", (long)at, (long)lseek(from, 0, SEEK_CUR));
	CHECK(lseek(from, 0, SEEK_SET) == 0);
	ssize_t n;
	long total = 0;
	while ((n = sendfile(fd, from, NULL, 1u << 20)) > 0)
		total += n;
	printf("sent %ld, then %ld, offset %ld\n", total, (long)n, (long)lseek(from, 0, SEEK_CUR));
	SHOW(sendfile(fd, -1, NULL, 1));
	hear(fd);
	int ends[2];
	CHECK(pipe(ends) == 0);
	put_stream(ends[1], 50000, 3);
	close(ends[1]);
	while ((n = splice(ends[0], NULL, fd, NULL, 1u << 20, 0)) > 0)
		;
	SHOW(n);
	hear(fd);
}

static void files_server(int fd)
{
	unsigned char part[1000];
	get(fd, part, sizeof(part));
	check_stream(part, sizeof(part), 1, 100);
	get_stream(fd, 500000, 1);
	tell(fd);
	int ends[2];
	CHECK(pipe(ends) == 0);
	unsigned char chunk[4096];
	for (size_t at = 0; at < 50000;) {
		ssize_t n = splice(fd, NULL, ends[1], NULL, 50000 - at < 4096 ? 50000 - at : 4096, 0);
		CHECK(n > 0);
		get(ends[0], chunk, (size_t)n);
		check_stream(chunk, (size_t)n, 3, at);
		at += (size_t)n;
	}
	printf("spliced\n");
	tell(fd);
}

/* A file piece by piece, from the connection's first call on, by a socket that does not wait. */
static void file_pieces_client(int fd)
{
	enum { TOTAL = 500000, PIECE = 1000, PIECES = 8 };
	FILE *file = tmpfile();
	CHECK(file != NULL);
	int from = fileno(file);
	put_stream(from, TOTAL, 1);
	CHECK(lseek(from, 3, SEEK_SET) == 3);
	set_nonblocking(fd, 1);
	SHOW(sendfile(fd, -1, NULL, PIECE));
	SHOW(sendfile(fd, from, (off_t *)16, PIECE));
	SHOW(sendfile(fd, from, NULL, 0));
	off_t at = 0;
	for (int i = 0; i < PIECES; i++) {
		SHOW(sendfile(fd, from, &at, PIECE));
		SHOW(at);
	}
	SHOW(sendfile(fd, from, (off_t *)16, PIECE));
	SHOW(lseek(from, 0, SEEK_CUR));
	CHECK(lseek(from, at, SEEK_SET) == at);
	while (lseek(from, 0, SEEK_CUR) < TOTAL) {
		struct pollfd one = {.fd = fd, .events = POLLOUT};
		CHECK(poll(&one, 1, -1) == 1);
		CHECK(sendfile(fd, from, NULL, 1u << 20) > 0 || errno == EAGAIN);
	}
	set_nonblocking(fd, 0);
	hear(fd);
}

static void file_pieces_server(int fd)
{
	get_stream(fd, 500000, 1);
	tell(fd);
}

/* Options that the fast path cannot honour, in the middle of a stream; and urgent bytes. */
static void options_client(int fd)
{
	int on = 1, size = 0, low = 100;
	socklen_t len = sizeof(size);
	put_stream(fd, 1000, 1);
	SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low)));
	SHOW(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof(on)));
	SHOW(setsockopt(fd, SOL_SOCKET, 9999, &on, sizeof(on)));
	SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &size, &len));
	SHOW(getsockopt(fd, SOL_SOCKET, SO_TYPE, &size, &len));
	put_stream(fd, 1000, 2);
	SHOW(send(fd, "U", 1, MSG_OOB));
	put_stream(fd, 1000, 3);
	get_stream(fd, 500000, 4);
	tell(fd);
	hear(fd);
}

static void options_server(int fd)
{
	get_stream(fd, 1000, 1);
	get_stream(fd, 1000, 2);
	struct pollfd p = {.fd = fd, .events = POLLPRI};
	CHECK(poll(&p, 1, -1) == 1);
	char c = '?';
	SHOW(recv(fd, &c, 1, MSG_OOB));
	printf("urgent %c\n", c);
	get_stream(fd, 1000, 3);
	put_stream(fd, 500000, 4);
	hear(fd);
	tell(fd);
}

static const struct part PARTS[] = {
	{"half_close", half_close_client, half_close_server},
	{"both_half_close", both_half_close_client, both_half_close_server},
	{"closed_peer", closed_peer_client, closed_peer_server},
	{"late_writer", late_writer_client, closed_peer_server},
	{"late_writer_killed", late_writer_client, late_writer_killed_server},
	{"late_half_close", late_half_close_client, late_half_close_server},
	{"killed_by_sigpipe", killed_by_sigpipe_client, closed_peer_server},
	{"unread", unread_client, unread_server},
	{"linger", linger_client, linger_server},
	{"exit", exit_client, exit_server},
	{"killed", exit_client, killed_server},
	{"blocked_writer", blocked_writer_client, blocked_writer_server},
	{"shut_read", shut_read_client, shut_read_server},
	{"edges", edges_client, edges_server},
	{"state", state_client, state_server},
	{"timeouts", timeouts_client, timeouts_server},
	{"files", files_client, files_server},
	{"file_pieces", file_pieces_client, file_pieces_server},
	{"options", options_client, options_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
