"""Generates C stubs for the runtime functions that a program needs, and compiles them into a shared library.

A stub stores its arguments in an array of 64-bit words and calls `dispatch`, a function pointer that
`sim.runtime.process` sets to a Python function. Structures passed by value are replaced by their addresses.
"""

import subprocess
from pathlib import Path

from sim.errors import LaunchError
from sim.runtime.signatures import LIBRARY_PREFIXES, SIGNATURES

C_TYPES = {"p": "size_t", "i": "int", "u": "unsigned", "f": "float", "D": "dim3", "E": "extent"}
C_TYPES |= {"L": "location", "s": "const char *", "v": "void"}
BY_VALUE = "DEL"
# functions of the C library that nvcc's linker replaces by the functions __wrap_... below
WRAPPED = "read", "write", "pread", "pwrite", "recv", "send", "fread", "fwrite"
PRELUDE = """\
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <ucontext.h>
#include <unistd.h>

typedef struct { unsigned x, y, z; } dim3;
typedef struct { size_t width, height, depth; } extent;
typedef struct { int type, id; } location;
typedef long long (*callback)(int, size_t *, void **, int);

enum { FINISH = -1, FAULT = -2, STEPPED = -3, REPEAT = 1, STEP = 2, FRAMES = 24 };
enum { TRAP_FLAG = 1 << 8 }; /* the processor raises SIGTRAP after the next instruction */
static callback dispatch;
static __thread int in_system_call; /* whether pages of pending work stay open until `end_access` */
static size_t registered_start, registered_end; /* addresses that contain all registered memory */

/* Return whether a buffer can contain memory that CUDA functions have allocated or registered. */
static int is_simulated(size_t address, size_t size) {
    return address < (size_t)1 << 36 || address < registered_end && registered_start < address + size;
}

static long long call(int index, size_t *arguments) {
    void *frames[FRAMES];
    int count = backtrace(frames, FRAMES);
    return dispatch(index, arguments, frames, count);
}

static void finish(int status, void *unused) {
    size_t arguments[] = {status};
    fflush(stdout);
    call(FINISH, arguments);
}

/* A host access to a device address, or to memory that pending work uses, ends here. All other faults keep
   their usual effect. */
static void fault(int number, siginfo_t *info, void *context) {
    size_t arguments[] = {(size_t)info->si_addr, 0};
    void *frames[FRAMES];
#if defined(__x86_64__)
    frames[0] = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] + 1;
    arguments[1] = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1; /* set for a write */
#elif defined(__aarch64__)
    frames[0] = (char *)((ucontext_t *)context)->uc_mcontext.pc + 1;
#endif
    size_t address = arguments[0];
    if (is_simulated(address, 1)) {
        int count = 1 + backtrace(frames + 1, FRAMES - 1);
        long long answer = dispatch(FAULT, arguments, frames, count);
#if defined(__x86_64__)
        greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];
        if (answer == STEP && !in_system_call) { *flags |= TRAP_FLAG; }
#endif
        if (answer == STEP || answer == REPEAT) { return; }
    }
    signal(number, SIG_DFL);
}

/* The instruction that may access pages of pending work has been executed, so protect these pages again. */
static void stepped(int number, siginfo_t *info, void *context) {
#if defined(__x86_64__)
    greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];
    if (*flags & TRAP_FLAG) {
        *flags &= ~(greg_t)TRAP_FLAG;
        dispatch(STEPPED, NULL, NULL, 0);
        return;
    }
#endif
    signal(number, SIG_DFL);
    raise(number);
}

void sim_connect(callback function) {
    static char stack[1 << 18];
    void *warm[1];
    backtrace(warm, 1); /* loads libgcc now, and not inside a signal handler */
    dispatch = function;
    on_exit(finish, NULL);
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    action.sa_sigaction = stepped;
    sigaction(SIGTRAP, &action, NULL);
}

void sim_registered(size_t start, size_t end) { registered_start = start, registered_end = end; }

void sim_print(const char *text) { fputs(text, stdout); }

/* Access every `step`-th byte of a buffer. */
static void access_each(const void *start, size_t size, size_t step, int writes) {
    volatile char *bytes = (volatile char *)start;
    for (size_t i = 0; i < size; i += step) {
        if (writes) { __atomic_fetch_or(bytes + i, 0, __ATOMIC_RELAXED); }
        else { bytes[i]; }
    }
}

/* A system call that accesses memory of pending work would fail, because the operating system does not send a
   SIGSEGV. Access each word of the buffer before the call, and then each page, which stays open. */
static void access_buffer(const void *start, size_t size, int writes) {
    if (!is_simulated((size_t)start, size)) { return; }
    access_each(start, size, 4, writes);
    in_system_call = 1;
    access_each(start, size, 4096, writes);
    if (size) { access_each((const char *)start + size - 1, 1, 1, writes); }
}

/* Protect the pages again that `access_buffer` has opened. */
static void end_access(void) {
    int error = errno;
    if (in_system_call) { dispatch(STEPPED, NULL, NULL, 0); }
    in_system_call = 0;
    errno = error;
}

ssize_t __wrap_read(int file, void *to, size_t size) {
    access_buffer(to, size, 1);
    ssize_t result = read(file, to, size);
    end_access();
    return result;
}
ssize_t __wrap_pread(int file, void *to, size_t size, off_t offset) {
    access_buffer(to, size, 1);
    ssize_t result = pread(file, to, size, offset);
    end_access();
    return result;
}
ssize_t __wrap_recv(int file, void *to, size_t size, int flags) {
    access_buffer(to, size, 1);
    ssize_t result = recv(file, to, size, flags);
    end_access();
    return result;
}
size_t __wrap_fread(void *to, size_t size, size_t count, FILE *file) {
    access_buffer(to, size * count, 1);
    size_t result = fread(to, size, count, file);
    end_access();
    return result;
}
ssize_t __wrap_write(int file, const void *from, size_t size) {
    access_buffer(from, size, 0);
    ssize_t result = write(file, from, size);
    end_access();
    return result;
}
ssize_t __wrap_pwrite(int file, const void *from, size_t size, off_t offset) {
    access_buffer(from, size, 0);
    ssize_t result = pwrite(file, from, size, offset);
    end_access();
    return result;
}
ssize_t __wrap_send(int file, const void *from, size_t size, int flags) {
    access_buffer(from, size, 0);
    ssize_t result = send(file, from, size, flags);
    end_access();
    return result;
}
size_t __wrap_fwrite(const void *from, size_t size, size_t count, FILE *file) {
    access_buffer(from, size * count, 0);
    size_t result = fwrite(from, size, count, file);
    end_access();
    return result;
}
"""


