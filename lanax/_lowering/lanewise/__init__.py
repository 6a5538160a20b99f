"""What one operation means on lane values. Knows no arrays and no primitives."""
