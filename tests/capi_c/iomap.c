/* Direct writes between two processes, into memory of every kind. */
#include "check.h"

enum { LEN = 300000, ROUNDS = 50 };

static char global[LEN];

/* Says that what was written or opened before is there. */
static void sync_with(int fd)
{
	char c = '!';

	CHECK(rsend(fd, &c, 1, 0) == 1);
	CHECK(rrecv(fd, &c, 1, MSG_WAITALL) == 1);
}

static void owner(int fd)
{
	char *heap = malloc(LEN), stack[1000] = { 0 };
	off_t named;

	memset(heap, 0, LEN);
	CHECK(riomap(fd, heap, LEN, PROT_WRITE, 0, 0) == 0);
	CHECK(riomap(fd, global, LEN, PROT_WRITE, 0, 1 << 30) == 1 << 30);
	named = riomap(fd, stack, sizeof(stack), PROT_WRITE, 0, -1);
	CHECK(named == (off_t)(uintptr_t)stack);
	CHECK(rsend(fd, &named, sizeof(named), 0) == sizeof(named));
	/* Registered, not opened. */
	CHECK(riomap(fd, stack, 10, PROT_NONE, 0, 5 << 20) == 5 << 20);
	CHECK(riounmap(fd, stack, 10) == 0);
	for (int i = 1; i <= ROUNDS; i++) {
		sync_with(fd);
		CHECK(heap[0] == i && heap[LEN - 1] == i && global[LEN / 2] == i && stack[7] == i);
		CHECK(heap[1] == 0 && global[0] == 0 && stack[6] == 0);
		sync_with(fd);
	}
	CHECK(riounmap(fd, heap, LEN) == 0);
	FAILS(riounmap(fd, heap, LEN), EINVAL);
	sync_with(fd);
	sync_with(fd);
	CHECK(heap[0] == ROUNDS);
	free(heap);
}

static void writer(int fd)
{
	char bytes[2] = { 0, 0 };
	off_t named;

	CHECK(rrecv(fd, &named, sizeof(named), MSG_WAITALL) == sizeof(named));
	for (char i = 1; i <= ROUNDS; i++) {
		bytes[0] = i;
		CHECK(riowrite(fd, &i, 1, 0, 0) == 1);
		CHECK(riowrite(fd, bytes, 2, LEN - 1, 0) == 1);
		CHECK(riowrite(fd, &i, 1, (1 << 30) + LEN / 2, MSG_DONTWAIT) == 1);
		CHECK(riowrite(fd, &i, 1, named + 7, 0) == 1);
		sync_with(fd);
		/* It has looked. */
		sync_with(fd);
	}
	sync_with(fd);
	FAILS((ssize_t)riowrite(fd, bytes, 1, 0, 0), EFAULT);
	FAILS((ssize_t)riowrite(fd, bytes, 1, 5 << 20, 0), EFAULT);
	sync_with(fd);
}

int main(void)
{
	struct sockaddr_in at;
	int listening = listener(&at), slots = 4, fd;
	pid_t pid = child();

	if (pid == 0) {
		fd = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &slots, sizeof(slots)) == 0);
		CHECK(rconnect(fd, SOCKADDR(at), sizeof(at)) == 0);
		writer(fd);
		CHECK(rclose(fd) == 0);
		_exit(0);
	}
	fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0);
	owner(fd);
	CHECK(status_of(pid) == 0);
	CHECK(rclose(fd) == 0 && rclose(listening) == 0);
	return 0;
}
