/* An echo whose ends use libc or liburing: every byte is compared.
 *
 *   uring server HOW ROUNDS          prints "port N", accepts one connection, sends back what comes
 *   uring client HOW ROUNDS PORT     asks ROUNDS times, prints "asked", and goes on until the end of its
 *                                    standard input
 *
 * HOW is
 *   libc    all calls are libc's
 *   ring    all calls on the connection are io_uring's, which makes it, too
 *   early   the io_uring is there first; libc makes the connection and the first calls on it
 *   late    as `early`, but the io_uring is made after these calls */
#include "common.h"
#include <liburing.h>

#define SIZE 1000

static struct io_uring ring;
static int has_ring, by_ring;

/* The io_uring, made once. */
static void make_ring(void)
{
	if (has_ring)
		return;
	int error = io_uring_queue_init(8, &ring, 0);
	if (error < 0) {
		errno = -error;
		fail("this test needs io_uring, which the kernel refuses");
	}
	has_ring = 1;
}

/* The result of one request. */
static int result_of(void)
{
	struct io_uring_cqe *cqe;
	int n;
	CHECK(io_uring_submit(&ring) == 1);
	while ((n = io_uring_wait_cqe(&ring, &cqe)) == -EINTR)
		;
	CHECK(n == 0);
	n = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return n;
}

static size_t receive(int fd, void *to, size_t n)
{
	ssize_t got;
	if (by_ring) {
		io_uring_prep_recv(io_uring_get_sqe(&ring), fd, to, n, 0);
		got = result_of();
	} else {
		got = read(fd, to, n);
	}
	CHECK(got >= 0);
	return (size_t)got;
}

static void send_all(int fd, const unsigned char *from, size_t n)
{
	while (n) {
		ssize_t sent;
		if (by_ring) {
			io_uring_prep_send(io_uring_get_sqe(&ring), fd, from, n, MSG_NOSIGNAL);
			sent = result_of();
		} else {
			sent = write(fd, from, n);
		}
		CHECK(sent > 0);
		from += sent;
		n -= (size_t)sent;
	}
}

/* After the first calls, which are libc's. */
static void change(const char *how)
{
	if (strcmp(how, "early") && strcmp(how, "late"))
		return;
	make_ring();
	by_ring = 1;
}

static void serve(int fd, const char *how, uint64_t first)
{
	unsigned char buf[4 * SIZE];
	uint64_t at = 0;
	for (;;) {
		/* The client knows as well where this end changes. */
		size_t most = !by_ring && at < first ? first - at : sizeof(buf);
		size_t n = receive(fd, buf, most < sizeof(buf) ? most : sizeof(buf));
		if (n == 0)
			break;
		check_stream(buf, n, 5, at);
		send_all(fd, buf, n);
		at += n;
		if (!by_ring && at >= first)
			change(how);
	}
	printf("%llu\n", (unsigned long long)at);
}

static void ask(int fd, uint64_t at)
{
	unsigned char out[SIZE], in[SIZE];
	fill_stream(out, SIZE, 5, at);
	send_all(fd, out, SIZE);
	for (size_t had = 0; had < SIZE;) {
		size_t n = receive(fd, in + had, SIZE - had);
		CHECK(n > 0);
		had += n;
	}
	CHECK(!memcmp(in, out, SIZE));
}

static int input_has_ended(void)
{
	struct pollfd p = {.fd = 0, .events = POLLIN};
	return poll(&p, 1, 0) == 1;
}

static void go_on_asking(int fd, const char *how, long rounds, uint64_t first)
{
	uint64_t at = 0;
	for (long round = 0; round < rounds || !input_has_ended(); round++) {
		if (!by_ring && at >= first)
			change(how);
		ask(fd, at);
		at += SIZE;
		if (round + 1 == rounds) {
			printf("asked\n");
			fflush(stdout);
		}
	}
	CHECK(shutdown(fd, SHUT_WR) == 0);
	char end;
	CHECK(receive(fd, &end, 1) == 0);
	printf("%llu\n", (unsigned long long)at);
}

static int connection(int is_server)
{
	if (is_server && by_ring) {
		io_uring_prep_accept(io_uring_get_sqe(&ring), listener, NULL, NULL, 0);
		return result_of();
	}
	if (is_server)
		return accept_client();
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	const struct sockaddr *to = (const struct sockaddr *)&server_address;
	if (by_ring) {
		io_uring_prep_connect(io_uring_get_sqe(&ring), fd, to, sizeof(server_address));
		CHECK(result_of() == 0);
	} else {
		CHECK(connect(fd, to, sizeof(server_address)) == 0);
	}
	return fd;
}

int main(int argc, char **argv)
{
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	CHECK(argc >= 4);
	int is_server = !strcmp(argv[1], "server");
	const char *how = argv[2];
	long rounds = atol(argv[3]);
	set_server(is_server ? 0 : (uint16_t)atoi(argv[4]));
	if (is_server) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		socklen_t len = sizeof(server_address);
		CHECK(bind(listener, (struct sockaddr *)&server_address, len) == 0);
		CHECK(listen(listener, 16) == 0);
		CHECK(getsockname(listener, (struct sockaddr *)&server_address, &len) == 0);
		printf("port %d\n", ntohs(server_address.sin_port));
		fflush(stdout);
	}
	by_ring = !strcmp(how, "ring");
	if (by_ring || !strcmp(how, "early"))
		make_ring();
	int fd = connection(is_server);
	CHECK(fd >= 0);
	int on = 1;
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	uint64_t first = (uint64_t)rounds / 2 * SIZE;
	if (is_server)
		serve(fd, how, first);
	else
		go_on_asking(fd, how, rounds, first);
	return 0;
}
