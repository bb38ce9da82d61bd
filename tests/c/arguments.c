/* Arguments that the kernel refuses, or takes in a way of its own. */
#include "asleep.h"

static unsigned char room[20000];

static void idle_server(int fd)
{
	put_stream(fd, 10, 1);
	hear(fd);
	show_end(fd);
}

/* `read` and `write` refuse memory that does not end in user space; nothing else looks at all of it. */
static void ranges_client(int fd)
{
	static const size_t LENGTHS[] = {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2 + 1};
	/* The compiler is not to see how much room there is. */
	unsigned char *volatile at = room;
	await_bytes(fd, 10);
	for (size_t i = 0; i < COUNT(LENGTHS); i++) {
		struct iovec iov[2] = {{room, 1}, {room, LENGTHS[i]}};
		SHOW(read(fd, at, LENGTHS[i]));
		SHOW(write(fd, at, LENGTHS[i]));
		SHOW(readv(fd, iov, 2));
		SHOW(writev(fd, iov, 2));
	}
	/* Kernels differ. */
	set_nonblocking(fd, 1);
	SHOW(read(fd, at, (size_t)1 << 62));
	SHOW(read(fd, at, (size_t)1 << 50));
	SHOW(read(fd, at, (size_t)1 << 31));
	set_nonblocking(fd, 0);
	tell(fd);
}

static const struct part PARTS[] = {
	{"ranges", ranges_client, idle_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
