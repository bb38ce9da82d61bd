/*
 * The rsocket(3) interface of librsock.
 *
 * Source-compatible with <rdma/rsocket.h>: the same functions, types and
 * constants, without needing the headers of an RDMA stack. Include one or the
 * other. Where behaviour differs from librdmacm on purpose, docs/c-api.md says
 * so.
 *
 * All functions return -1 and set errno on failure, and are safe to call from
 * several threads at once.
 */
#ifndef RSOCK_H
#define RSOCK_H

#include <sys/types.h>
#include <sys/socket.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/mman.h>
#include <poll.h>
#include <errno.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sockets: AF_INET or AF_INET6, SOCK_STREAM or SOCK_DGRAM. */
int rsocket(int domain, int type, int protocol);
int rbind(int socket, const struct sockaddr *addr, socklen_t addrlen);
int rlisten(int socket, int backlog);
int raccept(int socket, struct sockaddr *addr, socklen_t *addrlen);
int rconnect(int socket, const struct sockaddr *addr, socklen_t addrlen);
int rshutdown(int socket, int how);
int rclose(int socket);

int rgetpeername(int socket, struct sockaddr *addr, socklen_t *addrlen);
int rgetsockname(int socket, struct sockaddr *addr, socklen_t *addrlen);

/*
 * Flags with an effect: MSG_DONTWAIT; when receiving also MSG_PEEK, and
 * MSG_WAITALL on streams, MSG_TRUNC on datagrams.
 */
ssize_t rrecv(int socket, void *buf, size_t len, int flags);
ssize_t rrecvfrom(int socket, void *buf, size_t len, int flags,
		  struct sockaddr *src_addr, socklen_t *addrlen);
ssize_t rrecvmsg(int socket, struct msghdr *msg, int flags);
ssize_t rsend(int socket, const void *buf, size_t len, int flags);
ssize_t rsendto(int socket, const void *buf, size_t len, int flags,
		const struct sockaddr *dest_addr, socklen_t addrlen);
ssize_t rsendmsg(int socket, const struct msghdr *msg, int flags);
ssize_t rread(int socket, void *buf, size_t count);
ssize_t rreadv(int socket, const struct iovec *iov, int iovcnt);
ssize_t rwrite(int socket, const void *buf, size_t count);
ssize_t rwritev(int socket, const struct iovec *iov, int iovcnt);

/* Sockets and ordinary descriptors alike. */
int rpoll(struct pollfd *fds, nfds_t nfds, int timeout);
int rselect(int nfds, fd_set *readfds, fd_set *writefds,
	    fd_set *exceptfds, struct timeval *timeout);

#define SOL_RDMA 0x10000
enum {
	RDMA_SQSIZE,	/* uint32_t: send queue entries */
	RDMA_RQSIZE,	/* uint32_t: receive queue entries */
	RDMA_INLINE,	/* uint32_t: inline bytes */
	RDMA_IOMAPSIZE,	/* int: buffers that the peer may expose */
	RDMA_ROUTE	/* path records */
};

int rsetsockopt(int socket, int level, int optname,
		const void *optval, socklen_t optlen);
int rgetsockopt(int socket, int level, int optname,
		void *optval, socklen_t *optlen);
/* F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD. */
int rfcntl(int socket, int cmd, ... /* arg */);

/*
 * Memory exposed to the peer. riomap() exposes len bytes at buf under offset,
 * or under their address if offset is -1, and returns the offset; the peer
 * must have set RDMA_IOMAPSIZE before it connected or listened. riowrite()
 * writes into memory that the peer has exposed. The peer gets no notice of the
 * write, but data sent after it arrives after it.
 */
off_t riomap(int socket, void *buf, size_t len, int prot, int flags,
	     off_t offset);
int riounmap(int socket, void *buf, size_t len);
size_t riowrite(int socket, const void *buf, size_t count, off_t offset,
		int flags);

#ifdef __cplusplus
}
#endif

#endif /* RSOCK_H */
