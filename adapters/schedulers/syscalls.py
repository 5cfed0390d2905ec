"""System calls that a scheduler's process may not make, on Linux with seccomp (x86-64 and AArch64).

Landlock confines what a process reads and writes.  What is left are places where a run could leave a note
for a later one, or ask somebody outside: System V memory, keyrings, the mode, times and attributes of files
that it may only read, priorities of its host, sockets, counters that the whole machine shares.  They answer EPERM;
what programs try first and do without answers ENOSYS; a lock succeeds without locking anything, for a lock would be
seen by others.  Waits until an absolute time, which would tell the real clock from the simulated one, are over at once.

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
_DONE, _ABSENT, _TIMED_OUT = 0x00050000, 0x00050000 | 38, 0x00050000 | 110
_LOAD, _EQUALS, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
#: Offsets in struct seccomp_data; arguments are 64 bits wide, their low half first on both machines.
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16
_X32 = 0x40000000

#: By machine: its audit architecture, and which of a call's two numbers is its own.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
#: Calls by name, with their numbers on x86-64 and on AArch64; None where a machine has no such call.
_Calls = dict[str, tuple[int | None, int | None]]
_REFUSED: _Calls = {
    # Notes left in files: attributes, mode, owner, times.
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "fchmodat2": (452, 452), "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
    # Notes left in the kernel: System V memory, semaphores and messages, POSIX queues, keys.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semtimedop": (220, 192), "semctl": (66, 191), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219),
    # Notes left in what the kernel caches of files, and how full disks are.
    "mincore": (27, 232), "cachestat": (451, 451), "preadv2": (327, 286), "pwritev2": (328, 287),
    "statfs": (137, 43), "fstatfs": (138, 44), "ustat": (136, None), "sysfs": (139, None), "fadvise64": (221, 223),
    "readahead": (187, 213),
    # Other processes: their memory, their priorities; the kernel's log.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "ioprio_set": (251, 30), "syslog": (103, 116),
    # How it was started: priorities.
    "getpriority": (140, 141), "sched_getattr": (315, 275), "ioprio_get": (252, 31),
    "personality": (135, 92), "sched_getscheduler": (145, 120), "sched_getparam": (143, 121),
    "sched_rr_get_interval": (148, 127),
    # What others do with files; numbers that count all processes and mounts of the machine.
    "inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262), "pidfd_open": (434, 434),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "statmount": (457, 457), "listmount": (458, 458),
    # Sockets (socketpair is allowed); among the options of a socket are stamps of the real time.
    "socket": (41, 198), "setsockopt": (54, 208),
    # Ways around this filter and into the machine.
    "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
    "acct": (163, 89), "quotactl": (179, 60), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "io_uring_setup": (425, 425), "pidfd_getfd": (438, 438),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442),
}  # fmt: skip
#: Allowed where the first argument, a process, is 0: this one.
_OWN_ONLY: _Calls = {"prlimit64": (302, 261), "sched_setaffinity": (203, 122)}
#: Allowed only to this process by its number, where signals are refused as well.
_SIGNALS: _Calls = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
}  # fmt: skip
#: Ways to read a clock, where time is simulated.
_CLOCKS: _Calls = {
    "clock_gettime": (228, 113), "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    "sysinfo": (99, 179), "getitimer": (36, 102), "alarm": (37, None), "timer_gettime": (224, 108),
    "timerfd_gettime": (287, 87),
}  # fmt: skip
#: With a flag in the second argument, until an absolute time.
_UNTIL: _Calls = {"timerfd_settime": (286, 86), "timer_settime": (223, 110), "clock_nanosleep": (230, 115)}
#: Tried first by programs that do without: it tells numbers of mounts, and these wait until an absolute time.
_ABSENT_CALLS: _Calls = {"statx": (332, 291), "futex_waitv": (449, 449), "futex_wait": (455, 455)}
_PRETENDED: _Calls = {"flock": (73, 32)}
_FUTEX = (202, 98)
#: Its operations whose fourth argument, where there is one, is an absolute time.
_FUTEX_UNTIL = (6, 9, 11, 13)
_IOCTL, _FCNTL, _GETSOCKOPT, _MADVISE = (16, 29), (72, 25), (55, 209), (28, 233)
#: Terminal size and mode, bytes waiting, non-blocking, close on exec.  Others can mark a file that is only read.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
#: Write hints stay with a file, too; locks, leases, notices and owners reach whoever else has it open.
_FCNTLS = dict.fromkeys((1036, 1038, 1024, 1026, 5, 36, 8, 9, 10, 11, 15, 16), _REFUSE)
_FCNTLS |= dict.fromkeys((6, 7, 37, 38), _DONE)
#: Advice that drops a file's pages from the cache, for all who read it.
_ADVICE = dict.fromkeys((20, 21), _REFUSE)
#: Type, last error, sizes of buffers, protocol, domain.
_SOCKET_OPTIONS = (3, 4, 7, 8, 38, 39)


def _program(machine: str, own_pid: int | None, clocks: bool = False) -> bytes:
    """The filter in classic BPF: struct sock_filter (code, jump if true, jump if false, operand), 8 bytes each."""
    architecture, column = _MACHINES[machine]
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
    refused = _REFUSED | _CLOCKS if clocks else _REFUSED
    for calls, answer in ((refused, _REFUSE), (_ABSENT_CALLS, _ABSENT), (_PRETENDED, _DONE)):
        for number in _numbers(calls, column):
            when(number, answer)
    allowed = [(number, 0) for number in _numbers(_OWN_ONLY, column)]
    if own_pid is not None:
        allowed += [(number, own_pid) for number in _numbers(_SIGNALS, column)]
    for number, pid in allowed:
        steps.extend([(_EQUALS, 0, 4, number), (_LOAD, 0, 0, _ARGUMENT), (_EQUALS, 0, 1, pid)])
        steps.extend([(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)])
    by_value: tuple[tuple[int, int, dict[int, int], int], ...] = (
        (_IOCTL[column], 1, dict.fromkeys(_IOCTLS, _ALLOW), _NO_TTY),
        (_FCNTL[column], 1, _FCNTLS, _ALLOW),
        (_MADVISE[column], 2, _ADVICE, _ALLOW),
        (_GETSOCKOPT[column], 2, dict.fromkeys(_SOCKET_OPTIONS, _ALLOW), _REFUSE),
    )
    for number, argument, listed, other in by_value:
        steps.append((_EQUALS, 0, 2 + 2 * len(listed), number))
        load(_ARGUMENT + 8 * argument)
        for value, found in listed.items():
            when(value, found)
        steps.append((_RETURN, 0, 0, other))
    if clocks:
        for number in _numbers(_UNTIL, column):
            steps.extend([(_EQUALS, 0, 4, number), (_LOAD, 0, 0, _ARGUMENT + 8), (_ANY_BIT, 0, 1, 1)])
            steps.extend([(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)])
        steps.extend(_futex(_FUTEX[column]))
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def _futex(number: int) -> list[tuple[int, int, int, int]]:
    """Waits for a lock until an absolute time are over at once; all others are allowed."""
    n = len(_FUTEX_UNTIL)
    operation = [(_LOAD, 0, 0, _ARGUMENT + 8), (_AND, 0, 0, 127)]
    operation += [(_EQUALS, n - k, 0, known) for k, known in enumerate(_FUTEX_UNTIL)]
    operation.append((_RETURN, 0, 0, _ALLOW))
    until = _ARGUMENT + 3 * 8
    pointer = [(_LOAD, 0, 0, until), (_EQUALS, 0, 2, 0), (_LOAD, 0, 0, until + 4), (_EQUALS, 1, 0, 0)]
    body = [*operation, *pointer, (_RETURN, 0, 0, _TIMED_OUT), (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUALS, 0, len(body), number), *body]


def _numbers(calls: _Calls, column: int) -> list[int]:
    return [number for both in calls.values() if (number := both[column]) is not None]


def forbid(signals: bool = False, clocks: bool = False) -> bool:
    """Refuse these calls to this process and all that it starts, for good.  False where the system cannot.

    signals : also signals to any process but this one, for kernels whose Landlock does not refuse them.
    clocks : also the calls that read a clock, or wait until an absolute time.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _MACHINES or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    program = _program(machine, os.getpid() if signals else None, clocks)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0) == 0)
