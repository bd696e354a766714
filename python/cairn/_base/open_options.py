"""Options of `cairn.open`, and the credentials of stores in buckets."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Protocol, Union

from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress


class Session(Protocol):
    """A session of boto3 or botocore."""

    def get_credentials(self) -> Any: ...


Credentials = Optional[Callable[[], Mapping[str, object]]]
"""The function that C++ calls."""

GivenCredentials = Union[Callable[[], Mapping[str, object]], Session, None]
"""The types of ``credentials=``."""

_ASK_AGAIN_SECONDS = 600


def credentials_function(given: GivenCredentials) -> Credentials:
    """The function that C++ calls for the user's ``credentials=``. Raises Invalid."""
    if given is None or callable(given):
        return given
    if not callable(getattr(given, "get_credentials", None)):
        raise Invalid(
            f"credentials={type(given).__name__}: a function or a session of boto3 or botocore is "
            "needed"
        )
    return functools.partial(_of_session, given)


def _of_session(session: Session) -> dict[str, object]:
    found = session.get_credentials()
    if found is None:
        raise Invalid("the session given as credentials has none")
    keys = found.get_frozen_credentials()  # renewed by botocore if they expire soon
    return {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "session_token": keys.token or "",
        "expiry": time.time() + _ASK_AGAIN_SECONDS,
    }


class OpenOptions(NamedTuple):
    """The keyword arguments of `cairn.open`, which documents them."""

    alone: bool = False
    timeout: float = 1800.0
    take_over: bool = False
    grace: float | None = None
    credentials: Credentials = None
    fallback: tuple[str, ...] = ()
    progress: Progress = False
    arrival: float = 300.0

    def check(self, mode: str) -> None:
        if self.take_over and mode == "r":
            raise Invalid("take_over requires mode 'a'; readers never conflict with a writer")
        for name, seconds in (("timeout", self.timeout), ("arrival", self.arrival)):
            if not seconds > 0:
                raise Invalid(f"{name}={seconds}: a positive number of seconds is needed")

    def check_picklable(self) -> None:
        if self.credentials is None:
            return
        import pickle

        try:
            pickle.dumps(self.credentials)
        except Exception as error:
            raise Invalid(
                "a store with credentials= can be pickled if these are a function of a module, "
                f"which the other process imports ({error})"
            ) from None
