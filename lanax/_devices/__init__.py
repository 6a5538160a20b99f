"""A batch over the devices of one process: shares, placings, shardings."""
