"""What a search varies: frequencies of images, what varies among them, or what a narrow model reads."""
