"""A lone client of the memcached front end, beside connections that send long pipelines of gets.

The gets are answered from DRAM. What counts is how long the lone client waits for its own.
"""

import contextlib
import math
import multiprocessing
import os
import random
import selectors
import socket
import statistics
import time

from afterglow_e2e.process import Failure

from .cost import Wait
from .memcache import DRAM, filled, key

# Each has two pipelines of so many gets outstanding.
CONNECTIONS, PIPELINE = 70, 1_000
# What their process says: each has had an answer, and then as many again.
BEGUN, STORM = "begun", "storm"
# Gets of the lone client before those that count.
WARM = 20
# So long a run goes on at most for the storm to become one, in seconds.
PATIENCE = 60


@contextlib.contextmanager
def measured(_kind, programs, folder, seconds):
    """Starts and fills each program. Gives a function that measures one run of a program, by its
    name and the number of the run.
    """
    size, objects, *_ = DRAM
    with contextlib.ExitStack() as stack:
        servers = {}
        for name, program in programs.items():
            servers[name] = stack.enter_context(filled(f"storm-{name}", program, folder, DRAM))

        def run(name, number):
            server, chosen = servers[name], random.Random(number)
            gets = [b"get %s\r\n" % key(chosen.randrange(objects)) for _ in range(PIPELINE)]
            answer = answer_len(size)
            address = (server.address, server.port)
            with storm(address, b"".join(gets), PIPELINE * answer) as is_storm:
                return lone(server.connect(), chosen, objects, seconds, answer, is_storm)

        for name in programs:
            run(name, -1)
        yield run


def answer_len(size):
    """Bytes of the answer to a get that is a hit."""
    return len(b"VALUE %s 0 %d\r\n\r\nEND\r\n" % (key(0), size)) + size


def lone(client, chosen, objects, seconds, answer, is_storm):
    """How long gets take that are sent one after the other, for so long and until there is a storm;
    `answer` is the length of a hit's.
    """
    waits, began = [], time.monotonic()

    def is_over():
        passed = time.monotonic() - began
        is_enough = passed >= seconds and len(waits) > 2 * WARM
        return is_enough and (is_storm() or passed >= seconds + PATIENCE)

    while not is_over():
        command = b"get %s\r\n" % key(chosen.randrange(objects))
        sent = time.perf_counter()
        client.send(command)
        if len(found := client.until(b"END\r\n")) != answer:
            raise Failure(f"{command!r} was answered by {found!r}, which is no hit")
        waits.append(time.perf_counter() - sent)
    waits = sorted(1000 * wait for wait in waits[WARM:])
    return Wait(statistics.median(waits), waits[len(waits) * 99 // 100])


@contextlib.contextmanager
def storm(address, pipeline, answer):
    """Other connections ask meanwhile, in a process of their own. Each has an answer before. Gives
    a function that says whether they have had as many again: if not in the end, it was no storm.
    """
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=child, args=(address, pipeline, answer, ours, theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        told(ours, "the other connections were not answered within 20 s")
        said = []

        def is_storm():
            if not said and ours.poll():
                said.append(told(ours, ""))
            return bool(said)

        yield is_storm
        if not is_storm():
            raise Failure(
                f"{CONNECTIONS} pipelines were not answered beside the lone client: it was no storm"
            )
    finally:
        process.kill()
        process.join()
        ours.close()


def told(child, late):
    """What the child says within 20 s, `late` if nothing. Its error is ours."""
    if not child.poll(20):
        raise Failure(late)
    try:
        said = child.recv()
    except EOFError:
        raise Failure("the process of the other connections ended") from None
    if said not in (BEGUN, STORM):
        raise Failure(said)
    return said


def child(address, pipeline, answer, ours, parent):
    """The process of the other connections; says why it cannot go on."""
    # The parent's end is the parent's alone, so that its death is seen.
    ours.close()
    try:
        ask(address, pipeline, answer, parent)
    except (Failure, OSError) as error:
        # Nobody hears it where the parent has ended.
        with contextlib.suppress(OSError):
            parent.send(f"the other connections cannot go on: {error}")


def ask(address, pipeline, answer, parent):
    """Sends pipelines on all connections until it is ended. Says when each has had an answer, and
    when they have had as many again.
    """
    # The lone client shares this core, and must not wait for it.
    os.nice(10)
    with selectors.DefaultSelector() as selector:
        for _ in range(CONNECTIONS):
            connection = socket.create_connection(address)
            connection.setblocking(False)
            state = {"unsent": 2 * pipeline, "came": 0, "answers": 0}
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(connection, both, state)
        selector.register(parent, selectors.EVENT_READ)
        states = [each.data for each in selector.get_map().values() if each.data]
        enough = None
        while True:
            for chosen, events in selector.select():
                if chosen.fileobj is parent:
                    return
                serve(selector, chosen, events, pipeline, answer)
            answers = [state["answers"] for state in states]
            if enough is None and all(answers):
                enough = sum(answers) + CONNECTIONS
                parent.send(BEGUN)
            elif enough is not None and enough <= sum(answers):
                enough = math.inf
                parent.send(STORM)


def serve(selector, chosen, events, pipeline, answer):
    """Takes what has come on a connection, and sends what goes."""
    connection, state = chosen.fileobj, chosen.data
    if events & selectors.EVENT_READ:
        came = connection.recv(1 << 18)
        if not came:
            raise Failure("the server has closed one of them")
        state["came"] += len(came)
        # Misses are shorter, and all keys are there.
        if b"END\r\nEND" in came:
            raise Failure("one of them got a miss")
        while state["came"] >= answer:
            state["came"] -= answer
            state["answers"] += 1
            state["unsent"] += pipeline
    if state["unsent"]:
        with contextlib.suppress(BlockingIOError):
            state["unsent"] = state["unsent"][connection.send(state["unsent"]) :]
    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if state["unsent"] else 0)
    if wanted != chosen.events:
        selector.modify(connection, wanted, state)
