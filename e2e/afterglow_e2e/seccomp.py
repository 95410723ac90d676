"""A container's seccomp profile put in force without a container: `python -m
afterglow_e2e.seccomp PROFILE [--without WORD] COMMAND...` runs a command under it, as a runtime
would. Standard library and libseccomp only.
"""

import ctypes
import json
import os
import sys
from ctypes import c_char_p, c_int, c_uint32, c_uint64, c_void_p
from pathlib import Path

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
COMPARE = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}


class Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint), ("op", c_int), ("a", c_uint64), ("b", c_uint64)]


def library():
    """libseccomp; None where there is none."""
    try:
        found = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        return None
    found.seccomp_init.restype = c_void_p
    found.seccomp_init.argtypes = [c_uint32]
    found.seccomp_syscall_resolve_name.argtypes = [c_char_p]
    found.seccomp_rule_add_array.argtypes = [
        c_void_p,
        c_uint32,
        c_int,
        ctypes.c_uint,
        ctypes.POINTER(Argument),
    ]
    found.seccomp_load.argtypes = [c_void_p]
    return found


def action(entry, errno):
    if entry["action"] == "SCMP_ACT_ALLOW":
        return ALLOW
    assert entry["action"] == "SCMP_ACT_ERRNO", entry
    return ERRNO | errno


def compared(entry):
    """What is compared of a call's arguments. Runtimes take the mask from `value` and what must be
    left from `valueTwo`, as libseccomp does.
    """
    found = [
        Argument(one["index"], COMPARE[one["op"]], one["value"], one["valueTwo"])
        for one in entry.get("args", [])
    ]
    return len(found), (Argument * len(found))(*found)


def install(profile, without=""):
    """Puts a profile in force for this process and all that come of it. Calls whose name has
    `without` in it are refused.
    """
    seccomp = library()
    default = profile["defaultErrnoRet"]
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    filters = seccomp.seccomp_init(ERRNO | default)
    for entry in profile["syscalls"]:
        for name in entry["names"]:
            number = seccomp.seccomp_syscall_resolve_name(name.encode())
            # Runtimes pass over names that this machine does not know.
            if number < 0 or (without and without in name):
                continue
            count, arguments = compared(entry)
            done = seccomp.seccomp_rule_add_array(
                filters, action(entry, entry.get("errnoRet", default)), number, count, arguments
            )
            assert done == 0, (name, os.strerror(-done))
    done = seccomp.seccomp_load(filters)
    assert done == 0, os.strerror(-done)


def main(words):
    profile, words = json.loads(Path(words[0]).read_text()), words[1:]
    without = ""
    if words[0] == "--without":
        without, words = words[1], words[2:]
    install(profile, without)
    os.execvp(words[0], words)


if __name__ == "__main__":
    main(sys.argv[1:])
