"""Where the jobs of a comparison run: on this machine, on a Ray cluster, or under Slurm."""
