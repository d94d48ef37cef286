"""The same figures by sort and scan: the specification that the engine must equal."""
