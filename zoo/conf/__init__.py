"""The configuration groups; read by zoo.core.choices and zoo.core.config."""
