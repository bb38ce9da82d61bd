/* The peer goes on once a thread of this end sleeps in a call: it has introduced itself, and awaits a signal. */
#ifndef RSOCK_TEST_ASLEEP_H
#define RSOCK_TEST_ASLEEP_H

#include "common.h"

struct asleep {
	pid_t caller, peer;
	pthread_t helper;
};

static inline void *signal_peer_(void *at)
{
	const struct asleep *asleep = at;
	await_sleep(asleep->caller);
	CHECK(kill(asleep->peer, SIGUSR1) == 0);
	return NULL;
}

/* `peer` gets its signal in the next call of this thread that sleeps. */
static inline void begin_asleep(struct asleep *asleep, pid_t peer)
{
	asleep->caller = gettid();
	asleep->peer = peer;
	CHECK(pthread_create(&asleep->helper, NULL, signal_peer_, asleep) == 0);
}

static inline void end_asleep(struct asleep *asleep)
{
	CHECK(pthread_join(asleep->helper, NULL) == 0);
}

#endif
