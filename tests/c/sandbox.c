/* A program that restricts its own system calls, in the middle of a connection, to those that it needs on TCP. */
#include "common.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

static const int allowed[] = {
	SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_shutdown,
	SYS_close, SYS_ppoll, SYS_pselect6, SYS_fcntl, SYS_exit_group, SYS_rt_sigreturn, SYS_accept, SYS_epoll_pwait,
#ifdef SYS_poll
	SYS_poll, SYS_select, SYS_epoll_wait,
#endif
};

/* Anything else is answered with `otherwise`. */
static void install(unsigned otherwise, int by_syscall)
{
	static struct sock_filter filter[COUNT(allowed) + 3];
	size_t n = 0, count = COUNT(allowed);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < count; i++)
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i],
							   (unsigned char)(count - i), 0);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	/* As programs find out whether there are filters. */
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) < 0 && errno == EFAULT);
	if (by_syscall)
		CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
	else
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void exchange(int fd)
{
	unsigned char out[4000], in[4000];
	for (size_t i = 0; i < 400; i++) {
		size_t n = 1 + i * 7 % sizeof(out);
		fill_stream(out, n, 4, i);
		put(fd, out, n);
		struct pollfd p = {.fd = fd, .events = POLLIN};
		CHECK(poll(&p, 1, -1) == 1);
		get(fd, in, n);
		CHECK(!memcmp(in, out, n));
	}
}

static void answer_all(int fd)
{
	unsigned char buf[4000];
	for (size_t i = 0; i < 400; i++) {
		size_t n = 1 + i * 7 % sizeof(buf);
		get(fd, buf, n);
		put(fd, buf, n);
	}
}

static void restrict_and_exchange(int fd, unsigned otherwise, int by_syscall)
{
	/* Before, because what stdio does at first is not allowed. */
	printf("exchanging\n");
	fflush(stdout);
	exchange(fd);
	/* Bytes of both directions that are not read yet. */
	put_stream(fd, 3000, 8);
	await_bytes(fd, 2000);
	install(otherwise, by_syscall);
	get_stream(fd, 2000, 9);
	exchange(fd);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	show_end(fd);
	CHECK(close(fd) == 0);
}

static void kill_client(int fd)
{
	restrict_and_exchange(fd, SECCOMP_RET_KILL_PROCESS, 0);
}

static void kill_by_syscall_client(int fd)
{
	restrict_and_exchange(fd, SECCOMP_RET_KILL_PROCESS, 1);
}

static void refuse_client(int fd)
{
	restrict_and_exchange(fd, SECCOMP_RET_ERRNO | EPERM, 0);
}

static void restricted_server(int fd)
{
	answer_all(fd);
	put_stream(fd, 2000, 9);
	get_stream(fd, 3000, 8);
	answer_all(fd);
	show_end(fd);
}

/* As many before the restriction as after it. */
enum { SHORT_CONNECTIONS = 60 };

static void short_client(int fd)
{
	char c = 'x';
	for (int i = 0; i < 2 * SHORT_CONNECTIONS; i++) {
		int connection = connect_to_server();
		put(connection, &c, 1);
		get(connection, &c, 1);
		CHECK(close(connection) == 0);
	}
	hear(fd);
	printf("asked\n");
}

static void short_server(int fd)
{
	int set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
	printf("serving\n");
	fflush(stdout);
	for (int i = 0; i < 2 * SHORT_CONNECTIONS; i++) {
		char c;
		if (i == SHORT_CONNECTIONS)
			install(SECCOMP_RET_KILL_PROCESS, 0);
		CHECK(epoll_wait(set, &event, 1, -1) == 1);
		int connection = accept(listener, NULL, NULL);
		CHECK(connection >= 0);
		get(connection, &c, 1);
		put(connection, &c, 1);
		CHECK(close(connection) == 0);
	}
	tell(fd);
	CHECK(close(fd) == 0);
}

static const struct part parts[] = {
	{"short_connections", short_client, short_server},
	{"kill", kill_client, restricted_server},
	{"kill_by_syscall", kill_by_syscall_client, restricted_server},
	{"refuse", refuse_client, restricted_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, parts, COUNT(parts));
}
