//! The operator HTTP API under `/api/v1`, for whoever serves it. Its parts follow with the objects they answer with.
