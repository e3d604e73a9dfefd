"""Run folders, audits and matrices that try to make a sentence of the reports lie."""
