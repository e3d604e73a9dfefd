"""What the studies share: units of work, the ledger of what is done, processes, tables, the command line."""
