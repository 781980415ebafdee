"""Live exceptions as plain values, for the rule in `core.classify`.

Ray's classes are recognised by name and by the attributes they carry, never imported: Ray 2.51 to 2.60 moved and
renamed several of them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping

from airflow_provider.core.classify import ErrorChain, classify_errors
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.failure import Failure
from airflow_provider.core.failure_rules import SeenError
from airflow_provider.core.final_exception import final_chains, is_wrapper

_CARRIERS = ("controller_failure", "health_check_failure", "_base_exc", "cause")
"""Attributes under which Ray's wrappers hold the exception they are about."""
_MAX_DEPTH = 25
_MAX_QUOTED = 20_000


def classify_exception(error: BaseException) -> Failure:
    """What went wrong, said once, however often Ray wrapped or repeated it. Never raises."""
    if isinstance(error, RayTrainError):
        return error.failure
    return classify_errors(list(error_chains(error)), detail=_traceback_text(error))


def _attribute(error: BaseException, name: str) -> object:
    """An attribute that the training's own class may compute, and fail at it."""
    try:
        return getattr(error, name, None)
    except Exception:
        return None


def error_chains(error: BaseException, *, rank: int | None = None, depth: int = 0) -> Iterator[ErrorChain]:
    """One chain per failed rank, each from the exception that was raised there to its root cause."""
    ranks = _ranks(error)
    if ranks and depth < _MAX_DEPTH:
        for worker, failure in sorted(ranks.items()):
            yield from error_chains(failure, rank=worker, depth=depth + 1)
        return
    members = _attribute(error, "exceptions")  # an ExceptionGroup: each member is somebody's own failure
    if (
        isinstance(members, tuple)
        and members
        and all(isinstance(m, BaseException) for m in members)
        and depth < _MAX_DEPTH
    ):
        for member in members:
            yield from error_chains(member, rank=rank, depth=depth + 1)
        return
    inner = _carried(error)
    if inner is not None and depth < _MAX_DEPTH:
        yield from error_chains(inner, rank=rank, depth=depth + 1)
        return
    quoted = _quoted(error)
    if quoted:
        yield from (ErrorChain(errors, rank if rank is not None else worker) for worker, errors in quoted)
        return
    yield ErrorChain(tuple(_causes(error)), rank)


def _ranks(error: BaseException) -> dict[int, BaseException]:
    """The failures that Ray's error holds by rank; another class may use the name for what it likes."""
    found = _attribute(error, "worker_failures")
    if not isinstance(found, Mapping):
        return {}
    return {rank: inner for rank, inner in found.items() if isinstance(rank, int) and isinstance(inner, BaseException)}


def _carried(error: BaseException) -> BaseException | None:
    """The exception inside a wrapper. Ray's flag for a preempted actor sits on the inner error."""
    for name in _CARRIERS:
        inner = error.__dict__.get(name)
        if isinstance(inner, BaseException) and inner is not error:
            return inner
    if is_wrapper(type(error).__name__):
        return error.__cause__ or error.__context__
    return None


def _quoted(error: BaseException) -> list[tuple[int | None, tuple[SeenError, ...]]]:
    """The errors inside the text of an actor that failed in its constructor: Ray keeps only their traceback.

    A manifest that Ray refuses arrives this way, as an `ActorDiedError`.
    """
    text = _message(error)
    is_constructor = _attribute(error, "actor_init_failed") or "raised in its creation task" in text
    return final_chains(text) if is_constructor else []


def _causes(error: BaseException) -> Iterator[SeenError]:
    seen: set[int] = set()
    current: BaseException | None = error
    is_context = False
    while current is not None and id(current) not in seen and len(seen) < _MAX_DEPTH:
        seen.add(id(current))
        inner = _carried(current) if current is not error else None
        if inner is not None:
            current = inner
            continue
        yield _as_seen(current, is_context=is_context)
        if current.__cause__ is not None:
            current = current.__cause__
        else:
            # Once a link is only a context, what lies behind it is no more than that.
            is_context = True
            current = None if current.__suppress_context__ else current.__context__


def _as_seen(error: BaseException, *, is_context: bool) -> SeenError:
    kind = error.failure.kind if isinstance(error, RayTrainError) else None
    bases = tuple(
        _qualified(base) for base in type(error).__mro__[1:] if base not in (object, BaseException, Exception)
    )
    return SeenError(
        name=_qualified(type(error)),
        message=_message(error),
        bases=bases,
        preempted=_attribute(error, "preempted") is True,
        kind=kind,
        is_context=is_context,
    )


def _qualified(cls: type) -> str:
    module = cls.__module__
    return cls.__qualname__ if module in ("builtins", "__main__") else f"{module}.{cls.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)[-_MAX_QUOTED:]
    except Exception as broken:
        return f"(its message can't be read: {type(broken).__name__})"


def _traceback_text(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        return type(error).__name__
