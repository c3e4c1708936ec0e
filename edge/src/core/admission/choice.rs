//! Which provider a request goes to.
//!
//! Owns the comparison of candidates: least loaded by in-flight over capacity. Leaves who is a candidate to
//! [`super::provider`]. Prefix affinity and passing over failing providers belong here.

use super::provider::Provider;
use super::{Avoid, ProviderIndex};

/// The best provider with a free slot, or `None`.
pub(super) fn choose(
    candidates: &[ProviderIndex],
    providers: &[Provider],
    avoid: Option<Avoid>,
) -> Option<ProviderIndex> {
    let mut best: Option<(ProviderIndex, &Provider)> = None;
    for &index in candidates {
        let Some(provider) = providers.get(index.0 as usize) else { continue };
        if provider.free() == 0 || avoid.is_some_and(|avoid| avoid.applies(index, provider.opened)) {
            continue;
        }
        if best.is_none_or(|(_, other)| less_loaded(provider, other)) {
            best = Some((index, provider));
        }
    }
    best.map(|(index, _)| index)
}

/// Compares in-flight over capacity without division; equal loads keep the earlier one.
fn less_loaded(one: &Provider, other: &Provider) -> bool {
    u64::from(one.in_flight) * u64::from(other.spec.capacity)
        < u64::from(other.in_flight) * u64::from(one.spec.capacity)
}
