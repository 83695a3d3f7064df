"""One module per engine. Each runs a workload named on its command line."""
