/* Every call answers -1 and the right errno, and none crashes. */
#include "check.h"

static char buf[16];

/* COMPAT: C's rclose answers a positive EBADF, and its data calls look nothing up. */
static void bad_descriptors(void)
{
	int fds[] = { -1, 0, 9999, 1 << 20, 2147483647 };
	struct iovec iov = { buf, sizeof(buf) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct sockaddr_in at = loopback(1);
	socklen_t len = sizeof(at);
	int value = 1;

	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++) {
		int fd = fds[i];

		FAILS(rclose(fd), EBADF);
		FAILS(rbind(fd, SOCKADDR(at), len), EBADF);
		FAILS(rlisten(fd, 1), EBADF);
		FAILS(raccept(fd, NULL, NULL), EBADF);
		FAILS(rconnect(fd, SOCKADDR(at), len), EBADF);
		FAILS(rshutdown(fd, SHUT_RDWR), EBADF);
		FAILS(rrecv(fd, buf, 1, 0), EBADF);
		FAILS(rrecvfrom(fd, buf, 1, 0, NULL, NULL), EBADF);
		FAILS(rrecvmsg(fd, &msg, 0), EBADF);
		FAILS(rread(fd, buf, 1), EBADF);
		FAILS(rreadv(fd, &iov, 1), EBADF);
		FAILS(rsend(fd, buf, 1, 0), EBADF);
		FAILS(rsendto(fd, buf, 1, 0, NULL, 0), EBADF);
		FAILS(rsendmsg(fd, &msg, 0), EBADF);
		FAILS(rwrite(fd, buf, 1), EBADF);
		FAILS(rwritev(fd, &iov, 1), EBADF);
		FAILS(rgetpeername(fd, SOCKADDR(at), &len), EBADF);
		FAILS(rgetsockname(fd, SOCKADDR(at), &len), EBADF);
		FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof(value)), EBADF);
		FAILS(rgetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, &len), EBADF);
		FAILS(rfcntl(fd, F_GETFL), EBADF);
		FAILS(riomap(fd, buf, 1, PROT_WRITE, 0, 0), EBADF);
		FAILS(riounmap(fd, buf, 1), EBADF);
		FAILS((ssize_t)riowrite(fd, buf, 1, 0, 0), EBADF);
	}
}

static void wrong_kinds(void)
{
	FAILS(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), ENOTSUP);
	FAILS(rsocket(AF_INET, SOCK_RAW, 0), ENOTSUP);
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
	FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
	FAILS(rsocket(AF_INET, SOCK_SEQPACKET, 0), ENOTSUP);
}

/* COMPAT: C crashes in the data calls of a socket that was never connected. */
static void not_connected(void)
{
	struct sockaddr_in at = loopback(0), far = { .sin_family = AF_UNIX };
	socklen_t len = sizeof(at);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	FAILS(rrecv(fd, buf, 1, 0), ENOTCONN);
	FAILS(rsend(fd, buf, 1, 0), ENOTCONN);
	FAILS((ssize_t)riowrite(fd, buf, 1, 0, 0), ENOTCONN);
	FAILS(riomap(fd, buf, 1, PROT_WRITE, 0, 0), EINVAL);
	FAILS(rshutdown(fd, SHUT_RD), ENOTCONN);
	FAILS(rgetpeername(fd, SOCKADDR(at), &len), ENOTCONN);
	FAILS(raccept(fd, NULL, NULL), EINVAL);
	FAILS(rshutdown(fd, 77), EINVAL);
	FAILS(rconnect(fd, SOCKADDR(far), sizeof(far)), EAFNOSUPPORT);
	FAILS(rconnect(fd, SOCKADDR(at), 3), EINVAL);
	FAILS(rconnect(fd, NULL, sizeof(at)), EFAULT);
	FAILS(rbind(fd, NULL, sizeof(at)), EFAULT);
	CHECK(rclose(fd) == 0);
	FAILS(rclose(fd), EBADF);
	FAILS(rsend(fd, buf, 1, 0), EBADF);
}

