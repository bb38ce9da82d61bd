/* Descriptors that go through Unix sockets. */
#ifndef PASSED_H
#define PASSED_H

#include "common.h"

/* Sends a descriptor through a Unix socket. Returns what `sendmsg` does. */
static inline int pass(int over, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	char c = 'p';
	struct iovec iov = {.iov_base = &c, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	return (int)sendmsg(over, &msg, 0);
}

/* The descriptor that comes through a Unix socket. */
static inline int take(int over)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char c;
	struct iovec iov = {.iov_base = &c, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	CHECK(recvmsg(over, &msg, 0) == 1);
	int fd;
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

#endif
