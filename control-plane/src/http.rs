//! What the control plane answers to operators and to what watches it: the API, metrics and health.

pub(crate) mod api;
mod audit;
mod edges;
mod identities;
pub(crate) mod metrics;

#[cfg(test)]
mod tests;