static void refused(void)
{
	struct sockaddr_in at;
	int listening = listener_at(&at, own_port()), fd = rsocket(AF_INET, SOCK_STREAM, 0);

	FAILS(rbind(fd, SOCKADDR(at), sizeof(at)), EADDRINUSE);
	CHECK(rclose(listening) == 0);
	FAILS(rconnect(fd, SOCKADDR(at), sizeof(at)), ECONNREFUSED);
	CHECK(rclose(fd) == 0);
}

/* A plain TCP client of our port is refused, and TCP does not get the port. */
static void beside_tcp(void)
{
	struct sockaddr_in at;
	int one = 1, listening = listener(&at), tcp = socket(AF_INET, SOCK_STREAM, 0);

	FAILS(connect(tcp, SOCKADDR(at), sizeof(at)), ECONNREFUSED);
	close(tcp);
	tcp = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	FAILS(bind(tcp, SOCKADDR(at), sizeof(at)), EADDRINUSE);
	close(tcp);
	CHECK(rclose(listening) == 0);
}

static void bad_arguments(void)
{
	struct iovec huge[2] = { { buf, (size_t)-1 }, { buf, (size_t)-1 } };
	struct msghdr msg = { .msg_control = buf, .msg_controllen = sizeof(buf) };
	struct sockaddr_in at = loopback(1);
	socklen_t len = sizeof(at);
	int fds[2];

	pair(fds);
	FAILS(rsend(fds[0], NULL, 1, 0), EFAULT);
	FAILS(rrecv(fds[0], NULL, 1, 0), EFAULT);
	FAILS(rwritev(fds[0], huge, 2), EINVAL);
	FAILS(rwritev(fds[0], huge, -1), EINVAL);
	FAILS(rwritev(fds[0], NULL, 1), EFAULT);
	FAILS(rreadv(fds[0], huge, 1025), EINVAL);
	FAILS(rsendmsg(fds[0], NULL, 0), EFAULT);
	FAILS(rrecvmsg(fds[0], NULL, 0), EFAULT);
	FAILS(rsendmsg(fds[0], &msg, 0), ENOTSUP);
	FAILS(rsendto(fds[0], buf, 1, 0, SOCKADDR(at), len), EISCONN);
	FAILS(rsend(fds[0], buf, 1, MSG_OOB), EOPNOTSUPP);
	FAILS(rconnect(fds[0], SOCKADDR(at), len), EISCONN);
	FAILS(rgetsockname(fds[0], NULL, &len), EFAULT);
	FAILS(rgetsockname(fds[0], SOCKADDR(at), NULL), EFAULT);
	FAILS(raccept(fds[0], NULL, NULL), EINVAL);
	FAILS(rfcntl(fds[0], F_DUPFD, 0), ENOTSUP);
	FAILS(rpoll(NULL, 1, 0), EFAULT);
	FAILS(rselect(-1, NULL, NULL, NULL, NULL), EINVAL);
	FAILS(riomap(fds[0], buf, 1, PROT_EXEC, 0, 0), EINVAL);
	FAILS(riomap(fds[0], buf, 0, PROT_WRITE, 0, 0), EINVAL);
	FAILS(riomap(fds[0], buf, 1, PROT_WRITE, 0, 0), ENOMEM);
	FAILS(riounmap(fds[0], buf, 1), EINVAL);
	CHECK(rclose(fds[0]) == 0 && rclose(fds[1]) == 0);
}

/* errno stays what it was when nothing fails. */
static void success_leaves_errno_alone(void)
{
	int fds[2];

	errno = 77;
	pair(fds);
	CHECK(rsend(fds[0], buf, 1, 0) == 1);
	CHECK(rrecv(fds[1], buf, 1, 0) == 1);
	CHECK(rclose(fds[0]) == 0 && rclose(fds[1]) == 0);
	CHECK(errno == 77);
}

int main(void)
{
	bad_descriptors();
	wrong_kinds();
	not_connected();
	refused();
	beside_tcp();
	bad_arguments();
	success_leaves_errno_alone();
	return 0;
}
