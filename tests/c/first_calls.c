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

/* Another thread sends meanwhile, often enough for the connection to leave TCP, and asks for input. */
static void wait_beside_sender(int turns, int is_selecting)
{
	struct waiter waiter = {.fd = cold_connection(0), .is_selecting = is_selecting};
	pthread_t thread;
	char byte;
	CHECK(pthread_create(&thread, NULL, await_input, &waiter) == 0);
	while (!waiter.id)
		sched_yield();
	await_sleep(waiter.id);
	for (int round = 0; round < ROUNDS; round++) {
		CHECK(recv(waiter.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN);
		put(waiter.fd, ".", 1);
		hear(turns);
	}
	tell(turns);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(close(waiter.fd) == 0);
}

static void poll_beside_sender_client(int turns)
{
	wait_beside_sender(turns, 0);
}

static void select_beside_sender_client(int turns)
{
	wait_beside_sender(turns, 1);
}

static void beside_sender_server(int turns)
{
	int fd = cold_connection(1);
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

static const struct part PARTS[] = {
	{"rest_of_send", rest_of_send_client, rest_of_send_server},
	{"poll_beside_sender", poll_beside_sender_client, beside_sender_server},
	{"select_beside_sender", select_beside_sender_client, beside_sender_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
