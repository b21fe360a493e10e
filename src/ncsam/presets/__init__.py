"""Settings of the paper, one YAML file each; read by `ncsam.engine.config`."""
