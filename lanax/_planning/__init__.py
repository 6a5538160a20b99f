"""What is decided of a program before anything is lowered: what varies, which route, how many lanes."""
