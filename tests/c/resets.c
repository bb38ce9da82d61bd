/* A reset that comes while a call has sent something: the call returns how much, and the next one reports the
 * reset. */
#include "common.h"

/* More than all buffers take. */
enum { MANY = 24 << 20 };

/* Resets the connection while the other end waits for room. */
static void reset_server(int fd)
{
	await_bytes(fd, 1);
	await_full(fd);
	close_with_reset(fd);
}

static void begin_to_send(int fd)
{
	static char zeros[MANY];
	CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
	ssize_t n = send(fd, zeros, sizeof(zeros), 0);
	printf("%s\n", n < 0 ? errno_name(errno) : n < MANY ? "a part" : "all");
}

static void receive_next_client(int fd)
{
	char byte;
	begin_to_send(fd);
	SHOW(recv(fd, &byte, 1, 0));
	SHOW(recv(fd, &byte, 1, 0));
}

/* The first piece fills the kernel's buffer, and nothing follows it. */
static void small_buffer_client(int fd)
{
	int size = 4096;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) == 0);
	receive_next_client(fd);
}

static void send_next_client(int fd)
{
	begin_to_send(fd);
	SHOW(send(fd, "x", 1, 0));
	SHOW(send(fd, "x", 1, 0));
}

static void ask_next_client(int fd)
{
	int error;
	socklen_t len = sizeof(error);
	begin_to_send(fd);
	SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	printf("SO_ERROR %s\n", errno_name(error));
	SHOW(send(fd, "x", 1, 0));
}

static const struct part PARTS[] = {
	{"receive_next", receive_next_client, reset_server},
	{"small_buffer", small_buffer_client, reset_server},
	{"send_next", send_next_client, reset_server},
	{"ask_next", ask_next_client, reset_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
