"""Published rules that read labels off a classifier's gradient."""
