"""What to name in place of an object that is no target, such as an environment of another library.

A run makes the copies of its environment by itself, also when it is resumed or evaluated later and elsewhere. It needs
a name for that, which an object that is there already does not have.
"""

from typing import Any

from shoal.core.errors import OptionError
from shoal.core.registry import LIBRARIES

FORMS = (
    "the name of a preset or a world, a run folder, a file of settings, a shoal.Experiment or a registered world "
    "(@shoal.register('my/world') above a class derived from shoal.Env)"
)


def no_target(target: Any) -> OptionError:
    """The error for an object that is no target."""
    library = _library_of(target)
    if library is None:
        examples = ", ".join(map(repr, list(LIBRARIES.values())[:2]))
        shown = f"{target!r:.80}"
        return OptionError(
            f"shoal: target must be {FORMS}, got {shown}. Environments of other libraries are named: {examples}"
        )
    is_class = isinstance(target, type)
    what = f"the class {target.__name__}" if is_class else f"a {type(target).__name__}"
    return OptionError(
        f"shoal: target must be a name, and not {what} of {library}: a run makes its copies by itself, also when it "
        f"is resumed. Write shoal.train({_name_of(library, target)!r}, env={{...}}), with its options in env"
    )


def _library_of(target: Any) -> str | None:
    """The library of an environment, from where its class and those that it is derived from are defined."""
    cls = target if isinstance(target, type) else type(target)
    packages = [base.__module__.partition(".")[0] for base in cls.__mro__]
    return next((package for package in packages if package in LIBRARIES), None)


def _name_of(library: str, target: Any) -> str:
    """The id that makes such an environment, as far as it can be known."""
    registered = getattr(getattr(target, "spec", None), "id", None)
    if library == "gymnasium":
        return f"gymnasium:{registered}" if isinstance(registered, str) else "gymnasium:my.module:ID"
    cls = target if isinstance(target, type) else type(target)
    own = cls.__module__.partition(".")[0] != library
    if library not in ("pettingzoo", "dm_env"):
        return LIBRARIES[library]
    return f"{library}:{cls.__module__}:{cls.__qualname__}" if own else LIBRARIES[library]
