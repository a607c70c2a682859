"""Clocks that can be set, for single processes: a library that goes before libc.

A process that it is loaded into reads the machine's clock plus as many seconds as a file says; what
counts time that passes (monotonic clocks, sleeps) is left alone, as it is when somebody sets the
clock of a machine. Takes a C compiler and Linux.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
    char text[32] = {0};
    const char *name = getenv("CLOCK_FILE");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    long seconds = read(file, text, sizeof text - 1) > 0 ? atol(text) : 0;
    close(file);
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*machine)(clockid_t, struct timespec *);
    if (!machine) machine = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = machine(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (result) *result = precise.tv_sec;
    return precise.tv_sec;
}
"""


def clock_library(folder: Path) -> Path:
    """Build the library.

    Raises:
        RuntimeError: without a C compiler.
    """
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_SOURCE, encoding="utf-8")
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        raise RuntimeError(f"clocks cannot be set without a C compiler: {said}") from error
    return library


def clock_of(library: Path, file: Path) -> Mapping[str, str]:
    """The environment of processes whose clock is as many seconds ahead as a file says."""
    return {"LD_PRELOAD": str(library), "CLOCK_FILE": str(file)}


def set_clock(file: Path, seconds: float) -> None:
    """Set a clock so many seconds ahead of the machine's."""
    file.write_text(f"{seconds:.0f}\n")
