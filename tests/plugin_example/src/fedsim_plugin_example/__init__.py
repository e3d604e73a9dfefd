"""An attack, a defense, a data set and a model for fedsim."""
