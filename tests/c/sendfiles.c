/* `sendfile`: what it leaves alone. */
#include "common.h"
#include <sys/sendfile.h>

/* `SENT` is more than the buffers of a connection take, `MUCH` more than one piece of the library. */
enum { SENT = 24 << 20, MUCH = 300000, LATER = 1000 };

/* A file without a name, and another open file of it, which has these flags. */
static int make_file(size_t n, int flags, int *other)
{
	char name[] = "/tmp/rsock-sendfile-XXXXXX";
	int file = mkstemp(name);
	*other = open(name, flags);
	CHECK(file >= 0 && *other >= 0 && unlink(name) == 0);
	put_stream(file, n, 1);
	CHECK(lseek(file, 0, SEEK_SET) == 0);
	return file;
}

/* Any close of a file releases the record locks that the process has on it. `other` is another open file. */
static int is_locked(int other)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	CHECK(fcntl(other, F_OFD_GETLK, &lock) == 0);
	return lock.l_type != F_UNLCK;
}

static void locked_client(int fd)
{
	int other;
	int from = make_file(MUCH, O_RDWR, &other);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	CHECK(fcntl(from, F_SETLK, &lock) == 0);
	SHOW(is_locked(other));
	SHOW(sendfile(fd, from, NULL, LATER));
	SHOW(is_locked(other));
	for (off_t at = LATER; at < MUCH;)
		CHECK(sendfile(fd, from, &at, (size_t)(MUCH - at)) > 0);
	SHOW(is_locked(other));
	hear(fd);
}

static void locked_server(int fd)
{
	get_stream(fd, MUCH, 1);
	tell(fd);
}

/* The file's own offset is behind what was sent, also where the connection takes no more. */
static void offset_client(int fd)
{
	int other;
	int out = prepared_connection(0);
	int from = make_file(SENT, O_RDONLY, &other);
	set_nonblocking(out, 1);
	ssize_t n;
	off_t sent = 0;
	while ((n = sendfile(out, from, NULL, SENT)) > 0) {
		sent += n;
		CHECK(lseek(from, 0, SEEK_CUR) == sent);
	}
	CHECK(n < 0 && errno == EAGAIN && lseek(from, 0, SEEK_CUR) == sent);
	tell(fd);
	set_nonblocking(out, 0);
	while ((n = sendfile(out, from, NULL, SENT)) > 0)
		sent += n;
	printf("sent %ld, then %ld\n", (long)sent, (long)n);
	hear(fd);
	CHECK(close(out) == 0);
}

static void offset_server(int fd)
{
	int in = prepared_connection(1);
	hear(fd);
	get_stream(in, SENT, 1);
	tell(fd);
	CHECK(close(in) == 0);
}

static const struct part PARTS[] = {
	{"locked", locked_client, locked_server},
	{"offset", offset_client, offset_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
