"""How a server's process ends, in a number; 78 is a ConfigError's."""

EXIT_DRAINED = 0
EXIT_CUT_OFF = 1
EXIT_BROKEN = 70
