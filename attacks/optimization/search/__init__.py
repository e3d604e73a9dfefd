"""How a search moves: its steps, schedules, restarts and groups, and how it goes on after a kill."""
