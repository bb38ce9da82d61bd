/* A library that is loaded at run time and waits for the program's sockets itself. */
#include <poll.h>

int wait_for_input(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return poll(&p, 1, 60000);
}
