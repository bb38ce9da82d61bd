/* Features by which the kernel, or libc, reads and writes the socket itself: then it holds all bytes. */
#include "common.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <linux/aio_abi.h>
#include <linux/nbd.h>
#include <sys/syscall.h>

enum { SIZE = 5000 };

/* The other end of most parts: sends, then receives as much, and waits for the end. */
static void sending_client(int fd)
{
	put_stream(fd, SIZE, 1);
	get_stream(fd, SIZE, 2);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

/* Reads by bare system calls what the client has sent. */
static void read_by_kernel(int fd)
{
	unsigned char buf[SIZE];
	for (size_t at = 0; at < SIZE;) {
		long n = bare_syscall(SYS_read, fd, (long)(buf + at), (long)(SIZE - at), 0, 0, 0);
		CHECK(n > 0);
		at += (size_t)n;
	}
	check_stream(buf, SIZE, 1, 0);
}

/* A peek offset moves with each peek. */
static void peek_offset_server(int fd)
{
	unsigned char got[4];
	int offset = 0;
	await_bytes(fd, SIZE);
	SHOW(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof(offset)));
	for (int i = 0; i < 3; i++) {
		SHOW(recv(fd, got, sizeof(got), MSG_PEEK));
		printf("%02x %02x %02x %02x\n", got[0], got[1], got[2], got[3]);
	}
	get_stream(fd, SIZE, 1);
	put_stream(fd, SIZE, 2);
	show_end(fd);
}

/* A block device takes the socket as an argument. There is none here: the kernel refuses the request. */
static void given_server(int fd)
{
	int null = open("/dev/null", O_RDWR);
	await_bytes(fd, SIZE);
	SHOW(ioctl(null, NBD_SET_SOCK, fd));
	read_by_kernel(fd);
	put_stream(fd, SIZE, 2);
	show_end(fd);
}

/* A descriptor that the process takes from itself. */
static void fetched_server(int fd)
{
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	CHECK(self >= 0);
	await_bytes(fd, SIZE);
#if __GLIBC_PREREQ(2, 36)
	extern int pidfd_getfd(int, int, unsigned);
	int other = pidfd_getfd(self, fd, 0);
#else
	int other = (int)syscall(SYS_pidfd_getfd, self, fd, 0);
#endif
	CHECK(other >= 0);
	get_stream(other, SIZE, 1);
	CHECK(close(fd) == 0);
	put_stream(other, SIZE, 2);
	show_end(other);
}

/* libc writes names of functions itself. */
static void backtrace_server(int fd)
{
	void *frame[1] = {(void *)(uintptr_t)0x1234};
	get_stream(fd, SIZE, 1);
	for (int i = 0; i < 20; i++)
		backtrace_symbols_fd(frame, 1, fd);
	put_stream(fd, SIZE, 2);
	show_end(fd);
}

static void backtrace_client(int fd)
{
	char got[32];
	put_stream(fd, SIZE, 1);
	for (int i = 0; i < 20; i++) {
		get(fd, got, sizeof("[0x1234]\n") - 1);
		CHECK(!memcmp(got, "[0x1234]\n", sizeof("[0x1234]\n") - 1));
	}
	get_stream(fd, SIZE, 2);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

/* Standard output is the connection, because its number was free, and libc writes there. */
static void standard_server(int fd)
{
	FILE *report = fdopen(dup(STDOUT_FILENO), "w");
	CHECK(report != NULL && close(STDOUT_FILENO) == 0);
	int out = accept_client();
	CHECK(out == STDOUT_FILENO);
	for (int i = 0; i < 40; i++) {
		get_stream(out, 100, (uint64_t)i);
		put_stream(out, 100, (uint64_t)i);
	}
	printf("a line\n");
	CHECK(fflush(stdout) == 0);
	get_stream(out, SIZE, 1);
	put_stream(out, SIZE, 2);
	CHECK(close(out) == 0);
	hear(fd);
	fprintf(report, "done\n");
	CHECK(fclose(report) == 0);
}

static void standard_client(int fd)
{
	char line[8] = "";
	int other = connect_to_server();
	for (int i = 0; i < 40; i++) {
		put_stream(other, 100, (uint64_t)i);
		get_stream(other, 100, (uint64_t)i);
	}
	get(other, line, 7);
	printf("%s", line);
	put_stream(other, SIZE, 1);
	get_stream(other, SIZE, 2);
	show_end(other);
	tell(fd);
}

/* The kernel's asynchronous I/O waits for bytes, reads and writes. */
static long long submit(aio_context_t context, struct iocb *request)
{
	struct iocb *list[1] = {request};
	struct io_event event;
	struct timespec limit = {.tv_sec = 60};
	CHECK(syscall(SYS_io_submit, context, 1, list) == 1);
	if (syscall(SYS_io_getevents, context, 1, 1, &event, &limit) != 1)
		fail("hangs");
	return event.res;
}

static void native_aio_server(int fd)
{
	static unsigned char buf[SIZE];
	aio_context_t context = 0;
	CHECK(syscall(SYS_io_setup, 8, &context) == 0);
	await_bytes(fd, SIZE);
	struct iocb wait = {.aio_fildes = (uint32_t)fd, .aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLIN};
	printf("ready %d\n", (submit(context, &wait) & POLLIN) != 0);
	for (size_t at = 0; at < SIZE;) {
		struct iocb in = {.aio_fildes = (uint32_t)fd, .aio_lio_opcode = IOCB_CMD_PREAD};
		in.aio_buf = (uintptr_t)buf + at;
		in.aio_nbytes = SIZE - at;
		long long n = submit(context, &in);
		CHECK(n > 0);
		at += (size_t)n;
	}
	check_stream(buf, SIZE, 1, 0);
	fill_stream(buf, SIZE, 2, 0);
	struct iocb out = {.aio_fildes = (uint32_t)fd, .aio_lio_opcode = IOCB_CMD_PWRITE};
	out.aio_buf = (uintptr_t)buf;
	out.aio_nbytes = SIZE;
	CHECK(submit(context, &out) == SIZE);
	SHOW(syscall(SYS_io_submit, context, 1, NULL));
	show_end(fd);
}

/* A library that binds to libc before all others does not call what another library puts in libc's place. */
static void deep_library_server(int fd)
{
	await_bytes(fd, 1);
	void *library = dlopen("$ORIGIN/deep.so", RTLD_NOW | RTLD_DEEPBIND);
	if (library == NULL)
		fail("%s", dlerror());
	int (*wait_for_input)(int) = (int (*)(int))dlsym(library, "wait_for_input");
	CHECK(wait_for_input != NULL);
	SHOW(wait_for_input(fd));
	get_stream(fd, SIZE, 1);
	put_stream(fd, SIZE, 2);
	CHECK(wait_for_input(fd) == 1);
	show_end(fd);
}

static const struct part PARTS[] = {
	{"peek_offset", sending_client, peek_offset_server},
	{"given", sending_client, given_server},
	{"fetched", sending_client, fetched_server},
	{"backtrace", backtrace_client, backtrace_server},
	{"standard", standard_client, standard_server},
	{"native_aio", sending_client, native_aio_server},
	{"deep_library", sending_client, deep_library_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
