/* The first cancellation of a process: of a thread that may be cancelled between any two instructions, while bytes
 * go to and fro. The library learns of libc's handler only when there is one. */
#include "common.h"

enum { PROCESSES = 60 };

static void *exchange_for_ever(void *fd)
{
	CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
	for (;;) {
		tell(*(int *)fd);
		hear(*(int *)fd);
	}
	return NULL;
}

static int cancel_first(useconds_t after)
{
	int fd = connect_to_server();
	pthread_t thread;
	void *result;
	CHECK(pthread_create(&thread, NULL, exchange_for_ever, &fd) == 0);
	usleep(after);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	return result == PTHREAD_CANCELED;
}

static void first_client(int fd)
{
	int n = 0;
	for (int i = 0; i < PROCESSES; i++) {
		int status;
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0)
			_exit(!cancel_first(3000 + (useconds_t)i * 97));
		CHECK(waitpid(child, &status, 0) == child);
		n += status == 0;
	}
	printf("%d of %d cancelled\n", n, PROCESSES);
	tell(fd);
}

static void first_server(int fd)
{
	char c;
	for (int i = 0; i < PROCESSES; i++) {
		int client = accept_client();
		while (read(client, &c, 1) == 1 && write(client, &c, 1) == 1)
			;
		CHECK(close(client) == 0);
	}
	hear(fd);
}

static const struct part PARTS[] = {
	{"first", first_client, first_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
