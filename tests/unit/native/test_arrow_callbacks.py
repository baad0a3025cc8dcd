"""The callbacks of Arrow data are called without the GIL: an exporter may wait in them for a thread that needs it, as the readers of files
that Python opened do."""

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import threading

import pytest

CALLBACKS = ["get_schema", "get_next", "get_last_error", "release", "release of the schema", "release of an array"]
TIMEOUT_S = 60


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="there is no pause() to wait in")
@pytest.mark.parametrize("callback", CALLBACKS)
def test_other_threads_go_on_while_a_callback_waits(callback):
    """In a process of its own: who holds the GIL there would wait for ever."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, __file__, callback],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["done"]


def wait_in(callback):
    """Read a stream of one row, one of whose callbacks is C's pause(): it returns once another Python thread has sent a signal."""
    from arrow_rows import records
    from arrow_structs import Hand

    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)  # its watchdog needs no GIL
    pause = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value
    hand = Hand()
    schema = hand.schema(b"+s", children=[hand.schema(b"z", b"value")])
    row = hand.array(1, [None], children=[hand.array(1, [None, bytes(4) + b"\1\0\0\0", b"v"])])
    stream = hand.stream(schema, [row], (22, b"torn") if callback == "get_last_error" else None)
    match callback:
        case "release of the schema":
            schema.release = pause
        case "release of an array":
            row.release = pause
        case "get_last_error":  # what pause() answers is no text; this answers NULL where the GIL is not held, else 1
            held = ctypes.pythonapi.PyGILState_Check
            stream.struct.get_last_error = ctypes.cast(held, ctypes.c_void_p).value
        case _:
            setattr(stream.struct, callback, pause)
    woken = []
    signal.signal(signal.SIGUSR1, lambda number, frame: woken.append(number))
    main, over = threading.main_thread().ident, threading.Event()

    def wake():
        while not over.wait(0.01):
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=wake)
    if callback != "get_last_error":
        thread.start()
    error = None
    try:
        found = records(stream)
    except ValueError as failure:
        error = str(failure)
    if thread.ident is not None:
        over.set()
        thread.join()
        assert woken
    match callback:
        case "get_schema":
            assert error == "the Arrow stream failed to give its schema: no reason given, code -1"
        case "get_next":
            assert error == "the Arrow stream failed to give its next chunk: no reason given, code -1"
        case "get_last_error":
            assert error == "the Arrow stream failed to give its next chunk: no reason given, code 22"
        case _:
            assert error is None and [value for value, *_ in found[0]] == [b"v"]
    print("done")


if __name__ == "__main__":
    wait_in(sys.argv[1])
