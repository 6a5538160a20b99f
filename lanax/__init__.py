"""lanax: map a function over a batch, one native kernel for the whole per-example program."""

import lanax._autodiff  # registers the derivatives of a mapped call
import lanax._batching  # registers a mapped call under jax.vmap
from lanax import distributed as distributed
from lanax._api import Lowered as Lowered
from lanax._api import explain as explain
from lanax._api import vmap as vmap
from lanax._config import config as config
from lanax._config import use_plan as use_plan
from lanax._devices.placing import PositionalSharding as PositionalSharding
from lanax._devices.placing import with_sharding_constraint as with_sharding_constraint
from lanax._devices.shards import Shards as Shards
from lanax._devices.shards import device_put_sharded as device_put_sharded
from lanax._errors import CompileError as CompileError
from lanax._errors import DistributedError as DistributedError
from lanax._errors import LanaxError as LanaxError
from lanax._errors import LoweringError as LoweringError
from lanax._errors import PerformanceWarning as PerformanceWarning
from lanax._errors import PlanError as PlanError
from lanax._errors import RegistrationError as RegistrationError
from lanax._errors import RuleError as RuleError
from lanax._errors import SettingError as SettingError
from lanax._errors import UnsupportedJaxError as UnsupportedJaxError
from lanax._map import map as map
from lanax._patch import patch as patch
from lanax._patch import unpatch as unpatch
from lanax._plan import Plan as Plan
from lanax._reports.profile import Profile as Profile
from lanax._reports.profile import profile as profile
from lanax._reports.report import Report as Report
from lanax._tune import Tuning as Tuning
from lanax._tune import tune as tune

__version__ = "0.1.0"
