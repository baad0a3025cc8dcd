"""Turns of a blocking client: its lock held, and signals held back while it is, in the main thread.

Rules
- Native because of what it must not be: interruptible. Between two lines of Python an interrupt may come, also in `__enter__` and in a
  `finally`; in here it cannot, so a lock is never left behind and a second interrupt never meets half a clean-up.
- An interrupt that comes during a turn wakes whoever waits, and is given to its handler at the next safe place: `deliver`, or the end.
- The application's code runs outside of turns (`released`), where interrupts are its own.
- What must not be torn but needs no lock, or takes it by turns, is a `holding` method: signals are held back while it runs.
- Held back are SIGINT and the others of HELD: those whose handlers raise in programs as they are (SystemExit at SIGTERM, the time-outs of
  SIGALRM and SIGUSR1). One that came while another was delivered, and raised, is delivered too.
- Only a handler that is Python's is held back; other threads than the main one have nothing to hold back.
"""

cimport cython

import os
import signal
import threading

# What signal.signal wraps: its enums cost more than the rest of a turn, and are Python, where an interrupt may come.
import _signal

cdef extern from "Python.h":
    object PyMethod_New(object function, object instance)

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

# Not names of the module, which an interpreter that ends makes None, before it ends what was not closed.
cdef object get_handler = _signal.getsignal
cdef object set_handler = _signal.signal
cdef tuple HELD = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)
)
cdef unsigned long main_ident = 0


def _find_main_thread():
    global main_ident
    main_ident = threading.main_thread().ident


_find_main_thread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_find_main_thread)


cdef bint in_main_thread() noexcept:
    return PyThread_get_thread_ident() == main_ident


cdef bint may_raise(object handler):
    """Whether it is an application's handler. Not: ours, of a turn around this one; and what asyncio installs where its loop is told by a
    descriptor, which does nothing, and whose flags of the system's handler are to stay."""
    if handler is None or type(handler) is int or not callable(handler):
        return False
    return type(getattr(handler, "__self__", None)) is not Turn and getattr(handler, "__name__", "") != "_sighandler_noop"


cdef object said_after(object error, object before):
    """An error, with what was raised before it as its context."""
    if before is not None and error.__context__ is None:
        error.__context__ = before
    return error


@cython.final
@cython.auto_pickle(False)
cdef class Turn:
    """`with turn:` any number of times, one in the other. driver: has a `lock`, a threading.RLock which a fork's child replaces, and
    `wakeup()`, which is called from a signal handler to have whoever waits with the lock look again.

    Invariants: `depth` counts the turns of the main thread since `released`; `held` is what was replaced, (signal, handler) pairs, None when
    nothing was; `arrived` is what came since, a frame by signal, and `came` whether it is anything.
    Thread rule: any thread.
    """

    cdef object driver
    cdef object lock
    cdef list held
    cdef dict arrived
    cdef int depth
    cdef readonly bint came

    def __init__(self, driver):
        self.driver = driver
        self.lock = driver.lock
        self.arrived = {}

    cdef int hold(self) except -1:
        """Install our handlers, where they are not yet. Raises what one before says to a signal that came earlier; what was not held
        before is not held then."""
        cdef list already = self.held
        cdef object number, before
        try:
            for number in HELD:
                before = get_handler(number)
                if may_raise(before):
                    set_handler(number, self._on_interrupt)
                    if self.held is None:
                        self.held = []
                    self.held.append((number, before))
        except BaseException:
            if already is None:
                self.let_go()
            raise
        return 0

    cdef int let_go(self) except -1:
        """Put the handlers back, and give them what came. What the last of them raises is raised, with the others as its context."""
        cdef list held = self.held
        cdef dict arrived
        cdef object problem = None
        cdef object number, handler
        if held is None:
            return 0
        self.held = None
        for number, handler in held:
            for _ in HELD:  # a handler that is back already may have something to say, and does so before this one is set
                try:
                    set_handler(number, handler)  # our own has heard of what is pending by then
                    break
                except BaseException as error:
                    problem = said_after(error, problem)
        if self.came:
            self.came = False
            arrived, self.arrived = self.arrived, {}
            for number, handler in held:
                if number in arrived:
                    try:
                        handler(number, arrived[number])
                    except BaseException as error:
                        problem = said_after(error, problem)
        if problem is not None:
            raise problem
        return 0

    cdef object hold_again(self):
        """`hold`, whatever comes; answers what came. What raises more often than there are signals is no handler: nothing is held then."""
        cdef object came = None
        for _ in range(2 * len(HELD)):
            try:
                self.hold()
                break
            except BaseException as error:
                came = error
        return came

    @property
    def interrupted(self):
        """Whether `deliver` has something to do in this thread: for what it waits for."""
        return self.came and in_main_thread()

    def _on_interrupt(self, number, frame):
        self.arrived[number] = frame
        self.came = True
        self.driver.wakeup()

    def deliver(self):
        """A safe place: an interrupt that came is given to its handler, which may raise."""
        cdef object problem = None
        if not self.came or self.held is None or not in_main_thread():
            return
        try:
            self.let_go()
        except BaseException as error:
            problem = error
        problem = self.hold_again() or problem
        if problem is not None:
            raise problem

    def __enter__(self):
        cdef bint main = in_main_thread()
        if main and self.depth == 0:
            self.hold()
            self.lock = self.driver.lock
        try:
            self.lock.acquire()
        except BaseException:
            if main and self.depth == 0:
                self.let_go()
            raise
        self.depth += main
        return self

    def __exit__(self, *error):
        self.lock.release()
        if in_main_thread():
            self.depth -= 1
            if self.depth == 0:
                self.let_go()

    cdef int begin_hold(self) except -1:
        """Hold interrupts back, with or without the lock: a pair with `end_hold`. In the main thread only."""
        if self.depth == 0:
            self.hold()
            self.lock = self.driver.lock
        self.depth += 1
        return 0

    cdef int end_hold(self) except -1:
        self.depth -= 1
        if self.depth == 0:
            self.let_go()
        return 0

    cdef object call(self, object function, tuple args, dict kwargs):
        """Call while interrupts are held back."""
        if not in_main_thread():
            return function(*args, **kwargs)
        self.begin_hold()
        try:
            return function(*args, **kwargs)
        finally:
            self.end_hold()

    cdef object call_last(self, object function, tuple args):
        """The same, whatever comes before: what came is raised afterwards."""
        cdef object came = None
        if not in_main_thread():
            return function(*args)
        if self.depth == 0:
            came = self.hold_again()
            self.lock = self.driver.lock
        self.depth += 1
        try:
            function(*args)
        finally:
            self.end_hold()
        if came is not None:
            raise came

    def released(self):
        """A context manager for the application's code inside of a turn: without the lock at any depth, and open to interrupts."""
        return _Released(self)


