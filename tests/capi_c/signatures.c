/* Compiles only if every function has the type that rdma/rsocket.h gives it. */
#include "check.h"

#define HAS_TYPE(name, result, ...)                                            \
	_Static_assert(__builtin_types_compatible_p(                           \
			       __typeof__(&name), result (*)(__VA_ARGS__)),    \
		       #name)

HAS_TYPE(rsocket, int, int, int, int);
HAS_TYPE(rbind, int, int, const struct sockaddr *, socklen_t);
HAS_TYPE(rlisten, int, int, int);
HAS_TYPE(raccept, int, int, struct sockaddr *, socklen_t *);
HAS_TYPE(rconnect, int, int, const struct sockaddr *, socklen_t);
HAS_TYPE(rshutdown, int, int, int);
HAS_TYPE(rclose, int, int);
HAS_TYPE(rrecv, ssize_t, int, void *, size_t, int);
HAS_TYPE(rrecvfrom, ssize_t, int, void *, size_t, int, struct sockaddr *, socklen_t *);
HAS_TYPE(rrecvmsg, ssize_t, int, struct msghdr *, int);
HAS_TYPE(rsend, ssize_t, int, const void *, size_t, int);
HAS_TYPE(rsendto, ssize_t, int, const void *, size_t, int, const struct sockaddr *, socklen_t);
HAS_TYPE(rsendmsg, ssize_t, int, const struct msghdr *, int);
HAS_TYPE(rread, ssize_t, int, void *, size_t);
HAS_TYPE(rreadv, ssize_t, int, const struct iovec *, int);
HAS_TYPE(rwrite, ssize_t, int, const void *, size_t);
HAS_TYPE(rwritev, ssize_t, int, const struct iovec *, int);
HAS_TYPE(rpoll, int, struct pollfd *, nfds_t, int);
HAS_TYPE(rselect, int, int, fd_set *, fd_set *, fd_set *, struct timeval *);
HAS_TYPE(rgetpeername, int, int, struct sockaddr *, socklen_t *);
HAS_TYPE(rgetsockname, int, int, struct sockaddr *, socklen_t *);
HAS_TYPE(rsetsockopt, int, int, int, int, const void *, socklen_t);
HAS_TYPE(rgetsockopt, int, int, int, int, void *, socklen_t *);
HAS_TYPE(rfcntl, int, int, int, ...);
HAS_TYPE(riomap, off_t, int, void *, size_t, int, int, off_t);
HAS_TYPE(riounmap, int, int, void *, size_t);
HAS_TYPE(riowrite, size_t, int, const void *, size_t, off_t, int);

_Static_assert(SOL_RDMA == 0x10000, "SOL_RDMA");
_Static_assert(RDMA_SQSIZE == 0 && RDMA_RQSIZE == 1 && RDMA_INLINE == 2 &&
		       RDMA_IOMAPSIZE == 3 && RDMA_ROUTE == 4,
	       "options of level SOL_RDMA");

int main(void)
{
	return 0;
}
