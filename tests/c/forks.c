/* A process forks while other threads of it make and end streams. */
#include "common.h"
#include <stdatomic.h>

enum { THREADS = 3, FORKS = 60 };

static atomic_int is_over;

static int own_listener(struct sockaddr_in *at)
{
	socklen_t len = sizeof(*at);
	*at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)at, len) == 0 && listen(fd, 4) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)at, &len) == 0);
	return fd;
}

/* A connection of this process to itself, from its first byte to its end. */
static void talk_to_self(int listener, const struct sockaddr_in *at)
{
	char byte = 7;
	/* Nothing waits for closed connections of earlier rounds. */
	struct linger at_once = {1, 0};
	int a = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(a >= 0 && connect(a, (const struct sockaddr *)at, sizeof(*at)) == 0);
	int b = accept(listener, NULL, NULL);
	CHECK(b >= 0);
	put(a, &byte, 1);
	get(b, &byte, 1);
	put(b, &byte, 1);
	get(a, &byte, 1);
	CHECK(setsockopt(a, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
	CHECK(close(a) == 0 && close(b) == 0);
}

static void *talker(void *arg)
{
	struct sockaddr_in at;
	int fd = own_listener(&at);
	while (!atomic_load(&is_over))
		talk_to_self(fd, &at);
	CHECK(close(fd) == 0);
	return arg;
}

static void making(int fd)
{
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, talker, NULL) == 0);
	for (int i = 0; i < FORKS; i++) {
		int status;
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			/* Many times what it needs: a child that hangs is not left behind. */
			alarm(60);
			struct sockaddr_in at;
			talk_to_self(own_listener(&at), &at);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		if (status)
			printf("child %d: %x\n", i, status);
	}
	atomic_store(&is_over, 1);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(close(fd) == 0);
}

static const struct part PARTS[] = {
	{"making", making, making},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
