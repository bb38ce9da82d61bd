/* System calls by `syscall(2)` and by io_uring: what a program does past the functions of libc means what those
 * functions mean, from the first byte, and after the stream has left TCP. */
#include "common.h"
#include <aio.h>
#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define ROUNDS 400
#define SIZE 100
/* A waiter that the library keeps asleep ends after this, in milliseconds. */
#define HANGS 60000

/* The other end of all parts: asks and checks the answer, by libc. */
static void ask(int fd, int rounds)
{
	unsigned char out[SIZE], in[SIZE];
	for (int i = 0; i < rounds; i++) {
		fill_stream(out, SIZE, 5, (uint64_t)i * SIZE);
		put(fd, out, SIZE);
		get(fd, in, SIZE);
		CHECK(!memcmp(in, out, SIZE));
	}
}

static void asking_client(int fd)
{
	ask(fd, ROUNDS);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
}

/* Answers what there is, after `wait` has said that there is something. */
static void answer(int fd, void (*wait)(int fd))
{
	unsigned char buf[SIZE];
	uint64_t at = 0;
	set_nonblocking(fd, 1);
	for (;;) {
		wait(fd);
		ssize_t n = read(fd, buf, SIZE);
		if (n < 0 && errno == EAGAIN)
			continue;
		CHECK(n >= 0);
		if (n == 0)
			break;
		check_stream(buf, (size_t)n, 5, at);
		at += (uint64_t)n;
		CHECK(write(fd, buf, (size_t)n) == n);
	}
	printf("%llu bytes\n", (unsigned long long)at);
}

static void wait_by_ppoll(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timespec limit = {.tv_sec = HANGS / 1000};
	sigset_t none;
	sigemptyset(&none);
	/* The kernel's signal set has eight bytes. */
	if (syscall(SYS_ppoll, &p, 1, &limit, &none, 8) != 1)
		fail("hangs");
	/* Unlike libc's function the kernel says how much time is left. */
	CHECK(limit.tv_sec < HANGS / 1000);
}

static void poll_server(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timespec limit = {.tv_nsec = 1000000};
	sigset_t none;
	sigemptyset(&none);
	SHOW(syscall(SYS_ppoll, &p, 1, &limit, &none, 128));
	answer(fd, wait_by_ppoll);
}

#ifdef SYS_poll
static void wait_by_poll(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	if (syscall(SYS_poll, &p, 1, HANGS) != 1)
		fail("hangs");
}
#else
#define wait_by_poll wait_by_ppoll
#endif

static void old_poll_server(int fd)
{
	answer(fd, wait_by_poll);
}

static void wait_by_pselect(int fd)
{
	fd_set in;
	FD_ZERO(&in);
	FD_SET(fd, &in);
	struct timespec limit = {.tv_sec = HANGS / 1000};
	sigset_t none;
	sigemptyset(&none);
	struct {
		const sigset_t *mask;
		size_t size;
	} mask = {&none, 8};
	if (syscall(SYS_pselect6, fd + 1, &in, NULL, NULL, &limit, &mask) != 1)
		fail("hangs");
	CHECK(FD_ISSET(fd, &in) && limit.tv_sec < HANGS / 1000);
}

static void select_server(int fd)
{
	answer(fd, wait_by_pselect);
}

static int set = -1;

static void wait_by_epoll(int fd)
{
	struct epoll_event event;
	(void)fd;
	if (epoll_wait(set, &event, 1, HANGS) != 1)
		fail("hangs");
}

static void epoll_server(int fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	set = epoll_create1(EPOLL_CLOEXEC);
	SHOW(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event));
	answer(fd, wait_by_epoll);
}

/* One transfer by each system call that there is. */
static ssize_t raw_receive(int fd, void *to, size_t n, int how)
{
	struct iovec iov = {.iov_base = to, .iov_len = n};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct mmsghdr one = {.msg_hdr = msg};
	switch (how % 5) {
	case 0: return syscall(SYS_read, fd, to, n);
	case 1: return syscall(SYS_recvfrom, fd, to, n, 0, NULL, NULL);
	case 2: return syscall(SYS_readv, fd, &iov, 1);
	case 3: return syscall(SYS_recvmsg, fd, &msg, 0);
	}
	long done = syscall(SYS_recvmmsg, fd, &one, 1, 0, NULL);
	return done == 1 ? (ssize_t)one.msg_len : done;
}

