"""Reports of runs: the HTML page and static figures."""
