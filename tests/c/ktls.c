/* TLS in the kernel (kTLS): from the moment when a program asks for it, all bytes go by the kernel's socket, also
 * those that lie unread on the ring. Where the kernel has none, both ends go on without. */
#include "common.h"
#include <linux/tls.h>
#include <sys/syscall.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef SOL_TLS
#define SOL_TLS 282
#endif

enum { UNREAD = 20000, LATER = 300000, ROUNDS = 50 };

/* Asks for kTLS. Whether the kernel has it. */
static int begin_tls(int fd)
{
	int done = setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls"));
	CHECK(done == 0 || errno == ENOENT);
	return done == 0;
}

/* What one end writes and the other reads is encrypted with the key of its direction. */
static void set_key(int fd, int direction, unsigned char of_writer)
{
	struct tls12_crypto_info_aes_gcm_128 info = {
		.info = {.version = TLS_1_2_VERSION, .cipher_type = TLS_CIPHER_AES_GCM_128},
	};
	memset(info.key, of_writer, sizeof(info.key));
	memset(info.salt, of_writer + 1, sizeof(info.salt));
	memset(info.iv, of_writer + 2, sizeof(info.iv));
	CHECK(setsockopt(fd, SOL_TLS, direction, &info, sizeof(info)) == 0);
}

enum { KEY_OF_SERVER = 10, KEY_OF_CLIENT = 20 };

static void set_keys(int fd, int is_server)
{
	set_key(fd, TLS_TX, is_server ? KEY_OF_SERVER : KEY_OF_CLIENT);
	set_key(fd, TLS_RX, is_server ? KEY_OF_CLIENT : KEY_OF_SERVER);
}

/* Bytes that lie unread when the program asks, and later ones, come out of the kernel's socket: bare system calls
 * find them. Until it has keys the socket passes them on as they are. */
static void unread_server(int fd)
{
	static unsigned char buf[UNREAD];
	await_bytes(fd, UNREAD);
	begin_tls(fd);
	for (size_t at = 0; at < UNREAD + LATER;) {
		long n = bare_syscall(SYS_read, fd, (long)buf, sizeof(buf), 0, 0, 0);
		CHECK(n > 0);
		check_stream(buf, (size_t)n, 1, at);
		at += (size_t)n;
	}
	for (size_t at = 0; at < LATER;) {
		size_t n = LATER - at < sizeof(buf) ? LATER - at : sizeof(buf);
		fill_stream(buf, n, 2, at);
		long written = bare_syscall(SYS_write, fd, (long)buf, (long)n, 0, 0, 0);
		CHECK(written > 0);
		at += (size_t)written;
	}
	show_end(fd);
}

static void unread_client(int fd)
{
	static unsigned char buf[UNREAD + LATER];
	fill_stream(buf, sizeof(buf), 1, 0);
	put(fd, buf, sizeof(buf));
	get_stream(fd, LATER, 2);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

/* The ends agree on the moment, as by a handshake, and each encrypts what it sends from there on. The client's
 * first records may be there before the server asks. */
static void talk(int fd, int is_server)
{
	static const uint64_t OF_CLIENT = 100, OF_SERVER = 200;
	int has_tls;
	if (is_server) {
		hear(fd);
		tell(fd);
		has_tls = begin_tls(fd);
	} else {
		tell(fd);
		hear(fd);
		has_tls = begin_tls(fd);
	}
	if (has_tls)
		set_keys(fd, is_server);
	printf("TLS in the kernel: %d\n", has_tls);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		size_t n = i % 10 ? 1000 : LATER;
		if (is_server)
			get_stream(fd, n, OF_CLIENT + i);
		put_stream(fd, n, (is_server ? OF_SERVER : OF_CLIENT) + i);
		if (!is_server)
			get_stream(fd, n, OF_SERVER + i);
	}
}

static void talk_server(int fd)
{
	talk(fd, 1);
	hear(fd);
}

static void talk_client(int fd)
{
	talk(fd, 0);
	tell(fd);
}

/* Two ends of a connection within this process. `with_tls` has TLS in the kernel, `without` sees the records. */
struct converter {
	int with_tls, without;
};

static struct converter new_converter(void)
{
	struct converter new = {-1, -1};
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	int listening = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(listening, (struct sockaddr *)&at, len) == 0 && listen(listening, 1) == 0);
	CHECK(getsockname(listening, (struct sockaddr *)&at, &len) == 0);
	new.with_tls = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(new.with_tls, (struct sockaddr *)&at, len) == 0);
	new.without = accept(listening, NULL, NULL);
	CHECK(new.without >= 0 && close(listening) == 0);
	return new;
}

enum { MESSAGE = 1000, MESSAGES = 40, ROOM = MESSAGE + 100 };

/* Sends `MESSAGE` bytes as a record, as a TLS library does: its bytes are those of any other write. */
static void put_record(int fd, const struct converter *by, uint64_t seed)
{
	unsigned char buf[ROOM];
	put_stream(by->with_tls, MESSAGE, seed);
	ssize_t n = recv(by->without, buf, 5, MSG_WAITALL);
	CHECK(n == 5);
	size_t rest = (size_t)buf[3] << 8 | buf[4];
	CHECK(rest <= sizeof(buf) - 5);
	get(by->without, buf + 5, rest);
	put(fd, buf, 5 + rest);
}

static void get_record(int fd, const struct converter *by, uint64_t seed)
{
	unsigned char buf[ROOM];
	get(fd, buf, 5);
	size_t rest = (size_t)buf[3] << 8 | buf[4];
	CHECK(rest <= sizeof(buf) - 5);
	get(fd, buf + 5, rest);
	put(by->without, buf, 5 + rest);
	get_stream(by->with_tls, MESSAGE, seed);
}

/* The client encrypts without the kernel, so its stream stays where it is, and its first records lie unread when the
 * server asks. */
static void records_client(int fd)
{
	struct converter by = new_converter();
	int has_tls = begin_tls(by.with_tls);
	if (has_tls)
		set_keys(by.with_tls, 0);
	for (uint64_t i = 0; i < MESSAGES; i++)
		if (has_tls)
			put_record(fd, &by, i);
		else
			put_stream(fd, MESSAGE, i);
	for (uint64_t i = 0; i < MESSAGES; i++)
		if (has_tls)
			get_record(fd, &by, 100 + i);
		else
			get_stream(fd, MESSAGE, 100 + i);
	SHOW(shutdown(fd, SHUT_WR));
	show_end(fd);
}

static void records_server(int fd)
{
	await_bytes(fd, MESSAGES / 2 * MESSAGE);
	int has_tls = begin_tls(fd);
	if (has_tls)
		set_keys(fd, 1);
	printf("TLS in the kernel: %d\n", has_tls);
	for (uint64_t i = 0; i < MESSAGES; i++)
		get_stream(fd, MESSAGE, i);
	for (uint64_t i = 0; i < MESSAGES; i++)
		put_stream(fd, MESSAGE, 100 + i);
	show_end(fd);
}

static const struct part PARTS[] = {
	{"unread", unread_client, unread_server},
	{"talk", talk_client, talk_server},
	{"records", records_client, records_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
