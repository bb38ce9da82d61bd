/*
 * Datagram sockets of rsocket(3) at one address, IPv4 or IPv6: every call that sends or receives, and every
 * length, by the device and by UDP.
 *
 * datagrams ADDRESS LONGEST: LONGEST is what the device carries at most. Says how many datagrams it sent that
 * may go over the device.
 */
#include "../capi_c/check.h"

union address {
	struct sockaddr sa;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
	char room[64];
};

static char out[70000], in[70000];
static union address own;
static socklen_t own_len;
static int is_v6, n_sent;

static void parse(const char *text)
{
	is_v6 = strchr(text, ':') != NULL;
	if (is_v6) {
		own.v6.sin6_family = AF_INET6;
		CHECK(inet_pton(AF_INET6, text, &own.v6.sin6_addr) == 1);
	} else {
		own.v4.sin_family = AF_INET;
		CHECK(inet_pton(AF_INET, text, &own.v4.sin_addr) == 1);
	}
	own_len = is_v6 ? sizeof(own.v6) : sizeof(own.v4);
}

static int bound(union address *at)
{
	socklen_t len = sizeof(*at);
	int fd = rsocket(own.sa.sa_family, SOCK_DGRAM, 0);
	struct timeval limit = { 20, 0 };

	CHECK(fd >= 0);
	CHECK(rbind(fd, &own.sa, own_len) == 0);
	/* None is lost: one is under way at a time. If one is, this does not wait for it without end. */
	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	memset(at, 0xee, sizeof(*at));
	CHECK(rgetsockname(fd, &at->sa, &len) == 0);
	CHECK(len == own_len && at->sa.sa_family == own.sa.sa_family);
	return fd;
}

static int same(const union address *a, const union address *b)
{
	if (a->sa.sa_family != b->sa.sa_family)
		return 0;
	if (!is_v6)
		return a->v4.sin_port == b->v4.sin_port &&
		       a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
	return a->v6.sin6_port == b->v6.sin6_port && a->v6.sin6_scope_id == b->v6.sin6_scope_id &&
	       memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr)) == 0;
}

/* One datagram, by rsendto and rrecvfrom. */
static void send_one(int from, const union address *at_from, int to, const union address *at_to,
		     size_t size)
{
	union address seen;
	socklen_t len = sizeof(seen);

	memset(&seen, 0xee, sizeof(seen));
	CHECK(rsendto(from, out, size, 0, &at_to->sa, own_len) == (ssize_t)size);
	CHECK(rrecvfrom(to, in, sizeof(in), 0, &seen.sa, &len) == (ssize_t)size);
	CHECK(memcmp(in, out, size) == 0);
	CHECK(len == own_len && same(&seen, at_from));
}

/* An address that has no room is cut, and says how long it is. */
static void short_address(int from, int to, const union address *at_to)
{
	union address seen;
	socklen_t len = 4;

	memset(&seen, 0xee, sizeof(seen));
	CHECK(rsendto(from, out, 5, 0, &at_to->sa, own_len) == 5);
	CHECK(rrecvfrom(to, in, sizeof(in), 0, &seen.sa, &len) == 5);
	CHECK(len == own_len && seen.sa.sa_family == own.sa.sa_family);
	CHECK(memcmp(seen.room + 4, "\xee\xee\xee\xee", 4) == 0);
}