static ssize_t raw_send(int fd, void *from, size_t n, int how)
{
	struct iovec iov = {.iov_base = from, .iov_len = n};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct mmsghdr one = {.msg_hdr = msg};
	switch (how % 5) {
	case 0: return syscall(SYS_write, fd, from, n);
	case 1: return syscall(SYS_sendto, fd, from, n, MSG_NOSIGNAL, NULL, 0);
	case 2: return syscall(SYS_writev, fd, &iov, 1);
	case 3: return syscall(SYS_sendmsg, fd, &msg, MSG_NOSIGNAL);
	}
	long done = syscall(SYS_sendmmsg, fd, &one, 1, MSG_NOSIGNAL);
	return done == 1 ? (ssize_t)one.msg_len : done;
}

/* Ordinary calls first, so that the stream leaves TCP, and others then. */
static void transfer_server(int fd)
{
	unsigned char buf[SIZE];
	uint64_t at = 0;
	for (int i = 0;; i++) {
		int how = i / 100 % 2 ? i : -1;
		ssize_t n = how < 0 ? read(fd, buf, SIZE) : raw_receive(fd, buf, SIZE, how);
		CHECK(n >= 0);
		if (n == 0)
			break;
		check_stream(buf, (size_t)n, 5, at);
		at += (uint64_t)n;
		ssize_t put_ = how < 0 ? write(fd, buf, (size_t)n) : raw_send(fd, buf, (size_t)n, how);
		CHECK(put_ == n);
	}
	printf("%llu bytes\n", (unsigned long long)at);
	SHOW(syscall(SYS_read, fd, buf, SIZE));
	SHOW(syscall(SYS_read, fd, NULL, 0));
}

/* The descriptor goes from number to number. */
static void descriptor_server(int fd)
{
	unsigned char buf[SIZE];
	for (int i = 0; i < ROUNDS; i++) {
		get(fd, buf, SIZE);
		int next = -1;
		switch (i % 4) {
		case 0: next = (int)syscall(SYS_dup, fd); break;
		case 1: next = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 50); break;
		case 2: next = (int)syscall(SYS_dup3, fd, 80, O_CLOEXEC); break;
		}
		if (next >= 0) {
			CHECK(syscall(SYS_close, fd) == 0);
			fd = next;
		}
		put(fd, buf, SIZE);
	}
	int pending = -1;
	CHECK(syscall(SYS_ioctl, fd, FIONREAD, &pending) == 0);
	get(fd, buf, 1);
	CHECK(buf[0] == '!');
	tell(fd);
	SHOW(syscall(SYS_shutdown, fd, SHUT_WR));
	show_end(fd);
	SHOW(syscall(SYS_close_range, fd, fd, 0));
	SHOW(syscall(SYS_close, fd));
}

static void descriptor_client(int fd)
{
	ask(fd, ROUNDS);
	tell(fd);
	hear(fd);
	show_end(fd);
}

/* Connections made by system calls alone, over one of the parts' own. */
static void connect_server(int fd)
{
	for (int i = 0; i < 3; i++) {
		int one = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
		CHECK(one >= 0);
		unsigned char buf[SIZE];
		for (int k = 0; k < ROUNDS; k++) {
			get(one, buf, SIZE);
			put(one, buf, SIZE);
		}
		show_end(one);
		CHECK(syscall(SYS_close, one) == 0);
	}
	tell(fd);
}

static void connect_client(int fd)
{
	for (int i = 0; i < 3; i++) {
		int one = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
		CHECK(one >= 0);
		CHECK(syscall(SYS_connect, one, &server_address, sizeof(server_address)) == 0);
		ask(one, ROUNDS);
		CHECK(syscall(SYS_close, one) == 0);
	}
	hear(fd);
}

/* An io_uring of a few entries, used by one thread. */
static struct {
	int fd;
	unsigned *sq_tail, *sq_array, sq_mask;
	struct io_uring_sqe *sqes;
	unsigned *cq_head, *cq_tail, cq_mask;
	struct io_uring_cqe *cqes;
} ring;

