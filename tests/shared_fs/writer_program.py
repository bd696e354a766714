"""A process that has a store open for writing, for test_two_machines.py.

    writer_program.py DIRECTORY [--take-over]

Prints "ready", or "error NAME TEXT" if the store cannot be opened. Then it reads commands:
"save STEP" answers "saved STEP"; "save-all" saves step after step, and answers each, until the
process is killed; "close" answers "closed". Errors are answered with "error NAME TEXT".
"""

import itertools
import sys

from states import state_of

import cairn


def say(*words):
    print(*words, flush=True)


def save(store, step):
    store.save(step, state_of(step))
    say("saved", step)


def obey(store, words):
    if words[0] == "save":
        save(store, int(words[1]))
    elif words[0] == "save-all":
        for step in itertools.count(1):
            save(store, step)
    elif words[0] == "close":
        store.close()
        say("closed")


def guarded(function, *arguments):
    try:
        return function(*arguments)
    except cairn.Error as error:
        say("error", type(error).__name__, str(error).replace("\n", " "))
        return None


def main(directory, *options):
    keywords = {"take_over": True} if "--take-over" in options else {}
    store = guarded(lambda: cairn.open(directory, "a", **keywords))
    if store is None:
        return
    say("ready")
    for line in sys.stdin:
        guarded(obey, store, line.split())


if __name__ == "__main__":
    main(*sys.argv[1:])