@cython.final
@cython.auto_pickle(False)
cdef class _HoldingMethod:
    """A method in which interrupts are held back; its object has the Turn as `_turn`. See `holding`.

    What is called on an object is Python's own bound method: so what asks methods about themselves (inspect, help, unittest.mock,
    weakref.WeakMethod) and what keeps them (partial, ExitStack, sets of callbacks) finds what it finds in any other.
    """

    cdef object __weakref__
    cdef object function
    cdef bint last
    cdef readonly object __wrapped__
    cdef readonly object __doc__

    def __init__(self, function, last=False):
        self.function = self.__wrapped__ = function
        self.last = last
        self.__doc__ = function.__doc__

    def __call__(self, *args, **kwargs):
        cdef object turn = getattr(args[0], "_turn", None) if args else None
        if self.last:   # without a turn `__init__` has failed, and there is nothing to end
            return None if type(turn) is not Turn else (<Turn> turn).call_last(self.function, args)
        if type(turn) is not Turn:
            raise TypeError(f"{self.__qualname__}() is called on an object of its class, got {type(args[0]).__name__ if args else 'none'}")
        return (<Turn> turn).call(self.function, args, kwargs)

    def __repr__(self):
        return f"<function {self.__qualname__}>"

    @property
    def __module__(self):
        return self.function.__module__

    def __getattr__(self, name):
        return getattr(self.function, name)

    def __get__(self, instance, owner):
        return self if instance is None else PyMethod_New(self, instance)


def holding(function):
    """A decorator of methods: signals are held back in the main thread while the method runs, with or without the lock. They are delivered
    where the method calls `deliver`, in `released` stretches, and when it returns."""
    return _HoldingMethod(function)


def holding_last(function):
    """The same of a `__del__`, which nobody calls again: it runs whatever comes. Python says of what it raises, and goes on."""
    return _HoldingMethod(function, True)


@cython.final
@cython.auto_pickle(False)
cdef class _Released:
    """One stretch outside of a turn."""

    cdef Turn turn
    cdef object lock
    cdef object saved
    cdef int depth

    def __init__(self, Turn turn not None):
        self.turn = turn

    cdef int leave(self) except -1:
        cdef Turn turn = self.turn
        self.lock = turn.lock
        self.saved = self.lock._release_save() if self.lock._is_owned() else None
        if in_main_thread():
            self.depth, turn.depth = turn.depth, 0
            turn.let_go()
        return 0

    cdef object come_back(self):
        cdef object came = None
        if in_main_thread():
            came = self.turn.hold_again()
            self.turn.depth = self.depth
        if self.saved is not None:
            self.lock._acquire_restore(self.saved)
        self.turn.lock = self.lock
        return came

    def __enter__(self):
        try:
            self.leave()
        except BaseException:
            self.come_back()
            raise

    def __exit__(self, *error):
        cdef object came = self.come_back()
        if came is not None:
            raise came
