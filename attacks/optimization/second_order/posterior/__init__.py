"""Of the images that explain an update up to its errors: their mean, and the likeliest."""
