"""The command line: one file a command, and the only place that knows Rich, stdout, stderr and exit codes."""
