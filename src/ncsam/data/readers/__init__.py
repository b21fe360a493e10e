"""Readers: one module per dataset or file format; each returns a `DataSet`."""
