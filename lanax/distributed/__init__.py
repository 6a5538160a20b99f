"""One batch over many processes, on one machine or on many: `initialize` connects them, `map` shares a batch out."""

from lanax.distributed._initialize import initialize as initialize
from lanax.distributed._initialize import local_devices as local_devices
from lanax.distributed._initialize import shutdown as shutdown
from lanax.distributed._map import map as map
from lanax.distributed._shares import share as share
