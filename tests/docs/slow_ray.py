"""Lets Ray start on a busy machine: it gives up if its raylet has not registered after 30 s, which
no setting changes."""

import time

import ray._private.services as services

SECONDS = 600
_get_node = services.get_node


def _wait_for_node(*arguments):
    end = time.monotonic() + SECONDS
    while True:
        try:
            return _get_node(*arguments)
        except RuntimeError:  # it has not registered yet
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


services.get_node = _wait_for_node
