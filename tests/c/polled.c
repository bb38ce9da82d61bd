/* Each end polls many connections, a few of which are busy all the time. What happens on the others
 * is reported, although few of them are looked at by each call. */
#include "common.h"

enum { N = 120, BUSY = 4, ROUNDS = 450, GAP = 40 };

static struct pollfd all[N];

/* What the server is asked to do, beside sending the message back. */
enum { NOTHING, SEND_ON, CLOSE, SHUT, RESET };

struct message {
	uint32_t round;
	/* What to do, and with which connection. */
	uint16_t what, which;
};

/* One by one, since a server need not accept connections in the order in which they are made. `turns`
 * is a further connection. */
static void connect_all(int turns, int is_server)
{
	int on = 1;
	for (int i = 0; i < N; i++) {
		int fd = is_server ? accept_client() : connect_to_server();
		CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
		if (is_warm)
			warm_up(fd, is_server);
		all[i] = (struct pollfd){.fd = fd, .events = POLLIN};
		if (is_server)
			tell(turns);
		else
			hear(turns);
	}
}

static void reset(int fd)
{
	struct linger hard = {.l_onoff = 1};
	CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)) == 0);
	CHECK(close(fd) == 0);
}

/* Ends connection `i` in a way, or sends a byte on it. */
static void act(int what, int i)
{
	switch (what) {
	case SEND_ON:
		put(all[i].fd, "!", 1);
		return;
	case CLOSE:
		CHECK(close(all[i].fd) == 0);
		break;
	case SHUT:
		CHECK(shutdown(all[i].fd, SHUT_WR) == 0);
		return;
	case RESET:
		reset(all[i].fd);
		break;
	default:
		return;
	}
	all[i].fd = -1;
}

/* How each connection ended: 0 if it has not, 1 by an end, 2 by a reset. */
static int ended[N];
/* Bytes that came on each but the busy ones. */
static int single[N];

/* Takes what is there on a connection that is not busy. */
static void take(int i)
{
	char byte;
	ssize_t n = recv(all[i].fd, &byte, 1, MSG_DONTWAIT);
	if (n == 1) {
		CHECK(byte == '!');
		single[i]++;
		return;
	}
	CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
	ended[i] = n == 0 ? 1 : 2;
	CHECK(close(all[i].fd) == 0);
	all[i].fd = -1;
}

static int is_done(void)
{
	for (int i = 0; i < N; i++)
		if (all[i].fd >= 0)
			return 0;
	return 1;
}

/* Shows what happened on connections that have not ended in the `usual` way, or had bytes. */
static void show(int usual)
{
	for (int i = BUSY; i < N; i++)
		if (ended[i] != usual || single[i])
			printf("%d: end %d, bytes %d\n", i, ended[i], single[i]);
}

static void many_server(int fd)
{
	struct message m;
	connect_all(fd, 1);
	while (!is_done()) {
		CHECK(poll(all, N, -1) > 0);
		for (int i = BUSY; i < N; i++)
			if (all[i].fd >= 0 && all[i].revents)
				take(i);
		for (int i = 0; i < BUSY; i++) {
			if (all[i].fd < 0 || !all[i].revents)
				continue;
			char first;
			if (recv(all[i].fd, &first, 1, MSG_PEEK) == 0) {
				CHECK(close(all[i].fd) == 0);
				all[i].fd = -1;
				continue;
			}
			get(all[i].fd, &m, sizeof(m));
			act(m.what, m.which);
			put(all[i].fd, &m, sizeof(m));
		}
	}
	show(1);
}

/* What happens, and by which end, on connections of their own. */
static const struct { int by_server, what; } EVENTS[] = {
	{0, SEND_ON}, {1, SEND_ON}, {0, CLOSE}, {1, CLOSE}, {0, SHUT}, {1, SHUT}, {0, RESET},
	{1, RESET}, {1, SEND_ON}, {0, SEND_ON},
};

/* One round of the busy connections. */
static void round_of(uint32_t round, int what, int which)
{
	int left = 0;
	for (int i = 0; i < BUSY; i++) {
		struct message m = {.round = round * BUSY + i, .what = NOTHING};
		if (i == (int)(round % BUSY) && what != NOTHING) {
			m.what = what;
			m.which = which;
		}
		put(all[i].fd, &m, sizeof(m));
		left++;
	}
	while (left > 0) {
		CHECK(poll(all, N, -1) > 0);
		for (int i = BUSY; i < N; i++)
			if (all[i].fd >= 0 && all[i].revents)
				take(i);
		for (int i = 0; i < BUSY; i++)
			if (all[i].revents) {
				struct message m;
				get(all[i].fd, &m, sizeof(m));
				CHECK(m.round == round * BUSY + i);
				left--;
			}
	}
}

static void many_client(int fd)
{
	uint32_t round = 0;
	connect_all(fd, 0);
	for (size_t event = 0; event < COUNT(EVENTS); event++) {
		int which = BUSY + 7 * (int)event;
		for (int i = 0; i < GAP; i++)
			round_of(round++, NOTHING, 0);
		if (EVENTS[event].by_server)
			round_of(round++, EVENTS[event].what, which);
		else
			act(EVENTS[event].what, which);
		/* The busy ones go on until this end has seen what the other has done. */
		while (EVENTS[event].by_server && all[which].fd >= 0 && !single[which])
			round_of(round++, NOTHING, 0);
	}
	while (round < ROUNDS)
		round_of(round++, NOTHING, 0);
	/* Nothing but what happened was reported. */
	show(0);
	for (int i = 0; i < N; i++)
		if (all[i].fd >= 0)
			CHECK(close(all[i].fd) == 0);
}

static const struct part PARTS[] = {
	{"many", many_client, many_server},
};

int main(int argc, char **argv)
{
	return play(argc, argv, PARTS, COUNT(PARTS));
}
