//! empty for now
