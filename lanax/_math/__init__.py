"""Elementary and special functions as inline lane code for float32 and float64. Knows no jaxpr."""
