"""Many runs: in worker processes on this machine or as Ray tasks, with copies at a URL."""
