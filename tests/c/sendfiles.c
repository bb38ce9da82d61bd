/* `sendfile`: what it leaves alone, how much one call sends, and calls that send nothing. */
#include "common.h"
#include <limits.h>
#include <sys/mman.h>
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

/* Calls that send nothing, from the beginning, the middle and the end of a file. */
static void unsent_client(int fd)
{
	int unreadable;
	int from = make_file(LATER, O_WRONLY, &unreadable);
	CHECK(lseek(from, 0, SEEK_END) == LATER);
	off_t at = 0, middle = LATER / 2, below = -1;
	SHOW(sendfile(fd, unreadable, &at, 0));
	SHOW(sendfile(fd, unreadable, NULL, 0));
	SHOW(sendfile(fd, unreadable, &at, LATER));
	SHOW(sendfile(fd, from, &at, 0));
	SHOW(sendfile(fd, from, (off_t *)16, 0));
	SHOW(sendfile(fd, from, &at, (size_t)-1));
	SHOW(sendfile(fd, from, NULL, (size_t)-1));
	SHOW(sendfile(fd, from, &middle, SSIZE_MAX));
	SHOW(sendfile(fd, from, &below, LATER));
	SHOW(sendfile(fd, from, NULL, LATER));
	printf("at %ld and %ld, offset %ld\n", (long)at, (long)middle, (long)lseek(from, 0, SEEK_CUR));
	SHOW(sendfile(fd, from, &middle, LATER));
	SHOW(middle);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	hear(fd);
}

static void unsent_server(int fd)
{
	show_end(fd);
	tell(fd);
}

/* As much as one call sends: of a file that is longer, and takes no memory. */
static void most_client(int fd)
{
	const size_t longer = 0x7ffff000ul + 2 * LATER;
	int from = memfd_create("longer", 0);
	off_t at = 0;
	CHECK(from >= 0 && ftruncate(from, (off_t)longer) == 0);
	while (at < 0x7ffff000)
		SHOW(sendfile(fd, from, &at, longer - (size_t)at));
	CHECK(shutdown(fd, SHUT_WR) == 0);
	hear(fd);
}

static void most_server(int fd)
{
	static unsigned char buf[1 << 20];
	long n, total = 0;
	while ((n = recv(fd, buf, sizeof(buf), 0)) > 0)
		total += n;
	printf("%ld received\n", total);
	tell(fd);
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

/* A thread with the smallest stack. */
struct small {
	int fd;
	int file;
	long sent;
};

static void *send_some(void *arg)
{
	struct small *small = arg;
	off_t at = 0;
	small->sent = sendfile(small->fd, small->file, &at, LATER);
	return NULL;
}

static void small_stack_client(int fd)
{
	int other;
	struct small small = {.fd = fd, .file = make_file(LATER, O_RDONLY, &other)};
	with_stack((size_t)PTHREAD_STACK_MIN, send_some, &small);
	printf("sent %ld\n", small.sent);
	hear(fd);
}

static void small_stack_server(int fd)
{
	get_stream(fd, LATER, 1);
	tell(fd);
}

static const struct part PARTS[] = {
	{"unsent", unsent_client, unsent_server},
	{"most", most_client, most_server},
	{"locked", locked_client, locked_server},
	{"offset", offset_client, offset_server},
	{"small_stack", small_stack_client, small_stack_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
