"""The running service around the core: reader, store, ingest, exposition, app."""
