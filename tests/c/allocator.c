/* Signals that come while the program is inside its allocator, which is not to be entered again: handlers use streams
 * all the same, as they may. */
#include "common.h"

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *at, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *at);

static __thread int is_inside;
/* The next use of the allocator is interrupted. */
static __thread int is_due;

static void enter(void)
{
	if (is_inside) {
		static const char text[] = "the allocator was entered again\n";
		(void)!write(2, text, sizeof(text) - 1);
		_exit(98);
	}
	is_inside = 1;
	if (is_due) {
		is_due = 0;
		raise(SIGUSR1);
	}
}

void *malloc(size_t size)
{
	enter();
	void *at = __libc_malloc(size);
	is_inside = 0;
	return at;
}

void *calloc(size_t n, size_t size)
{
	enter();
	void *at = __libc_calloc(n, size);
	is_inside = 0;
	return at;
}

void *realloc(void *old, size_t size)
{
	enter();
	void *at = __libc_realloc(old, size);
	is_inside = 0;
	return at;
}

void *memalign(size_t alignment, size_t size)
{
	enter();
	void *at = __libc_memalign(alignment, size);
	is_inside = 0;
	return at;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return memalign(alignment, size);
}

int posix_memalign(void **at, size_t alignment, size_t size)
{
	*at = memalign(alignment, size);
	return *at ? 0 : ENOMEM;
}

void free(void *at)
{
	enter();
	__libc_free(at);
	is_inside = 0;
}

static void (*handle)(void);

static void on_signal(int number)
{
	(void)number;
	handle();
}

static void interrupted(void (*what)(void))
{
	handle = what;
	is_due = 1;
	void *volatile at = malloc(100);
	free(at);
	CHECK(!is_due);
}

static int stream, n_done;

static void exchange(void)
{
	char c = (char)n_done, answer = 0;
	struct pollfd p = {.fd = stream, .events = POLLIN};
	if (write(stream, &c, 1) != 1 || poll(&p, 1, -1) != 1 || read(stream, &answer, 1) != 1 || answer != c)
		_exit(97);
	n_done++;
}

static void echo(int fd)
{
	char c;
	while (read(fd, &c, 1) == 1)
		put(fd, &c, 1);
}

static void exchange_client(int fd)
{
	CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
	stream = fd;
	for (int i = 0; i < 300; i++)
		interrupted(exchange);
	/* A connection of which the first use is not in a handler, but what follows is. */
	stream = connect_to_server();
	exchange();
	for (int i = 0; i < 300; i++)
		interrupted(exchange);
	for (int i = 0; i < 300; i++)
		exchange();
	printf("%d\n", n_done);
	CHECK(close(stream) == 0);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
}

static void *echo_thread(void *fd)
{
	echo(*(int *)fd);
	return NULL;
}

static void exchange_server(int fd)
{
	pthread_t other;
	CHECK(pthread_create(&other, NULL, echo_thread, &fd) == 0);
	int second = accept_client();
	echo(second);
	CHECK(pthread_join(other, NULL) == 0);
}

static void close_stream(void)
{
	if (close(stream) != 0)
		_exit(97);
	n_done++;
}

static void close_client(int fd)
{
	CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
	for (int i = 0; i < 20; i++) {
		stream = connect_to_server();
		for (int k = 0; k < 20 * i; k++)
			exchange();
		n_done = 0;
		interrupted(close_stream);
		CHECK(n_done == 1);
	}
	tell(fd);
	show_end(fd);
}

static void close_server(int fd)
{
	for (int i = 0; i < 20; i++) {
		int one = accept_client();
		echo(one);
		CHECK(close(one) == 0);
	}
	hear(fd);
}

static const struct part parts[] = {
	{"exchange", exchange_client, exchange_server},
	{"close", close_client, close_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, parts, COUNT(parts));
}