def needed_functions(library: Path) -> list[str]:
    """Return the CUDA functions that a compiled program expects from other libraries.

    Raise LaunchError if the file is not a shared library.
    """
    try:
        listed = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True)
    except FileNotFoundError:
        raise LaunchError(
            "the program `nm` is missing; it lists the functions that a compiled program needs\n"
            "  install the GNU binutils, which come with every C compiler"
        ) from None
    if listed.returncode:
        raise LaunchError(f"{library}: not a program made by `python -m sim build`: {listed.stderr.strip()}")
    names = [line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines() if line.strip()]
    return [name for name in names if name.startswith(LIBRARY_PREFIXES)]


def source(names: list[str]) -> str:
    """Return the C source of the stubs. A stub's index is its function's position in `names`."""
    return PRELUDE + "".join(stub(index, name) for index, name in enumerate(names))


def stub(index: int, name: str) -> str:
    """Return the C source of one stub.

    The stub of an unknown function has no parameters, and ignores the arguments that its caller passes.
    """
    arguments, _, result = SIGNATURES.get(name, "").partition(":")
    letters, result = list(arguments), C_TYPES[result or "i"]
    parameters = ", ".join(f"{C_TYPES[letter]} a{i}" for i, letter in enumerate(letters)) or "void"
    words = ", ".join(word(letter, f"a{i}") for i, letter in enumerate(letters)) or "0"
    body = f"size_t arguments[] = {{{words}}};"
    value = "" if result == "void" else f"return ({result})"
    return f"\n{result} {name}({parameters}) {{ {body} {value} call({index}, arguments); }}\n"


def word(letter: str, name: str) -> str:
    """Return the C expression that converts a parameter to a 64-bit word."""
    return f"(size_t)&{name}" if letter in BY_VALUE else f"(size_t){name}"


def compile_stubs(names: list[str], folder: Path) -> Path:
    """Compile the stubs into a shared library and return its path. Raise LaunchError if that fails."""
    text, library = folder / "stubs.c", folder / "libcudart_sim.so"
    text.write_text(source(names))
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-fno-builtin", "-o", library, text]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise LaunchError(f"gcc does not compile the runtime's stubs:\n{made.stderr}")
    return library
