"""What is told of a mapped call: `explain`, `profile`, progress and warnings."""
