"""Does the work: takes jobs, rewrites their files with Spark on RayDP, commits."""
