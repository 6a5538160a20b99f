"""lanax: map a function over a batch, one native kernel for the whole per-example program."""

import lanax._autodiff  # registers the derivatives of a mapped call
from lanax._api import Lowered as Lowered
from lanax._api import explain as explain
from lanax._api import vmap as vmap
from lanax._errors import CompileError as CompileError
from lanax._errors import LanaxError as LanaxError
from lanax._errors import LoweringError as LoweringError
from lanax._errors import PlanError as PlanError
from lanax._errors import RegistrationError as RegistrationError
from lanax._errors import RuleError as RuleError
from lanax._errors import UnsupportedJaxError as UnsupportedJaxError
from lanax._plan import Plan as Plan
from lanax._report import Report as Report

__version__ = "0.1.0"