/* Several pieces, in and out, with and without an address. */
static void messages(int a, const union address *at_a, int b, const union address *at_b)
{
	union address to = *at_b, seen;
	struct iovec pieces[3] = { { out, 3 }, { out + 3, 0 }, { out + 3, 4 } };
	struct iovec places[2] = { { in, 2 }, { in + 10, 3 } };
	struct msghdr msg = { .msg_name = &to, .msg_namelen = own_len,
			      .msg_iov = pieces, .msg_iovlen = 3 };
	struct msghdr got = { .msg_name = &seen, .msg_namelen = sizeof(seen),
			      .msg_iov = places, .msg_iovlen = 2 };

	memset(&seen, 0xee, sizeof(seen));
	CHECK(rsendmsg(a, &msg, 0) == 7);
	CHECK(rrecv(b, in, 2, MSG_PEEK) == 2);
	CHECK(rrecv(b, in, 2, MSG_PEEK | MSG_TRUNC) == 7);
	CHECK(rrecvmsg(b, &got, MSG_PEEK) == 5);
	CHECK(got.msg_flags == MSG_TRUNC && got.msg_namelen == own_len && same(&seen, at_a));
	got.msg_namelen = sizeof(seen);
	memset(&seen, 0xee, sizeof(seen));
	CHECK(rrecvmsg(b, &got, 0) == 5);
	CHECK(got.msg_flags == MSG_TRUNC && got.msg_namelen == own_len && same(&seen, at_a));
	CHECK(memcmp(in, out, 2) == 0 && memcmp(in + 10, out + 2, 3) == 0);
	FAILS(rrecvmsg(b, &got, MSG_DONTWAIT), EAGAIN);

	places[1].iov_len = 100;
	got.msg_name = NULL;
	got.msg_namelen = 0;
	CHECK(rsendmsg(a, &msg, 0) == 7);
	CHECK(rrecvmsg(b, &got, 0) == 7 && got.msg_flags == 0 && got.msg_namelen == 0);
	CHECK(memcmp(in, out, 2) == 0 && memcmp(in + 10, out + 2, 5) == 0);
	n_sent += 2;
}

static void calls(void)
{
	union address at_a, at_b, seen;
	int a = bound(&at_a), b = bound(&at_b), i;
	struct iovec piece = { out, 6 };
	struct msghdr msg = { .msg_iov = &piece, .msg_iovlen = 1 };
	socklen_t len = sizeof(seen);

	/* By UDP at first, over the device soon. */
	for (i = 0; i < 100; i++) {
		send_one(a, &at_a, b, &at_b, 64);
		send_one(b, &at_b, a, &at_a, 0);
		short_address(a, b, &at_b);
		messages(a, &at_a, b, &at_b);
		n_sent += 3;
	}
	FAILS(rsend(a, "x", 1, 0), EDESTADDRREQ);
	FAILS(rsendmsg(a, &msg, 0), EDESTADDRREQ);
	FAILS(rgetpeername(a, &seen.sa, &len), ENOTCONN);

	CHECK(rconnect(a, &at_b.sa, own_len) == 0);
	CHECK(rgetpeername(a, &seen.sa, &len) == 0 && len == own_len && same(&seen, &at_b));
	for (i = 0; i < 100; i++) {
		CHECK(rsend(a, out, 5, 0) == 5 && rrecv(b, in, sizeof(in), 0) == 5);
		CHECK(rsendmsg(a, &msg, 0) == 6 && rrecv(b, in, sizeof(in), 0) == 6);
		CHECK(rwrite(a, out, 7) == 7 && rread(b, in, sizeof(in)) == 7);
		n_sent += 3;
	}
	CHECK(rclose(a) == 0 && rclose(b) == 0);
	FAILS(rclose(a), EBADF);
}

/* What is too long for the device goes by UDP, and what is too long for that is refused. */
static void lengths(size_t longest)
{
	union address at_a, at_b;
	int a = bound(&at_a), b = bound(&at_b), i;
	/* What UDP carries, less the header. */
	size_t most = is_v6 ? 65527 - 28 : 65507 - 16;
	size_t sizes[] = { 0, 1, 1000, longest - 1, longest, longest + 1, 2048, 4096, 9000, 60000 };
	struct iovec piece = { out, 0 };
	struct msghdr msg = { .msg_name = &at_b, .msg_namelen = own_len,
			      .msg_iov = &piece, .msg_iovlen = 1 };

	for (i = 0; i < 20; i++) {
		for (size_t j = 0; j < sizeof(sizes) / sizeof(*sizes); j++) {
			send_one(a, &at_a, b, &at_b, sizes[j]);
			n_sent += sizes[j] <= longest;
		}
	}
	for (i = 1; i <= 2; i++) {
		piece.iov_len = most + i;
		FAILS(rsendto(a, out, most + i, 0, &at_b.sa, own_len), EMSGSIZE);
		FAILS(rsendmsg(a, &msg, 0), EMSGSIZE);
	}
	send_one(a, &at_a, b, &at_b, most);
	CHECK(rclose(a) == 0 && rclose(b) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (char)(i * 7 + i / 251);
	parse(argv[1]);
	calls();
	lengths(strtoul(argv[2], NULL, 10));
	printf("%d\n", n_sent);
	return 0;
}
