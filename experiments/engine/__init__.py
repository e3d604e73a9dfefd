"""What every run needs: data and model, this process or Ray, unfinished attacks, the report at the end."""
