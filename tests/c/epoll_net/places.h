/* Places: the numbers that descriptors of a program have in every run. Part of `epoll_net.c`. */
#ifndef EPOLL_NET_PLACES_H
#define EPOLL_NET_PLACES_H

static void hold(const struct place *p, int by)
{
	if (p->kind == STREAM)
		shared->connections[p->number].holders[p->end] += by;
	if (p->kind == LISTENER) {
		struct listening *l = &shared->listeners[p->number];
		l->holders += by;
		if (l->holders == 0) {
			/* The kernel resets those that wait. */
			for (int i = 0; i < l->waiting; i++)
				shared->connections[l->queue[i]].holders[1]--;
			l->waiting = 0;
		}
	}
}

static void put_at(long long place, int fd, enum kind kind, int number, int end)
{
	CHECK(place >= 0 && place < PLACES && !places[place].is_open && fd >= 0);
	places[place] = (struct place){fd, 1, kind, number, end};
	hold(&places[place], 1);
}

/* Waits for what a call has set off on a stream, or on the streams that waited at a listener. */
static void settle_place(const struct place *p)
{
	if (p->kind == STREAM)
		settle(&shared->connections[p->number]);
	else if (p->kind == LISTENER)
		settle_all();
}

static struct place *place(const struct order *o, int i)
{
	CHECK(o->a[i] >= 0 && o->a[i] < PLACES);
	return &places[o->a[i]];
}

static struct connection *connection(const struct place *p)
{
	CHECK(p->kind == STREAM);
	return &shared->connections[p->number];
}

#endif
