/* sendmmsg and recvmmsg on streams: which messages they send and receive, and what they leave. */
#include "asleep.h"

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

/* Up to four messages of at most 64 bytes each. */
static int receive(int fd, int n, int flags, struct timespec *limit)
{
	static char room[4][64];
	struct iovec iov[4];
	struct mmsghdr all[4];
	for (int i = 0; i < 4; i++) {
		iov[i] = (struct iovec){room[i], sizeof(room[i])};
		all[i] = message_of(&iov[i], 1);
	}
	int got = recvmmsg(fd, all, (unsigned)n, flags, limit);
	int saved = errno;
	for (int i = 0; i < n; i++)
		printf("[%u] ", all[i].msg_len);
	errno = saved;
	return got;
}

/* The error of a second message is that of the next call. */
static void reset_client(int fd)
{
	struct asleep asleep;
	pid_t peer;
	get(fd, &peer, sizeof(peer));
	await_bytes(fd, 10);
	put(fd, "junk", 4);
	begin_asleep(&asleep, peer);
	SHOW(receive(fd, 3, 0, NULL));
	end_asleep(&asleep);
	SHOW(receive(fd, 3, 0, NULL));
	SHOW(receive(fd, 3, 0, NULL));
}

static void reset_server(int fd)
{
	introduce(fd);
	put(fd, "0123456789", 10);
	await_signal();
	close_with_reset(fd);
}

/* As `reset`, by bytes that are left unread. */
static void unread_server(int fd)
{
	introduce(fd);
	put(fd, "0123456789", 10);
	await_signal();
	await_bytes(fd, 4);
	CHECK(close(fd) == 0);
}

/* An error that is there already comes before the bytes. */
static void late_client(int fd)
{
	hear(fd);
	await_bytes(fd, 10);
	tell(fd);
	await_end(fd);
	SHOW(receive(fd, 3, 0, NULL));
	char byte;
	SHOW(recv(fd, &byte, 1, 0));
	SHOW(receive(fd, 3, 0, NULL));
}

static void late_server(int fd)
{
	tell(fd);
	put(fd, "0123456789", 10);
	hear(fd);
	close_with_reset(fd);
}

/* The time limit, which is looked at after each message, and the end of the stream. */
static void limits_client(int fd)
{
	struct timespec bad[] = {{0, 1000000000}, {0, -1}, {-1, 0}};
	struct timespec none = {0, 0}, soon = {0, 1}, later = {1000, 0};
	await_bytes(fd, 100);
	for (size_t i = 0; i < COUNT(bad); i++)
		SHOW(receive(fd, 1, 0, &bad[i]));
	SHOW(receive(fd, 1, 0, (struct timespec *)8));
	SHOW(receive(fd, 4, MSG_PEEK, &none));
	SHOW(receive(fd, 4, MSG_PEEK, &soon));
	printf("left: %ld.%09ld\n", (long)soon.tv_sec, soon.tv_nsec);
	SHOW(receive(fd, 2, 0, &later));
	printf("some is left: %d, not all: %d\n", later.tv_sec > 0, later.tv_sec < 1000);
	soon = (struct timespec){0, 7};
	SHOW(receive(fd, 1, MSG_DONTWAIT, &soon));
	printf("left: %ld.%09ld\n", (long)soon.tv_sec, soon.tv_nsec);
	tell(fd);
	await_bytes(fd, 3);
	SHOW(receive(fd, 4, MSG_WAITFORONE, NULL));
	tell(fd);
	await_end(fd);
	SHOW(receive(fd, 4, 0, NULL));
	SHOW(receive(fd, 4, MSG_DONTWAIT, &later));
}

static void limits_server(int fd)
{
	put_stream(fd, 100, 1);
	hear(fd);
	put(fd, "abc", 3);
	hear(fd);
}

static const struct part PARTS[] = {
	{"partial", partial_client, partial_server},
	{"reset", reset_client, reset_server},
	{"unread", reset_client, unread_server},
	{"late", late_client, late_server},
	{"limits", limits_client, limits_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
