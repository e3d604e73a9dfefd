"""What each page may be made to say: runs and matrices built to that end, and real audits."""