static void make_ring(void)
{
	struct io_uring_params p = {0};
	ring.fd = (int)syscall(SYS_io_uring_setup, 8, &p);
	CHECK(ring.fd >= 0);
	CHECK(p.features & IORING_FEAT_SINGLE_MMAP);
	size_t submissions = p.sq_off.array + p.sq_entries * sizeof(unsigned);
	size_t completions = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	size_t size = submissions > completions ? submissions : completions;
	int rw = PROT_READ | PROT_WRITE;
	char *at = mmap(NULL, size, rw, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
	CHECK(at != MAP_FAILED);
	ring.sqes = mmap(NULL, p.sq_entries * sizeof(*ring.sqes), rw, MAP_SHARED, ring.fd, IORING_OFF_SQES);
	CHECK(ring.sqes != MAP_FAILED);
	ring.sq_tail = (unsigned *)(at + p.sq_off.tail);
	ring.sq_array = (unsigned *)(at + p.sq_off.array);
	ring.sq_mask = *(unsigned *)(at + p.sq_off.ring_mask);
	ring.cq_head = (unsigned *)(at + p.cq_off.head);
	ring.cq_tail = (unsigned *)(at + p.cq_off.tail);
	ring.cq_mask = *(unsigned *)(at + p.cq_off.ring_mask);
	ring.cqes = (struct io_uring_cqe *)(at + p.cq_off.cqes);
}

static struct io_uring_sqe *next_request(unsigned char opcode, int fd)
{
	unsigned at = *ring.sq_tail & ring.sq_mask;
	struct io_uring_sqe *sqe = &ring.sqes[at];
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = opcode;
	sqe->fd = fd;
	ring.sq_array[at] = at;
	__atomic_store_n(ring.sq_tail, *ring.sq_tail + 1, __ATOMIC_RELEASE);
	return sqe;
}

/* Submits `n` requests and returns the result of the one whose user data is 0. */
static int submit(unsigned n)
{
	int result = -ETIME;
	for (unsigned done = 0; done < n;) {
		long r = syscall(SYS_io_uring_enter, ring.fd, done ? 0 : n, 1, IORING_ENTER_GETEVENTS, NULL, 0);
		CHECK(r >= 0 || errno == EINTR);
		while (*ring.cq_head != __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE)) {
			struct io_uring_cqe *cqe = &ring.cqes[*ring.cq_head & ring.cq_mask];
			if (cqe->user_data == 0)
				result = cqe->res;
			__atomic_store_n(ring.cq_head, *ring.cq_head + 1, __ATOMIC_RELEASE);
			done++;
		}
	}
	return result;
}

/* As `submit`, of the request just made, for as long as a hang takes. */
static int submit_with_limit(struct io_uring_sqe *sqe)
{
	static struct __kernel_timespec limit = {.tv_sec = HANGS / 1000};
	sqe->flags |= IOSQE_IO_LINK;
	struct io_uring_sqe *timeout = next_request(IORING_OP_LINK_TIMEOUT, -1);
	timeout->addr = (uintptr_t)&limit;
	timeout->len = 1;
	timeout->user_data = 9;
	return submit(2);
}

static void wait_by_ring(int fd)
{
	struct io_uring_sqe *sqe = next_request(IORING_OP_POLL_ADD, fd);
	sqe->poll32_events = POLLIN;
	if (submit_with_limit(sqe) <= 0)
		fail("hangs");
}

static void ring_poll_server(int fd)
{
	make_ring();
	answer(fd, wait_by_ring);
}

/* As libuv does with UV_USE_IO_URING=1. */
static void ring_epoll_server(int fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	set = epoll_create1(EPOLL_CLOEXEC);
	make_ring();
	struct io_uring_sqe *sqe = next_request(IORING_OP_EPOLL_CTL, set);
	sqe->off = (uint64_t)fd;
	sqe->len = EPOLL_CTL_ADD;
	sqe->addr = (uintptr_t)&event;
	SHOW(submit(1));
	answer(fd, wait_by_epoll);
}

static ssize_t ring_receive(int fd, void *to, size_t n)
{
	struct io_uring_sqe *sqe = next_request(IORING_OP_RECV, fd);
	sqe->addr = (uintptr_t)to;
	sqe->len = (unsigned)n;
	int got = submit_with_limit(sqe);
	if (got < 0)
		fail("hangs: %d", got);
	return got;
}

