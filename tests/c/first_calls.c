/* The first calls of a connection, which the kernel alone makes, and threads that sleep meanwhile. */
#include "common.h"
#include <sys/syscall.h>

/* The buffers of a connection take less than what is sent. */
enum { SENT = 16000, BUFFER = 4096, ROUNDS = 300 };

/* A first send has to wait for room, and returns when all was sent. */
static void rest_of_send_client(int turns)
{
	static unsigned char buf[SENT];
	struct iovec halves[2] = {{buf, SENT / 2}, {buf + SENT / 2, SENT / 2}};
	int size = BUFFER;
	hear(turns);
	for (int way = 0; way < 2; way++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) == 0);
		CHECK(connect(fd, (struct sockaddr *)&server_address, sizeof(server_address)) == 0);
		fill_stream(buf, SENT, 9, 0);
		SHOW(way == 0 ? send(fd, buf, SENT, 0) : writev(fd, halves, 2));
		SHOW(close(fd));
	}
}

static void rest_of_send_server(int turns)
{
	int size = BUFFER;
	CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)) == 0);
	tell(turns);
	for (int way = 0; way < 2; way++) {
		int fd = accept_client();
		usleep(20000);
		get_stream(fd, SENT, 9);
		show_end(fd);
		CHECK(close(fd) == 0);
	}
}

/* A thread that waits for input in `poll` or `select` from before the first call on. */
struct waiter {
	int fd, is_selecting;
	_Atomic pid_t id;
};

static void *await_input(void *arg)
{
	struct waiter *waiter = arg;
	waiter->id = (pid_t)syscall(SYS_gettid);
	if (waiter->is_selecting) {
		fd_set input;
		FD_ZERO(&input);
		FD_SET(waiter->fd, &input);
		SHOW(select(waiter->fd + 1, &input, NULL, NULL, NULL));
		SHOW(FD_ISSET(waiter->fd, &input) != 0);
	} else {
		struct pollfd p = {.fd = waiter->fd, .events = POLLIN};
		SHOW(poll(&p, 1, -1));
		SHOW(p.revents);
	}
	hear(waiter->fd);
	return NULL;
}

/* A thread waits for input while this one sends, often enough for the connection to leave TCP, and asks for input
   itself. The server hears that the connection is waited for. */
static void use_beside(struct waiter *waiter, int turns)
{
	pthread_t thread;
	char byte;
	CHECK(pthread_create(&thread, NULL, await_input, waiter) == 0);
	while (!waiter->id)
		sched_yield();
	await_sleep(waiter->id);
	tell(turns);
	struct pollfd p = {.fd = waiter->fd, .events = POLLOUT};
	CHECK(poll(&p, 1, -1) == 1);
	for (int round = 0; round < ROUNDS; round++) {
		CHECK(recv(waiter->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN);
		put(waiter->fd, ".", 1);
		hear(turns);
	}
	tell(turns);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(close(waiter->fd) == 0);
}

static void wait_beside_sender(int turns, int is_selecting)
{
	struct waiter waiter = {.fd = cold_connection(0), .is_selecting = is_selecting};
	use_beside(&waiter, turns);
}

static void poll_beside_sender_client(int turns)
{
	wait_beside_sender(turns, 0);
}

static void select_beside_sender_client(int turns)
{
	wait_beside_sender(turns, 1);
}

/* The server's end of the connection that `use_beside` uses. */
static void answer_sender(int fd, int turns)
{
	char byte;
	for (int round = 0; round < ROUNDS; round++) {
		get(fd, &byte, 1);
		tell(turns);
	}
	hear(turns);
	tell(fd);
	show_end(fd);
	CHECK(close(fd) == 0);
}

static void beside_sender_server(int turns)
{
	int fd = cold_connection(1);
	hear(turns);
	answer_sender(fd, turns);
}

/* The wait begins while `connect` goes on: the server's queue is full, and the kernel drops what asks for more. */
static void connecting_beside_sender_client(int turns)
{
	hear(turns);
	int first = connect_to_server();
	struct waiter waiter = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)};
	const struct sockaddr *to = (struct sockaddr *)&server_address;
	CHECK(connect(waiter.fd, to, sizeof(server_address)) < 0 && errno == EINPROGRESS);
	use_beside(&waiter, turns);
	CHECK(close(first) == 0);
}

static void connecting_beside_sender_server(int turns)
{
	CHECK(listen(listener, 0) == 0);
	tell(turns);
	hear(turns);
	int first = accept_client(), fd = accept_client();
	answer_sender(fd, turns);
	show_end(first);
	CHECK(close(first) == 0);
}

static const struct part PARTS[] = {
	{"rest_of_send", rest_of_send_client, rest_of_send_server},
	{"poll_beside_sender", poll_beside_sender_client, beside_sender_server},
	{"select_beside_sender", select_beside_sender_client, beside_sender_server},
	{"connecting_beside_sender", connecting_beside_sender_client, connecting_beside_sender_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
