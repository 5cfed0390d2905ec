"""System calls that a scheduler's process may not make, on Linux with seccomp (x86-64 and AArch64).

Landlock confines what a process reads and writes.  What is left are places where a run could leave a note
for a later one, or ask somebody outside: System V memory, keyrings, the mode, times and attributes of files
that it may only read, priorities of its host, sockets.  All of them answer EPERM.

Runs in the child: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import Any

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _REFUSE, _NO_TTY = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 25
_LOAD, _EQUALS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
#: Offsets in struct seccomp_data; arguments are 64 bits wide, their low half first on both machines.
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16
_X32 = 0x40000000

#: By machine: its audit architecture, and the numbers of the calls refused outright, of ioctl and fcntl, and of those
#: that may only concern the process itself (pid 0).  Grouped as notes left in files, in the kernel, other processes,
#: sockets, and ways around this filter or into the machine.
_MACHINES: dict[str, tuple[int, tuple[int, ...], int, int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (
            *(
                188,
                189,
                190,
                197,
                198,
                199,
                90,
                91,
                268,
                92,
                93,
                94,
                260,
                132,
                235,
                261,
                280,
            ),  # xattr, mode, owner, times
            *(29, 30, 31, 64, 65, 220, 66, 68, 69, 70, 71, 240, 241, 248, 249, 250),  # System V, message queues, keys
            *(101, 310, 311, 312, 141, 142, 144, 314, 251, 103),  # ptrace, foreign memory, priorities, syslog
            41,  # socket (socketpair is allowed)
            *(298, 321, 323, 165, 166, 155, 161, 272, 308, 163, 179, 167, 168, 169, 170, 171, 164, 227, 305, 159),
            *(175, 313, 176, 246),
        ),
        16,
        72,
        (302, 203),  # prlimit64, sched_setaffinity
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88),
            *(194, 195, 196, 190, 191, 192, 193, 186, 187, 188, 189, 180, 181, 217, 218, 219),
            *(117, 270, 271, 272, 140, 118, 119, 274, 30, 116),
            198,
            *(241, 280, 282, 40, 39, 41, 51, 97, 268, 89, 60, 224, 225, 142, 161, 162, 170, 112, 266, 171),
            *(105, 273, 106, 104),
        ),
        29,
        25,
        (261, 122),
    ),
}
#: The same on both: io_uring (it goes around filters), pidfd_getfd, mounts, newer forms of chmod and xattr.
_NEWER = (425, 438, 428, 429, 430, 442, 452, 463, 466, 469)
#: Terminal size and mode, bytes waiting, non-blocking, close on exec.  Others can mark a file that is only read.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
#: Write hints stay with a file, too.
_FCNTLS = (1036, 1038)


#: kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal.
_SIGNALS = {"x86_64": (62, 200, 234, 129, 297, 424), "aarch64": (129, 130, 131, 138, 240, 424)}


def _program(machine: str, own_pid: int | None) -> bytes:
    """The filter in classic BPF: struct sock_filter (code, jump if true, jump if false, operand), 8 bytes each."""
    architecture, refused, ioctl, fcntl, own_only = _MACHINES[machine]
    steps: list[tuple[int, int, int, int]] = []

    def load(offset: int) -> None:
        steps.append((_LOAD, 0, 0, offset))

    def when(number: int, then: int) -> None:
        """Return `then` where the loaded word is `number`."""
        steps.extend([(_EQUALS, 0, 1, number), (_RETURN, 0, 0, then)])

    load(_MACHINE)
    steps.extend([(_EQUALS, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE)])  # 32-bit calls have other numbers
    load(_NUMBER)
    if machine == "x86_64":
        steps.extend([(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE)])
    for number in (*refused, *_NEWER):
        when(number, _REFUSE)
    allowed = [(number, 0) for number in own_only]
    if own_pid is not None:
        allowed += [(number, own_pid) for number in _SIGNALS[machine]]
    for number, pid in allowed:
        steps.extend([(_EQUALS, 0, 4, number), (_LOAD, 0, 0, _ARGUMENT), (_EQUALS, 0, 1, pid)])
        steps.extend([(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)])
    for number, listed, found, other in (
        (ioctl, _IOCTLS, _ALLOW, _NO_TTY),
        (fcntl, _FCNTLS, _REFUSE, _ALLOW),
    ):
        body = 2 + 2 * len(listed)
        steps.append((_EQUALS, 0, body, number))
        load(_ARGUMENT + 8)
        for value in listed:
            when(value, found)
        steps.append((_RETURN, 0, 0, other))
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def forbid(signals: bool = False) -> bool:
    """Refuse these calls to this process and all that it starts, for good.  False where the system cannot.

    signals : also signals to any process but this one, for kernels whose Landlock does not refuse them.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _MACHINES or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    program = _program(machine, os.getpid() if signals else None)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0) == 0)
