"""The exceptions that lanax raises: the class says which phase failed. Knows nothing of what failed."""

from __future__ import annotations


class LanaxError(Exception):
    """Base of every exception of lanax's own."""


class UnsupportedJaxError(LanaxError):
    """The installed jax or jaxlib has an interface that lanax does not know."""


class CompileError(LanaxError):
    """LLVM refused a kernel, or could not link it."""


class RegistrationError(LanaxError):
    """Two rules for one primitive."""


class LoweringError(LanaxError):
    """A program reached the kernel compiler that it cannot lower."""


class RuleError(LanaxError):
    """A lowering rule broke its contract."""


class PlanError(LanaxError, ValueError):
    """A field of a `Plan` is out of range."""


class SettingError(LanaxError, ValueError, AttributeError):
    """A setting that lanax does not have, or a value that it does not take."""


class DistributedError(LanaxError, RuntimeError):
    """Processes do not agree, or one of them has failed, died or not come."""


class PerformanceWarning(UserWarning):
    """A loop, a branch or a whole function is left to XLA because something in it has no lane code.

    It is given once for each function, when it is compiled or, where it is left whole, called. The standard filters
    hold: `"ignore"` silences it, `"error"` raises it and `"always"` gives it each time.
    """
