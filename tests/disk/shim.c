/* Stands between a process and libc (LD_PRELOAD) and refuses, or shortens, what touches certain files.

   FI_PATH   part of the path of the files that are meant
   FI_CALL   fdatasync | pwrite
   FI_AT     the call, counted from 1, that is refused with EIO; 0 for none
   FI_SHORT  not empty: each pwrite writes half */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int meant(int fd)
{
	char link[64], path[4096];
	const char *part = getenv("FI_PATH");
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, sizeof path - 1);
	if (!part || length < 0)
		return 0;
	path[length] = 0;
	return strstr(path, part) != NULL;
}

static int refused(const char *call)
{
	static long seen;
	const char *asked = getenv("FI_CALL"), *at = getenv("FI_AT");
	return asked && at && !strcmp(asked, call) && __sync_add_and_fetch(&seen, 1) == atol(at);
}

int fdatasync(int fd)
{
	int (*right)(int) = dlsym(RTLD_NEXT, "fdatasync");
	if (meant(fd) && refused("fdatasync")) {
		errno = EIO;
		return -1;
	}
	return right(fd);
}

static ssize_t some(const char *name, int fd, const void *data, size_t count, off64_t at)
{
	ssize_t (*right)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, name);
	if (meant(fd)) {
		const char *half = getenv("FI_SHORT");
		if (refused("pwrite")) {
			right(fd, data, count / 2, at);
			errno = EIO;
			return -1;
		}
		if (half && *half && count > 1)
			count /= 2;
	}
	return right(fd, data, count, at);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at)
{
	return some("pwrite", fd, data, count, at);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at)
{
	return some("pwrite64", fd, data, count, at);
}
