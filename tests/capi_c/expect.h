/* A check that says where it failed, and ends the process. */
#ifndef EXPECT_H
#define EXPECT_H

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s (errno %d: %s)\n",          \
				__FILE__, __LINE__, #condition, errno,         \
				strerror(errno));                              \
			_exit(1);                                              \
		}                                                              \
	} while (0)

#endif
