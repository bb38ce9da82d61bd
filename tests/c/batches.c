/* sendmmsg and recvmmsg on streams: which messages they send and receive, and what they leave. */
#include "common.h"

enum { MOST = 32 << 20, PIECE = 1 << 20 };

static struct mmsghdr message_of(struct iovec *iov, size_t n)
{
	return (struct mmsghdr){.msg_hdr = {.msg_iov = iov, .msg_iovlen = n}, .msg_len = 77};
}

static pid_t caller, reader;
static pthread_t calling;

static void release_reader(int number)
{
	(void)number;
	CHECK(kill(reader, SIGUSR1) == 0);
}

static void *interrupt(void *unused)
{
	await_sleep(caller);
	CHECK(pthread_kill(calling, SIGALRM) == 0);
	return unused;
}

/* A message that is sent in part is the last of its call, also where there is room for the next one: a signal
 * handler ends the first message, and has the peer read. */
static void partial_client(int fd)
{
	struct sigaction action = {.sa_handler = release_reader};
	unsigned char *bytes = malloc(MOST);
	CHECK(bytes != NULL);
	fill_stream(bytes, MOST, 1, 0);
	/* More than the kernel, or the ring, has room for. */
	struct iovec iov[2] = {{bytes, MOST}, {(char *)"MARK", 4}};
	struct mmsghdr two[2] = {message_of(&iov[0], 1), message_of(&iov[1], 1)};
	pthread_t helper;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	get(fd, &reader, sizeof(reader));
	caller = gettid();
	calling = pthread_self();
	CHECK(pthread_create(&helper, NULL, interrupt, NULL) == 0);
	int n = sendmmsg(fd, two, 2, 0);
	CHECK(pthread_join(helper, NULL) == 0);
	printf("%d sent, the first in part: %d\n", n, two[0].msg_len > 0 && two[0].msg_len < MOST);
	printf("length of the second: %u\n", two[1].msg_len);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	uint64_t received = 0;
	get(fd, &received, sizeof(received));
	printf("received what was sent: %d\n", received == two[0].msg_len);
	free(bytes);
}

static void partial_server(int fd)
{
	unsigned char *buf = malloc(PIECE);
	uint64_t at = 0;
	ssize_t n;
	CHECK(buf != NULL);
	introduce(fd);
	await_signal();
	while ((n = read(fd, buf, PIECE)) > 0) {
		check_stream(buf, (size_t)n, 1, at);
		at += (uint64_t)n;
	}
	SHOW(n);
	put(fd, &at, sizeof(at));
}

static const struct part PARTS[] = {
	{"partial", partial_client, partial_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
