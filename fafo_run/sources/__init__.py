"""Where rows come from: one contract (`base`), and one file for each kind of source."""
