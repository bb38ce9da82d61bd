/* Options: what is stored, what is told, what is refused. */
#include "check.h"

static int get(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	CHECK(rgetsockopt(fd, level, name, &value, &len) == 0);
	CHECK(len == sizeof(value));
	return value;
}

static void set(int fd, int level, int name, int value)
{
	CHECK(rsetsockopt(fd, level, name, &value, sizeof(value)) == 0);
}

int main(void)
{
	int fd = rsocket(AF_INET6, SOCK_STREAM, 0), fds[2], one = 1;
	struct linger linger = { 7, 7 };
	struct timeval limit = { 1, 500000 }, told = { 0, 0 };
	struct tcp_info info = { .tcpi_state = 99 };
	socklen_t len = sizeof(linger);
	char small[2] = { 0, 0 };

	CHECK(get(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
	CHECK(get(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET6);
	CHECK(get(fd, SOL_SOCKET, SO_ERROR) == 0);
	CHECK(get(fd, SOL_SOCKET, SO_ACCEPTCONN) == 0);
	CHECK(get(fd, SOL_RDMA, RDMA_SQSIZE) == 384);
	CHECK(get(fd, SOL_RDMA, RDMA_INLINE) == 64);
	CHECK(get(fd, SOL_RDMA, RDMA_IOMAPSIZE) == 0);

	/* COMPAT: C says that a new socket lingers. */
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) == 0);
	CHECK(len == sizeof(linger) && linger.l_onoff == 0 && linger.l_linger == 0);

	set(fd, SOL_SOCKET, SO_RCVBUF, 10000);
	CHECK(get(fd, SOL_SOCKET, SO_RCVBUF) == 20000);
	set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	CHECK(get(fd, SOL_SOCKET, SO_REUSEADDR) == 1);
	set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	CHECK(get(fd, IPPROTO_IPV6, IPV6_V6ONLY) == 1);
	set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	CHECK(get(fd, IPPROTO_TCP, TCP_NODELAY) == 1);
	set(fd, SOL_RDMA, RDMA_RQSIZE, 77);
	CHECK(get(fd, SOL_RDMA, RDMA_RQSIZE) == 77);
	set(fd, SOL_RDMA, RDMA_IOMAPSIZE, 200);
	CHECK(get(fd, SOL_RDMA, RDMA_IOMAPSIZE) == 128);
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	len = sizeof(told);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &told, &len) == 0);
	CHECK(told.tv_sec == 1 && told.tv_usec == 500000);

	/* As much as fits. */
	len = sizeof(small);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_TYPE, small, &len) == 0 && len == 2);

	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)), ENOTSUP);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, 1), EINVAL);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, NULL, 4), EFAULT);
	FAILS(rgetsockopt(fd, SOL_SOCKET, SO_PEERCRED, &one, &len), ENOTSUP);
	FAILS(rgetsockopt(fd, SOL_SOCKET, SO_TYPE, NULL, &len), EFAULT);
	CHECK(rclose(fd) == 0);

	pair(fds);
	FAILS(rsetsockopt(fds[0], SOL_RDMA, RDMA_SQSIZE, &one, sizeof(one)), EINVAL);
	CHECK(rsetsockopt(fds[0], SOL_SOCKET, SO_RCVBUF, &one, sizeof(one)) == 0);
	CHECK(get(fds[0], SOL_SOCKET, SO_RCVBUF) > 2);
	len = sizeof(info);
	/* COMPAT: C says ESTABLISHED only once both directions are shut down. */
	CHECK(rgetsockopt(fds[0], IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
	CHECK(info.tcpi_state == TCP_ESTABLISHED);
	CHECK(rclose(fds[0]) == 0 && rclose(fds[1]) == 0);
	return 0;
}