static ssize_t ring_send(int fd, const void *from, size_t n)
{
	struct io_uring_sqe *sqe = next_request(IORING_OP_SEND, fd);
	sqe->addr = (uintptr_t)from;
	sqe->len = (unsigned)n;
	sqe->msg_flags = MSG_NOSIGNAL;
	return submit_with_limit(sqe);
}

/* The ring is made when the stream has carried something, and bytes wait to be read in both directions. */
static void ring_late_server(int fd)
{
	unsigned char buf[SIZE];
	put_stream(fd, 5000, 8);
	await_bytes(fd, 3000);
	make_ring();
	uint64_t at = 0;
	while (at < 3000) {
		ssize_t n = ring_receive(fd, buf, SIZE);
		CHECK(n > 0);
		check_stream(buf, (size_t)n, 7, at);
		at += (uint64_t)n;
	}
	put_stream(fd, 100, 9);
	for (int i = 0; i < ROUNDS; i++) {
		for (size_t had = 0; had < SIZE;) {
			ssize_t n = ring_receive(fd, buf + had, SIZE - had);
			CHECK(n > 0);
			had += (size_t)n;
		}
		check_stream(buf, SIZE, 5, (uint64_t)i * SIZE);
		CHECK(ring_send(fd, buf, SIZE) == SIZE);
	}
	printf("%zd\n", ring_receive(fd, buf, SIZE));
}

static void ring_late_client(int fd)
{
	put_stream(fd, 3000, 7);
	get_stream(fd, 5000, 8);
	get_stream(fd, 100, 9);
	asking_client(fd);
}

/* POSIX asynchronous I/O reads and writes in threads of libc's. */
static ssize_t finish(struct aiocb *request)
{
	const struct aiocb *list[1] = {request};
	struct timespec limit = {.tv_sec = HANGS / 1000};
	if (aio_suspend(list, 1, &limit) != 0)
		fail("hangs");
	return aio_return(request);
}

static void aio_server(int fd)
{
	unsigned char buf[SIZE];
	for (int i = 0; i < ROUNDS; i++) {
		size_t had = 0;
		while (had < SIZE) {
			struct aiocb in = {.aio_fildes = fd, .aio_buf = buf + had, .aio_nbytes = SIZE - had};
			in.aio_sigevent.sigev_notify = SIGEV_NONE;
			in.aio_lio_opcode = LIO_READ;
			struct aiocb *list[2] = {NULL, &in};
			CHECK((i % 2 ? aio_read(&in) : lio_listio(LIO_NOWAIT, list, 2, NULL)) == 0);
			ssize_t n = finish(&in);
			CHECK(n > 0);
			had += (size_t)n;
		}
		check_stream(buf, SIZE, 5, (uint64_t)i * SIZE);
		struct aiocb out = {.aio_fildes = fd, .aio_buf = buf, .aio_nbytes = SIZE};
		out.aio_sigevent.sigev_notify = SIGEV_NONE;
		CHECK(aio_write(&out) == 0);
		CHECK(finish(&out) == SIZE);
	}
	show_end(fd);
}

/* Writing alone leaves the other direction where it is. */
static void aio_write_server(int fd)
{
	unsigned char buf[SIZE];
	for (int i = 0; i < ROUNDS; i++) {
		get(fd, buf, SIZE);
		if (i % 2) {
			struct aiocb out = {.aio_fildes = fd, .aio_buf = buf, .aio_nbytes = SIZE};
			out.aio_sigevent.sigev_notify = SIGEV_NONE;
			CHECK(aio_write(&out) == 0);
			CHECK(finish(&out) == SIZE);
		} else {
			put(fd, buf, SIZE);
		}
	}
	show_end(fd);
}

static const struct part parts[] = {
	{"poll", asking_client, poll_server},
	{"old_poll", asking_client, old_poll_server},
	{"select", asking_client, select_server},
	{"epoll", asking_client, epoll_server},
	{"transfer", asking_client, transfer_server},
	{"descriptors", descriptor_client, descriptor_server},
	{"connect", connect_client, connect_server},
	{"ring_poll", asking_client, ring_poll_server},
	{"ring_epoll", asking_client, ring_epoll_server},
	{"aio", asking_client, aio_server},
	{"aio_write", asking_client, aio_write_server},
	{"ring_late", ring_late_client, ring_late_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, parts, COUNT(parts));
}
